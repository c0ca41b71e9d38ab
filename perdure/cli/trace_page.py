"""The page of a trace: one file that needs nothing else. What a model, a tool or a person wrote is escaped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from html import escape

from perdure.cli.output import moment, safe, span
from perdure.cli.trace_picture import anchors, colour, picture
from perdure.cli.trace_style import CSS
from perdure.messages import Usage
from perdure.telemetry.wording import text_of
from perdure.tracing import Mark, Span, Trace

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""Of the page for the browser: nothing is loaded, nothing is executed, whatever a text in it says."""

_OPEN = 1_200
"""Characters up to which a text is shown without being asked for."""

_GOOD = frozenset({"ok", "completed", "approved", "answered", "done", "resumed", "undone"})


def page(trace: Trace) -> str:
    """Return the page, as HTML."""
    steps = [one for one in trace.root.spans if one.kind == "step"]
    others = [one for one in trace.root.spans if one.kind != "step"]
    names = anchors(trace.root)
    body = [
        *_head(trace),
        '<h2 id="timeline">Timeline</h2><div class="card picture">',
        picture(trace),
        _LEGEND,
        "</div>",
        "<h2>Conversation</h2>",
        *_task(trace),
        *(part for one in steps for part in _step(trace, one, names)),
        *_others(trace, others),
        *_answer(trace),
        "<h2>Tokens and cost by step</h2>",
        *_table(trace, steps),
        *_marks(trace),
        f"<footer>Made by Perdure from the history of the run, as of {_text(moment(trace.at))}.</footer>",
    ]
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{_text(trace.run_id)} · trace</title><style>{CSS}</style></head><body><main>"
    )
    return head + "\n".join(body) + "</main></body></html>\n"


def _text(text: str) -> str:
    return escape(safe(text))


# -- what it is --------------------------------------------------------------------------------------------

_LEGEND = (
    '<div class="legend"><span><i class="model"></i>model</span><span><i class="tool"></i>tool</span>'
    '<span><i class="wait"></i>waiting for a person</span><span><i class="bad"></i>failed, lost, denied</span>'
    '<span><i class="other"></i>memory, context, store</span>'
    "<span>hatched: nothing was done, drawn shorter</span></div>"
)


def _badge(status: str) -> str:
    kind = "good" if status in _GOOD else "wait" if status.startswith(("waiting", "paused", "budget")) else "bad"
    return f'<span class="badge {"model" if status == "running" else kind}">{_text(status.replace("_", " "))}</span>'


def _head(trace: Trace) -> Iterator[str]:
    hidden = ' <span class="badge">redacted</span>' if trace.redacted else ""
    yield f"<h1>{_text(trace.run_id)} {_badge(trace.status)}{hidden}</h1>"
    if trace.reason:
        yield f'<p class="soft">{_text(trace.reason)}</p>'
    facts = {
        "Agent": trace.agent,
        "Model": trace.model,
        "Started": moment(trace.root.start),
        "Took" if trace.root.end else "Going on for": span(trace.root.lasted(trace.at)),
        "Tokens in": _count(trace.usage.input_tokens, trace.usage),
        "from a cache": f"{trace.usage.cached_tokens:,}" if trace.usage.cached_tokens else "",
        "Tokens out": _count(trace.usage.output_tokens, trace.usage),
        "Cost": _usd(trace.cost_usd),
        "Session": trace.session,
        "User": trace.user,
        "Tenant": trace.tenant,
    }
    rows = "".join(
        f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in facts.items() if value
    )
    yield f'<dl class="facts">{rows}</dl>'
    if trace.missing:
        yield f'<p class="note">{_text(trace.missing)}</p>'


def _count(tokens: int, usage: Usage) -> str:
    return f"{'about ' if usage.estimated else ''}{tokens:,}"


def _usd(usd: Decimal | None) -> str:
    return "not known" if usd is None else f"${usd:,.2f}" if usd >= 1 else f"${usd:.4f}"


# -- what was said and done --------------------------------------------------------------------------------


def _task(trace: Trace) -> Iterator[str]:
    said = text_of(trace.task)
    yield f'<div class="card"><h3>Task</h3><div class="say user">{_text(said)}</div></div>'


def _answer(trace: Trace) -> Iterator[str]:
    if trace.text and trace.root.end:
        yield f'<div class="card"><div class="head"><h3>Result</h3>{_badge(trace.status)}</div>'
        yield f'<div class="say">{_text(trace.text)}</div></div>'


def _step(trace: Trace, one: Span, names: Mapping[int, str], *, inner: bool = False) -> Iterator[str]:
    yield f'<section class="card" id="{names[id(one)]}"><div class="head"><h3>{_text(one.title.capitalize())}</h3>'
    yield f'<span class="soft">{_text(_when(trace, one))}{_text(_used(one))}</span></div>'
    for mark in () if inner else trace.marks:
        if mark.step == one.step - 1 and mark.kind in ("said", "told"):
            yield from _message(mark)
    for part in one.spans:
        yield from _tool(trace, part, names) if part.kind == "tool" else _asked(trace, part)
    yield "</section>"


def _when(trace: Trace, one: Span) -> str:
    return f"at {span(max(one.start - trace.root.start, timedelta()))}, {span(one.lasted(trace.at))}"


def _used(one: Span) -> str:
    if not one.usage or not (one.usage.input_tokens or one.usage.output_tokens):
        return ""
    cost = "" if one.cost_usd is None else f", {_usd(one.cost_usd)}"
    about = "about " if one.usage.estimated else ""
    return f" · {about}{one.usage.input_tokens:,} tokens in, {one.usage.output_tokens:,} out{cost}"


