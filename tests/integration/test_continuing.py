"""A run whose history gets full goes on in another execution, and nobody sees it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from perdure.activities.stores.blobs import SQLBlobs
from perdure.budgets import Additions
from perdure.errors import ConnectionFailed, DecisionRejected, RunCancelled
from perdure.events import position_key
from perdure.policies import Limits
from perdure.state import CallStatus
from perdure.tools import ToolContext, ask_user, tool
from tests.integration.test_reset import reset

PATIENCE = 60

ROOM = Limits(steps=1_000, input_tokens=None, output_tokens=None)


@tool(effect="idempotent")  # one after another
async def look(q: str) -> str:
    """Look."""
    return f"result of {q}"


def script(steps: int) -> list[Any]:
    """A conversation with a text, two calls and their results at every step."""
    calls = [{"name": "look", "arguments": {"q": part}} for part in "ab"]
    turns = [
        {"text": f"text {n}", "calls": [{**one, "arguments": {"q": f"{n}{one['arguments']}"}} for one in calls]}
        for n in range(steps)
    ]
    return [*turns, {"text": "the end"}]


@pytest.fixture
def short(stage: Any) -> Any:
    """A stage whose runs continue as new after some 40 events."""
    stage.client.settings = stage.client.settings.model_copy(update={"max_history_events": 40})
    return stage


async def executions(stage: Any, run_id: str) -> list[Any]:
    """The run's executions, oldest first."""
    temporal = stage.client.temporal
    found = []
    execution = None
    while True:
        handle = temporal.get_workflow_handle(run_id, run_id=execution)
        described = await handle.describe()
        found.append(described)
        async for event in handle.fetch_history_events(page_size=1):
            execution = event.workflow_execution_started_event_attributes.continued_execution_run_id
            break
        if not execution:
            return found[::-1]


def plain(events: list[Any]) -> list[dict[str, Any]]:
    """Events without what differs from run to run."""
    differs = {"position", "time", "run_id", "duration"}
    return [event.model_dump(exclude=differs) for event in events if event.type != "worker_took_over"]


@pytest.mark.reported(44)
async def test_run_over_many_executions_is_the_run_that_one_would_have_been(stage: Any) -> None:
    agent = stage.agent(script(20), [look], limits=ROOM)
    await stage.serve(agent)
    one = await stage.end(await stage.start_again(agent))
    assert len(await executions(stage, one.handle.id)) == 1
    stage.client.settings = stage.client.settings.model_copy(update={"max_history_events": 60})
    many = await stage.end(await stage.start_again(agent))
    assert len(await executions(stage, many.handle.id)) >= 4
    assert many.projection.entries == one.state.messages
    assert plain(many.projection.events) == plain(one.projection.events)
    assert many.projection.result().calls == one.result.calls
    assert many.projection.result().before is None
    assert len(many.told("worker_took_over")) == 1
    positions = [position_key(event.position) for event in many.projection.events]
    assert positions == sorted(set(positions))


async def test_continued_run_is_listed_once_since_its_beginning(short: Any) -> None:
    done = await short.run(script(10), [look], limits=ROOM, name="listed")
    first, *_, last = await executions(short, done.handle.id)
    runs = [run for run in await short.client.list_runs(agent="listed") if run.id == done.handle.id]
    assert [(run.status, run.started_at, run.closed_at) for run in runs] == [
        ("completed", first.start_time, last.close_time)
    ]
    assert done.result.duration > last.close_time - last.start_time


@pytest.mark.long
async def test_watcher_sees_each_event_once_from_wherever_it_begins(short: Any) -> None:
    done = await short.run(script(10), [look], limits=ROOM)
    events = [event async for event in done.handle.events()]
    assert events == done.projection.events
    for index in range(0, len(events), 5):
        assert [event async for event in done.handle.events(events[index].position)] == events[index + 1 :]


# -- what waits goes along -------------------------------------------------------------------------------------


@tool(approval="always")
def book(what: str = "a room") -> str:
    """Book."""
    return f"booked {what}"


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": arguments}]}


async def pushed(stage: Any, handle: Any) -> None:
    """Fill the history of a run with signals, and wait until it goes on in another execution."""
    temporal = stage.client.temporal.get_workflow_handle(handle.id)
    before = (await temporal.describe()).run_id
    for _ in range(40):
        await stage.signal(handle, "nonsense")
    while (await temporal.describe()).run_id == before:
        await asyncio.sleep(0.02)  # the engine can only be asked


@pytest.mark.reported(20)
async def test_approval_that_was_asked_for_before_is_given_after(short: Any) -> None:
    handle = await short.start([*script(3)[:-1], call("book"), "done"], [look, book], limits=ROOM)
    asked = await short.until(handle, "approval_requested")
    await pushed(short, handle)
    await pushed(short, handle)
    while handle.id not in {run.id for run in await short.client.list_runs(status="waiting_approval")}:
        await asyncio.sleep(0.1)  # the index can only be asked
    await handle.approve(asked.call, hash=asked.hash, by="ann")
    done = await short.end(handle)
    assert done.results[-1].content == "booked a room"
    assert len(done.told("approval_requested")) == 1
    assert [(event.by, event.via) for event in done.told("approval_decided")] == [("ann", "update")]


