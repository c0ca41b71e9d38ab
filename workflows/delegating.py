"""The part of a run that has other agents do what its model asks of them, each in a run of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from temporalio import workflow
from temporalio.exceptions import FailureError, is_cancelled_exception

from perdure import budgets, delegation, leases
from perdure.budgets import Additions
from perdure.control import Resumption
from perdure.decisions import Pause
from perdure.delegation import Waits
from perdure.messages import Data, OpenStatus
from perdure.policies import SubAgent
from perdure.state import CallState, RunState
from perdure.wire import PAUSE, RESUME, WAITS, RunRequest
from perdure.workflows import calls


class Delegating:
    """What one run does about the runs that its calls are, and tells the one that has called it."""

    request: RunRequest
    state: RunState
    _spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    _touch: Callable[[], None]

    def __init__(self) -> None:
        workflow.set_signal_handler(WAITS, self._on_waits)  # pyright: ignore[reportUnknownMemberType]

    async def _delegate(self, call: CallState, agent: SubAgent) -> None:
        """Have a run of `agent` do what a call asks for."""
        child = delegation.child_id(self.state, call)
        share = delegation.share(self.state, call, agent)
        limits = leases.carve(self.state, child, agent.spec.limits, share, least=int(agent.part))
        if limits is None:
            workflow.upsert_memo({delegation.UNFUNDED: call.position})
            delegation.unfunded(self.state, call)
            return
        try:
            ended: Any = await calls.run(delegation.request(self.request, self.state, call, agent, limits), child)
        except FailureError as error:
            ended = error
        delegation.fold(self.state, call, child, ended)

    def _tell_parent(self, status: OpenStatus) -> None:
        """Tell the run that has called this one whom it waits for: it does not use up its time meanwhile."""
        self._spawn(_signal(self.state.borrowing.parent, WAITS, Waits(child=self.state.run_id, status=status)))

    async def _tell_used(self) -> None:
        """Tell the run that has called this one what it has used, which is about to end as cancelled."""
        if self.request.caller and self.request.caller.bills:
            said = Waits(child=self.state.run_id, status="running", used=budgets.bill(self.state))
            await _signal(self.state.borrowing.parent, WAITS, said)

    def _pass_on(self, wanted: Pause | Resumption) -> None:
        """Pause, or let go on, the runs that calls of this one are, as it does itself; what is added to it stays."""
        name = PAUSE if isinstance(wanted, Pause) else RESUME
        said = wanted if isinstance(wanted, Pause) else wanted.model_copy(update={"add": Additions()})
        for child in delegation.under_way(self.state):
            self._spawn(_signal(child, name, said))

    async def _on_waits(self, *values: Any) -> None:
        told = leases.read(Waits, values)
        if isinstance(told, Waits):
            delegation.waits(self.state, told)
            self._touch()


async def _signal(run_id: str, name: str, said: Data) -> None:
    """Tell another run something, if it is still there."""
    try:
        await workflow.get_external_workflow_handle(run_id).signal(name, said)
    except FailureError as error:
        if is_cancelled_exception(error):
            raise
