"""The catalogue, and what holds for every use of the store."""

import asyncio
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest

from perdure.activities.stores import CatalogueEntry, open_store, store_url
from perdure.errors import ConnectionFailed
from perdure.messages import content_hash
from perdure.policies import AgentSpec, Limits, ToolSpec
from perdure.settings import Settings

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
TOOL = ToolSpec(name="look", description="Looks.", parameters={"type": "object"}, timeout=timedelta(seconds=1.5))

ANNOUNCE = """
import asyncio, sys
from perdure.activities.stores import CatalogueEntry, open_store

async def main():
    store = open_store(sys.argv[1])
    await store.announce(CatalogueEntry.model_validate_json(sys.argv[2]))
    await store.aclose()

sys.stdin.readline()
asyncio.run(main())
"""


def entry(agent="travel", task_queue="q1", namespace="default", minutes=0, **spec):
    whole = AgentSpec(name=agent, model="openai:m", **spec)
    return CatalogueEntry(
        namespace=namespace,
        agent=agent,
        task_queue=task_queue,
        hash=content_hash(whole),
        spec=whole,
        source="agents.py",
        seen_at=NOON + timedelta(minutes=minutes),
    )


async def test_a_new_store_knows_no_agent(store):
    assert await store.agents() == []
    assert await store.find("travel") == []


async def test_an_announced_agent_comes_back_whole(store):
    whole = entry(instructions="Be brief. 简短", tools=[TOOL], limits=Limits(steps=3))
    await store.announce(whole)
    assert await store.agents() == [whole]
    assert content_hash((await store.find("travel"))[0].spec) == whole.hash


async def test_it_is_still_there_for_another_process(store, url):
    await store.announce(entry())
    other = open_store(url)
    assert await other.find("travel") == [entry()]
    await other.aclose()


async def test_announcing_again_replaces_what_its_queue_said_before(store):
    await store.announce(entry())
    await store.announce(entry(minutes=5, instructions="new"))
    assert await store.agents() == [entry(minutes=5, instructions="new")]


async def test_one_agent_on_two_queues_and_namespaces_is_three_entries_the_last_seen_first(store):
    await store.announce(entry(task_queue="q1", minutes=1))
    await store.announce(entry(task_queue="q2", minutes=3))
    await store.announce(entry(namespace="other", minutes=2))
    await store.announce(entry(agent="zoo", minutes=9))
    assert [(e.namespace, e.task_queue) for e in await store.find("travel")] == [
        ("default", "q2"),
        ("other", "q1"),
        ("default", "q1"),
    ]


async def test_agents_are_listed_by_name_and_namespace(store):
    await store.announce(entry(agent="b"))
    await store.announce(entry(agent="a"))
    await store.announce(entry(agent="c", namespace="other"))
    assert [e.agent for e in await store.agents()] == ["a", "b", "c"]
    assert [e.agent for e in await store.agents("default")] == ["a", "b"]
    assert await store.find("c", "default") == []


async def test_a_worker_that_serves_other_agents_now_replaces_its_queues_and_no_others(store):
    await store.announce_all("default", "q1", [entry("a"), entry("b")])
    await store.announce_all("default", "q2", [entry("b", "q2")])
    await store.announce_all("other", "q1", [entry("a", namespace="other")])
    await store.announce_all("default", "q1", [entry("a", minutes=1), entry("c")])
    assert [(e.agent, e.task_queue) for e in await store.agents("default")] == [("a", "q1"), ("b", "q2"), ("c", "q1")]
    await store.announce_all("default", "q1", [])
    assert [(e.namespace, e.agent) for e in await store.agents()] == [("other", "a"), ("default", "b")]


async def test_entries_of_another_queue_are_refused_and_nothing_is_kept(store):
    with pytest.raises(ValueError, match="queue 'q1'"):
        await store.announce_all("default", "q1", [entry(task_queue="q1"), entry(task_queue="q2")])
    assert await store.agents() == []


