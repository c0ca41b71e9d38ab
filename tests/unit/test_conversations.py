"""The cache of conversations: right whatever happened, bounded, and asking only for what is missing."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.conversations import Conversations
from perdure.messages import AssistantMessage, Entry, Segment, SegmentBody, UserMessage, content_hash
from perdure.policies import AgentSpec
from perdure.transcripts import Chain
from perdure.wire import ModelInput, Page

SPEC = AgentSpec(name="a", model="m:m")


async def nothing_away(segment: Segment) -> SegmentBody:
    raise LookupError(segment.ref)


def user(text: str) -> Entry:
    return UserMessage(role="user", content=text)


def reply(text: str) -> Entry:
    return AssistantMessage(role="assistant", text=text)


class Run:
    """A workflow, as far as model calls see it: it names its conversation, and gives it out in pages."""

    def __init__(self, name: str = "run", page: int = 100) -> None:
        self.name = name
        self.messages: list[Entry] = []
        self.pages: list[tuple[int, int]] = []
        self.sent = 0
        self._page = page

    def next_call(self, *new: Entry) -> ModelInput:
        """Return the next model call, with these messages since the last."""
        self.messages.extend(new)
        chain = Chain()
        chain.extend(self.messages)
        wanted = ModelInput(
            agent="a",
            spec=content_hash(SPEC),
            step=1,
            length=len(self.messages),
            head=chain.head(len(self.messages)),
            new=chain.contents(self.sent),
        )
        self.sent = len(self.messages)
        return wanted

    async def fetch(self, start: int, length: int) -> Page:
        self.pages.append((start, length))
        await asyncio.sleep(0)
        return Page(messages=self.messages[start : min(length, start + self._page)], spec=None if length else SPEC)

    async def ask(self, kept: Conversations, wanted: ModelInput) -> list[Entry]:
        return await kept.messages(self.name, wanted, self.fetch)


async def test_first_call_asks_the_workflow_and_later_ones_find_all_in_memory():
    kept, run = Conversations(10_000, nothing_away), Run()
    assert await run.ask(kept, run.next_call(user("go"))) == run.messages
    assert run.pages == [(0, 1)]
    for turn in range(5):
        new = [reply(f"call {turn}"), user(f"result {turn}")]
        for message in new:
            kept.remember(message)
        assert await run.ask(kept, run.next_call(*new)) == run.messages
    assert run.pages == [(0, 1)]
    assert kept.misses == 1


async def test_what_was_made_elsewhere_is_asked_for_without_what_is_known():
    kept, run = Conversations(10_000, nothing_away), Run()
    await run.ask(kept, run.next_call(user("go")))
    assert await run.ask(kept, run.next_call(reply("a"), user("b"))) == run.messages
    assert run.pages == [(0, 1), (1, 3)]


async def test_conversation_is_fetched_in_pages():
    kept, run = Conversations(10_000, nothing_away), Run(page=2)
    assert await run.ask(kept, run.next_call(*[user(str(n)) for n in range(5)])) == run.messages
    assert run.pages == [(0, 5), (2, 5), (4, 5)]


async def test_retried_call_finds_the_conversation_one_reply_ahead():
    kept, run = Conversations(10_000, nothing_away), Run()
    await run.ask(kept, run.next_call(user("go")))
    second = run.next_call(reply("a"), user("b"))
    assert await run.ask(kept, second) == run.messages
    kept.remember(reply("lost with the worker that made it"))
    assert await run.ask(kept, second) == run.messages
    assert await run.ask(kept, run.next_call(reply("c"), user("d"))) == run.messages


async def test_worker_that_missed_some_turns_finds_its_way():
    here, elsewhere, run = Conversations(10_000, nothing_away), Conversations(10_000, nothing_away), Run()
    await run.ask(here, run.next_call(user("go")))
    await run.ask(elsewhere, run.next_call(reply("a"), user("b")))
    await run.ask(elsewhere, run.next_call(reply("c"), user("d")))
    assert await run.ask(here, run.next_call(reply("e"), user("f"))) == run.messages


async def test_run_that_was_reset_gets_its_new_conversation_not_the_old_one():
    kept, run = Conversations(10_000, nothing_away), Run()
    await run.ask(kept, run.next_call(user("go")))
    await run.ask(kept, run.next_call(reply("a"), user("b")))
    run.messages, run.sent = run.messages[:1], 1
    assert await run.ask(kept, run.next_call(reply("another"), user("c"))) == run.messages
    assert [message.model_dump()["role"] for message in run.messages] == ["user", "assistant", "user"]


async def test_call_of_a_conversation_that_is_gone_is_refused_not_answered_with_another():
    kept, run = Conversations(10_000, nothing_away), Run()
    wanted = run.next_call(user("go"), reply("a"))
    run.messages[1] = reply("another")
    with pytest.raises(LookupError, match="is another one than this call was made for"):
        await run.ask(kept, wanted)
    run.messages.pop()
    with pytest.raises(LookupError, match="has fewer messages"):
        await run.ask(kept, wanted)
    run.sent = 0
    assert await run.ask(kept, run.next_call()) == run.messages


async def test_given_list_is_the_callers_own():
    kept, run = Conversations(10_000, nothing_away), Run()
    wanted = run.next_call(user("go"))
    (await run.ask(kept, wanted)).clear()
    assert await run.ask(kept, wanted) == run.messages


async def test_what_is_kept_stays_within_the_limit_and_the_least_used_goes_first():
    kept, runs = Conversations(2_000, nothing_away), [Run(f"run {n}") for n in range(20)]
    for run in runs:
        await run.ask(kept, run.next_call(user(run.name + "x" * 300)))
        await runs[0].ask(kept, runs[0].next_call())
        assert sum(one.size for one in kept._runs.values()) <= 2_000
    assert list(kept._runs)[-1] == "run 0"
    assert runs[0].pages == [(0, 1)]
    assert await runs[1].ask(kept, runs[1].next_call()) == runs[1].messages
    assert len(runs[1].pages) == 2


@pytest.mark.reported(50)
async def test_conversation_larger_than_the_limit_still_works():
    kept, run = Conversations(100, nothing_away), Run()
    for _ in range(3):
        assert await run.ask(kept, run.next_call(user("x" * 300))) == run.messages
    assert len(kept._runs) == 1


def test_messages_made_here_are_kept_within_a_quarter_of_the_limit():
    kept = Conversations(4_000, nothing_away)
    for n in range(100):
        kept.remember(user(f"{n}" * 50))
        kept.remember(user(f"{n}" * 50))
        assert sum(size for _, size in kept._fresh.values()) == kept._fresh_size <= 1_000
    assert content_hash(user("99" * 50)) in kept._fresh


async def test_size_of_a_conversation_is_right_after_it_was_cut_back():
    kept, run = Conversations(10_000, nothing_away), Run()
    first = run.next_call(user("go"))
    await run.ask(kept, first)
    await run.ask(kept, run.next_call(reply("a" * 100)))
    run.messages, run.sent = run.messages[:1], 1
    await run.ask(kept, run.next_call(reply("b")))
    assert kept._runs["run"].size == sum(len(message.model_dump_json()) for message in run.messages)


@given(st.data())
def test_every_worker_gives_every_run_its_own_conversation(data):
    async def play() -> None:
        workers = [Conversations(data.draw(st.sampled_from([0, 400, 100_000])), nothing_away) for _ in range(2)]
        runs = [Run("one", page=2), Run("two", page=2)]
        for turn in range(data.draw(st.integers(1, 12))):
            worker, run = data.draw(st.sampled_from(workers)), data.draw(st.sampled_from(runs))
            new = [reply(f"{turn}"), user(data.draw(st.sampled_from(["same", f"own {turn}"])))]
            for message in new if data.draw(st.booleans()) else []:
                worker.remember(message)
            if data.draw(st.booleans()) and run.sent > 2:
                run.messages, run.sent = run.messages[: run.sent - 2], run.sent - 2
            wanted = run.next_call(*new)
            for _ in range(data.draw(st.integers(1, 2))):
                assert await run.ask(worker, wanted) == run.messages

    asyncio.run(play())


async def test_runs_at_once_do_not_disturb_each_other():
    kept, runs = Conversations(3_000, nothing_away), [Run(f"run {n}", page=1) for n in range(10)]

    async def play(run: Run) -> None:
        for turn in range(10):
            assert await run.ask(kept, run.next_call(reply(f"{run.name} {turn}"), user("same"))) == run.messages

    await asyncio.gather(*(play(run) for run in runs))


async def test_two_calls_of_one_run_at_once_both_get_it_right():
    kept, run = Conversations(10_000, nothing_away), Run(page=1)
    wanted = run.next_call(user("go"), reply("a"), user("b"))
    both = await asyncio.gather(run.ask(kept, wanted), run.ask(kept, wanted))
    assert list(both) == [run.messages, run.messages]


async def test_spec_of_the_served_agent_is_taken_where_it_is_the_one_asked_for():
    kept, run = Conversations(10_000, nothing_away), Run()
    assert await kept.spec(run.next_call(), SPEC, run.fetch) == SPEC
    assert run.pages == []


async def test_spec_that_was_deployed_over_is_asked_of_the_workflow_once():
    kept, run = Conversations(10_000, nothing_away), Run()
    deployed = SPEC.model_copy(update={"instructions": "New."})
    for known in (deployed, None, deployed):
        assert await kept.spec(run.next_call(), known, run.fetch) == SPEC
    assert run.pages == [(0, 0)]


async def test_the_next_turn_of_a_session_begins_with_what_the_last_one_has_in_memory():
    kept, first, second = Conversations(10_000, nothing_away), Run("s.1"), Run("s.2")
    await first.ask(kept, first.next_call(user("one")))
    answer = reply("answer")
    kept.remember(answer)
    first.messages.append(answer)
    second.messages, second.sent = list(first.messages), 1
    await first.ask(kept, first.next_call(user("closing note")))
    second.sent = len(second.messages)
    assert await second.ask(kept, second.next_call(user("two"))) == second.messages
    assert second.pages == [(2, 3)]
    third = Run("other")
    third.messages, third.sent = [user("another"), reply("beginning")], 2
    assert await third.ask(kept, third.next_call(user("three"))) == third.messages
    assert third.pages == [(0, 3)]
