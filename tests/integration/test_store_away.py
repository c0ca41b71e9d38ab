"""A store that goes away just after an effect, for real: nothing is done twice, and nothing is lost when it is back."""

import asyncio
import logging
from contextlib import aclosing

import pytest

from perdure.activities.stores import open_store, store_url
from perdure.messages import blob_ref
from perdure.policies import Limits
from perdure.tools import tool
from perdure.wire import after_id
from tests.chaos.cable import Cable
from tests.conformance import conftest as databases
from tests.integration.archiving import archived, until

postgres_server, postgres_url = databases.postgres_server, databases.postgres_url
ROOM = Limits(input_tokens=None)
BOOK = "".join(f"line {number}\n" for number in range(20_000))


@pytest.fixture
def noticed():
    """Set when a worker has noticed that its store is away."""
    event, loop = asyncio.Event(), asyncio.get_event_loop()

    class Listener(logging.Handler):
        def emit(self, record):
            loop.call_soon_threadsafe(event.set)

    listener, logger = Listener(), logging.getLogger("perdure.store")
    logger.addHandler(listener)
    yield event
    logger.removeHandler(listener)


async def act_and_lose_the_store(stage, settings, lose, find_again, noticed):
    """Run a tool in whose body the store is lost, find the store again once that is noticed, and return its result."""
    ledger = []

    @tool(timeout=1)
    def act() -> str:
        """Act."""
        ledger.append("done")
        lose()
        return BOOK

    agent = stage.agent([{"calls": [{"name": "act"}]}, "x"], [act], limits=ROOM)
    await stage.serve(agent, settings=settings)
    handle = await stage.start_again(agent)
    await asyncio.wait_for(noticed.wait(), 60)
    find_again()
    done = await stage.end(handle)
    assert ledger == ["done"]
    [result] = done.results
    assert (result.status, result.ref) == ("ok", blob_ref(BOOK.encode()))
    async with aclosing(open_store(store_url(settings))) as store:
        assert await store.get(result.ref) == BOOK.encode()


async def test_a_folder_that_can_not_be_written_delays_the_report_and_repeats_nothing(
    stage, stage_settings, tmp_path, noticed
):
    settings = stage_settings.model_copy(update={"store": f"sqlite:///{tmp_path / 'store.db'}"})
    blobs, away = tmp_path / "blobs", tmp_path / "away"
    blobs.mkdir()

    def lose():
        blobs.rename(away)
        blobs.write_text("no folder")

    def find_again():
        blobs.unlink()
        away.rename(blobs)

    await act_and_lose_the_store(stage, settings, lose, find_again, noticed)


async def test_a_database_that_can_not_be_reached_delays_the_report_and_repeats_nothing(
    stage, stage_settings, postgres_url, noticed
):
    server = postgres_url.rpartition("@")[2].partition("/")[0]
    async with Cable.to(server) as cable:
        settings = stage_settings.model_copy(update={"store": postgres_url.replace(server, cable.address)})
        loop = asyncio.get_running_loop()
        await act_and_lose_the_store(
            stage, settings, lambda: loop.call_soon_threadsafe(cable.pull), cable.plug, noticed
        )
        await stage.stop()


async def test_at_the_end_of_a_run_its_archive_waits_for_the_store_and_its_answer_does_not(
    stage, stage_settings, tmp_path
):
    settings = stage_settings.model_copy(update={"store": f"sqlite:///{tmp_path / 'store.db'}"})
    stage.client.settings = settings
    agent = stage.agent(["Here you are."])
    await stage.serve(agent, settings=settings)
    blobs, away = tmp_path / "blobs", tmp_path / "away"
    blobs.mkdir(exist_ok=True)
    blobs.rename(away)
    blobs.write_text("no folder")
    handle = await stage.start_again(agent)
    assert (await asyncio.wait_for(handle.result(), 60)).text == "Here you are."
    described = await stage.client.temporal.get_workflow_handle(handle.id).describe()
    follower = stage.client.temporal.get_workflow_handle(after_id(handle.id, described.run_id[-12:]))

    async def tried_again():
        pending = (await follower.describe()).raw_description.pending_activities
        return any(one.attempt > 1 for one in pending)

    await until(tried_again)
    async with stage.client.store() as store:
        assert await store.archived("default", handle.id) is None
        assert [run.archived for run in await stage.client.list_runs(limit=1000) if run.id == handle.id] == [False]
        blobs.unlink()
        away.rename(blobs)
        kept = await archived(stage, handle.id)
        assert kept.result
        assert (kept.status, kept.result.text) == ("completed", "Here you are.")
    await asyncio.wait_for(follower.result(), 60)