async def test_a_moment_in_another_time_zone_is_the_same_moment(store):
    beijing = entry().model_copy(update={"seen_at": NOON.astimezone(timezone(timedelta(hours=8)))})
    await store.announce(beijing)
    (found,) = await store.agents()
    assert found.seen_at == NOON
    assert found.seen_at.utcoffset() == timedelta(0)


async def test_many_announcing_at_once_lose_nothing(store):
    entries = [entry(f"a{number:02}", f"q{number % 3}") for number in range(30)]
    await asyncio.gather(*(store.announce(each) for each in entries))
    assert [e.agent for e in await store.agents()] == [e.agent for e in entries]


async def test_workers_of_one_queue_announcing_at_once_leave_what_one_of_them_said(url):
    stores = [open_store(url) for _ in range(6)]
    said = [[entry(f"a{number}"), entry("shared", minutes=number), entry(f"z{-number}")] for number in range(6)]
    await asyncio.gather(*(s.announce_all("default", "q1", each) for s, each in zip(stores, said, strict=True)))
    assert await stores[0].agents() in said
    await asyncio.gather(*(s.aclose() for s in stores))


@pytest.mark.long
async def test_first_processes_starting_at_once_all_make_do_with_one_set_of_tables(url):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ANNOUNCE, url, entry(f"a{number}").model_dump_json()],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for process in processes:  # all are ready before the first may go
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    errors = await asyncio.gather(*(asyncio.to_thread(process.communicate) for process in processes))
    assert [error for _, error in errors] == [""] * 4
    store = open_store(url)
    assert [e.agent for e in await store.agents()] == ["a0", "a1", "a2", "a3"]
    await store.aclose()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (
            "postgresql://me:hunter2@127.0.0.1:1/db",
            r"postgresql://me:\*\*\*@127\.0\.0\.1:1/db can't be used: ",
        ),
        ("postgresql://nowhere.invalid/db", "nowhere.invalid/db can't be used: "),
        ("sqlite:////dev/null/store.db", "can't be used: "),
    ],
)
async def test_a_store_that_is_down_is_one_quick_sentence_without_the_password(address, words):
    store = open_store(address)
    async with asyncio.timeout(8):
        with pytest.raises(ConnectionFailed, match=f"^The store at .*{words}[^\n]+\\.$") as caught:
            await store.announce_all("default", "q", [])
    assert "hunter2" not in str(caught.value)
    await store.aclose()


async def test_a_file_that_is_no_database_is_one_sentence(tmp_path):
    (tmp_path / "store.db").write_text("hello " * 1000)
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    with pytest.raises(ConnectionFailed, match=r"can't be used: file is not a database\.$"):
        await store.agents()
    await store.aclose()


async def test_a_store_that_comes_back_is_used_again(tmp_path):
    (tmp_path / "home").touch()
    store = open_store(f"sqlite:///{tmp_path / 'home' / 'store.db'}")
    with pytest.raises(ConnectionFailed):
        await store.announce(entry())
    (tmp_path / "home").unlink()
    await store.announce(entry())
    assert await store.agents() == [entry()]
    await store.aclose()


@pytest.mark.parametrize("address", ["", "hello", "mysql://localhost/db", "http://127.0.0.1", "postgresql://h:port/db"])
def test_an_address_of_something_else_says_what_it_has_to_be(address):
    with pytest.raises(ConnectionFailed, match=r"^A store's address is sqlite:///PATH or postgresql://"):
        open_store(address)


async def test_without_a_setting_the_store_is_a_file_in_the_home_folder(tmp_path):
    folder = tmp_path / "100% mine?" / ".perdure"
    store = open_store(store_url(Settings(home=folder, store=None)))
    await store.announce(entry())
    await store.aclose()
    assert (folder / "store.db").exists()


def test_the_setting_names_the_store():
    assert store_url(Settings(store="postgresql://db/perdure")) == "postgresql://db/perdure"


def test_a_forgotten_store_does_not_keep_the_process_alive(tmp_path):
    code = (
        "import asyncio\nfrom perdure.activities.stores import open_store\n"
        f"asyncio.run(open_store('sqlite:///{tmp_path}/store.db').agents())"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
