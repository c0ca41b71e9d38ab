"""What is seen of a run from outside: by what it is found in lists, and where its page says that it stands."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeUpdate

from perdure import asking
from perdure.details import details
from perdure.engine.search_attributes import COST, STATUS, TOKENS, WAITING_FOR
from perdure.messages import OpenStatus, RunResult
from perdure.state import Phase, RunState


class Showing:
    """Keeps a run's search attributes as it is: each is set when it changes, and not before.

    Args:
        more: Whether the namespace has all that a run can do without.
    """

    def __init__(self, *, more: bool) -> None:
        known = workflow.info().typed_search_attributes  # they go along where it continues as new
        self._more = more
        self._status: Any = known.get(STATUS) or "running"
        self._waits: list[Any] = list(known.get(WAITING_FOR) or ())

    def show(self, state: RunState, phase: Phase, status: OpenStatus) -> bool:
        """Show where an open run stands; return whether its status is another than before."""
        changed = bool(status != self._status)
        waits = asking.kinds(state) if self._more else []
        self._upsert([*self._status_if_new(status), *self._waits_if_new(waits)])
        workflow.set_current_details(details(state, phase, status))
        return changed

    def end(self, result: RunResult) -> None:
        """Show how the run has ended, and what it has used."""
        workflow.set_current_details(f"**{Phase.ENDED}** · {result.status.replace('_', ' ')}")
        if not self._more:
            if result.status == "budget_exhausted":
                self._upsert(self._status_if_new(result.status))
            return
        tokens = result.usage.input_tokens + result.usage.output_tokens
        cost = [] if result.cost_usd is None else [COST.value_set(_plain(result.cost_usd))]
        ended = [*self._status_if_new(result.status), *self._waits_if_new([])]
        self._upsert([*ended, TOKENS.value_set(tokens), *cost])

    def _status_if_new(self, status: str) -> list[SearchAttributeUpdate[Any]]:
        if status == self._status:
            return []
        self._status = status
        return [STATUS.value_set(status)]

    def _waits_if_new(self, waits: list[asking.Kind]) -> list[SearchAttributeUpdate[Any]]:
        if waits == self._waits:
            return []
        self._waits = list(waits)
        return [WAITING_FOR.value_set(waits) if waits else WAITING_FOR.value_unset()]

    def _upsert(self, updates: list[SearchAttributeUpdate[Any]]) -> None:
        if updates:
            workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType]


def _plain(cost: Decimal) -> float:
    return round(float(cost), 6)
