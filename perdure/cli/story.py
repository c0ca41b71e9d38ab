"""How events and requests read: lines for a person. Everything that a model or tool wrote is made harmless here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Literal, TextIO, assert_never

from perdure import events as ev
from perdure.asking import Request
from perdure.budgets import Additions
from perdure.cli import plans
from perdure.cli.output import as_json, moment, one_line, paint, safe, span
from perdure.cli.standing import Attempt, activity_words
from perdure.messages import JSON, Content, ContextHealth, Usage
from perdure.state import STAGED

INDENT = " " * 18
COLOURS = {
    "completed": "green",
    "ok": "green",
    "running": "blue",
    "failed": "red",
    "error": "red",
    "cancelled": "yellow",
    "denied": "yellow",
    "skipped": "yellow",
    "staged": "cyan",
    "in_doubt": "red",
    "budget_exhausted": "yellow",
    "waiting_approval": "cyan",
    "waiting_decision": "cyan",
    "waiting_input": "cyan",
    "waiting": "cyan",
    "paused": "yellow",
}


_NOT_ASKED = {
    "budget": "model not asked: too little is left of the run's budget",
    "price_unknown": "model not asked: its price is not known",
}


_Course = ev.PhaseChanged | ev.Told | ev.RetryScheduled | ev.BudgetWarning | ev.TextDelta | ev.ToolProgress


def status_word(status: str, stream: TextIO | None = None) -> str:
    """Return a status, coloured."""
    return paint(status, COLOURS.get(status, ""), stream)


def undone_word(status: Literal["undone", "failed", "not_known"], stream: TextIO | None = None) -> str:
    """Return what became of undoing an effect, coloured."""
    words = {"undone": "undone", "failed": "could not be undone", "not_known": "not undone, as nobody knows of it"}
    return paint(words[status], "yellow" if status == "undone" else "red", stream)


def signature(name: str, arguments: Mapping[str, JSON], limit: int = 160) -> str:
    """Return a call on one line: `book(flight="MU5101", seats=2)`."""
    inside = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())
    return one_line(f"{name}({inside})", limit)


def tokens(usage: Usage) -> str:
    """Return token counts for a person: `1,204 tokens in (900 cached), 85 out`."""
    cached = f" ({usage.cached_tokens:,} cached)" if usage.cached_tokens else ""
    about = "about " if usage.estimated else ""
    return f"{about}{usage.input_tokens:,} tokens in{cached}, {usage.output_tokens:,} out"


def money(cost: Decimal | None) -> str:
    """Return a cost for a person: `, $0.0123`, or nothing where the price is not known."""
    return "" if cost is None else f", ${cost:,.2f}" if cost >= 1 else f", ${cost:.4f}"


def line(event: ev.Event, begun: datetime, stream: TextIO) -> str:
    """Return an event as a line (with more below it, indented): when, since `begun`; which step or call; what."""
    where = getattr(event, "call", "") or (
        str(event.step) if isinstance(event, ev.ModelStarted | ev.ModelFinished | ev.Moved) else ""
    )
    when = paint(f"{span(event.time - begun):>10}", "dim", stream)
    return f"{when}  {where:<5} {what(event, stream)}"


def what(event: ev.Event, stream: TextIO) -> str:  # noqa: PLR0911, C901, PLR0912 - once per member of the union
    """Return what happened, in words."""
    match event:
        case ev.RunStarted():
            source = event.forked_from
            forked = f"forked from {safe(source.run_id)} at step {source.step}" if source else ""
            verb = "resumed" if event.resumed else forked or "started"
            verb += f" by schedule {safe(event.schedule)}" if event.schedule else ""
            return f"{verb}: agent {safe(event.agent)}, model {safe(event.model)}"
        case ev.WorkerTookOver():
            return f"worker {safe(event.worker)} has it"
        case ev.ToolsListed():
            return _listed(event)
        case ev.Recalled():
            return _recalled(event)
        case ev.ModelStarted():
            return f"model {safe(event.model)} asked{' to answer now' if event.answer_only else ''}"
        case ev.ModelFinished():
            return _reply(event, stream)
        case ev.Moved():
            return _moved(event)
        case ev.PlanChanged():
            return plans.in_words(event, stream)
        case ev.ContextCompacted():
            return _compacted(event)
        case ev.ModelFailed():
            kind = safe(event.error_type)  # what follows of it says why: the run's end, or its pause
            return _NOT_ASKED.get(kind, f"model call {status_word('failed', stream)} ({kind})")
        case ev.ToolStarted():
            as_run = f" as run {safe(event.child)}" if event.child else ""
            return f"{signature(event.name, event.arguments)} started{as_run}"
        case ev.ToolFinished():
            return _finished(event, stream)
        case ev.ApprovalRequested():
            why = _because(_reason(event.name, event.why))
            return f"{paint(safe(event.name), 'bold', stream)} {_waits(event.call)} for approval{why}"
        case ev.ApprovalReminder():
            return f"{safe(event.name)} still {_waits(event.call)} for approval"
        case ev.ApprovalDecided():
            return _decided(event, stream)
        case ev.DecisionRefused():
            return _refused(event, stream)
        case ev.InDoubt():
            return _doubted(event, stream)
        case ev.Probed():
            return f"{safe(event.name)} looked up: {event.outcome}{_because(event.message)}"
        case ev.Settled():
            return f"{safe(event.name)} settled as {event.outcome} by {safe(event.by)}{_because(event.reason)}"
        case ev.Undoing():
            return f"{safe(event.name)} is being undone"
        case ev.Undone():
            tried = f", attempt {event.attempt}" if event.attempt and event.attempt > 1 else ""
            return f"{safe(event.name)} {undone_word(event.status, stream)}{tried}{_because(event.message or '')}"
        case ev.Asked() | ev.Answered() | ev.Said() | ev.Paused() | ev.Resumed():
            return _spoken(event, stream)
        case ev.HandedOff():
            return f"{safe(event.agent)} hands over to {paint(safe(event.to), 'bold', stream)}"
        case ev.CancelRequested():
            by = f" by {safe(event.by)}" if event.by and event.reason != f"cancelled by {event.by}" else ""
            return f"cancellation asked for{by}{_because(event.reason)}"
        case ev.RuntimeFault():
            return f"{paint('fault', 'red', stream)}: {one_line(event.message, 500)}"
        case ev.RunFinished():
            used = f"{tokens(event.usage)}{money(event.cost_usd)}"
            return f"{status_word(event.status, stream)}, {used}{_because(event.reason or '')}"
        case _:
            return _went(event, stream)


def _went(event: _Course, stream: TextIO) -> str:
    """Return how the run goes on, in words."""
    match event:
        case ev.PhaseChanged():
            return event.phase.replace("_", " ") + ("" if event.status == "running" else f": {event.status}")
        case ev.Told():
            return f"the runtime tells the model{_because(words(event.content))}"
        case ev.RetryScheduled():
            tried = safe(activity_words(event.activity, event.activity_id))
            return f"{tried}: attempt {event.attempt} failed, and another followed{_because(event.message)}"
        case ev.BudgetWarning():
            return f"{paint('nearly used up', 'yellow', stream)}: {event.share:.0%} of {event.most} are gone"
        case ev.TextDelta():
            return one_line(event.text, 500)
        case ev.ToolProgress():
            share = "" if event.fraction is None else f" ({event.fraction:.0%})"
            return f"{safe(event.name)}: {one_line(event.text, 500)}{share}"
        case _:
            assert_never(event)


def _spoken(event: ev.Asked | ev.Answered | ev.Said | ev.Paused | ev.Resumed, stream: TextIO) -> str:
    match event:
        case ev.Asked():
            return f"{paint(safe(event.name), 'bold', stream)} waits for an answer{_because(event.question)}"
        case ev.Answered():
            return f"{safe(event.name)} answered by {safe(event.by)} ({event.via}){_because(event.text)}"
        case ev.Said():
            now = ", for the next turn" if event.queued else ", breaking in" if event.now else ""
            return f"{paint(safe(event.by), 'cyan', stream)} says ({event.via}{now}){_because(words(event.content))}"
        case ev.Paused():
            by = f"by {safe(event.by)} ({event.via})" if event.by else "at a limit, until it is resumed"
            return f"{status_word('paused', stream)} {by}{_because(event.reason)}"
        case ev.Resumed():
            more = f" with {', '.join(added(event.add))} added" if added(event.add) else ""
            return f"resumed by {safe(event.by)} ({event.via}){more}{_because(event.reason)}"


def added(more: Additions) -> list[str]:
    """Return what is added to a run's limits, in words."""
    amounts = {
        "steps": f"{more.steps:,} {'step' if more.steps == 1 else 'steps'}",
        "input_tokens": f"{more.input_tokens:,} tokens in",
        "output_tokens": f"{more.output_tokens:,} tokens out",
        "usd": f"{more.usd} USD",
        "wall_time": span(more.wall_time),
    }
    calls = [f"{count:,} {'call' if count == 1 else 'calls'} of {safe(tool)}" for tool, count in more.calls.items()]
    return [*(text for name, text in amounts.items() if getattr(more, name)), *calls]


