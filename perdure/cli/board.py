"""What goes on in a run just now, as a picture below lines that stay."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from textwrap import wrap
from typing import TYPE_CHECKING, TextIO

from perdure import events as ev
from perdure import outputs
from perdure.cli import prompt, story
from perdure.cli.output import lay_out, one_line, safe, say, span
from perdure.drafts import Draft
from perdure.messages import Usage

if TYPE_CHECKING:
    from rich.live import Live

_LINES = 6
"""Lines that are shown of what a model is writing."""


class Board:
    """What goes on in a run just now, folded from its events."""

    def __init__(self) -> None:
        self.begun: datetime | None = None
        self.phase = "starting"
        self.phase_since = datetime.now(UTC)
        self.tools: dict[str, tuple[str, datetime]] = {}
        self.open: dict[str, prompt.Open] = {}
        self.paused = False
        self.waits = False
        self.usage = Usage()
        self.trouble: list[str] = []
        self.draft = Draft()
        self.progress: dict[str, ev.ToolProgress] = {}

    def take(self, event: ev.Event) -> None:
        """Take one event."""
        self.begun = self.begun or event.time
        self.draft.take(event)
        self._hear(event)
        match event:
            case ev.ModelStarted():
                self._enter("model thinking", event.time)
            case ev.ModelFinished() | ev.ContextCompacted() | ev.Moved():
                self.usage += Usage() if isinstance(event, ev.Moved) else event.usage
                self._enter("working", event.time)
            case ev.ToolStarted():
                self.tools[event.call] = (event.name, event.time)
            case ev.ToolFinished():
                self.tools.pop(event.call, None)
                self.open.pop(event.call, None)
            case ev.ApprovalRequested() | ev.InDoubt() | ev.Asked():
                self.tools.pop(event.call, None)
                self.open[event.call] = event
            case ev.ApprovalDecided() | ev.Settled() | ev.Answered():
                self.open.pop(event.call, None)
            case ev.Paused() | ev.Resumed():
                self.paused = isinstance(event, ev.Paused)
            case ev.CancelRequested():
                self._enter("cancelling", event.time)
            case ev.Undoing():
                self._enter(f"undoing {event.call} {event.name}", event.time)
            case _:
                pass

    def _hear(self, event: ev.Event) -> None:
        if isinstance(event, ev.PhaseChanged):
            self.waits = event.status != "running"
        elif isinstance(event, ev.ToolProgress):
            self.progress[event.call] = event
        elif isinstance(event, ev.ToolStarted):
            self.progress.pop(event.call, None)

    def _enter(self, phase: str, time: datetime) -> None:
        self.phase, self.phase_since, self.trouble = phase, time, []

    def line(self, now: datetime) -> str:
        """Return the picture: phase or tools with their elapsed time, tokens, elapsed in all."""
        tools = list(self.tools.items())
        doing = [f"{name} {span(now - since)}{self._progress(call)}" for call, (name, since) in tools]
        if self.open:
            doing.append(f"waiting for {', '.join(f'{event.call} {event.name}' for event in list(self.open.values()))}")
        if self.paused:
            doing.append("paused")
        activity = ", ".join(doing) or f"{self.phase} {span(now - self.phase_since)}"
        total = span(now - self.begun) if self.begun else ""
        return one_line(f"{activity} · {story.tokens(self.usage)} · {total}", 1000)

    def _progress(self, call: str) -> str:
        told = self.progress.get(call)
        share = "" if told is None or told.fraction is None else f" ({told.fraction:.0%})"
        return f": {one_line(told.text, 100)}{share}" if told else ""

    def written(self, width: int) -> list[str]:
        """Return the last lines of what the model is writing."""
        text = self.draft.text
        if text.lstrip().startswith(("{", "```json")) and (value := outputs.partial(text)) is not None:
            text = outputs.as_text(value)  # what there is of it, as far as it can be read
        shown = safe(text[-_LINES * max(width, 20) :])
        return [part for line in shown.splitlines() for part in (wrap(line, max(width, 20)) or [""])][-_LINES:]


class Screen:
    """Lines that stay, and on a terminal the board below them.

    Args:
        stream: Where: stderr, if not said otherwise.
    """

    def __init__(self, board: Board, stream: TextIO | None = None) -> None:
        self._board = board
        self._stream = stream or sys.stderr
        self._live: Live | None = None
        self.question = ""
        self.is_terminal = self._stream.isatty()

    def show(self) -> None:
        """Begin to draw the board."""
        if not self.is_terminal or self._live:
            return
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(file=self._stream), auto_refresh=False, transient=True, redirect_stdout=False)
        self._live.start()
        self.refresh()

    def hide(self) -> None:
        """Stop drawing it, and leave the terminal as it was."""
        if self._live:
            self._live.stop()
        self._live = None

    def say(self, text: str) -> None:
        """Print lines that stay."""
        if self._live:
            from rich.text import Text

            self._live.console.print(Text.from_ansi(text), soft_wrap=True)
        elif self.question:
            say(f"\r\x1b[K{text}")
            sys.stderr.write(self.question)
            sys.stderr.flush()
        elif self._stream is sys.stdout:
            lay_out(text)
        else:
            say(text)

    def refresh(self) -> None:
        """Draw the board as it is now."""
        if self._live:
            from rich.spinner import Spinner
            from rich.text import Text

            draft = self._board.written(self._live.console.width)
            lines = [*draft, self._board.line(datetime.now(UTC)), *self._board.trouble]
            text = Text("\n".join(lines), style="dim", overflow="ellipsis", no_wrap=True)
            spinner = self._spinner = getattr(self, "_spinner", None) or Spinner("dots")
            spinner.update(text=text)
            self._live.update(spinner, refresh=True)