def _message(mark: Mark) -> Iterator[str]:
    who, kind = (mark.by, "user") if mark.kind == "said" else ("the runtime", "runtime")
    yield f'<div class="who">{_text(who)}</div><div class="say {kind}">{_text(mark.text)}</div>'


def _asked(trace: Trace, one: Span) -> Iterator[str]:
    """Yield a model call, or what the run does for itself."""
    status = "" if one.status == "ok" else f" {_badge(one.status)}"
    why = f" <span>{_text(one.why)}</span>" if one.why else ""
    yield f'<div class="who">{_text(one.title)} · {_text(_when(trace, one))}{_text(_used(one))}{status}{why}</div>'
    if one.spans:
        yield _parts(trace, one.spans)
    if one.output:
        kind = "" if one.kind == "model" else " runtime"
        yield f'<div class="say{kind}">{_text(one.output)}</div>'


def _tool(trace: Trace, one: Span, names: Mapping[int, str]) -> Iterator[str]:
    yield f'<div class="call" id="{names[id(one)]}"><div class="head"><span class="name">{_text(one.title)} '
    yield f'{_badge(one.status)}</span><span class="soft">{_text(_when(trace, one))}</span></div>'
    if one.run:
        yield f'<div class="soft">a run of its own: {_text(one.run)}</div>'
    if one.input:
        yield from _block("Arguments", json.dumps(one.input, ensure_ascii=False, indent=2))
    if parts := [part for part in one.spans if part.kind != "run"]:
        yield _parts(trace, parts)
    for run in (part for part in one.spans if part.kind == "run"):
        yield f"<details><summary>What it did: {_text(run.run)}, {_text(_when(trace, run))}</summary>"
        yield from _inner(trace, run, names)
        yield "</details>"
    if one.why:
        yield f'<div class="soft">{_text(one.why)}</div>'
    if one.output:
        yield from _block("Result", _pretty(one.output))
    yield "</div>"


def _inner(trace: Trace, run: Span, names: Mapping[int, str]) -> Iterator[str]:
    """Yield the steps of a run that was called."""
    for one in run.spans:
        yield from _step(trace, one, names, inner=True) if one.kind == "step" else [_parts(trace, [one])]


def _pretty(text: str) -> str:
    """Return a result with one field a line where it is JSON."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, indent=2)
    except (ValueError, RecursionError):
        return text


def _block(name: str, text: str) -> Iterator[str]:
    opened = " open" if len(text) <= _OPEN else ""
    size = "" if opened else f", {len(text):,} characters"
    yield f"<details{opened}><summary>{_text(name)}{size}</summary><pre>{_text(text)}</pre></details>"


def _parts(trace: Trace, parts: Iterable[Span]) -> str:
    """Return attempts, and waits for people: how each ended, who decided, and why."""
    told: list[str] = []
    for one in parts:
        kind = {"bad": "bad", "wait": "wait"}.get(colour(one), "good")
        by = f" by {one.by}{f' ({one.via})' if one.via else ''}" if one.by else ""
        why = "".join(f": {part}" for part in (one.why, one.output) if part)
        words = f"{one.title}: {one.status.replace('_', ' ')}{by}, {_when(trace, one)}{_used(one)}{why}"
        told.append(f'<li class="{kind}">{_text(words)}</li>')
    return f'<ul class="parts">{"".join(told)}</ul>'


def _others(trace: Trace, others: Iterable[Span]) -> Iterator[str]:
    each = list(others)
    if each:
        yield f'<section class="card" id="others"><h3>Besides</h3>{_parts(trace, each)}</section>'


# -- sums, and what else happened --------------------------------------------------------------------------


def _table(trace: Trace, steps: Iterable[Span]) -> Iterator[str]:
    used = [one for one in steps if one.usage]
    most = max((one.usage.input_tokens + one.usage.output_tokens for one in used if one.usage), default=0) or 1
    rows: list[str] = []
    for one in used:
        usage = one.usage or Usage()
        share = (usage.input_tokens + usage.output_tokens) / most
        bar = f'<td class="share"><i style="width:{share:.1%}"></i></td>'
        rows.append(f"<tr><td>{one.step}</td>{_cells(usage, one.cost_usd)}{bar}</tr>")
    rows.append(f"<tr><td>all</td>{_cells(trace.usage, trace.cost_usd)}<td></td></tr>")
    head = "".join(f"<th>{name}</th>" for name in ("Step", "In", "Cached", "Out", "Cost", ""))
    yield f'<div class="card scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _cells(usage: Usage, cost: Decimal | None) -> str:
    values = [_count(usage.input_tokens, usage), f"{usage.cached_tokens:,}", _count(usage.output_tokens, usage)]
    return "".join(f"<td>{_text(value)}</td>" for value in [*values, "?" if cost is None else _usd(cost)])


def _marks(trace: Trace) -> Iterator[str]:
    if not trace.marks:
        return
    yield '<h2>What else happened</h2><div class="card"><ol class="marks">'
    for mark in trace.marks:
        when = span(max(mark.time - trace.root.start, timedelta()))
        by = f" {'by ' if mark.kind != 'worker_took_over' else ''}{mark.by}" if mark.by else ""
        text = f": {mark.text}" if mark.text else ""
        what = _WORDS.get(mark.kind, mark.kind.replace("_", " "))
        yield f"<li><time>{_text(when)}</time><span>{_text(f'{what}{by}{text}')}</span></li>"
    yield "</ol></div>"


_WORDS = {"worker_took_over": "worker", "told": "the model was told", "run_started": "started"}