def words(content: Content) -> str:
    """Return what a person says as text; images and files by their kind."""
    if isinstance(content, str):
        return content
    return " ".join(part.text if part.kind == "text" else f"[{part.kind}]" for part in content)


def _reason(tool: str, why: str) -> str:
    """Return why a person is asked, where that says more than that one is."""
    return "" if why == f"{tool} needs approval." else why


def _waits(call: str) -> str:
    return "wait" if call == STAGED else "waits"


def _because(reason: str) -> str:
    return f": {one_line(reason, 500)}" if reason else ""


def _listed(event: ev.ToolsListed) -> str:
    if event.problem:
        return f"tools could not be listed{_because(event.problem)}"
    found = "; ".join(f"{safe(server)}: {one_line(', '.join(names), 300)}" for server, names in event.tools.items())
    notes = "".join(
        f"\n{INDENT}{safe(server)}: {one_line(note, 300)}" for server, told in event.notes.items() for note in told
    )
    return f"tools listed: {found}{notes}"


def _recalled(event: ev.Recalled) -> str:
    if event.problem:
        return f"goes on without what is remembered{_because(event.problem)}"
    if not event.facts:
        return "nothing new is remembered"
    return f"{event.facts} remembered fact{'s are' if event.facts > 1 else ' is'} told"


