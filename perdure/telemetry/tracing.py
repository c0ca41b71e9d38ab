"""A run's events, and what models were asked, as a tree of spans: where its time and its money went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from perdure import events as ev
from perdure.messages import AssistantMessage, ToolMessage, ToolResult, Usage, UserMessage
from perdure.reports import Spent
from perdure.results import render_result
from perdure.telemetry.askings import Asking
from perdure.telemetry.projection import Projection
from perdure.telemetry.wording import words_of
from perdure.tracing import Mark, Span, SpanKind, Trace


def trace_of(projection: Projection, now: datetime, missing: str = "") -> Trace:
    """Return the trace of a run, as far as the projection goes.

    Args:
        now: Where it goes on: up to when it is told.
        missing: What could not be read of it.
    """
    state, result = projection.state, projection.ended
    assert state is not None  # noqa: S101 - a history begins with the start
    builder = _Builder(projection)
    for event in projection.events:
        builder.take(event)
    phases = [event.status for event in projection.events if isinstance(event, ev.PhaseChanged)]
    status = result.status if result else phases[-1] if phases else "running"
    root = builder.root(status, projection.started_at or now)
    spent = [one for asking in projection.askings for one in asking.spent]
    return Trace(
        run_id=projection.run_id,
        agent=state.spec.name,
        model=state.spec.model,
        status=root.status,
        at=root.end or now,
        task=projection.task,
        text=result.text if result else state.text,
        reason=(result.reason or "") if result else "",
        session=state.session.name if state.session else "",
        user=state.user,
        tenant=state.tenant,
        usage=sum((one.usage for one in spent), Usage()),
        cost_usd=total([one.cost_usd for one in spent]) if spent else None,
        root=root,
        marks=builder.marks,
        missing=missing,
    )


def with_runs(trace: Trace, under: Mapping[str, Trace]) -> Trace:
    """Return a trace with those of the runs that it has called in their places, and in its sums."""

    def whole(span: Span) -> Span:
        spans, told = [whole(one) for one in span.spans], dict[str, Any]()
        child = under.get(span.run) if span.kind == "tool" else None
        if child:
            spans.append(child.root.model_copy(update={"run": child.run_id}))
            told = {"usage": child.usage, "cost_usd": child.cost_usd}
        elif span.kind == "step":
            told = {"usage": sum((one.usage for one in spans if one.usage), Usage()), "cost_usd": _sum(spans)}
        return span.model_copy(update={"spans": spans, **told})

    costs = [one.cost_usd for one in (trace, *under.values())]
    usage = sum((one.usage for one in under.values()), trace.usage)
    missing = " ".join(one.missing for one in (trace, *under.values()) if one.missing)
    sums = {"usage": usage, "cost_usd": total(costs), "missing": missing}
    return trace.model_copy(update={"root": whole(trace.root), **sums})


# -- calls -------------------------------------------------------------------------------------------------

_PARTS: dict[type[ev.EventBase], SpanKind] = {
    ev.ApprovalRequested: "approval",
    ev.Asked: "question",
    ev.InDoubt: "doubt",
    ev.ToolStarted: "attempt",
}
"""What begins a part of a call, and what that is."""


class _Call:
    """A call of a tool while its events are read."""

    def __init__(self, event: Any) -> None:
        self.position: str = event.call
        self.name: str = event.name
        self.begun: str = event.position
        self.start: datetime = event.time
        self.end: datetime | None = None
        self.status = "running"
        self.why = ""
        self.input: dict[str, Any] | None = None
        self.run = ""
        self.parts: list[Span] = []
        self.attempts = 0

    def begin(self, kind: SpanKind, event: Any, **told: Any) -> None:
        """Begin a part of it."""
        if kind == "attempt":
            self.attempts += 1
            told["attempt"] = self.attempts
        status = "running" if kind == "attempt" else "waiting"
        common = {"kind": kind, "name": self.name, "call": self.position, "status": status}
        place = {"start": event.time, "position": event.position, "step": step_of(self.position)}
        self.parts.append(Span.model_validate({**common, **place, **told}))

    def finish(self, kind: SpanKind, event: Any, status: str, **told: Any) -> None:
        """End its last part of that kind."""
        for at in range(len(self.parts) - 1, -1, -1):
            if self.parts[at].kind == kind and self.parts[at].end is None:
                told = {name: value for name, value in told.items() if value != ""}
                self.parts[at] = self.parts[at].model_copy(update={"end": event.time, "status": status, **told})
                return

    def retry(self, event: ev.RetryScheduled) -> None:
        """Take that an attempt has failed: which one is told when the one after it has ended."""
        self.finish("attempt", event, "lost" if event.error_type in _LOST else "failed", why=event.message)
        self.attempts = event.attempt
        self.begin("attempt", event)

    def close(self, event: ev.ToolFinished) -> None:
        """Take its result."""
        self.end, self.status, self.why = event.time, str(event.status), event.message or ""
        last = self.parts[-1] if self.parts else None
        if last and last.kind == "attempt" and last.end is None and event.duration is not None:
            begun = max(event.time - event.duration, last.start)
            self.parts[-1] = last.model_copy(update={"start": begun, "attempt": event.attempt or last.attempt})
            before = self.parts[-2] if len(self.parts) > 1 else None
            if before and before.kind == "attempt" and before.end == last.start:
                self.parts[-2] = before.model_copy(update={"end": min(begun, event.time)})
        self.finish("attempt", event, self.status)
        for kind in ("approval", "question", "doubt"):
            self.finish(kind, event, self.status)

    def span(self, result: ToolResult | None) -> Span:
        """Return it with its parts, but for a single attempt that says nothing besides."""
        alone = [(part.kind, part.status) for part in self.parts] == [("attempt", self.status)]
        parts = [] if alone else self.parts
        waiting = any(part.end is None and part.status == "waiting" for part in parts)
        return Span(
            kind="tool",
            name=self.name,
            start=self.start,
            end=self.end,
            status="waiting" if waiting and self.end is None else self.status,
            position=self.begun,
            step=step_of(self.position),
            call=self.position,
            why=self.why,
            attempt=next((part.attempt for part in reversed(self.parts) if part.kind == "attempt"), None),
            input=self.input,
            output=(result.content or render_result(result)) if result else "",
            run=self.run,
            spans=parts,
        )


_LOST = ("timeout", "lost", "")


def step_of(call: str) -> int:
    """Return the step of a call's position: 3 of `3.1`, and of `3.1r1`; 0 of what is no call."""
    first = call.partition(".")[0]
    return int(first) if first.isdecimal() else 0


