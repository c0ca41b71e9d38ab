"""A run is read from the archive once the engine has forgotten it, as if it had not."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.service import RPCError

from perdure.activities import afterwards
from perdure.client import Client
from perdure.errors import DecisionRejected, RunCancelled, RunFailed, RunNotFound
from perdure.tools import tool
from perdure.wire import after_id
from tests.integration.archiving import archived, delete, executions
from tests.integration.test_continuing import ROOM, look, script

PAYING = [{"calls": [{"name": "pay", "arguments": {}}]}, "done"]


@tool(approval="always")
async def pay() -> str:
    """Pay."""
    return "paid"


async def events_of(handle: Any, after: str = "") -> list[Any]:
    return [event async for event in handle.events(after)]


async def paid(stage: Any) -> Any:
    """A run with an approval that is in the archive."""
    handle = await stage.start(PAYING, [pay])
    await stage.until(handle, "approval_requested")
    await handle.approve(by="ann")
    finished = await stage.end(handle)
    await archived(stage, handle.id)
    return finished


async def test_what_a_run_tells_from_the_archive_is_what_it_told_before(stage: Any, forgetful: Any) -> None:
    finished = await paid(stage)
    handle = forgetful.handle(finished.handle.id)
    projection = await handle.projection()
    assert projection.events == finished.projection.events
    assert projection.state == finished.projection.state
    assert await handle.result() == finished.result


async def test_watching_an_archived_run_yields_the_same_events_from_anywhere(stage: Any, forgetful: Any) -> None:
    finished = await paid(stage)
    handle, events = forgetful.handle(finished.handle.id), finished.projection.events
    assert await events_of(handle) == events
    for index, event in enumerate(events):
        assert await events_of(handle, event.position) == events[index + 1 :]


async def continued(stage: Any) -> tuple[Any, list[str]]:
    """A run over many executions that is in the archive, and their names, the last one first."""
    stage.client.settings = stage.client.settings.model_copy(update={"max_history_events": 60})
    finished = await stage.run(script(10), [look], limits=ROOM)
    names = [name async for name in executions(stage, finished.handle.id)]
    assert len(names) >= 3
    await archived(stage, finished.handle.id, len(names))
    return finished, names


async def test_a_run_over_many_executions_is_whole_in_the_archive(stage: Any, forgetful: Any) -> None:
    finished, _ = await continued(stage)
    handle, events = forgetful.handle(finished.handle.id), finished.projection.events
    for last in (False, True):
        before = await finished.handle.projection(last=last)
        after = await handle.projection(last=last)
        assert after.events == before.events
        assert after.entries == before.entries
    for index in range(0, len(events), 10):
        assert await events_of(handle, events[index].position) == events[index + 1 :]
    assert (await handle.result()).calls == finished.projection.records


async def test_a_first_look_that_comes_too_early_is_made_up_for(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(afterwards, "_LOCALLY", 0.0)
    done = await stage.run(["done"])
    temporal = stage.client.temporal
    execution = (await temporal.get_workflow_handle(done.handle.id).describe()).run_id
    await asyncio.wait_for(temporal.get_workflow_handle(after_id(done.handle.id, execution[-12:])).result(), 60)


@pytest.mark.long
async def test_executions_that_the_engine_has_forgotten_come_from_the_archive(stage: Any) -> None:
    finished, (*later, second, first) = await continued(stage)
    assert later
    events = finished.projection.events
    await delete(stage.client.temporal, finished.handle.id, first)
    assert await events_of(finished.handle) == events
    await delete(stage.client.temporal, finished.handle.id, second)
    assert await events_of(finished.handle) == events
    assert await events_of(finished.handle, events[3].position) == events[4:]


async def test_a_run_that_was_resumed_is_in_the_archive_what_it_became(stage: Any, forgetful: Any) -> None:
    replies = [{"calls": [{"name": "look", "arguments": {"q": "x"}}]}, "half", "all"]
    finished = await stage.run(replies, [look], limits=ROOM.model_copy(update={"steps": 2}))
    await finished.handle.resume(add_steps=3)
    resumed = await stage.end(finished.handle)
    await archived(stage, finished.handle.id, executions=2)
    handle = forgetful.handle(finished.handle.id)
    assert await events_of(handle) == resumed.projection.events
    assert (await handle.result()).text == "all"


async def test_the_result_of_a_cancelled_run_is_raised_from_the_archive(stage: Any, forgetful: Any) -> None:
    handle = await stage.start(PAYING, [pay])
    await stage.until(handle, "approval_requested")
    await handle.cancel("enough")
    finished = await stage.end(handle)
    await archived(stage, handle.id)
    with pytest.raises(RunCancelled) as raised:
        await forgetful.handle(handle.id).result()
    assert raised.value.result == finished.result


async def test_the_result_of_a_failed_run_is_raised_from_the_archive(
    stage: Any, forgetful: Any, raw_model: Any
) -> None:
    def broken(_: Any) -> None:
        raise RuntimeError("a defect")

    finished = await stage.run(raw_model(broken))
    await archived(stage, finished.handle.id)
    with pytest.raises(RunFailed) as raised:
        await forgetful.handle(finished.handle.id).result()
    assert raised.value.result == finished.result


async def test_nothing_can_be_said_to_a_run_that_is_in_the_archive_alone(stage: Any, forgetful: Any) -> None:
    handle = forgetful.handle((await paid(stage)).handle.id)
    for saying in (handle.say("hello"), handle.cancel(), handle.resume(), handle.pause()):
        with pytest.raises(DecisionRejected, match="has ended") as raised:
            await saying
        assert raised.value.reason == "closed"


async def test_a_run_that_neither_knows_is_not_found(stage: Any) -> None:
    handle = stage.client.handle("nobody")
    for asking in (handle.result(), handle.projection(), handle.say("hello"), handle.resume()):
        with pytest.raises(RunNotFound, match="no run 'nobody'"):
            await asking
    with pytest.raises(RunNotFound):
        await events_of(handle)


async def test_runs_in_the_archive_alone_are_listed_after_those_of_the_engine(stage: Any, forgetful: Any) -> None:
    agent = stage.agent(["done"], name="librarian")
    await stage.serve(agent)
    ids = [(await stage.end(await stage.start_again(agent))).handle.id for _ in range(2)]
    for run_id in ids:
        await archived(stage, run_id)

    async def listed(client: Any, **more: Any) -> list[tuple[str, bool]]:
        return [(run.id, run.archived) for run in await client.list_runs(agent="librarian", **more)]

    assert await listed(stage.client) == [(ids[1], False), (ids[0], False)]
    assert await listed(forgetful) == [(ids[1], True), (ids[0], True)]
    assert await listed(forgetful, status="completed", limit=1) == [(ids[1], True)]
    for status in ("failed", "running"):
        assert await listed(forgetful, status=status) == []


async def test_a_run_that_was_resumed_is_not_listed_by_the_status_that_the_archive_has_of_it(stage: Any) -> None:
    replies = [{"calls": [{"name": "look", "arguments": {"q": "x"}}]}, {"calls": [{"name": "pay", "arguments": {}}]}]
    finished = await stage.run([*replies, "all"], [look, pay], limits=ROOM.model_copy(update={"steps": 1}))
    await archived(stage, finished.handle.id)
    await finished.handle.resume(add_steps=9)
    ended = await stage.client.list_runs(status=finished.result.status, limit=1000)
    assert finished.handle.id not in [run.id for run in ended]


async def test_the_same_id_twice_is_one_run_also_where_the_archive_alone_has_it(stage: Any, forgetful: Any) -> None:
    source, (agent,) = await paid(stage), stage.agents
    run_id = source.handle.id
    again, other = [await forgetful.start(agent, task, id=run_id, task_queue=stage.queue) for task in ("go", "stop")]
    assert (again.existing, again.same_task) == (True, True)
    assert (other.existing, other.same_task) == (True, False)
    assert await again.result() == source.result
    fork = await forgetful.handle(run_id).fork(1, id=run_id)
    assert (fork.existing, fork.same_task) == (True, False)
    with pytest.raises(RPCError, match="not found"):
        await forgetful.temporal.get_workflow_handle(run_id).describe()


async def test_a_run_is_begun_though_the_archive_can_not_be_asked(stage: Any, tmp_path: Path) -> None:
    agent = stage.agent(["done"])
    await stage.serve(agent)
    away = stage.client.settings.model_copy(update={"store": f"sqlite:///{tmp_path}"})
    handle = await Client(stage.client.temporal, away).start(
        agent, "go", id=f"once-{stage.queue}", task_queue=stage.queue
    )
    assert not handle.existing
    assert (await stage.client.handle(handle.id).result()).status == "completed"


async def test_the_engine_is_asked_once_for_many_runs_that_it_may_have_forgotten(
    stage: Any, forgetful: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perdure import archive
    from perdure.activities.stores import ArchivedRun

    finished = await stage.run(["done"], name="clerk-of-many")
    run = await archived(stage, finished.handle.id)
    async with stage.client.store() as store:
        long_ago = run.started_at - timedelta(days=3)
        for number in range(120):
            times = {"started_at": long_ago - timedelta(minutes=number), "closed_at": long_ago}
            old = ArchivedRun.model_validate({**run.model_dump(), **times, "run_id": f"it's old {number}"})
            await store.archive(old, f"old {number}", run.histories[0])
    asked: list[str] = []
    listing = stage.client.temporal.list_workflows

    async def described(client: Any, run_id: str) -> bool:
        asked.append(run_id)
        return True

    def listed(query: str, **options: Any) -> Any:
        asked.append(query)
        return listing(query, **options)

    monkeypatch.setattr(stage.client.temporal, "list_workflows", listed)
    monkeypatch.setattr(archive, "forgotten", described)
    runs = await stage.client.list_runs(agent="clerk-of-many", limit=200)
    assert [one.archived for one in runs] == [False, *(True,) * 120]
    assert len([query for query in asked if "WorkflowId IN" in query]) == 2
    assert len(asked) < 8
