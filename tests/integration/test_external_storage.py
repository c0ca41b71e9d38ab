"""What is too large for a history goes through the store: nothing is wedged or lost, and the history is small."""

import asyncio
from contextlib import aclosing

import pytest

from perdure import worker
from perdure.activities import stores
from perdure.client import Client
from perdure.errors import ConnectionFailed, PerdureError
from perdure.messages import UserMessage
from perdure.policies import ContextPolicy, Limits
from perdure.tools import tool

pytestmark = pytest.mark.long

ROOM = Limits(input_tokens=None, output_tokens=None)
WIDE = ContextPolicy(window=100_000_000)
MEGABYTE = "0123456789" * 100_000


@tool(effect="read")
def look(text: str = "") -> int:
    """Look."""
    return len(text)


def looking(*texts):
    return {"calls": [{"name": "look", "arguments": {"text": text}} for text in texts]}


LONG = [looking(f"{n}{MEGABYTE[:750_000]}") for n in range(3)]
"""Three turns; what they ask for is more together than a history takes at once."""
REFUSED = ROOM.model_copy(update={"calls_per_tool": {"look": 0}})
"""Limits under which it is asked for and not done: else the run would continue as new before its end."""

NO_KEY = {"error": {"kind": "authentication", "message": "no"}}


async def history(stage, handle):
    workflow = stage.client.temporal.get_workflow_handle(handle.id)
    return [event async for event in workflow.fetch_history_events()]


def size(events):
    return sum(event.ByteSize() for event in events)


# -- what a run says of itself ---------------------------------------------------------------------------------


async def test_a_result_of_a_run_may_be_larger_than_a_history_takes(stage):
    done = await stage.run([*LONG, "done"], [look], context=WIDE, limits=REFUSED)
    assert (done.result.status, done.result.text) == ("completed", "done")
    assert [call.arguments["text"] for call in done.result.calls] == [f"{n}{MEGABYTE[:750_000]}" for n in range(3)]
    assert (await history(stage, done.handle))[-1].ByteSize() < 2_000


@pytest.mark.reported(4)
async def test_a_failed_run_keeps_its_partial_result_however_large(stage):
    done = await stage.run([*LONG, NO_KEY], [look], context=WIDE, limits=REFUSED)
    assert done.result.status == "failed"
    assert [len(call.arguments["text"]) for call in done.result.calls] == [750_001] * 3
    assert (await history(stage, done.handle))[-1].ByteSize() < 2_000


async def test_a_run_with_a_large_state_is_resumed(stage):
    last = ["done", NO_KEY]
    failed = await stage.run([*LONG, lambda _: last.pop()], [look], context=WIDE, limits=REFUSED)
    assert failed.result.status == "failed"
    await failed.handle.resume()
    done = await stage.end(failed.handle)
    assert (done.result.status, len(done.result.calls)) == ("completed", 3)
    assert (await history(stage, done.handle))[0].ByteSize() < 2_000


# -- what it is given ------------------------------------------------------------------------------------------


async def test_a_large_task_is_in_the_history_by_reference_alone(stage):
    done = await stage.run([looking("x"), "done"], [look], task=MEGABYTE * 8, context=WIDE, limits=ROOM)
    assert done.result.status == "completed"
    assert {request.messages[0].content for request in stage.model.requests} == {MEGABYTE * 8}
    assert size(await history(stage, done.handle)) < 20_000


async def test_a_task_that_no_run_could_take_is_refused_with_what_to_do_instead(stage):
    with pytest.raises(PerdureError, match=r"40,0.* bytes; at most 16,000,000 .* a tool"):
        await stage.start(["x"], task=MEGABYTE * 40)


async def test_a_large_message_reaches_the_model_with_and_without_a_worker(stage):
    @tool(approval="always")
    def act() -> str:
        """Act."""
        return ""

    handle = await stage.start([{"calls": [{"name": "act"}]}, "one", "two"], [act], context=WIDE, limits=ROOM)
    await stage.until(handle, "approval_requested")
    await handle.say(MEGABYTE * 3)
    await stage.stop()
    assert (await handle.say(MEGABYTE * 2)).reason == "queued"
    await stage.serve(*stage.agents)
    await handle.approve()
    done = await stage.end(handle)
    said = [str(message.content) for message in done.state.messages if isinstance(message, UserMessage)]
    assert [text for text in said if text.startswith(MEGABYTE)] == [MEGABYTE * 3, MEGABYTE * 2]
    assert size(await history(stage, handle)) < 40_000


async def test_a_message_that_no_run_could_take_is_refused(stage):
    handle = await stage.start([{"calls": [{"name": "look"}]}, "x"], [look])
    with pytest.raises(PerdureError, match="at most 16,000,000"):
        await handle.say(MEGABYTE * 17)


# -- many at once ----------------------------------------------------------------------------------------------


async def test_32_results_and_arguments_at_once_pass_what_one_message_of_the_engine_takes(stage):
    @tool(effect="read", result_limit=200_000)
    def give(number: int, text: str) -> str:
        """Give."""
        return f"{number:09}," * 20_000

    calls = [{"name": "give", "arguments": {"number": n, "text": "a" * 40_000}} for n in range(32)]
    limits = ROOM.model_copy(update={"parallel_reads": 32})
    done = await stage.run([{"calls": calls}, "done"], [give], context=WIDE, limits=limits)
    assert done.result.status == "completed"
    assert [result.content[:9] for result in done.results] == [f"{n:09}" for n in range(32)]
    assert {len(result.content) for result in done.results} == {200_000}


