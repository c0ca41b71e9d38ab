"""What the demo says: a line on stderr for each thing that happens, and the outcome on stdout."""

from __future__ import annotations

import asyncio
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from perdure import events as ev
from perdure.cli import output
from perdure.messages import RunResult, canonical_json

_BAR = 24
"""Characters of the timeline's bars."""

_LONGEST = 300
"""Characters of a text in a line; the answer at the end is whole."""

_INDENT = " " * 20


class Talk:
    """Tells the person who watches what happens."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._held: list[str] | None = None

    @property
    def heard(self) -> bool:
        """Whether somebody sits at a terminal and can answer."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    def line(self, who: str, text: str, colour: str = "") -> None:
        """Say one thing: when, who, what. While a question is open, it waits."""
        when = f"{time.monotonic() - self._began:5.1f} s"
        width = shutil.get_terminal_size().columns - len(_INDENT) if sys.stderr.isatty() else 10_000
        lines = textwrap.wrap(output.one_line(text, _LONGEST), max(width, 20), break_long_words=False)
        told = f"\n{_INDENT}".join(output.paint(line, colour, sys.stderr) for line in lines)
        self._say(f"{output.paint(when, 'dim', sys.stderr)}  {output.paint(f'{who:<9}', 'bold', sys.stderr)}  {told}")

    def _say(self, text: str) -> None:
        if self._held is None:
            output.say(text)
        else:
            self._held.append(text)

    async def ask(self, question: str) -> bool:
        """Return whether the answer is yes; the end of input is a no."""
        self._held = []
        try:
            while True:
                sys.stderr.write(f"{_INDENT}{output.paint(f'{question} [y/n]', 'yellow', sys.stderr)} ")
                sys.stderr.flush()
                answer = await read_line()
                if answer.strip().lower() in ("y", "yes"):
                    return True
                if not answer or answer.strip().lower() in ("n", "no"):
                    return False
        except asyncio.CancelledError:
            sys.stderr.write("\n")
            raise
        finally:
            held, self._held = self._held, None
            for text in held:
                output.say(text)

    def event(self, event: ev.Event) -> None:
        """Say what happened to the run, where a person wants to know it."""
        match event:
            case ev.ModelFinished(calls=[_, *_]):
                names = ", ".join(call.partition(" ")[2] for call in event.calls)
                self.line("model", f"{event.text} → {names}".strip())
            case ev.ModelFinished():
                self.line("model", "answers")
            case ev.ModelFailed():
                self.line("model", event.message, "red")
            case ev.ToolStarted():
                self.line("tool", f"{event.name} begins")
            case ev.ToolFinished():
                told = f": {event.message}" if event.message else f" {event.status}"
                again = f", at attempt {event.attempt} with the same key" if (event.attempt or 1) > 1 else ""
                self.line("tool", f"{event.name}{told}{again}", "green" if event.status == "ok" else "yellow")
            case ev.Probed():
                self.line("look-up", f"Had {event.name} been done? {_FOUND[event.outcome]}", "green")
            case ev.DecisionRefused():
                self.line("approval", event.reason, "red")
            case ev.RuntimeFault():
                self.line("engine", event.message, "red")
            case _:
                pass


_FOUND = {"done": "Yes, so it is not done again.", "not_done": "No.", "unknown": "That can't be told."}


def shown(arguments: Mapping[str, Any]) -> str:
    """Return a call's arguments as a line."""
    return ", ".join(f"{name} {v if isinstance(v, str) else canonical_json(v)}" for name, v in arguments.items())


async def read_line() -> str:
    """Return a line of stdin, "" at its end. No thread: that could not be cancelled."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sys.stdin, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sys.stdin)
    return sys.stdin.readline()


# -- the timeline ------------------------------------------------------------------------------------------


class Span(NamedTuple):
    """Something that took time."""

    what: str
    began: datetime
    ended: datetime


def spans(events: Sequence[ev.Event]) -> list[Span]:
    """Return what took time in a run, by begin. What has not ended is left out."""
    return sorted(_spans(events), key=lambda span: span.began)


def _spans(events: Sequence[ev.Event]) -> Iterator[Span]:
    began: dict[str, datetime] = {}
    for event in events:
        match event:
            case ev.ModelStarted():
                began["model"] = event.time
            case ev.ModelFinished():
                yield Span(f"model, step {event.step}", began.pop("model", event.time), event.time)
            case ev.ApprovalRequested():
                began[f"approval {event.call}"] = event.time
            case ev.ApprovalDecided():
                yield Span(f"approval of {event.name}", began.pop(f"approval {event.call}", event.time), event.time)
            case ev.ToolStarted():
                began[event.call] = event.time
            case ev.ToolFinished() if event.call in began:
                yield Span(event.name, began.pop(event.call), event.time)
            case ev.WorkerTookOver() if event.step:
                yield Span("the run is with another worker now", event.time, event.time)
            case _:
                pass


def timeline(events: Sequence[ev.Event]) -> str:
    """Return a line for each thing that took time: when, how long, a bar, and what it was."""
    start = events[0].time
    whole = max(events[-1].time - start, timedelta(milliseconds=1))
    rows = [
        [
            "",
            _seconds(began - start),
            _seconds(ended - began),
            _bar((began - start) / whole, (ended - began) / whole),
            what,
        ]
        for what, began, ended in spans(events)
    ]
    return output.columns([[output.safe(cell) for cell in row] for row in rows])


def _seconds(time: timedelta) -> str:
    return f"{time.total_seconds():5.1f} s"


def _bar(at: float, length: float) -> str:
    left = min(int(at * _BAR), _BAR - 1)
    return f"{' ' * left}{'━' * max(1, round(length * _BAR))}"[:_BAR]


# -- the outcome -------------------------------------------------------------------------------------------


def tokens(result: RunResult) -> str:
    """Return what the run used."""
    used = result.usage
    about = "about " if used.estimated else ""
    return f"{about}{used.input_tokens:,} in, {used.output_tokens:,} out, in {result.steps} model calls"


def bookings(booked: Mapping[str, int]) -> str:
    """Return counts in words, such as `1 flight, 2 hotels`."""
    return ", ".join(f"{count} {kind if count != 1 else kind[:-1]}" for kind, count in booked.items())
