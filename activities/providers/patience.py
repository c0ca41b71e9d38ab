"""How long a model call may take: to its first byte, between two pieces, whole."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from perdure.activities.providers.streams import Progress
from perdure.policies import ModelSettings

_AFTERWARDS = timedelta(seconds=1)
"""For a server that has said it all to close its stream: then the connection can be used again."""


class Patience:
    """The deadlines of one exchange, made where it begins.

    Only what is of the reply gives it more time: a server that sends nothing but keep-alives, or announces a
    reply that does not come, is given up as one that is silent. A reply that was asked for whole comes when it
    is ready: until then only `timeout` counts.

    Attributes:
        total: Context of the whole exchange.
        silence: Context within it, of what is waited for now.
    """

    def __init__(self, settings: ModelSettings, *, streamed: bool) -> None:
        self._settings = settings
        self._begun = False
        self._waiting = settings.first_byte
        self.total = asyncio.timeout(settings.timeout.total_seconds())
        self.silence = asyncio.timeout(settings.first_byte.total_seconds() if streamed else None)

    def after(self, progress: Progress) -> None:
        """Wait anew after a piece of the reply; a model that thinks in silence has `first_byte` for it."""
        if progress == "other":
            return
        self._begun = self._begun or progress == "content"
        limits = {"content": self._settings.between_chunks, "thinking": self._settings.first_byte, "done": _AFTERWARDS}
        self._waiting = limits[progress]
        self.silence.reschedule(asyncio.get_running_loop().time() + self._waiting.total_seconds())

    def story(self) -> str | None:
        """Return which of the three was exceeded, in words that follow the server's address; None where none was."""
        limit = self._settings.timeout if self.total.expired() else self._waiting
        seconds = f"{limit.total_seconds():g} s"
        if self.total.expired():
            return f"did not end its reply within {seconds} (timeout)."
        if not self.silence.expired():
            return None
        if not self._begun:
            return f"did not begin to reply within {seconds} (first_byte)."
        name = "between_chunks" if self._waiting == self._settings.between_chunks else "first_byte"
        return f"fell silent in the middle of its reply: nothing more of it came for {seconds} ({name})."
