"""Secrets reach the tool, and nothing else."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest

from perdure import Done, Secret, Task, ToolContext, ToolError, tool
from perdure.activities import secrets as vault
from perdure.errors import PerdureError
from perdure.sealing import vault_keys
from tests.integration.archiving import archived

PIN, PASSPORT = "pin-4711-canary", 'E"pass/port canary'
GIVEN = {"pin": PIN, "passport": PASSPORT}
PIECES = (PIN, "4711-canary", PASSPORT, "port canary", "port%20canary")
seen: list[Any] = []


async def everywhere(stage: Any, run_id: str) -> bytes:
    """Return all that was written about a run: its history, the store, and every file beside it."""
    history = await stage.client.temporal.get_workflow_handle(run_id).fetch_history()
    home = Path(stage.client.settings.folder)
    files = [file.read_bytes() for file in home.rglob("*") if file.is_file()]
    return b"\n".join([history.to_json().encode(), *files])


async def check_nothing_is_written(stage: Any, run_id: str, caplog: pytest.LogCaptureFixture) -> None:
    written = await everywhere(stage, run_id)
    assert b"[secret pin]" in written
    assert [piece for piece in PIECES if piece.encode() in written] == []
    assert [piece for piece in PIECES if piece in caplog.text] == []


@tool(effect="idempotent")
async def pay(ctx: ToolContext, cents: int, pin: Annotated[str, Secret("pin")]) -> Any:
    """Pay."""
    seen.append((cents, pin, ctx.secrets["passport"]))
    if ctx.attempt == 1:
        raise RuntimeError(f"refused: {pin} {ctx.secrets['passport']!r}")
    return {"pin": pin, "all": dict(ctx.secrets), pin: cents}


@tool(effect="read")
def look(pin: Annotated[str, Secret("pin")]) -> str:
    """Look."""
    raise ToolError(f"unknown: {pin}", suggestion=f"not {pin}", error_type=pin)


@tool(probe=lambda ctx, amount: Done(f"found with {ctx.secrets['pin']}"))
def wire(ctx: ToolContext, amount: int) -> None:
    """Send money."""
    raise OSError(ctx.secrets["pin"])


@pytest.mark.reported(49)
async def test_a_secret_reaches_the_tool_and_is_written_nowhere(stage: Any, caplog: pytest.LogCaptureFixture) -> None:
    seen.clear()
    script = [
        {"calls": [{"name": "look", "arguments": {}}, {"name": "pay", "arguments": {"cents": 5}}]},
        {"calls": [{"name": "wire", "arguments": {"amount": 1}}]},
        "${pay.pin} ${wire}",
    ]
    agent = stage.agent(script, [pay, look, wire])
    await stage.serve(agent)
    task = Task.model_validate({"input": f"Pay with {PIN}", "secrets": GIVEN})
    finished = await stage.end(await stage.start_again(agent, task))
    assert seen == [(5, PIN, PASSPORT)] * 2
    assert [result.status for result in finished.results] == ["error", "ok", "ok"]
    assert finished.result.text == "[secret pin] found with [secret pin]"
    await archived(stage, finished.handle.id)
    await check_nothing_is_written(stage, finished.handle.id, caplog)


async def test_secrets_go_when_the_run_ends_and_a_resumed_one_is_given_new_ones(stage: Any) -> None:
    seen.clear()
    agent = stage.agent([{"calls": [{"name": "pay", "arguments": {"cents": 5}}]}, "done"], [pay])
    await stage.serve(agent)
    limits = agent.limits.model_copy(update={"steps": 1})
    task = Task.model_validate({"input": "go", "secrets": GIVEN, "limits": limits})
    finished = await stage.end(await stage.start_again(agent, task))
    assert finished.result.status == "budget_exhausted"
    await archived(stage, finished.handle.id)
    async with stage.client.store() as store:
        assert await store.deposits(stage.client.temporal.namespace) == []
        await finished.handle.resume(add_steps=3, secrets={"pin": "another-pin", "passport": "P" * 9})
        again = await stage.end(finished.handle)
    assert again.result.status == "completed"


async def test_a_fork_has_secrets_of_its_own_and_takes_none_from_the_run_that_goes_on(
    stage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(approval="always")
    async def confirm() -> str:
        """Confirm."""
        return "confirmed"

    seen.clear()
    paying = {"calls": [{"name": "pay", "arguments": {"cents": 5}}]}
    agent = stage.agent([{"calls": [{"name": "confirm", "arguments": {}}]}, paying, "done"], [confirm, pay])
    await stage.serve(agent)
    source = await stage.start_again(agent, Task.model_validate({"input": "go", "secrets": GIVEN}))
    await stage.until(source, "approval_requested")
    none = await source.fork(0)
    other = await source.fork(0, say=f"Pay with {PIN}", secrets={"pin": PIN, "passport": PASSPORT})
    for fork in (none, other):
        stage.audit(fork)
        for number in (1, 2):
            asked = await stage.until(fork, "approval_requested", nth=number)
            await fork.approve(asked.call, hash=asked.hash)
        finished = await stage.end(fork)
        assert finished.result.status == "completed"
        await archived(stage, fork.id)
        assert finished.results[1].error_type == ("no_secret" if fork is none else None)
    await source.approve()
    finished = await stage.end(source)
    assert [result.status for result in finished.results] == ["ok", "ok"]
    assert [pin for _, pin, _ in seen] == [PIN] * 4  # each had two attempts
    await archived(stage, source.id)
    await check_nothing_is_written(stage, other.id, caplog)


async def test_a_tool_whose_secret_was_not_given_is_not_called(stage: Any) -> None:
    seen.clear()
    finished = await stage.run([{"calls": [{"name": "pay", "arguments": {"cents": 5}}]}, "done"], [pay])
    assert seen == []
    assert finished.results[0].error_type == "no_secret"
    assert "It needs the secret 'pin'" in str(finished.results[0].message)


async def test_starting_a_run_twice_leaves_the_secrets_of_the_first(stage: Any) -> None:
    agent = stage.agent(["done"], [pay])
    tasks = [
        Task.model_validate({"input": "go", "id": f"{stage.queue}-1", "secrets": {"pin": f"{PIN}{n}"}}) for n in (1, 2)
    ]
    first = await stage.start_again(agent, tasks[0])
    async with stage.client.store() as store:
        before = await store.deposits(stage.client.temporal.namespace)
        second = await stage.start_again(agent, tasks[1])
        assert second.existing
        assert await store.deposits(stage.client.temporal.namespace) == before
        keys = vault_keys(stage.client.settings)
        sealed = await store.secrets(before[0].id)
        assert keys.open("vault", sealed["pin"], f"{before[0].id}/pin".encode()) == f"{PIN}1".encode()
    await stage.serve(agent)
    await stage.end(first)


async def test_what_a_run_left_behind_that_was_ended_from_outside_is_swept(stage: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(vault, "_YOUNG", timedelta())
    agent = stage.agent(["done"], [pay])
    task = Task.model_validate({"input": "go", "secrets": GIVEN})
    handle = await stage.client.start(agent, task, task_queue=stage.queue)
    await stage.client.temporal.get_workflow_handle(handle.id).terminate()
    namespace = stage.client.temporal.namespace
    async with stage.client.store() as store:
        await store.keep_secrets(namespace, "never-started", "orphan", {"pin": b"x"})
        assert len(await store.deposits(namespace)) == 2
        assert all(one.kept_at <= datetime.now(UTC) for one in await store.deposits(namespace))
        await stage.serve(agent)
        while await store.deposits(namespace):
            await asyncio.sleep(0.02)


async def test_a_secret_that_cant_be_one_starts_nothing(stage: Any) -> None:
    agent = stage.agent(["done"])
    with pytest.raises(PerdureError, match="fewer than 4"):
        await stage.client.start(agent, Task.model_validate({"input": "x", "secrets": {"pin": "1"}}), task_queue="q")
