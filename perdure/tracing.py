"""What a run did with its time: a tree of spans. Plain data."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Literal

from pydantic import Field

from perdure.messages import JSON, Content, Data, Usage
from perdure.strategies.planning import STEP

SpanKind = Literal[
    "run",
    "step",
    "model",
    "request",
    "tool",
    "attempt",
    "approval",
    "question",
    "doubt",
    "compaction",
    "recall",
    "put_away",
    "undo",
    "pause",
]


class Span(Data):
    """Something that took time.

    Attributes:
        kind: A `run` has `step`s; a step a `model` call, which has `request`s, and calls of a `tool`, which have
            `attempt`s, and waits: `approval`, `question`, `doubt`. Beside them there are `compaction`s, which have
            requests, `recall`, `put_away`, `undo`, `pause`. A single request is its model call, a single attempt its
            call, where there is nothing to be told besides.
        name: Of the agent, the model or the tool.
        position: Of the event with which it begins.
        call: Position of the call, such as 3.1.
        end: None while it goes on.
        status: As the thing itself has it: `ok`, `error`, `denied`, `failed`, `lost`, `completed` …; `running` or
            `waiting` while it goes on.
        why: Why it was asked for, or ended so.
        by: Who decided, answered, settled; `via` by which way.
        attempt: Its number, from 1.
        usage: Tokens; None for what uses none.
        cost_usd: None also where the price is not known.
        input: Arguments of a call.
        output: What was replied or returned; a preview of what is too large for a history.
        run: The run of the agent that was called as a tool.
    """

    kind: SpanKind
    name: str
    start: datetime
    end: datetime | None = None
    status: str = "running"
    position: str = ""
    step: int = 0
    call: str = ""
    why: str = ""
    by: str = ""
    via: str = ""
    attempt: int | None = None
    usage: Usage | None = None
    cost_usd: Decimal | None = None
    input: dict[str, JSON] | None = None
    output: str = ""
    run: str = ""
    spans: list[Span] = Field(default_factory=list["Span"])

    @property
    def _called(self) -> str:
        """The tool's name; of a step of a plan, which step it is."""
        step = (self.input or {}).get("step") if self.run and self.name == STEP else None
        return f"{self.name} {step}" if isinstance(step, str) else self.name

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        words = {
            "request": f"request {self.attempt}",
            "attempt": f"attempt {self.attempt}",
            "tool": f"{self.call} {self._called}",
            "approval": "approval",
            "question": "question to a person",
            "doubt": "in doubt",
            "undo": f"undoing of {self.name}",
            "recall": "what is remembered",
            "compaction": "compaction of the context",
            "put_away": "put away in the store",
            "run": f"run of {self.name}",
        }
        return words.get(self.kind, self.name)

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Span]]:
        """Yield it and all below it, each before what is below, with how deep that is."""
        yield depth, self
        for span in self.spans:
            yield from span.walk(depth + 1)

    def lasted(self, now: datetime) -> timedelta:
        """Return how long it took, or has gone on."""
        return max((self.end or now) - self.start, timedelta())


class Mark(Data):
    """Something that took no time: what a person said, another worker, a warning."""

    time: datetime
    step: int = 0
    kind: str
    text: str = ""
    by: str = ""


class Trace(Data):
    """A run as a tree of spans.

    Attributes:
        status: As in `RunResult`, or what an open run does or waits for.
        at: Up to when it is told: its end, or the moment at which it was read.
        task: What the user said at the start.
        usage: Of all requests, in sum; of `cost_usd` likewise.
        marks: In order.
        missing: What could not be read of it, as a sentence.
        redacted: Whether it has passed the redactor.
    """

    run_id: str
    agent: str
    model: str
    status: str
    at: datetime
    task: Content = ""
    text: str = ""
    reason: str = ""
    session: str = ""
    user: str = ""
    tenant: str = ""
    usage: Usage = Usage()
    cost_usd: Decimal | None = None
    root: Span
    marks: list[Mark] = Field(default_factory=list[Mark])
    missing: str = ""
    redacted: bool = False


WAITS = frozenset({"approval", "question", "doubt", "pause"})
"""Kinds of spans in which a run waits for people."""

_SHORTENED = 0.12
"""What a stretch in which nothing was done takes at most on an axis, as a part of all in which something was."""


class Axis:
    """Where moments are on a picture of a trace, from 0 to 1: stretches in which nothing was done are shortened.

    Attributes:
        shortened: Those that take less room than their time would.
    """

    def __init__(self, trace: Trace) -> None:
        self.start, self.end = trace.root.start, max(trace.at, trace.root.start)
        busy = _merged([(span.start, span.end or self.end) for span in _working(trace.root)], self.end)
        working = sum((end - start for start, end in busy), timedelta()).total_seconds()
        longest = max(working * _SHORTENED, 0.001) if busy else float("inf")
        moments = [self.start, *(moment for part in busy for moment in part), self.end]
        self._moments, self._places, self.shortened = [self.start], [0.0], list[tuple[datetime, datetime]]()
        for at in range(1, len(moments)):
            start, end = moments[at - 1], max(moments[at], moments[at - 1])
            length = (end - start).total_seconds()
            if at % 2 and length > longest:
                self.shortened.append((start, end))
                length = longest
            self._moments.append(end)
            self._places.append(self._places[-1] + length)

    def at(self, moment: datetime) -> float:
        """Return where a moment is."""
        if self._places[-1] == 0:
            return 0.0
        after = min(max(bisect_right(self._moments, moment), 1), len(self._moments) - 1)
        start, end = self._moments[after - 1], self._moments[after]
        share = (moment - start) / (end - start) if end > start else 1.0
        place = self._places[after - 1] + (self._places[after] - self._places[after - 1]) * min(max(share, 0.0), 1.0)
        return place / self._places[-1]


def _working(root: Span) -> Iterator[Span]:
    """Yield the spans in which something was done, the innermost ones."""
    for _, span in root.walk():
        inner = any(part.kind in ("request", "attempt", "approval", "question", "doubt", "run") for part in span.spans)
        if span.kind not in ("run", "step") and span.kind not in WAITS and not inner:
            yield span


def _merged(parts: list[tuple[datetime, datetime]], last: datetime) -> list[tuple[datetime, datetime]]:
    merged: list[tuple[datetime, datetime]] = []
    for start, ended in sorted(parts):
        end = min(ended, last)
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, max(end, start)))
    return merged
