"""What ended long ago goes, never what somebody needs; and what was not archived is, in the end."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio.service import RPCError, RPCStatusCode

from perdure import retention
from perdure.client import Client
from perdure.earlier import complete
from perdure.errors import RunNotFound
from perdure.policies import Limits
from perdure.tools import tool
from tests.integration.archiving import archived, executions, until

NOW = timedelta()
REPLIES = [{"calls": [{"name": "look", "arguments": {}}]}, {"calls": [{"name": "look", "arguments": {}}]}, "done", "ok"]


@tool(effect="read")
async def look() -> str:
    """Look; what is seen is too much for a history."""
    return "seen " * 40_000


@tool(approval="always")
async def pay() -> str:
    """Pay."""
    return "paid"


@tool
async def act() -> str:
    """Act."""
    return "acted"


PAYING = [{"calls": [{"name": "pay", "arguments": {}}]}, "done"]


@pytest.fixture
def kept(stage: Any, tmp_path: Path) -> Any:
    """The stage, with a store of its own."""
    stage.client.settings = stage.client.settings.model_copy(update={"store": f"sqlite:///{tmp_path / 'store.db'}"})
    return stage


@pytest.fixture
def elsewhere(kept: Any, forgetful: Any) -> Client:
    """A client of that store whose engine has forgotten every run."""
    return Client(forgetful.temporal, kept.client.settings)


async def ended(stage: Any) -> Any:
    """A run that is in the archive, with a large result."""
    finished = await stage.run(REPLIES, [look])
    await archived(stage, finished.handle.id)
    return finished


async def test_a_run_that_ended_long_ago_is_removed_with_all_that_it_alone_needed(kept: Any, elsewhere: Client) -> None:
    run_id = (await ended(kept)).handle.id
    expected = await retention.prune(elsewhere, NOW, dry_run=True)
    assert (await elsewhere.handle(run_id).result()).status == "completed", "a dry run has removed something"
    pruned = await retention.prune(elsewhere, NOW)
    assert pruned == expected
    assert pruned.runs == [run_id]
    assert pruned.freed
    assert pruned.freed.blobs >= 2
    with pytest.raises(RunNotFound):
        await elsewhere.handle(run_id).result()
    again = await retention.prune(elsewhere, NOW)
    assert (again.runs, again.freed) == ([], (0, 0))


async def test_a_run_that_ended_since_is_kept(kept: Any, elsewhere: Client) -> None:
    run_id = (await ended(kept)).handle.id
    pruned = await retention.prune(elsewhere, timedelta(hours=1))
    assert (pruned.runs, pruned.freed) == ([], (0, 0))
    assert (await elsewhere.handle(run_id).result()).status == "completed"


async def test_what_a_fork_needs_of_a_run_survives_that_run(kept: Any, elsewhere: Client) -> None:
    source = await ended(kept)
    fork = await source.handle.fork(3, say="And?")
    kept.audit(fork)
    assert (await kept.end(fork)).result.status == "completed"
    await archived(kept, fork.id)
    async with kept.client.store() as store:  # as if the fork had ended later, or went on
        await store.drop_runs(kept.client.temporal.namespace, [source.handle.id])
    await retention.prune(elsewhere, timedelta(hours=1))
    projection = await elsewhere.handle(fork.id).projection()
    assert await complete(kept.client.settings, projection) is None
    assert projection.entries[: len(source.projection.entries)] == source.projection.entries
    results = [entry.result for entry in projection.entries if entry.role == "tool"]
    assert any(result.ref for result in results)
    async with kept.client.store() as store:
        for result in results:
            if result.ref:
                assert await store.get(result.ref)


async def test_what_an_open_run_needs_of_the_run_that_it_was_forked_from_survives(kept: Any, elsewhere: Client) -> None:
    replies = [REPLIES[0], {"calls": [{"name": "act", "arguments": {}}]}, "done"]
    source = (await kept.run(replies, [look, act])).handle
    await archived(kept, source.id)
    fork = await source.fork(1)
    kept.audit(fork)
    await kept.until(fork, "approval_requested")
    pruned = await retention.prune(elsewhere, NOW)
    assert pruned.runs == [source.id]
    await kept.stop()
    await kept.serve(*kept.agents)  # nothing is in memory: the earlier part has to come from the store
    await fork.approve()
    assert (await kept.end(fork)).result.status == "completed"


async def test_a_run_that_the_engine_still_has_is_kept_unless_it_is_to_go_there_too(kept: Any) -> None:
    run_id = (await ended(kept)).handle.id
    pruned = await retention.prune(kept.client, NOW)
    assert (pruned.runs, pruned.in_engine) == ([], [run_id])
    assert pruned.freed == (0, 0)
    told = await retention.prune(kept.client, NOW, dry_run=True, from_engine=True)
    assert told.runs == [run_id]


@pytest.mark.long
@pytest.mark.reported(6)
async def test_from_engine_what_has_ended_is_deleted_there_in_all_its_parts_and_what_goes_on_is_not(kept: Any) -> None:
    kept.client.settings = kept.client.settings.model_copy(update={"max_history_events": 20})
    replies = [*[REPLIES[0]] * 2, {"calls": [{"name": "act", "arguments": {}}]}, REPLIES[0], "done"]
    handle = (await kept.run(replies, [look, act, pay], limits=Limits(input_tokens=None))).handle
    names = [name async for name in executions(kept, handle.id)]
    assert len(names) > 1
    await archived(kept, handle.id, len(names))
    goes_on = await handle.fork(1)
    await kept.until(goes_on, "approval_requested")
    pruned = await retention.prune(kept.client, NOW, from_engine=True)
    assert (pruned.runs, pruned.in_engine) == ([handle.id], [])
    temporal = kept.client.temporal

    async def gone(name: str) -> bool:
        try:
            await temporal.get_workflow_handle(handle.id, run_id=name).describe()
        except RPCError as error:
            return error.status is RPCStatusCode.NOT_FOUND
        return False

    async def all_gone() -> bool:
        return all([await gone(name) for name in names])

    await until(all_gone)
    for asking in (handle.result, handle.projection):
        with pytest.raises(RunNotFound):
            await asking()
    kept._started.remove(handle)
    kept.audit(goes_on)
    await goes_on.approve()
    assert (await kept.end(goes_on)).result.status == "completed"


async def test_a_run_that_was_resumed_is_never_removed(kept: Any) -> None:
    handle = await kept.start(PAYING, [pay])
    await kept.until(handle, "approval_requested")
    await handle.cancel()
    await kept.end(handle)
    await archived(kept, handle.id)
    await handle.resume()
    pruned = await retention.prune(kept.client, NOW, from_engine=True)
    assert (pruned.runs, pruned.open) == ([], [handle.id])
    async with kept.client.store() as store:
        assert await store.archived(kept.client.temporal.namespace, handle.id)


@pytest.mark.reported(6)
async def test_what_a_run_has_put_away_that_was_never_archived_goes_after_a_while(
    kept: Any, elsewhere: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perdure.activities.stores import run_owner

    async with kept.client.store() as store:
        ref = await store.put(b"for a run that never began", run_owner("default", "nobody"))
        await retention.prune(elsewhere, NOW)
        assert await store.get(ref), "it may be for a run that is just being started"
        monkeypatch.setattr(retention, "_YOUNG", NOW)
        assert (await retention.prune(elsewhere, NOW)).freed == (1, 26)
        with pytest.raises(LookupError):
            await store.get(ref)


# -- what was not archived -----------------------------------------------------------------------------------------


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch, kept: Any) -> None:
    """Runs are looked for as soon as they have ended, and only those of the test: others left theirs on this server."""
    monkeypatch.setattr(retention, "_SETTLED", NOW)
    monkeypatch.setattr(retention, "missing", partial(retention.missing, task_queue=kept.queue))


async def terminated(stage: Any) -> Any:
    """A run that was ended from outside: nothing follows it."""
    agent = stage.agent(PAYING, [pay])
    await stage.serve(agent)
    handle = await stage.client.start(agent, "go", task_queue=stage.queue)
    await stage.until(handle, "approval_requested")
    await stage.client.temporal.get_workflow_handle(handle.id).terminate(reason="enough")
    return handle


@pytest.mark.usefixtures("at_once")
async def test_a_run_that_was_terminated_is_archived_by_the_command(kept: Any) -> None:
    handle = await terminated(kept)

    async def found() -> bool:
        return handle.id in await retention.catch_up(kept.client)

    await until(found)  # the engine lists it a moment later
    run = await archived(kept, handle.id)
    assert (run.status, run.result and run.result.reason) == ("failed", "terminated: enough")
    assert handle.id not in await retention.catch_up(kept.client)


@pytest.mark.usefixtures("at_once")
async def test_a_run_that_can_not_be_read_keeps_no_other_from_the_archive(kept: Any, tmp_path: Path) -> None:
    agent = kept.agent(PAYING, [pay])
    await kept.serve(agent)
    large = await kept.client.start(agent, "x" * 400_000, task_queue=kept.queue)
    await kept.until(large, "approval_requested")
    await kept.client.temporal.get_workflow_handle(large.id).terminate(reason="enough")
    handle = await terminated(kept)
    other = kept.client.settings.model_copy(update={"store": f"sqlite:///{tmp_path / 'other.db'}"})
    client = await Client.connect(other)
    found: set[str] = set()

    async def both_seen() -> bool:
        found.update(await retention.catch_up(client))
        return handle.id in found

    await until(both_seen)
    assert large.id not in found


@pytest.mark.usefixtures("at_once")
async def test_a_worker_archives_what_was_terminated_before_it_began(kept: Any) -> None:
    handle = await terminated(kept)
    await kept.stop()
    query = f"WorkflowId = '{handle.id}' AND ExecutionStatus = 'Terminated'"

    async def listed() -> bool:
        return bool((await kept.client.temporal.count_workflows(query)).count)

    await until(listed)
    await kept.serve(*kept.agents)
    assert (await archived(kept, handle.id)).status == "failed"
