"""Recorded runs, and replaying them with the code of today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import (
    ExecuteWorkflowInput,
    Interceptor,
    UnsandboxedWorkflowRunner,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from perdure.engine.converter import data_converter
from perdure.state import RunState
from perdure.telemetry.projection import Projection
from perdure.testing.histories import replay_history

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in (HERE / "histories").glob("*.json"))
FOLLOWERS = sorted(path.stem for path in (HERE / "followers").glob("*.json"))


def history_of(name: str) -> WorkflowHistory:
    """Return a recorded history."""
    return WorkflowHistory.from_json(end_of(name)["run"], (HERE / "histories" / f"{name}.json").read_text("utf-8"))


def end_of(name: str) -> dict[str, Any]:
    """Return how that run ended: its id as `run`, and the workflow's own last `state`."""
    end: dict[str, Any] = json.loads((HERE / "ends" / f"{name}.json").read_text("utf-8"))
    return end


def state_of(name: str) -> RunState:
    """Return the state in which that run ended."""
    return RunState.model_validate(end_of(name)["state"])


def follower_of(name: str) -> WorkflowHistory:
    """Return the recorded history of what followed a run."""
    return WorkflowHistory.from_json(name, (HERE / "followers" / f"{name}.json").read_text("utf-8"))


async def replay_follower(name: str, *, sandboxed: bool = True) -> None:
    """Replay what followed a run; `sandboxed`, clocks, random numbers and I/O raise.

    Raises:
        NondeterminismError: If today's code does otherwise than the code that was recorded.
    """
    runner = SandboxedWorkflowRunner() if sandboxed else UnsandboxedWorkflowRunner()
    await replay_history(follower_of(name), runner=runner)


async def projected(name: str) -> Projection:
    """Return what the projection makes of a recorded history."""
    history = history_of(name)
    projection = Projection(history.workflow_id, data_converter)
    for event in history.events:
        await projection.feed(event)
    return projection


class Watch(Interceptor):
    """Keeps the state in which a workflow ends."""

    def __init__(self) -> None:
        self.state: RunState | None = None

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        """Return a class that tells this object."""
        del input
        watch = self

        class Watching(WorkflowInboundInterceptor):
            async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
                try:
                    return await super().execute_workflow(input)
                finally:
                    watch.state = workflow.instance().state

        return Watching


async def replayed(name: str) -> RunState:
    """Replay a recorded history; return the state in which it ends now.

    Raises:
        NondeterminismError: If today's code does otherwise than the code that was recorded.
    """
    watch = Watch()
    await replay_history(history_of(name), interceptors=[watch])
    assert watch.state is not None
    return watch.state


async def replay_in_sandbox(name: str) -> None:
    """Replay a recorded history where clocks, random numbers and I/O raise. Nothing of Perdure is passed through."""
    await replay_history(history_of(name), runner=SandboxedWorkflowRunner())
