"""Who did what to runs: seen while they are open, written down at each of their ends, each deed once."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure import Limits, Task, tool
from perdure.activities.afterwards import keep
from perdure.activities.copies import every
from perdure.activities.ends import until_ended
from perdure.audit import AuditEntry
from perdure.client import RunHandle
from perdure.identity import whoami
from tests.integration.archiving import archived
from tests.integration.test_reset import reset


@tool(approval="always")
async def pay(amount: int = 1) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(effect="read")
async def look() -> str:
    """Look."""
    return "nothing"


PAY = {"calls": [{"name": "pay"}]}
LOOK = {"calls": [{"name": "look"}]}


async def kept(stage: Any, run_id: str) -> list[AuditEntry]:
    """Return what is written down of a run, without what its history tells."""
    async with stage.client.store() as store:
        found: list[AuditEntry] = await store.noted(stage.client.temporal.namespace, run_id=run_id)
    return found


async def noted(stage: Any, run_id: str, *actions: str) -> list[AuditEntry]:
    """Return it once these actions are written down, in this order; fail where it is anything else."""
    async with asyncio.timeout(30):
        while len(found := await kept(stage, run_id)) < len(actions):
            await asyncio.sleep(0.05)
    assert [entry.action for entry in found] == list(actions)
    return found


async def archive_again(stage: Any, handle: RunHandle) -> None:
    """Do once more what follows the end of a run."""
    temporal = stage.client.temporal
    described = await temporal.get_workflow_handle(handle.id).describe()
    async with stage.client.store() as store:
        recorded = await until_ended(temporal, handle.id, described.run_id)
        copied = await keep(temporal, store, handle.id, recorded)
        for copy in every(store, stage.client.settings):
            await copy(copied)


async def test_an_open_run_tells_at_once_and_its_end_writes_the_same_down(stage: Any) -> None:
    handle = await stage.start([PAY, "done"], [pay])
    await stage.until(handle, "approval_requested")
    (started,) = await stage.client.audit(handle.id)
    assert (started.action, started.by, started.via, started.agent) == ("started", whoami(), "python", "subject")
    assert started in await stage.client.audit()
    await handle.approve(by="Ann", reason="cheap")
    await stage.end(handle)
    written = await noted(stage, handle.id, "started", "approved")
    assert (written[1].by, written[1].call, written[1].tool, written[1].reason) == ("Ann", "1.1", "pay", "cheap")
    assert await stage.client.audit(handle.id) == written
    assert (await stage.client.verify_audit()).broken == 0


async def test_what_is_archived_again_is_written_down_once(stage: Any) -> None:
    done = await stage.run(["done"])
    await noted(stage, done.handle.id, "started")
    await archive_again(stage, done.handle)
    await noted(stage, done.handle.id, "started")


async def test_a_run_that_is_resumed_and_one_forked_from_it_are_of_whoever_did_that(stage: Any) -> None:
    done = await stage.run([LOOK, "half", "all", "more"], [look], limits=Limits(steps=2))
    assert done.result.status == "budget_exhausted"
    await noted(stage, done.handle.id, "started")
    await done.handle.resume(add_steps=3)
    await stage.end(done.handle)
    await archived(stage, done.handle.id, executions=2)
    await noted(stage, done.handle.id, "started", "resumed")
    fork = await done.handle.fork(2)
    stage.audit(fork)
    await stage.end(fork)
    (forked,) = await noted(stage, fork.id, "forked")
    assert forked.subject == f"{done.handle.id} at step 2"


async def test_a_run_that_continues_as_new_tells_each_deed_once(stage: Any) -> None:
    stage.client.settings = stage.client.settings.model_copy(update={"max_history_events": 40})
    handle = await stage.start([PAY, *[LOOK] * 5, PAY, *[LOOK] * 5, "done"], [pay, look])
    await stage.until(handle, "approval_requested")
    await handle.approve(by="Ann")
    await stage.until(handle, "approval_requested", nth=2)
    assert [entry.action for entry in await stage.client.audit(handle.id)] == ["started", "approved"]
    await handle.deny(by="Bob")
    await stage.end(handle)
    await archived(stage, handle.id, executions=2)
    written = await noted(stage, handle.id, "started", "approved", "denied")
    assert len({entry.position for entry in written}) == 3
    assert await stage.client.audit(handle.id) == written


async def test_a_run_that_was_reset_tells_what_came_before_once(stage: Any) -> None:
    handle = await stage.start([PAY, LOOK, "done"], [pay, look])
    await stage.until(handle, "approval_requested")
    await handle.approve(by="Ann")
    await stage.end(handle)
    await noted(stage, handle.id, "started", "approved")
    await reset(stage, handle.id, nth=-1)
    await stage.end(handle)
    await archived(stage, handle.id, executions=2)
    await noted(stage, handle.id, "started", "approved")


async def test_each_way_of_taking_hold_of_a_run_is_told(stage: Any) -> None:
    handle = await stage.start([PAY, PAY, "done"], [pay])
    await stage.until(handle, "approval_requested")
    await handle.pause(by="Ann", reason="lunch")
    await handle.resume(by="Ann")
    await handle.resume(add_steps=2, by="Ann")
    await handle.say("Hurry.", by="Bob")
    await handle.approve("1.1", arguments={"amount": 2}, by="Bob")
    await stage.until(handle, "approval_requested", nth=2)
    await stage.signal(handle, "aprove", "2.1")
    await handle.cancel("enough")
    await stage.end(handle)
    actions = ("started", "paused", "resumed", "topped_up", "said", "edited", "refused", "cancelled")
    written = await noted(stage, handle.id, *actions)
    assert written[3].details == {"steps": 2}
    assert (written[-1].by, written[-1].via, written[-1].reason) == (whoami(), "python", "enough")
    assert {entry.via for entry in written} == {"python"}
    found = await stage.client.audit(handle.id, by="bob", actions=["said", "paused"])
    assert [entry.action for entry in found] == ["said"]


async def test_what_is_done_to_sessions_and_memory_is_written_down_at_once(stage: Any) -> None:
    agent = stage.agent(["Hello."])
    await stage.serve(agent)
    session = stage.client.session("audited", agent, task_queue=stage.queue)
    await session.ask(Task(input="Hi."))
    fact = await stage.client.memory.add("Likes tea.", agent="subject", user="u1", by="Ann")
    other = await stage.client.memory.correct(fact.id, "Likes coffee.", by="Bob")
    await stage.client.memory.forget(other.id)
    async with asyncio.timeout(30):
        while not (await session.standing()).session:
            await asyncio.sleep(0.05)
    await session.delete()
    found = [entry for entry in await stage.client.audit() if not entry.run_id]
    told = [(entry.action, entry.by, entry.subject or entry.session) for entry in found if entry.agent == "subject"]
    assert told[-4:] == [
        ("memory_added", "Ann", fact.id),
        ("memory_corrected", "Bob", fact.id),
        ("memory_deleted", whoami(), other.id),
        ("session_deleted", whoami(), "audited"),
    ]
    assert "tea" not in "".join(entry.model_dump_json() for entry in found)


async def test_who_has_a_run_deleted_is_written_down(stage: Any) -> None:
    done = await stage.run(["Hello."])
    await stage.client.forget(done.handle.id)
    found = [entry for entry in await stage.client.audit(done.handle.id) if entry.action == "run_deleted"]
    assert [(entry.by, entry.via) for entry in found] == [(whoami(), "python")]