def _reply(event: ev.ModelFinished, stream: TextIO) -> str:
    took = f" in {span(event.duration)}" if event.duration else ""
    tried = f", attempt {event.attempt}" if event.attempt > 1 else ""
    cut = "" if event.finish in ("stop", "calls") else f", {event.finish}"
    calls = f", calls {one_line(', '.join(event.calls))}" if event.calls else ""
    other = f" ({safe(event.model)}, since {one_line(event.fallback, 600)})" if event.fallback else ""
    reply = f"model replied{other}{took}{tried}{cut}, {tokens(event.usage)}{money(event.cost_usd)}{calls}"
    aside = event.calls and event.text.strip()
    return f"{reply}\n{INDENT}{paint(one_line(event.text, 300), 'dim', stream)}" if aside else reply


def _moved(event: ev.Moved) -> str:
    what = f"calls {one_line(', '.join(event.calls))}" if event.calls else "answers"
    return f"{safe(event.strategy)} {what}{_because(event.text) if event.calls else ''}"


def fullness(context: ContextHealth) -> str:
    """Return how full a context is: `98,000 of 128,000 tokens (77%)`."""
    return f"{context.tokens:,} of {context.window:,} tokens ({context.share:.0%})"


_WHY = {
    "full": "context was too full",
    "refused": "request was refused as too long",
    "budget": "little is left of the budget",
}
_HOW = {
    "shortened": "long results are shown as previews",
    "summarised": "old turns are summed up",
    "nothing": "nothing is left to make it shorter",
}


def _compacted(event: ev.ContextCompacted) -> str:
    if not event.before.tokens:
        return f"{_WHY[event.why]}, and could not be compacted{_because(event.message)}"
    by = f" by {safe(event.by)}" if event.by else ""
    spent = f", {tokens(event.usage)}{money(event.cost_usd)}" if event.usage.input_tokens else ""
    if event.how == "nothing":
        return f"{_WHY[event.why]}, and {_HOW[event.how]}: {fullness(event.before)}{_because(event.message)}"
    went = f"from {event.before.tokens:,} to {fullness(event.after)}"
    return f"{_WHY[event.why]}: {_HOW[event.how]}{by}, {went}{spent}{_because(event.message)}"


