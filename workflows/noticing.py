"""Telling people of a run: each notice is a workflow of its own, which the run begins and does not wait for."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from temporalio import workflow

from perdure.notices import Notice, nearing, wishes
from perdure.state import RunState
from perdure.wire import NOTIFY, NotifyInput, RunRequest, notice_id
from perdure.workflows import later


@workflow.defn(name=NOTIFY)
class NotifyWorkflow:
    """One notice, tried until it is delivered, or a day has passed."""

    @workflow.run
    async def run(self, request: NotifyInput) -> None:
        """Deliver it."""
        await later.notify(request)


class Noticing:
    """The part of a run that tells of itself, of each thing once. It does nothing where nobody is to be told.

    Args:
        request: Says who is told, and of what.
        state: The run's, as it begins.
    """

    def __init__(self, request: RunRequest, state: RunState) -> None:
        self._request = request
        self._waiting = "waiting" in request.notify or request.spec.tells_of_waiting
        self._budget = "budget" in request.notify
        self._open: set[str] = set()
        self._near: set[str] = set()
        if request.executions:  # the execution before has told of what is open now
            self._open, self._near = set(wishes(state)), set(nearing(state))
        self._tasks: set[asyncio.Task[None]] = set()
        self._number = 0

    @property
    def idle(self) -> bool:
        """Whether the engine has all notices that were begun: one of a run that ends before that would be lost."""
        return not self._tasks

    def look(self, state: RunState) -> None:
        """Tell of what is new since the last time."""
        if self._waiting:
            found = wishes(state)
            for key, wish in found.items():
                if key not in self._open:
                    self._begin(state, {"occasion": "waiting", "wish": wish})
            self._open = set(found)
        if self._budget:
            close = nearing(state)
            if fresh := [each for name, each in close.items() if name not in self._near]:
                self._begin(state, {"occasion": "budget", "nearing": fresh})
            self._near = set(close)

    async def done(self) -> None:
        """Wait until it is idle; a cancellation has come too late to hinder it."""
        if self.idle:
            return
        with contextlib.suppress(asyncio.CancelledError):
            await workflow.wait_condition(lambda: self.idle)
        await workflow.wait_condition(lambda: self.idle)

    def _begin(self, state: RunState, told: dict[str, Any]) -> None:
        self._number += 1
        own = workflow.info().original_execution_run_id[-12:]
        tail = "" if own == state.execution else f"-{state.execution}"
        name = notice_id(state.run_id, f"{own}{tail}-{workflow.info().get_current_history_length()}-{self._number}")
        common = {"id": name, "run_id": state.run_id, "agent": self._request.spec.name, "tenant": state.tenant}
        more = {"session": state.session.name if state.session else "", "step": state.steps, "at": workflow.now()}
        notice = Notice.model_validate({**common, **more, **told})
        task = asyncio.create_task(start(NotifyInput(notice=notice, heartbeat=self._request.heartbeat)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def start(request: NotifyInput) -> None:
    """Begin to deliver a notice; return when the engine has it."""
    notice = request.notice
    await later.begin(NOTIFY, request, notice.id, f"notice: run {notice.run_id} {notice.occasion}")
