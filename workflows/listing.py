"""Learning of tools at a run's beginning. A mixin of the workflow; what that does to the state is in `toolsets`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from temporalio.exceptions import ActivityError, is_cancelled_exception

from perdure import budgets, toolsets
from perdure.failures import explain
from perdure.state import RunState
from perdure.wire import RunRequest
from perdure.workflows import calls


class Listing:
    """The part of a run that asks MCP servers for their tools."""

    request: RunRequest
    state: RunState
    _spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]

    def _list_tools(self) -> None:
        toolsets.begin(self.state)
        self._spawn(self._learn_tools())

    async def _learn_tools(self) -> None:
        seconds = budgets.allowance(self.state).seconds
        try:
            report = await calls.list_tools(toolsets.request(self.state), seconds, self.request.heartbeat)
        except ActivityError as error:
            toolsets.fail(self.state, explain(error), cancelled=is_cancelled_exception(error))
            return
        toolsets.fold(self.state, report)