@pytest.mark.parametrize("way", ["update", "signal"])
async def test_decision_at_the_very_moment_is_taken_once(short: Any, way: str) -> None:
    rounds = 4
    calls = [call("book", what=f"room {n}") for n in range(rounds)]
    handle = await short.start([*calls, "done"], [book], limits=ROOM)
    for n in range(rounds):
        asked = await short.until(handle, "approval_requested", nth=n + 1)
        filling = asyncio.create_task(pushed(short, handle))
        await asyncio.wait({filling}, timeout=0.1 + 0.05 * n)
        if way == "update":
            await handle.approve(asked.call, hash=asked.hash)
        else:
            await short.signal(handle, "approve", {"call": asked.call})
        await asyncio.wait({filling})
        if n < rounds - 1:  # after the last one it may have ended before
            filling.result()
    done = await short.end(handle)
    assert [result.content for result in done.results] == [f"booked room {n}" for n in range(rounds)]
    assert len(done.told("approval_decided")) == rounds


@tool
def send(letter: str) -> str:
    """Send a letter; nobody learns whether it arrived."""
    raise ConnectionError(letter)


@pytest.mark.long
async def test_questions_doubts_pauses_and_what_was_said_go_along(short: Any) -> None:
    turn = {"calls": [call("ask_user", question="Which?")["calls"][0], call("send", letter="love")["calls"][0]]}
    handle = await short.start([turn, "Both are there."], [ask_user, send], limits=ROOM)
    await short.until(handle, "asked")
    doubt = await short.until(handle, "in_doubt")
    await pushed(short, handle)
    await handle.pause(by="ann", reason="lunch")
    await pushed(short, handle)
    await handle.answer("The red one.", by="ben")
    await handle.say("Hurry.")
    await pushed(short, handle)
    with pytest.raises(DecisionRejected, match="by ann"):
        await handle.pause()
    await handle.settle(doubt.call, "done", result="delivered", by="ben")
    await handle.resume(by="ann")
    done = await short.end(handle)
    assert [result.content for result in done.results] == ["The red one.", "delivered"]
    assert [entry.content for entry in done.projection.entries if entry.role == "user"][1:] == ["Hurry."]
    by = {kind: [event.by for event in done.told(kind)] for kind in ("paused", "resumed", "answered", "settled")}
    assert by == {"paused": ["ann"], "resumed": ["ann"], "answered": ["ben"], "settled": ["ben"]}
    assert len(await executions(short, handle.id)) >= 4


async def test_run_is_cancelled_in_whichever_execution_it_is(short: Any) -> None:
    handle = await short.start([*script(6)[:-1], call("book"), "done"], [look, book], limits=ROOM)
    await short.until(handle, "approval_requested")
    await pushed(short, handle)
    await handle.cancel("enough")
    with pytest.raises(RunCancelled) as cancelled:
        await handle.result()
    assert [record.status for record in cancelled.value.result.calls] == ["ok"] * 12 + ["open"]
    done = await short.end(handle)
    assert [event.reason for event in done.told("cancel_requested")] == ["enough"]
    assert len(done.told("run_finished")) == 1


async def test_cancellation_that_comes_with_what_fills_the_history_is_not_lost(short: Any) -> None:
    handle = await short.start([call("book"), "done"], [book], limits=ROOM)
    await short.until(handle, "approval_requested")
    await short.stop()  # all of it reaches the workflow in one task
    for _ in range(60):
        await short.signal(handle, "nonsense")
    await handle.cancel("enough")
    await short.serve(*short.agents)
    with pytest.raises(RunCancelled):
        await handle.result()


# -- the store -------------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_store_that_is_down_delays_the_run_and_loses_nothing(short: Any, monkeypatch: Any) -> None:
    down, put = asyncio.Event(), SQLBlobs.put
    tries: list[str] = []

    async def refuses(self: Any, data: bytes, owner: Any) -> str:
        if down.is_set():
            return await put(self, data, owner)
        tries.append(owner)
        raise ConnectionFailed("The store is away.")

    monkeypatch.setattr(SQLBlobs, "put", refuses)
    handle = await short.start(script(8), [look], limits=ROOM)
    while len(tries) < 3:
        await asyncio.sleep(0.05)  # nothing tells
    await handle.say("Are you there?")
    down.set()
    done = await short.end(handle)
    assert done.result.status == "completed"
    assert len(done.result.calls) == 16
    assert [str(entry.content) for entry in done.projection.entries if entry.role == "user"] == ["go", "Are you there?"]