# -- the tree ----------------------------------------------------------------------------------------------


class _Builder:
    """Reads events in order, and puts a run's spans together."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._calls: dict[str, _Call] = {}
        self._others: list[Span] = []  # of the run itself
        self._recalls: list[Span] = []
        self.marks: list[Mark] = []
        self._end: datetime | None = None

    def take(self, event: ev.Event) -> None:
        """Take the next event."""
        kind = _PARTS.get(type(event))
        match event:
            case ev.ToolStarted() | ev.ApprovalRequested() | ev.Asked() | ev.InDoubt() if kind:
                self._begin(kind, event)
            case ev.ApprovalDecided() | ev.Answered() | ev.Settled() | ev.Probed():
                self._go_on(event)
            case ev.ToolFinished() | ev.RetryScheduled():
                self._go_on(event)
            case ev.Recalled():
                self._recall(event)
            case ev.Undoing() | ev.Undone():
                self._undo(event)
            case ev.Paused() | ev.Resumed():
                self._pause(event)
                self._mark(event)
            case ev.RunFinished():
                self._end = event.time
            case _:
                self._mark(event)

    def _begin(self, kind: SpanKind, event: Any) -> None:
        call = self._calls.setdefault(event.call, _Call(event))
        call.input = getattr(event, "arguments", None) or call.input
        call.run = getattr(event, "child", "") or call.run
        call.finish("attempt", event, "lost", why=getattr(event, "message", ""))
        call.begin(kind, event, why=getattr(event, "why", "") or getattr(event, "question", "") or "")

    def _go_on(self, event: Any) -> None:
        call = self._calls.get(event.call)
        if call is None and isinstance(event, ev.ToolFinished):  # it was never executed
            call = self._calls[event.call] = _Call(event)
        if call is None:
            return
        match event:
            case ev.ApprovalDecided():
                told = {"by": event.by, "via": event.via, "why": _why(call, "approval", event.reason)}
                status = "denied" if not event.approve else "edited" if event.edited else "approved"
                call.finish("approval", event, status, **told)
            case ev.Answered():
                call.finish("question", event, "answered", by=event.by, via=event.via, output=event.text)
            case ev.Settled():
                call.finish("doubt", event, event.outcome, by=event.by, why=event.reason)
            case ev.Probed():
                found = f"{event.outcome.replace('_', ' ')}. {event.message}".strip()
                call.finish("attempt", event, "lost", why=f"Nobody knew whether it was done; looked up: {found}")
            case ev.RetryScheduled():
                call.retry(event)
            case _:
                call.close(event)

    def _recall(self, event: ev.Recalled) -> None:
        facts = f"{event.facts} remembered fact{'' if event.facts == 1 else 's'} told"
        self._recalls.append(
            Span(
                kind="recall",
                name="memory",
                start=event.time - (event.duration or timedelta()),
                end=event.time,
                status="failed" if event.problem else "ok",
                position=event.position,
                step=1,
                why=event.problem,
                output="" if event.problem else facts,
            )
        )

    def _undo(self, event: ev.Undoing | ev.Undone) -> None:
        if isinstance(event, ev.Undone) and self._ends("undo", event.call, event, event.status, event.message or ""):
            return
        self._others.append(self._other("undo", event.name, event, call=event.call))
        if isinstance(event, ev.Undone):
            self._ends("undo", event.call, event, event.status, event.message or "")

    def _pause(self, event: ev.Paused | ev.Resumed) -> None:
        if isinstance(event, ev.Paused):
            told = {"why": event.reason, "by": event.by, "status": "waiting"}
            self._others.append(self._other("pause", "paused", event, **told))
        else:
            self._ends("pause", "", event, "resumed", event.reason)

    def _other(self, kind: SpanKind, name: str, event: Any, **told: Any) -> Span:
        place = {"start": event.time, "position": event.position, "step": event.step}
        return Span.model_validate({"kind": kind, "name": name, **place, **told})

    def _ends(self, kind: SpanKind, call: str, event: Any, status: str, why: str) -> bool:
        """End what goes on of that kind; return whether there was anything."""
        for at, span in enumerate(self._others):
            if (span.kind, span.call, span.end) == (kind, call, None):
                told = {"end": event.time, "status": status, **({"why": why} if why else {})}
                self._others[at] = span.model_copy(update=told)
                return True
        return False

    def _mark(self, event: ev.Event) -> None:
        if event.type in _MARKS:
            by = str(getattr(event, "by", "") or getattr(event, "worker", ""))
            told = {"time": event.time, "step": event.step, "kind": event.type, "by": by}
            self.marks.append(Mark.model_validate({**told, "text": words_of(event)}))

    # -- putting it together -------------------------------------------------------------------------------

    def root(self, status: str, started: datetime) -> Span:
        """Return the run."""
        steps: dict[int, list[Span]] = {}
        results = _results(self._projection)
        asked = [_asking(one, self._end) for one in self._projection.askings]
        calls = [call.span(results.get(call.position.partition("r")[0])) for call in self._calls.values()]
        for span in [*self._recalls, *asked, *calls]:
            steps.setdefault(span.step, []).append(self._cut(span))
        spans = [_step(number, parts) for number, parts in steps.items() if number]
        spans += [*steps.get(0, []), *map(self._cut, self._others), *self._put_away()]
        return Span(
            kind="run",
            name=self._projection.state.spec.name if self._projection.state else "",
            start=started,
            end=self._end,
            status=status,
            position=self._projection.events[0].position if self._projection.events else "",
            spans=sorted(spans, key=_order),
        )

    def _cut(self, span: Span) -> Span:
        """Return `span` with what still goes on in it ended by the run's end."""
        if self._end is None:
            return span
        parts = [self._cut(part) for part in span.spans]
        if span.end is None:
            status = "cut_off" if span.status == "running" else span.status
            return span.model_copy(update={"end": self._end, "status": status, "spans": parts})
        return span.model_copy(update={"spans": parts})

    def _put_away(self) -> list[Span]:
        return [
            Span(
                kind="put_away",
                name="transcript",
                start=one.start,
                end=one.end,
                status="ok" if one.end else "running",
                position=one.position,
                output=f"{one.entries} messages put away in the store",
            )
            for one in self._projection.puttings_away
        ]


