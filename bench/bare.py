"""What Perdure is measured against: an agent loop written by hand on Temporal, and nothing more.

Two activities a step, one for the model and one for the tool. Nothing is sent twice: the workflow keeps the
messages, and an activity gets only what it needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

TEXT = "x" * 1_000
"""What the tool returns."""

HEARTBEAT = timedelta(seconds=5)
WAITING = SearchAttributeKey.for_keyword("PerdureStatus")


@activity.defn
async def model(step: int, steps: int) -> dict[str, Any]:
    """Call the tool `steps` times, then answer."""
    return {"text": "done"} if step > steps else {"name": "read", "arguments": {"n": step}}


@activity.defn
async def read(n: int) -> str:
    """Return 1,000 characters at once."""
    del n
    return TEXT


def begins(log: Path) -> bool:
    """Write a line to `log`; return whether it is the first."""
    with log.open("a") as file:
        file.write("began\n")
    return len(log.read_text().splitlines()) == 1


@activity.defn
async def hold(log: str) -> str:
    """Stay until killed, the first time."""
    for _ in range(60 if begins(Path(log)) else 0):
        activity.heartbeat()
        await asyncio.sleep(1)
    return TEXT


@workflow.defn
class Bare:
    """The loop."""

    @workflow.run
    async def run(self, steps: int, local: bool = False) -> str:
        """Return the answer after `steps` calls."""
        messages: list[Any] = []
        for step in range(1, steps + 2):
            limit = timedelta(seconds=10)
            reply = await workflow.execute_activity(model, args=[step, steps], start_to_close_timeout=limit)
            messages.append(reply)
            if "text" in reply:
                return str(reply["text"])
            number = int(reply["arguments"]["n"])
            if local:
                result = await workflow.execute_local_activity(read, number, start_to_close_timeout=limit)
            else:
                result = await workflow.execute_activity(read, number, start_to_close_timeout=limit)
            messages.append(result)
        raise AssertionError


@workflow.defn
class BareHold:
    """One call of a tool during which the worker is killed."""

    @workflow.run
    async def run(self, log: str) -> str:
        """Return what the tool returned."""
        minute = timedelta(minutes=1)
        await workflow.execute_activity(model, args=[1, 1], start_to_close_timeout=minute)
        text = await workflow.execute_activity(
            hold, log, start_to_close_timeout=minute + HEARTBEAT, heartbeat_timeout=HEARTBEAT
        )
        await workflow.execute_activity(model, args=[2, 1], start_to_close_timeout=minute)
        return text


@workflow.defn
class BareWait:
    """A model call, then waiting for a signal that never comes."""

    def __init__(self) -> None:
        self.approved = False

    @workflow.run
    async def run(self) -> None:
        """Wait for ever."""
        await workflow.execute_activity(model, args=[1, 1], start_to_close_timeout=timedelta(seconds=10))
        workflow.upsert_search_attributes([WAITING.value_set("waiting_approval")])  # pyright: ignore[reportUnknownMemberType]
        await workflow.wait_condition(lambda: self.approved)

    @workflow.signal
    def approve(self) -> None:
        """Approve."""
        self.approved = True


@asynccontextmanager
async def serving(client: Client, queue: str, *, sandboxed: bool = True) -> AsyncGenerator[None]:
    """Serve it with the SDK's own settings; with `sandboxed=False`, without its workflow sandbox."""
    runner = SandboxedWorkflowRunner() if sandboxed else UnsandboxedWorkflowRunner()
    async with Worker(
        client,
        task_queue=queue,
        workflows=[Bare, BareHold, BareWait],
        activities=[model, read, hold],
        workflow_runner=runner,
    ):
        yield