def _finished(event: ev.ToolFinished, stream: TextIO) -> str:
    took = f" in {span(event.duration)}" if event.duration else ""
    tried = f", attempt {event.attempt}" if event.attempt and event.attempt > 1 else ""
    why = "" if event.status == "staged" else event.message or ""  # that is for the model
    wrote = f", wrote {safe(', '.join(event.wrote))}" if event.wrote else ""
    return f"{safe(event.name)} {status_word(event.status, stream)}{took}{tried}{wrote}{_because(why)}"


_NOUNS = {
    "approve": "approval",
    "deny": "denial",
    "settle": "settlement",
    "decide": "decision",
    "say": "message",
    "resume": "resumption",
    "cancel": "cancellation",
}


def _refused(event: ev.DecisionRefused, stream: TextIO) -> str:
    what = f"{_NOUNS.get(event.name, safe(event.name))}{f' by {safe(event.by)}' if event.by else ''}"
    return f"{what} ({event.via}) was {paint('refused', 'yellow', stream)}{_because(event.reason)}"


def _doubted(event: ev.InDoubt, stream: TextIO) -> str:
    doubt = paint("in doubt", "red", stream)
    return f"{safe(event.name)} is {doubt}: {one_line(event.message)} (key {safe(event.key)})"


def _decided(event: ev.ApprovalDecided, stream: TextIO) -> str:
    verb = paint("approved", "green", stream) if event.approve else paint("denied", "yellow", stream)
    edited = " with other arguments" if event.edited else ""
    return f"{safe(event.name)} {verb}{edited} by {safe(event.by)} ({event.via}){_because(event.reason)}"


def request_lines(request: Request, stream: TextIO, indent: str = "  ") -> list[str]:
    """Return a request with its arguments, whole, and the commands that answer it."""
    since = f" since {moment(request.since)}" if request.since else ""
    if request.wants == "answer":
        return [*_question_lines(request, since, stream, indent)]
    if not request.call:
        what = "asks for more" if request.wants == "more" else "waits to be resumed"
        commands = (f"{indent}     {paint(command, 'cyan', stream)}" for command in request.commands)
        return [f"{indent}{what}{since}{_because(request.why)}", *commands]
    wants = f"{_waits(request.call)} for approval" if request.wants == "approval" else "is in doubt"
    where = f"{safe(request.run_id)} " if "/" in request.run_id else ""
    head = f"{indent}{where}{request.call}  {paint(safe(request.tool), 'bold', stream)} {wants}{since}"
    mark = f"hash {request.hash}" if request.wants == "approval" else f"key {safe(request.key)}"
    inner = f"{indent}     "
    arguments = as_json(request.arguments, indent=2).splitlines()
    return [
        f"{head}{_because(_reason(request.tool, request.why))}",
        *(inner + part for part in arguments),
        f"{inner}{paint(mark, 'dim', stream)}",
        *(f"{inner}{paint(command, 'cyan', stream)}" for command in request.commands),
    ]


def _question_lines(request: Request, since: str, stream: TextIO, indent: str) -> Iterator[str]:
    question = one_line(str(request.arguments.get("question", "")), 2000)
    yield f"{indent}{request.call}  {paint(safe(request.tool), 'bold', stream)} waits for an answer{since}: {question}"
    yield from (f"{indent}     {paint(command, 'cyan', stream)}" for command in request.commands)


def attempt_line(attempt: Attempt, now: datetime) -> str:
    """Return what is under way or tried again: `model call: attempt 7, last failure: Connection refused`."""
    since = f"under way for {span(now - attempt.since)}" if attempt.since else ""
    if not attempt.last_failure:
        return f"{safe(attempt.what)}: {since or 'waits for a worker'}"
    due = f"; next in {span(attempt.next_at - now)}" if attempt.next_at and attempt.next_at > now else ""
    failure = one_line(attempt.last_failure, 300)
    said = [f"attempt {attempt.number}", *([since] if since else []), f"last failure: {failure}"]
    return f"{safe(attempt.what)}: {', '.join(said).rstrip('.') + due if due else ', '.join(said)}"