def _why(call: _Call, kind: SpanKind, reason: str) -> str:
    """Return why something was asked about, and what was said to that."""
    asked = next((part.why for part in reversed(call.parts) if part.kind == kind), "")
    return " — ".join(part for part in (asked, reason) if part)


def _order(span: Span) -> tuple[datetime, int]:
    return span.start, span.step


def _step(number: int, parts: Sequence[Span]) -> Span:
    ends = [part.end for part in parts]
    over = all(end is not None for end in ends)
    return Span(
        kind="step",
        name=f"step {number}",
        start=min(part.start for part in parts),
        end=max(end for end in ends if end is not None) if over else None,
        status="ok" if over else "waiting" if any(part.status == "waiting" for part in parts) else "running",
        position=min(parts, key=_order).position,
        step=number,
        usage=sum((part.usage for part in parts if part.usage), Usage()),
        cost_usd=_sum(parts),
        spans=sorted(parts, key=_order),
    )


def _sum(parts: Iterable[Span]) -> Decimal | None:
    """Return what those parts have cost that use tokens; None where it is not known of one."""
    costs = [part.cost_usd for part in parts if part.usage is not None]
    return total(costs) if costs else None


def total(costs: Sequence[Decimal | None]) -> Decimal | None:
    """Return a sum, which is not known where one of them is not."""
    known = [usd for usd in costs if usd is not None]
    return sum(known, Decimal(0)) if len(known) == len(costs) else None


