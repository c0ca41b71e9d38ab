"""By what runs are found in lists, and that their histories stay as flat as they were."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.service import RPCError, RPCStatusCode

from perdure import Task, tool
from perdure.client import RunHandle
from perdure.engine import search_attributes
from perdure.errors import PerdureError
from perdure.listing import RunInfo
from perdure.tools import ask_user


@tool(approval="always")
async def pay() -> str:
    """Pay."""
    return "paid"


@tool(effect="read")
async def look() -> str:
    """Look."""
    return "nothing"


PAYING = [{"calls": [{"name": "pay"}, {"name": "ask_user", "arguments": {"question": "Sure?"}}]}, "done"]


async def listed(stage: Any, run_id: str, wanted: Any = lambda run: True, **filters: Any) -> RunInfo:
    """Return a run from a list of runs, as soon as it is there and fits: the index comes a moment later."""

    async def look() -> RunInfo:
        while True:
            runs: list[RunInfo] = await stage.client.list_runs(**filters, limit=1000)
            for run in runs:
                if run.id == run_id and wanted(run):
                    return run
            await asyncio.sleep(0.05)

    return await asyncio.wait_for(look(), 20)


async def upserts(stage: Any, handle: RunHandle) -> list[set[str]]:
    """Return which attributes each event of a run's history has set."""
    workflow = stage.client.temporal.get_workflow_handle(handle.id)
    return [
        set(event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields)
        async for event in workflow.fetch_history_events()
        if event.HasField("upsert_workflow_search_attributes_event_attributes")
    ]


async def test_a_run_is_found_by_what_it_waits_for_until_that_is_answered(stage: Any) -> None:
    handle = await stage.start(PAYING, [pay, ask_user])
    assert (await listed(stage, handle.id, waiting_for="approval")).waiting_for == ["approval", "answer"]
    await handle.approve()
    assert (await listed(stage, handle.id, lambda run: run.waiting_for == ["answer"])).status == "waiting_input"
    await handle.answer("Yes.")
    await stage.end(handle)
    assert (await listed(stage, handle.id, lambda run: run.closed_at)).waiting_for == []
    assert handle.id not in {run.id for run in await stage.client.list_runs(waiting_for="answer")}


async def test_a_turn_is_found_by_its_session_and_tenant_with_what_it_used(stage: Any) -> None:
    agent = stage.agent(["Hello."])
    await stage.serve(agent)
    task = Task(input="Hi.", session="found-by-session", tenant="acme")
    handle = await stage.client.start(agent, task, task_queue=stage.queue)
    result = (await stage.end(handle)).result
    run = await listed(stage, handle.id, lambda run: run.tokens is not None, session="found-by-session", tenant="acme")
    assert run.tokens == result.usage.input_tokens + result.usage.output_tokens
    assert (run.session, run.tenant) == ("found-by-session", "acme")
    assert await stage.client.list_runs(session="found-by-session", tenant="other") == []


async def test_what_names_a_person_is_redacted_and_found_all_the_same(stage: Any) -> None:
    agent = stage.agent(["Hello."])
    await stage.serve(agent)
    task = Task(input="Hi.", session="13812345678", tenant="ann@example.com")
    handle = await stage.client.start(agent, task, task_queue=stage.queue)
    await stage.end(handle)
    run = await listed(stage, handle.id, session="13812345678", tenant="ann@example.com")
    assert run.session == "138****5678"
    assert "ann@" not in run.tenant


async def test_attributes_are_set_on_change_and_at_the_end_in_one_event(stage: Any) -> None:
    done = await stage.run([{"calls": [{"name": "look"}]}] * 4 + ["done"], [look])
    assert await upserts(stage, done.handle) == [{"PerdureStatus", "PerdureTokens"}]
    handle = await stage.start([{"calls": [{"name": "pay"}]}, "done"], [pay])
    await stage.until(handle, "approval_requested")
    await handle.approve()
    await stage.end(handle)
    assert await upserts(stage, handle) == [
        {"PerdureStatus", "PerdureWaitingFor"},
        {"PerdureStatus", "PerdureWaitingFor"},
        {"PerdureStatus", "PerdureTokens"},
    ]


async def test_a_run_is_found_as_running_from_its_start_on(stage: Any, anchor: Any) -> None:
    @tool(effect="read")
    def hold() -> str:
        """Hold."""
        anchor.wait(20)
        return "held"

    handle = await stage.start([{"calls": [{"name": "hold"}]}, "done"], [hold])
    described = await stage.client.temporal.get_workflow_handle(handle.id).describe()
    assert described.typed_search_attributes.get(search_attributes.STATUS) == "running"
    anchor.set()
    await stage.end(handle)
    assert await upserts(stage, handle) == [{"PerdureStatus", "PerdureTokens"}]


async def test_a_run_that_fails_or_is_cancelled_says_so_in_the_index(stage: Any, raw_model: Any) -> None:
    def broken(_: Any) -> None:
        raise RuntimeError("a defect")

    done = await stage.run(raw_model(broken))
    assert (await listed(stage, done.handle.id, lambda run: run.tokens is not None)).status == "failed"
    handle = await stage.start([{"calls": [{"name": "pay"}]}, "done"], [pay])
    await stage.until(handle, "approval_requested")
    await handle.cancel()
    await stage.end(handle)
    run = await listed(stage, handle.id, lambda run: run.tokens is not None)
    assert (run.status, run.waiting_for) == ("cancelled", [])


async def test_where_the_namespace_lacks_them_a_run_goes_on_without(stage: Any, monkeypatch: Any) -> None:
    async def lacks(_: Any) -> bool:
        return False

    monkeypatch.setattr(search_attributes, "has_more", lacks)
    handle = await stage.start([{"calls": [{"name": "pay"}]}, "done"], [pay])
    await stage.until(handle, "approval_requested")
    await handle.approve()
    assert (await stage.end(handle)).result.status == "completed"
    assert await upserts(stage, handle) == [{"PerdureStatus"}, {"PerdureStatus"}]
    assert (await listed(stage, handle.id)).tokens is None


async def test_a_list_by_what_the_server_lacks_is_one_sentence(stage: Any, monkeypatch: Any) -> None:
    async def lacks(_: Any) -> bool:
        return False

    def refuse(*_: Any, **__: Any) -> Any:
        raise RPCError("invalid search attribute: PerdureSession", RPCStatusCode.INVALID_ARGUMENT, b"")

    monkeypatch.setattr(search_attributes, "has_more", lacks)
    monkeypatch.setattr(stage.client.temporal, "list_workflows", refuse)
    with pytest.raises(PerdureError, match=r"lists no runs by session.*perdure doctor"):
        await stage.client.list_runs(session="any")


async def test_the_page_of_a_run_says_how_to_answer(stage: Any) -> None:
    handle = await stage.start([{"calls": [{"name": "pay"}]}, "done"], [pay])
    await stage.until(handle, "approval_requested")
    await stage.until_status(handle, "waiting_approval")
    workflow = stage.client.temporal.get_workflow_handle(handle.id)
    metadata = await workflow.query("__temporal_workflow_metadata")
    assert f"perdure approve {handle.id} 1.1" in metadata.current_details
    await handle.deny()
    await stage.end(handle)
