"""`perdure trace`: where a run's time and money went, and why: as a waterfall, as data, as a page."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import session
from perdure.cli.output import AsJSON, Misuse, emit, lay_out, moment, one_line, paint, safe, say, span
from perdure.cli.runs import RunId

if TYPE_CHECKING:
    from perdure.cli.standing import Attempt
    from perdure.tracing import Axis, Mark, Span, Trace


def trace(
    run_id: RunId,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write it to this file, as one page for a browser.")
    ] = None,
    redacted: Annotated[
        bool, typer.Option("--redacted", help="Hide what is personal or gives access, so that it can go into a ticket.")
    ] = False,
    as_json: AsJSON = False,
) -> None:
    """Show what a run did with its time and its money: steps, model calls, tools, attempts, waits for people, and why.

    Works for runs that go on, have ended, or are in the archive. The page needs nothing else and can be attached to a
    ticket; it has all messages, arguments and results, unless it is --redacted.
    """
    found, doing = session.finish(_trace(run_id, redacted=redacted))
    if found.missing:
        say(paint(safe(found.missing), "yellow", sys.stderr))
    if html is not None:
        from perdure.cli.trace_page import page

        write(html, page(found))
        say(f"The trace of run {safe(found.run_id)} is in {safe(str(html))}.")
        if not redacted:
            say("It shows everything that was said. For others: --redacted.")
    if as_json:
        emit(found)
    elif html is None:
        width = shutil.get_terminal_size((80, 24)).columns
        lay_out("\n".join([*lines(found, width), *under_way(doing, width)]))


async def _trace(run_id: str, *, redacted: bool) -> tuple[Trace, list[Attempt]]:
    """Return the trace of a run, and what it is doing now: history knows nothing of that until it ends."""
    from perdure.cli import standing
    from perdure.telemetry import redaction

    client = await session.connect()
    found = await client.handle(run_id).trace(redacted=redacted)
    if found.root.end:
        return found, []
    doing = (await standing.now(client, run_id)).under_way
    hide = redaction.current().text if redacted else str
    return found, [replace(one, last_failure=hide(one.last_failure)) for one in doing]


def under_way(doing: Sequence[Attempt], width: int) -> list[str]:
    """Return what is being done, or tried again, as lines for a terminal of that width."""
    told = ["Under way:"] if doing else []
    for one in doing:
        since = f", since {moment(one.since)}" if one.since else ""
        due = f", due at {moment(one.next_at)}" if one.next_at and not one.since else ""
        failed = f"; the one before: {one_line(one.last_failure, 400)}" if one.last_failure else ""
        told += _wrap(f"{one.what}, attempt {one.number}{since}{due}{failed}", width, "  ")
    return ["", *told] if told else []


def write(file: Path, text: str) -> None:
    """Write a file whole or not at all; one that is there is replaced.

    Raises:
        Misuse: If it can't be written.
    """
    try:
        if file.is_dir():
            raise IsADirectoryError(21, "Is a directory")
        if file.exists() and not file.is_file():  # /dev/stdout: nothing to be replaced
            file.write_text(text, encoding="utf-8")
            return
        target = file.resolve()
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, delete=False) as part:
            part.write(text)
        try:
            Path(part.name).chmod(target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
            Path(part.name).replace(target)
        except OSError:
            Path(part.name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise Misuse(f"{file} can't be written: {error.strerror}.") from error


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


# -- for a terminal ----------------------------------------------------------------------------------------

_WIDE, _LEAST_BAR = 88, 10
_COLOURS = {
    "ok": "green",
    "completed": "green",
    "approved": "green",
    "answered": "green",
    "done": "green",
    "resumed": "green",
    "undone": "yellow",
    "failed": "red",
    "lost": "red",
    "error": "red",
    "in_doubt": "red",
    "cut_off": "red",
    "denied": "yellow",
    "cancelled": "yellow",
    "skipped": "yellow",
    "edited": "yellow",
    "waiting": "cyan",
    "running": "blue",
}
_QUIET = frozenset({"ok", "approved", "completed"})
"""Ends that go without saying where a line has little room."""


@dataclass(frozen=True)
class _Line:
    """A line of the waterfall before it is laid out."""

    label: str
    took: str
    bar: str
    used: str
    colour: str
    bold: bool = False


def lines(trace: Trace, width: int) -> list[str]:
    """Return a trace for a terminal of that width: what it is of, the waterfall, what was said besides."""
    from perdure.tracing import Axis

    axis = Axis(trace)
    rows = [(depth, one) for part in trace.root.spans for depth, one in part.walk()]
    narrow = width < _WIDE
    label_room = max(min(max((_label_size(depth, one) for depth, one in rows), default=8), width * 2 // 5), 12)
    used = {id(one): "" if narrow else _used(one) for _, one in rows}
    used_room = max(map(len, used.values()), default=0)
    bar_room = width - label_room - 14 - (used_room + 2 if used_room else 0)
    told = list(_head(trace, width))
    for depth, one in rows:
        bar = _bar(axis, one, bar_room) if bar_room >= _LEAST_BAR else ""
        label = _label(depth, one, label_room)
        line = _Line(label, span(one.lasted(trace.at)), bar, used[id(one)], _COLOURS.get(one.status, ""))
        told.append(_laid_out(line, label_room, bar_room, bold=one.kind in ("step", "run")))
        told.extend(_below(depth, one, width))
    if axis.shortened:
        told += ["", *_wrap("Stretches in which nothing was done are drawn shorter than they were.", width, "")]
    notes = [line for mark in trace.marks for line in _mark(mark, trace, width)]
    return [*told, *(["", *notes] if notes else [])]


def _head(trace: Trace, width: int) -> Iterator[str]:
    from perdure.telemetry.wording import text_of

    took = span(trace.root.lasted(trace.at))
    status = paint(trace.status, _COLOURS.get(trace.status, "cyan"))
    yield from (paint(line, "bold") for line in _wrap(trace.run_id, width, ""))
    yield f"{status} {'in' if trace.root.end else 'for'} {took}"
    about = "about " if trace.usage.estimated else ""
    cost = "" if trace.cost_usd is None else f", ${trace.cost_usd:.4f}"
    tokens = f"{about}{trace.usage.input_tokens:,} tokens in, {trace.usage.output_tokens:,} out{cost}"
    yield from _wrap(f"Agent {trace.agent}, {trace.model}; {tokens}", width, "")
    yield from _wrap(f"Task: {one_line(text_of(trace.task), 240)}", width, "")
    if trace.reason:
        yield from _wrap(trace.reason, width, "")
    yield ""


def _label_size(depth: int, one: Span) -> int:
    from rich.cells import cell_len

    return cell_len(_label(depth, one, 200))


def _label(depth: int, one: Span, room: int) -> str:
    """Return what a span is, in so many columns."""
    from rich.cells import cell_len

    indent = "  " * depth
    short = {
        "undo": f"undoing of {one.call} {one.name}",
        "compaction": "compaction",
        "put_away": "put away",
        "pause": "paused",
    }
    text = short.get(one.kind, one.title)
    status = "" if one.kind == "step" or one.status in _QUIET else f" {one.status}"
    line = one_line(f"{text}{status}", 200)
    while cell_len(indent + line) > room and len(line) > 1:
        line = line[:-2] + "…" if line[-1] == "…" else line[:-1] + "…"
    return indent + line


def _bar(axis: Axis, one: Span, room: int) -> str:
    """Return a span as a bar, where it has its place; waits for people are thinner."""
    from perdure.cli.cost import shows_blocks
    from perdure.tracing import WAITS

    start, end = axis.at(one.start), axis.at(one.end or axis.end)
    left = min(int(start * room), room - 1)
    length = max(round((end - start) * room), 1)
    block, thin = ("━", "┄") if shows_blocks() else ("=", "-")
    return (" " * left + (thin if one.kind in WAITS else block) * length)[:room]


def _used(one: Span) -> str:
    if not one.usage or not (one.usage.input_tokens or one.usage.output_tokens):
        return ""
    cost = "" if one.cost_usd is None else f"  ${one.cost_usd:.4f}"
    about = "~" if one.usage.estimated else ""
    return f"{about}{one.usage.input_tokens:,} in  {one.usage.output_tokens:,} out{cost}"


def _laid_out(line: _Line, label_room: int, bar_room: int, *, bold: bool) -> str:
    from rich.cells import cell_len

    label = paint(line.label, "bold") if bold else line.label
    padded = label + " " * (label_room - cell_len(line.label))
    bar = line.bar.strip()
    at = len(line.bar) - len(line.bar.lstrip())
    drawn = " " * at + paint(bar, "" if bold else line.colour) + " " * max(bar_room - len(line.bar), 0)
    return f"{padded}{line.took:>12}  {drawn}  {paint(line.used, 'dim')}".rstrip()


def _below(depth: int, one: Span, width: int) -> Iterator[str]:
    """Yield what is told below a span: who decided, and why it ended so."""
    decided = f"{one.status} by {one.by}" if one.kind in ("approval", "question") else f"by {one.by}"
    parts = [f"{decided}{f' ({one.via})' if one.via else ''}" if one.by else "", one.why]
    if one.kind == "question":
        parts.append(one.output)
    text = ": ".join(one_line(part, 400) for part in parts if part)
    if text and one.kind != "step":
        yield from (paint(line, "dim") for line in _wrap(text, width, "  " * (depth + 1)))


def _mark(mark: Mark, trace: Trace, width: int) -> Iterator[str]:
    when = span(max(mark.time - trace.root.start, mark.time - mark.time))
    what = _WORDS.get(mark.kind, mark.kind.replace("_", " "))
    by = f" by {mark.by}" if mark.by and mark.kind != "worker_took_over" else f" {mark.by}" if mark.by else ""
    text = f": {one_line(mark.text, 300)}" if mark.text else ""
    yield from _wrap(f"{what}{by}{text}", width, f"{when:>10} ", below=" " * 11)


_WORDS = {"worker_took_over": "worker", "told": "the model was told", "run_started": "started"}


def _wrap(text: str, width: int, indent: str, below: str = "") -> list[str]:
    """Return a text in lines of that many columns; some characters take two."""
    from rich.cells import cell_len, chop_cells

    width = max(width, len(indent) + 20)
    found, line = list[str](), indent
    for word in safe(text).split():
        for piece in chop_cells(word, width - max(len(indent), len(below))):
            if line.strip() and cell_len(line) + 1 + cell_len(piece) > width:
                found.append(line)
                line = below or indent
            line = f"{line} {piece}" if line.strip() else line + piece
    return [*found, line]
