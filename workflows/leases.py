"""A run's part in a tree of budgets: asks its parent for more, answers its children."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import FailureError, is_cancelled_exception

from perdure import leases
from perdure.leases import Grant, LeaseRequest
from perdure.state import Amounts, RunState
from perdure.wire import GRANTED, LEASE


class Leases:
    """The signals `lease` (child → parent) and `granted` (parent → child) of one workflow.

    Args:
        state: The run's; its leases and limits are changed.
        changed: Called after more was granted.
    """

    def __init__(self, state: RunState, changed: Callable[[], None]) -> None:
        self._state = state
        self._changed = changed
        self._open: set[str] = set()
        workflow.set_signal_handler(LEASE, self._on_request)  # pyright: ignore[reportUnknownMemberType]
        workflow.set_signal_handler(GRANTED, self._on_granted)  # pyright: ignore[reportUnknownMemberType]

    async def ask(self, wanted: Amounts, patience: timedelta | None = None) -> None:
        """Ask the parent for more and wait for its answer; go on without it where it is gone, or silent."""
        request = leases.ask(self._state, wanted, patience or leases.PATIENCE)
        try:
            await workflow.get_external_workflow_handle(self._state.borrowing.parent).signal(LEASE, request)
            await workflow.wait_condition(
                lambda: request.id in self._state.borrowing.answers or self._state.outcome is not None,
                timeout=request.patience,
                timeout_summary=f"{leases.SUMMARY}{request.id}",
            )
        except FailureError as error:
            if is_cancelled_exception(error):
                raise
            leases.unanswered(self._state, request.id)
        except TimeoutError:
            leases.unanswered(self._state, request.id)

    async def _on_granted(self, *values: Any) -> None:
        grant = leases.read(Grant, values)
        if isinstance(grant, Grant):
            leases.take(self._state, grant)
            self._changed()

    async def _on_request(self, *values: Any) -> None:
        request = leases.read(LeaseRequest, values)
        if isinstance(request, str) or leases.answered(self._state, request) or request.id in self._open:
            return
        self._open.add(request.id)
        short = leases.lacking(self._state, request.wanted)
        if short and self._state.borrowing.possible and not self._state.outcome:
            await self.ask(short, request.patience * 0.75)  # so that the child still waits when the answer is there
        grant = leases.more(self._state, request)
        leases.lend(self._state, request.child, grant)
        with suppress(FailureError):  # a child that is gone needs no more
            await workflow.get_external_workflow_handle(request.child).signal(GRANTED, grant)
