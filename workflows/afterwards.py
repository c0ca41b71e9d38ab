"""What follows a run: a workflow of its own, so that the run does not wait for it and can't fail with it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from temporalio import workflow

from perdure import learning
from perdure.reports import Remembered
from perdure.state import RunState
from perdure.wire import AFTERWARDS, AfterRun, NotifyInput, RunRequest, after_id
from perdure.workflows import later
from perdure.workflows.noticing import start
from perdure.workflows.remembering import remember


@workflow.defn(name=AFTERWARDS)
class AfterwardsWorkflow:
    """What is done after an execution of a run has ended. Each part is tried for ever, and none touches the run."""

    @workflow.run
    async def run(self, request: AfterRun) -> Remembered | None:
        """Archive it and, where the run has ended, take it into its session and into memory; return what that cost."""
        ended = [later.end_turn(request)] if request.session and not request.goes_on else []
        told = [_tell_of_end(request)] if request.notify and not request.goes_on else []
        await asyncio.gather(later.archive(request), *ended, *told)  # whoever is in the session waits for its part
        if request.goes_on or not request.remember:
            return None
        return await remember(request)


async def _tell_of_end(request: AfterRun) -> None:
    if notice := await later.end_notice(request):
        await start(NotifyInput(notice=notice, heartbeat=request.heartbeat))


class Follower:
    """The part of a run that begins what follows it, once in each of its executions."""

    def __init__(self) -> None:
        self._starting: asyncio.Task[None] | None = None

    @property
    def begun(self) -> bool:
        """Whether it was begun."""
        return self._starting is not None and self._starting.done()

    async def begin(self, request: RunRequest, state: RunState, earlier: str = "") -> None:
        """Begin it, and return when the engine has it: of a run that ends before that, it would not be begun.

        Args:
            earlier: What follows another execution, from which the run has continued as new, is begun in its place.
        """
        name = after_id(state.run_id, earlier[-12:]) if earlier else _id(state)
        after = _after(request, state, earlier)
        starting = self._starting = self._starting or asyncio.create_task(_start(after, name))
        with contextlib.suppress(asyncio.CancelledError):  # a cancellation has come too late to hinder it
            await workflow.wait_condition(starting.done)
        await workflow.wait_condition(starting.done)  # there is only one


async def _start(after: AfterRun, id: str) -> None:
    options: dict[str, Any] = {} if after.session else {"priority": later.LAST}
    await later.begin(AFTERWARDS, after, id, f"after run {after.run_id}", **options)


def _after(request: RunRequest, state: RunState, earlier: str) -> AfterRun:
    return AfterRun(
        run_id=state.run_id,
        execution=earlier or workflow.info().run_id,
        agent=request.spec.name,
        heartbeat=request.heartbeat,
        goes_on=earlier != "",
        session=state.session,
        remember=learning.writer(state),
        notify="ended" in request.notify,
    )


def _id(state: RunState) -> str:
    """Return an id that no other execution has, but the replay of this one: a reset begins with the same history."""
    own = workflow.info().original_execution_run_id[-12:]
    return after_id(state.run_id, own if state.execution == own else f"{own}-{state.execution}")
