"""Saying something to a run at a moment at which the engine can't take it."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from perdure import speaking
from perdure.decisions import Receipt
from perdure.engine.converter import data_converter
from perdure.errors import DecisionRejected
from perdure.speaking import Speaking

GONE = RPCError("workflow execution already completed", RPCStatusCode.NOT_FOUND, b"")
UPSET = RPCError(
    "Unable to perform workflow execution update due to unexpected workflow task failure.",
    RPCStatusCode.FAILED_PRECONDITION,
    b"",
)


class Workflow:
    """A workflow that answers what it is told to, one after another."""

    def __init__(self, *answers: Any, status: WorkflowExecutionStatus = WorkflowExecutionStatus.RUNNING) -> None:
        self.answers = list(answers)
        self.status = status
        self.updates: list[str] = []
        self.signals: list[Any] = []

    async def execute_update(self, name: str, wanted: Any, *, id: str, **_: Any) -> Receipt:
        """Return, or raise, what is next."""
        assert name == "say"
        assert id == wanted.id
        self.updates.append(id)
        answer: Any = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return Receipt(accepted=True)

    async def signal(self, name: str, wanted: Any) -> None:
        """Keep it."""
        self.signals.append((name, wanted.id))

    async def describe(self) -> Any:
        """Return its status, and that it is as readable as it was written."""

        async def memo() -> dict[str, Any]:
            return {}

        return SimpleNamespace(status=self.status, memo=memo)


class Handle(Speaking):
    """A run that is that workflow."""

    def __init__(self, workflow: Workflow) -> None:
        self.id = "run"
        self._client: Any = SimpleNamespace(temporal=SimpleNamespace(data_converter=data_converter))
        self.workflow: Any = workflow

    def _workflow(self, result_type: type[Any] | None = None) -> Any:
        return self.workflow


async def test_what_meets_the_end_of_an_execution_is_said_again_under_the_same_id() -> None:
    workflow = Workflow(GONE, UPSET, GONE, True)
    await Handle(workflow).say("Hurry.")
    assert len(workflow.updates) == 4
    assert len(set(workflow.updates)) == 1
    assert workflow.signals == []


async def test_what_meets_the_end_of_the_run_is_refused() -> None:
    workflow = Workflow(GONE, status=WorkflowExecutionStatus.COMPLETED)
    with pytest.raises(DecisionRejected, match="has ended"):
        await Handle(workflow).say("Hurry.")
    assert len(workflow.updates) == 1


async def test_what_is_missed_for_long_is_left_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaking, "_PATIENCE", timedelta(seconds=0.1))
    workflow = Workflow(UPSET)
    receipt = await Handle(workflow).say("Hurry.")
    assert receipt.reason == "queued"
    assert workflow.signals == [("say", workflow.updates[0])]