def _asking(asking: Asking, ended: datetime | None) -> Span:
    requests = [_request(asking, one, number) for number, one in enumerate(asking.spent, 1)]
    good = bool(asking.spent) and asking.spent[-1].status == "ok"
    status = "running"
    if asking.ended or ended:
        turn = asking.turn
        good = good or asking.report is not None or (turn is not None and (turn.directed or turn.finish == "full"))
        gave_nothing = "lost" if asking.lost else "cancelled" if asking.why == "interrupted" else "failed"
        status = "ok" if good else gave_nothing
    return Span(
        kind="model" if asking.kind == "model" else "compaction",
        name=asking.spent[-1].model if asking.spent else _who(asking),
        start=asking.scheduled,
        end=asking.ended or ended,
        status=status,
        position=asking.position,
        step=asking.step,
        why=_asking_why(asking),
        attempt=sum(one.times for one in asking.spent) or None,
        usage=sum((one.usage for one in asking.spent), Usage()),
        cost_usd=_sum(requests),
        output=_output(asking),
        spans=requests if len(requests) > 1 else [],
    )


def _who(asking: Asking) -> str:
    """Return who was asked: a model, or the strategy alone."""
    return "strategy" if asking.turn and asking.turn.directed else asking.model


def _asking_why(asking: Asking) -> str:
    if asking.turn and asking.turn.finish == "full":
        return "not asked: the context was too full"
    if asking.turn and asking.turn.finish not in ("stop", "calls"):
        return asking.turn.finish
    if asking.turn and asking.turn.fallback:
        return f"since {asking.turn.fallback}"
    return asking.message or (asking.report.message if asking.report else "")


def _output(asking: Asking) -> str:
    if asking.turn:
        return asking.turn.message.text
    if asking.report:
        entry, before, after = asking.report.entry, asking.report.before.tokens, asking.report.after.tokens
        told = f"{asking.report.how}: {before:,} tokens became {after:,}"
        return f"{told}\n\n{entry.summary}" if entry and entry.summary else told
    return ""


def _request(asking: Asking, one: Spent, number: int) -> Span:
    start = one.at or asking.started or asking.scheduled
    times = f" ({one.times} times)" if one.times > 1 else ""
    return Span(
        kind="request",
        name=one.model,
        start=start,
        end=start + one.took if one.took is not None else asking.ended or start,
        status=one.status,
        position=asking.position,
        step=asking.step,
        why=f"{one.why}{times}",
        attempt=number,
        usage=one.usage,
        cost_usd=one.cost_usd,
    )


def _results(projection: Projection) -> Mapping[str, ToolResult]:
    """Return the results of calls by their positions, as far as they were read."""
    given: dict[str, ToolResult] = {}
    for entry in projection.entries:
        result = entry.result if isinstance(entry, ToolMessage | UserMessage) else None
        if result and (result.status != "waiting" or result.call_id not in given):
            given[result.call_id] = result
    for call in projection.state.all_calls if projection.state else ():
        if call.result:
            given[call.call.id] = call.result
    found: dict[str, ToolResult] = {}
    for asking in projection.askings:
        message = asking.turn.message if asking.turn else AssistantMessage(role="assistant")
        for index, called in enumerate(message.calls, 1):
            if called.id in given:
                found[f"{asking.step}.{index}"] = given[called.id]
    return found


# -- what takes no time ------------------------------------------------------------------------------------

_MARKS = frozenset(
    {
        *("run_started", "worker_took_over", "told", "tools_listed", "model_failed", "budget_warning"),
        *("approval_reminder",),
        *("decision_refused", "said", "handed_off", "paused", "resumed", "cancel_requested", "runtime_fault"),
    }
)
