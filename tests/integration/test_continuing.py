"""A run whose history gets full goes on in another execution, and nobody sees it."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.events import position_key
from perdure.policies import Limits
from perdure.tools import tool

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
    """A stage whose runs continue as new after some 60 events."""
    stage.client.settings = stage.client.settings.model_copy(update={"max_history_events": 60})
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


async def test_watcher_sees_each_event_once_from_wherever_it_begins(short: Any) -> None:
    done = await short.run(script(10), [look], limits=ROOM)
    events = [event async for event in done.handle.events()]
    assert events == done.projection.events
    for index in range(0, len(events), 5):
        assert [event async for event in done.handle.events(events[index].position)] == events[index + 1 :]