async def test_run_is_cancelled_at_once_while_it_waits_for_the_store(short: Any, monkeypatch: Any) -> None:
    tries: list[str] = []

    async def refuses(_: Any, __: bytes, owner: Any) -> str:
        tries.append(owner)
        raise ConnectionFailed("The store is away.")

    with monkeypatch.context() as away:
        away.setattr(SQLBlobs, "put", refuses)
        handle = await short.start(script(8), [look], limits=ROOM)
        while not tries:
            await asyncio.sleep(0.05)  # nothing tells
        await handle.cancel("enough")
        done = await short.end(handle)
    assert done.result.status == "cancelled"
    assert len(await executions(short, handle.id)) == 1
    assert [record.status for record in done.result.calls if record.status != "ok"] in ([], ["open"], ["open"] * 2)


@pytest.mark.long
async def test_worker_that_stops_while_it_puts_away_leaves_that_to_another(short: Any, monkeypatch: Any) -> None:
    reached, put = asyncio.Event(), SQLBlobs.put

    async def hangs(self: Any, data: bytes, owner: Any) -> str:
        if reached.is_set():
            return await put(self, data, owner)
        reached.set()
        await asyncio.sleep(PATIENCE)
        raise AssertionError

    monkeypatch.setattr(SQLBlobs, "put", hangs)
    handle = await short.start(script(8), [look], limits=ROOM)
    await asyncio.wait_for(reached.wait(), PATIENCE)
    await short.stop()
    await short.serve(*short.agents)  # with an empty memory
    done = await short.end(handle)
    assert done.result.status == "completed"
    assert len({result.content for result in done.results}) == len(done.result.calls) == 16


async def test_records_of_a_long_run_come_from_the_store_or_else_from_the_engine(short: Any, monkeypatch: Any) -> None:
    done = await short.run(script(8), [look], limits=ROOM)
    positions = [f"{step}.{index}" for step in range(1, 9) for index in (1, 2)]
    assert [record.position for record in done.result.calls] == positions
    assert done.result.before is None

    async def refuses(*_: Any) -> bytes:
        raise ConnectionFailed("The store is away.")

    monkeypatch.setattr(SQLBlobs, "get", refuses)
    assert await done.handle.result() == done.result


@pytest.mark.long
async def test_turns_of_megabytes_go_along(short: Any) -> None:
    @tool(effect="read", result_limit=200_000)
    async def dump(q: str) -> str:
        """Dump."""
        return q + "x" * 150_000

    turns = [{"calls": [{"name": "dump", "arguments": {"q": f"{n}-{m}"}} for m in range(6)]} for n in range(4)]
    handle = await short.start([*turns, call("book"), "done"], [dump, book], limits=ROOM)
    asked = await short.until(handle, "approval_requested")
    await pushed(short, handle)
    await handle.approve(asked.call)
    done = await short.end(handle)
    assert done.result.status == "completed"
    assert [result.content[:3] for result in done.results[:-1]] == [f"{n}-{m}" for n in range(4) for m in range(6)]
    sent = list(short.model.requests[-1].messages)
    assert [message.result.content[:3] for message in sent if message.role == "tool"][-3:] == ["3-4", "3-5", "boo"]


# -- going on afterwards, and resets ---------------------------------------------------------------------------


@pytest.mark.long
async def test_long_run_that_ended_is_resumed_where_it_stopped(short: Any) -> None:
    turns = [*script(8)[:-1], "not yet", *script(16)[8:]]
    handle = await short.start(turns, [look], limits=Limits(steps=9, input_tokens=None, output_tokens=None))
    first = await short.end(handle)
    assert first.result.status == "budget_exhausted"
    assert len(await executions(short, handle.id)) >= 3
    await handle.resume(Additions(steps=20))
    done = await short.end(handle)
    assert done.result.status == "completed"
    assert done.told("run_started")[0].resumed
    positions = [f"{step}.{index}" for step in [*range(1, 9), *range(10, 18)] for index in (1, 2)]
    assert [record.position for record in done.result.calls] == positions
    keys = {record.execution_order for record in done.result.calls}
    assert keys == set(range(1, 33))


async def test_reset_of_a_later_execution_is_seen_and_asks_before_effects(short: Any) -> None:
    made: list[str] = []

    @tool
    async def pay(n: int, ctx: ToolContext) -> str:
        """Pay."""
        made.append(ctx.idempotency_key)
        return f"paid {n}"

    handle = await short.start([*(call("pay", n=n) for n in range(9)), "done"], [pay], limits=ROOM)
    await short.end(handle)
    before = await executions(short, handle.id)
    assert len(before) >= 3
    assert len({key.split(":")[1] for key in made}) == 1
    await reset(short, handle.id, execution=before[1].run_id)
    assert "reset" in (await short.until(handle, "approval_requested")).why
    assert len(made) == 9, "it was repeated before anybody was asked"
    temporal = short.client.temporal.get_workflow_handle(handle.id)
    while (await temporal.describe()).status == WorkflowExecutionStatus.RUNNING:
        for waiting in (await short.state(handle)).open_calls:
            if waiting.status is CallStatus.ASKING:
                await handle.approve(waiting.position)
    done = await short.end(handle)
    assert done.result.status == "completed"
    assert len(made) == len(set(made)) > 9
    assert [result.content for result in done.results] == [f"paid {n}" for n in range(9)]
    assert (await executions(short, handle.id))[0].run_id == before[0].run_id
