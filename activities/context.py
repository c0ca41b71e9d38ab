"""What a tool is handed."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import BaseModel

from perdure.activities.toolbox import Toolbox
from perdure.activities.unlocked import NONE, Unlocked
from perdure.activities.variables import Variables
from perdure.errors import VariableError
from perdure.messages import JSON
from perdure.telemetry import signals
from perdure.telemetry.broadcast import Working
from perdure.telemetry.ids import SpanRef
from perdure.wire import ToolInput

Resource = TypeVar("Resource")


class CallContext:
    """One attempt of one call, as its body sees it. Implements `perdure.ToolContext`."""

    def __init__(
        self,
        call: ToolInput,
        run_id: str,
        attempt: int,
        deadline: datetime,
        toolbox: Toolbox,
        variables: type[BaseModel] | None = None,
        secrets: Unlocked = NONE,
        *,
        name: str = "",
        span: SpanRef | None = None,
    ) -> None:
        self.run_id = run_id
        self.agent = call.agent
        self.step = int(call.position.partition(".")[0])
        self.call = call.position
        self.call_id = call.call_id
        self.attempt = attempt
        self.idempotency_key = call.key
        self.undoes = ""
        self.deadline = deadline
        self.shared: Any = toolbox.shared(call.agent)
        self.secrets = secrets
        self.span = span
        self._toolbox = toolbox
        self._name = name
        self._local = call.local
        self._stopped = threading.Event()
        self._model = variables
        self._given = call.variables
        self._variables: Variables | None = None

    @property
    def vars(self) -> Any:
        """The variables, as an instance of the agent's model class."""
        if self._variables is None:
            if self._model is None:
                raise VariableError(f"Agent {self.agent!r} declares no variables; see Agent(variables=…).")
            self._variables = Variables(self._model, self._given)
        return self._variables.instance

    @property
    def traceparent(self) -> str:
        """The header `traceparent` of requests that this attempt makes of others; "" where nobody traces."""
        return signals.current().traceparent(self.span) if self.span else ""

    def current(self) -> AbstractContextManager[object]:
        """Make this attempt's span the current one."""
        return signals.current().within(self.span) if self.span else nullcontext()

    def wrote(self) -> dict[str, JSON]:
        """Return the variables that were changed. Raises `VariableError` if they can't be kept."""
        return self.secrets.json(self._variables.changes()) if self._variables else {}

    def unfit(self) -> str:
        """Return why the variables can't be had as they are, or "" where they can, or there are none."""
        try:
            if self._model is not None:
                _ = self.vars
        except VariableError as error:
            return str(error)
        return ""

    @property
    def cancelled(self) -> bool:
        """Whether the call was cancelled or its deadline has passed."""
        return self._stopped.is_set() or datetime.now(UTC) >= self.deadline

    def progress(self, text: str, fraction: float | None = None) -> None:
        """Tell those who watch how far the call is; see `perdure.ToolContext`."""
        if (broadcast := self._toolbox.broadcast) is None:
            return
        share = min(max(float(fraction), 0.0), 1.0) if fraction is not None and not math.isnan(fraction) else None
        at = (self._toolbox.namespace, self.run_id, self.step, self.call, self._name, self.attempt)
        working = Working(*at, local=self._local)
        broadcast.progress(working, str(text), share)

    def stop(self) -> None:
        """Make `cancelled` true."""
        self._stopped.set()

    async def open(self, key: str, factory: Callable[[], AbstractAsyncContextManager[Resource]]) -> Resource:
        """Return the resource named `key`, opened once per run and worker, closed when the run ends."""
        return await self._toolbox.open(self.run_id, key, factory)
