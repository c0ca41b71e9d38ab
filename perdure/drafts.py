"""What a model is writing, out of the pieces that come while it does. Pure."""

from __future__ import annotations

from perdure import events as ev


class Draft:
    """What a model has written so far, out of the pieces that come while it does.

    Attributes:
        text: Of the newest attempt; "…" stands for pieces that were lost.
    """

    def __init__(self) -> None:
        self.text = ""
        self._of = (0, 0, 0)
        self._end = 0

    def take(self, event: ev.Event) -> bool:
        """Take an event; return whether what was there counts no more: another attempt has begun, or this ended."""
        match event:
            case ev.TextDelta():
                of = (event.step, event.attempt, event.request)
                replaced = of != self._of and bool(self.text)
                if of != self._of:
                    self._of, self.text, self._end = of, "", 0
                self.text += ("…" if event.offset > self._end else "") + event.text
                self._end = event.offset + len(event.text)
                return replaced
            case ev.ModelStarted() | ev.ModelFinished() | ev.ModelFailed() | ev.Moved() | ev.RunFinished():
                replaced, self.text, self._of, self._end = bool(self.text), "", (0, 0, 0), 0
                return replaced
            case _:
                return False
