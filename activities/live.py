"""What is told to those who watch while a model writes: text beside the events, which may be lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from temporalio import activity

from perdure.telemetry.broadcast import Broadcast, Reply


class Voice:
    """Tells what is written in one attempt of a model call. Costs nothing that the call waits for.

    Args:
        broadcast: Where it is told.
        step: The model turn.
    """

    def __init__(self, broadcast: Broadcast, step: int) -> None:
        self._broadcast = broadcast
        self._step = step
        self._requests = 0
        self._reply: Reply | None = None

    def begin(self, model: str) -> Callable[[str], None]:
        """Return what takes the text of the next request, to `model`; it replaces that of those before it."""
        info = activity.info()
        self._requests += 1
        self._reply = Reply(
            namespace=info.namespace,
            run_id=info.workflow_id or "",
            step=self._step,
            model=model,
            attempt=info.attempt,
            request=self._requests,
        )
        return partial(self._broadcast.text, self._reply)

    def end(self) -> None:
        """Take in that the reply is whole."""
        if self._reply:
            self._broadcast.end(self._reply)