@pytest.mark.parametrize("letter", ["x", "\0", "字"], ids=["ascii", "escaped", "chinese"])
async def test_64_local_results_are_recorded_together(stage, letter):
    @tool(effect="read", local=True, result_limit=200_000)
    def give(number: int) -> object:
        """Give."""
        return f"{number:03}{letter * 200_000}"

    calls = [{"name": "give", "arguments": {"number": n}} for n in range(64)]
    limits = ROOM.model_copy(update={"parallel_reads": 64, "calls_per_turn": 64})
    done = await stage.run([{"calls": calls}, "done"], [give], context=WIDE, limits=limits)
    assert done.result.status == "completed"
    assert [result.content[:3] for result in done.results] == [f"{n:03}" for n in range(64)]
    assert all(5_000 < len(result.content.encode()) <= 32_768 and result.ref for result in done.results)


@pytest.mark.reported(5)
async def test_32_large_results_at_once_are_a_small_part_of_the_history(stage):
    @tool(effect="read")
    def give(number: int) -> str:
        """Give."""
        return f"{number:09}," * 200_000

    calls = [{"name": "give", "arguments": {"number": n}} for n in range(32)]
    done = await stage.run([{"calls": calls}, "done"], [give], context=WIDE, limits=ROOM)
    assert {result.size for result in done.results} == {2_000_000}
    assert len({result.ref for result in done.results}) == 32
    assert size(await history(stage, done.handle)) < 32 * 2 * 65_536


async def test_a_large_result_of_a_tool_elsewhere_comes_through_and_is_cut(stage):
    await stage.serve_elsewhere(lambda arguments: MEGABYTE * 3)
    done = await stage.run([{"calls": [{"name": "act"}]}, "x"], [stage.elsewhere()], context=WIDE, limits=ROOM)
    [result] = done.results
    assert (result.status, result.size, result.ref, len(result.content)) == ("ok", 3_000_000, None, 65_536)


# -- a store that is away --------------------------------------------------------------------------------------


@pytest.fixture
def away(monkeypatch, stage_settings):
    """Takes away the store of workers, once it is set."""
    gone = asyncio.Event()

    class Away:
        def __init__(self):
            self._store = stores.store_of(stage_settings)

        def __getattr__(self, name):
            if name in ("put", "get") and gone.is_set():
                raise ConnectionFailed("The store is away.")
            return getattr(self._store, name)

        async def aclose(self):
            await self._store.aclose()

    monkeypatch.setattr(worker, "opened", lambda _: aclosing(Away()))
    return gone


async def until_fault(handle):
    async for event in handle.events():
        if event.type == "runtime_fault":
            return event.message
    pytest.fail("no fault is told")


async def test_a_store_that_is_away_delays_a_run_that_needs_it_and_fails_nothing(stage, away):
    agent = stage.agent([looking("x"), "done"], [look], context=WIDE, limits=ROOM)
    await stage.serve(agent)
    away.set()
    handle = await stage.client.start(agent, MEGABYTE, task_queue=stage.queue)
    assert "The store is away." in await asyncio.wait_for(until_fault(handle), 30)
    away.clear()
    result = await asyncio.wait_for(handle.result(), 60)
    assert (result.status, result.text) == ("completed", "done")


async def test_a_result_that_the_store_can_not_take_yet_is_given_later(stage, away):
    agent = stage.agent([*LONG, lambda _: away.set() or "done"], [look], context=WIDE, limits=REFUSED)
    await stage.serve(agent)
    handle = await stage.client.start(agent, "go", task_queue=stage.queue)
    assert "The store is away." in await asyncio.wait_for(until_fault(handle), 30)
    away.clear()
    result = await asyncio.wait_for(handle.result(), 60)
    assert (result.status, len(result.calls)) == ("completed", 3)


async def test_an_effect_of_large_arguments_and_report_needs_no_store(stage, away):
    ledger = []

    @tool(result_limit=200_000)
    def act(text: str) -> str:
        """Act."""
        ledger.append(text)
        return "\0" * 200_000

    away.set()
    script = [{"calls": [{"name": "act", "arguments": {"text": MEGABYTE}}]}, lambda _: away.clear() or "done"]
    done = await stage.run(script, [act], context=WIDE, limits=ROOM)
    assert [(result.status, result.size, len(result.content)) for result in done.results] == [("ok", None, 200_000)]
    assert ledger == [MEGABYTE]


async def test_whoever_can_not_reach_the_store_is_told_so_and_starts_nothing(stage):
    agent = stage.agent(["x"])
    await stage.serve(agent)

    nowhere = stage.client.settings.model_copy(update={"store": "postgresql://u@127.0.0.1:1/none"})
    client = Client(stage.client.temporal, nowhere)
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1"):
        await client.start(agent, MEGABYTE, id="never-started", task_queue=stage.queue)
    handle = await client.start(agent, "small", task_queue=stage.queue)
    assert (await handle.result()).text == "x"
