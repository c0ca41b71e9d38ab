"""Making what the model is shown shorter. A mixin of the workflow; what that does to the state is in `pressure`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from temporalio.exceptions import ActivityError

from perdure import pressure
from perdure.failures import fold_compaction_failure
from perdure.state import RunState
from perdure.wire import CompactInput, ModelInput, RunRequest
from perdure.workflows import calls


class Compacting:
    """The part of a run that compacts its context."""

    request: RunRequest
    state: RunState
    _sent: int
    _request: Callable[[], ModelInput]
    _spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]

    def _compact(self, *, free: bool) -> None:
        state = self.state
        request = CompactInput(
            **dict(self._request()),
            why="budget" if free else state.pressure.due or "full",
            tight=0 if free else state.pressure.tight,
            waiting=list(pressure.waiting(state)),
            decided=list(state.decided),
        )
        pressure.begin(state, len(request.decided))
        self._spawn(self._make_shorter(request))

    async def _make_shorter(self, request: CompactInput) -> None:
        try:
            report = await calls.compact(request, self.state.spec, self.request.heartbeat)
        except ActivityError as error:
            fold_compaction_failure(self.state, error)
            return
        self._sent = request.length
        pressure.fold(self.state, report)
