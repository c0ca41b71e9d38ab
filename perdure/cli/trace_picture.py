"""The timeline of a trace, as SVG within a page. Everything that a model, a tool or a person wrote is escaped."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from html import escape
from itertools import pairwise

from perdure.cli.output import one_line, safe, span
from perdure.tracing import WAITS, Axis, Span, Trace

_WIDTH, _LABELS, _TOOK, _ROW, _TOP = 1000, 250, 70, 22, 26
_ROOM = _WIDTH - _LABELS - _TOOK
_BAD = frozenset({"failed", "lost", "error", "denied", "cancelled", "in_doubt", "cut_off", "not_known"})
_COUNTS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
_TICKS = 8


_XMLNS = 'xmlns="http://www.w3.org/2000/svg"'
_HATCH = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<line x1="0" y1="0" x2="0" y2="6" stroke-width="3"/></pattern></defs>'
)


def picture(trace: Trace) -> str:
    """Return the timeline as an SVG element; each row leads to the part of the page that tells of it."""
    axis, names = Axis(trace), anchors(trace.root)
    rows = [(depth, one) for part in trace.root.spans for depth, one in part.walk()]
    height = _TOP + _ROW * len(rows) + 6
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="Timeline of the run" {_XMLNS}>',
        _HATCH,
        *_gaps(axis, height),
        *_ticks(axis, height),
    ]
    for number, (depth, one) in enumerate(rows):
        parts.extend(_row(trace, axis, names[id(one)], depth, one, _TOP + _ROW * number))
    return "".join([*parts, "</svg>"])


def anchors(root: Span) -> dict[int, str]:
    """Return for each span, by its identity, the id of the part of the page that tells of it."""
    found: dict[int, str] = {}

    def name(span: Span, above: str) -> None:
        own = f"span-{len(found)}" if span.kind in ("step", "tool") else above
        found[id(span)] = own
        for one in span.spans:
            name(one, own)

    name(root, "others")
    return found


def colour(one: Span) -> str:
    """Return the class of a span, which gives it its colour."""
    if one.status in _BAD:
        return "bad"
    if one.kind in WAITS:
        return "wait"
    return {"model": "model", "request": "model", "tool": "tool", "attempt": "tool", "step": "step", "run": "step"}.get(
        one.kind, "other"
    )


def _x(place: float) -> float:
    return round(_LABELS + place * _ROOM, 2)


def _row(trace: Trace, axis: Axis, name: str, depth: int, one: Span, top: int) -> Iterator[str]:
    start, end = axis.at(one.start), axis.at(one.end or trace.at)
    took = span(one.lasted(trace.at))
    status = "" if one.status in ("ok", "completed") else f", {one.status}"
    told = safe(f"{one.title}: {took}{status}" + (f". {one.why}" if one.why else ""))
    label = one_line(one.title, max(34 - depth * 2, 8))
    kind = "step" if one.spans else colour(one)  # what is below it shows where its time went
    tall, thick = (6, _ROW - 12) if kind != "step" else (8, _ROW - 16)
    width = max(round((end - start) * _ROOM, 2), 2.5)
    strong = ' class="strong"' if one.kind == "step" else ""
    yield f'<a href="#{name}"><title>{escape(told)}</title>'
    yield f'<rect class="row" x="0" y="{top}" width="{_WIDTH}" height="{_ROW}"/>'
    yield f'<text{strong} x="{4 + depth * 14}" y="{top + 15}">{escape(label)}</text>'
    yield f'<rect class="{kind}" x="{_x(start)}" y="{top + tall}" width="{width}" height="{thick}" rx="2"/>'
    yield f'<text class="took" x="{_WIDTH - 4}" y="{top + 15}" text-anchor="end">{escape(took)}</text></a>'


def _gaps(axis: Axis, height: int) -> Iterator[str]:
    for start, end in axis.shortened:
        left, right = _x(axis.at(start)), _x(axis.at(end))
        what = escape(f"Nothing was done for {span(end - start)}: drawn shorter.")
        yield f'<rect class="gap" x="{left}" y="{_TOP}" width="{round(right - left, 2)}" height="{height - _TOP - 4}">'
        yield f"<title>{what}</title></rect>"


def _ticks(axis: Axis, height: int) -> Iterator[str]:
    last = -100.0
    for moment in _moments(axis):
        left = _x(axis.at(moment))
        if left - last < 62 or left > _WIDTH - _TOOK:  # noqa: PLR2004 - what a label takes
            continue
        last = left
        shown = escape(span(moment - axis.start))
        yield f'<g class="tick"><line x1="{left}" x2="{left}" y1="{_TOP - 6}" y2="{height - 4}"/>'
        yield f'<text x="{left}" y="13" text-anchor="middle">{shown}</text></g>'


def _moments(axis: Axis) -> list[datetime]:
    """Return moments of an even time apart, as many as fit where something was done."""
    edges = [axis.start, *(moment for gap in axis.shortened for moment in gap), axis.end]
    worked = sum(((end - start) for start, end in list(pairwise(edges))[::2]), timedelta()).total_seconds()
    apart = next((one for one in _COUNTS if worked / one <= _TICKS), _COUNTS[-1])
    found: list[datetime] = []
    for start, end in list(pairwise(edges))[::2]:
        first = -(-(start - axis.start).total_seconds() // apart)
        number = int((end - axis.start).total_seconds() // apart - first) + 1
        found += [axis.start + timedelta(seconds=(first + at) * apart) for at in range(min(number, 4 * _TICKS))]
    return found
