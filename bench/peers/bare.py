"""The workload as a loop by hand on Temporal: an activity for the model, one for a tool, a signal to approve."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from bench.peers import script
from perdure.testing.crash import CrashPoints

_LIMIT = timedelta(seconds=5)


@activity.defn
async def model(turn: int) -> dict[str, Any]:
    """Say what comes next."""
    return script.reply(turn)


@activity.defn
async def act(tool: str, what: str) -> str:
    """Do what a tool does, under a key that is the same on every attempt."""
    info = activity.info()
    run = str(info.workflow_id)
    return script.act(tool, run, what, f"{run} {info.activity_id}")


@workflow.defn
class Shop:
    """The loop."""

    def __init__(self) -> None:
        self._approved = False

    @workflow.run
    async def run(self, task: str) -> str:
        """Return the answer."""
        del task
        turn = 0
        while True:
            turn += 1
            said = await workflow.execute_activity(model, turn, start_to_close_timeout=_LIMIT)
            if "text" in said:
                return str(said["text"])
            for call in said["calls"]:
                if call["name"] == "pay":
                    await workflow.wait_condition(lambda: self._approved)
                what = next(iter(call["arguments"].values()))
                await workflow.execute_activity(act, args=[call["name"], what], start_to_close_timeout=_LIMIT)

    @workflow.signal
    def approve(self) -> None:
        """Approve what has to be."""
        self._approved = True


async def main(address: str, queue: str) -> None:
    """Serve it."""
    await Worker(
        await Client.connect(address),
        task_queue=queue,
        workflows=[Shop],
        activities=[model, act],
        workflow_runner=UnsandboxedWorkflowRunner(),
        plugins=[CrashPoints()],
    ).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
