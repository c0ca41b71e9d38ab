"""`perdure cost`: tokens and money, by whatever one wants to tell apart."""

from __future__ import annotations

import csv
import io
import shutil
import sys
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from perdure.cli import session
from perdure.cli.output import AsJSON, Misuse, columns, data, emit, lay_out, one_line, paint, say

if TYPE_CHECKING:
    from perdure.costs import Cost, CostReport

Told = Literal["run", "agent", "model", "tool", "tenant", "session", "user", "day", "kind", "step"]


def cost(
    run_id: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Only this run, and those that it called; by step.")
    ] = None,
    *,
    by: Annotated[Told | None, typer.Option(help="What is told apart. Default: agent.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Only from then on: 7d, 12h, 2026-11-30 or today.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Only before then, written likewise.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only of this agent.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only on behalf of this tenant.")] = None,
    in_session: Annotated[str | None, typer.Option("--session", help="Only in this session.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV on stdout: a line for each group.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Show what runs have used and cost: tokens, money, what prompts are made of, what was wasted.

    Runs that go on are counted as far as they have come. What was lost with a worker is estimated.
    """
    if as_csv and as_json:
        raise Misuse("--csv and --json do not go together.")
    now = datetime.now().astimezone()
    begin, end = _moment(since, "--since", now), _moment(until, "--until", now)
    wanted = {"since": begin, "until": end, "agent": agent, "run": run_id, "tenant": tenant, "session": in_session}
    found = session.finish(_cost(by or ("step" if run_id else "agent"), wanted))
    if as_json:
        emit(found)
    elif as_csv:
        data(as_lines_of_csv(found))
    elif not found.total.requests:
        say("No request to a model has ended.")
    else:
        lay_out("\n".join(lines(found, shutil.get_terminal_size((80, 24)).columns)))


async def _cost(by: Told, wanted: dict[str, Any]) -> CostReport:
    client = await session.connect()
    return await client.cost(by=by, **wanted)


def _moment(text: str | None, option: str, now: datetime) -> datetime | None:
    """Return the moment that is written as a date, a date with time, `today`, or how long ago it is.

    Raises:
        Misuse: If it is none of them.
    """
    from perdure.cli.history import parse_age

    if text is None:
        return None
    if text.strip() == "today":
        return now.replace(hour=0, minute=0, second=0, microsecond=0)
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        pass
    else:
        return found if found.tzinfo else found.astimezone()
    try:
        return now - parse_age(text)
    except (Misuse, OverflowError):
        raise Misuse(f"{option} {text!r} is no moment: write 7d, 12h, 2026-11-30, 2026-11-30T18:00 or today.") from None


# -- for a person ------------------------------------------------------------------------------------------

_NARROW, _LONGEST_BAR, _SHORTEST_BAR = 76, 30, 6


def lines(found: CostReport, width: int) -> list[str]:
    """Return a report for a terminal of that width: a table with bars, then what there is to know of all of it."""
    groups = [one for one in found.groups if one.requests]
    narrow, tools = width < _NARROW, found.by == "tool"
    head = [found.by.upper(), *([] if narrow or found.by in ("run", "step") else ["RUNS"])]
    head += ["PROMPTS" if tools else "ASKED", "IN", *([] if narrow or tools else ["CACHED"])]
    head += [*([] if tools else ["OUT"]), "COST"]
    rows = [_row(one, head) for one in groups]
    if not tools and len(rows) > 1:
        rows.append(_row(found.total.model_copy(update={"name": "all"}), head))
    longest = max(width - sum(max(len(row[at]) for row in [head, *rows]) + 2 for at in range(1, len(head))), 8)
    rows = [[one_line(row[0], longest), *row[1:]] for row in rows]
    table = columns(_right([head, *rows])).split("\n")
    room = width - max(map(len, table)) - 2
    bars = _bars(groups, min(room, _LONGEST_BAR)) if room >= _SHORTEST_BAR else []
    drawn = [f"{line.ljust(max(map(len, table)))}  {bar}" for line, bar in zip(table[1:], bars, strict=False)]
    told = [paint(table[0], "bold"), *drawn, *table[1 + len(drawn) :]]
    return [*told, "", *(line for one in _notes(found) for line in _wrapped(one, width))]


def _row(one: Cost, head: Sequence[str]) -> list[str]:
    usage, about = one.usage, "~" if one.usage.estimated else ""
    cells = {
        "RUNS": f"{one.runs:,}",
        "ASKED": f"{one.requests:,}",
        "PROMPTS": f"{one.requests:,}",
        "IN": f"{about}{usage.input_tokens:,}",
        "CACHED": f"{usage.cached_tokens:,}",
        "OUT": f"{about}{usage.output_tokens:,}",
        "COST": money(one.known_usd, one.unpriced, one.requests),
    }
    return [one.name or "(none)", *(cells[name] for name in head[1:])]


def money(usd: Decimal, unpriced: int, requests: int) -> str:
    """Return a sum for a person; `+ ?` where it is not all, `?` where none of it is known."""
    if unpriced == requests:
        return "?"
    shown = f"${usd:,.2f}" if usd >= 1 else f"${usd:.4f}"
    return f"{shown} + ?" if unpriced else shown


def _right(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return rows with all but the first column flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [[row[0], *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))] for row in rows]


def _bars(groups: Sequence[Cost], width: int) -> list[str]:
    """Return a bar for each group: of money where all of it is known, else of tokens."""
    priced = not any(one.unpriced for one in groups)
    sizes = [float(one.known_usd) if priced else one.usage.input_tokens + one.usage.output_tokens for one in groups]
    most = max(sizes, default=0) or 1
    block, end = ("█", "▏▎▍▌▋▊▉") if shows_blocks() else ("#", "")
    drawn: list[str] = []
    for size in sizes:
        eighths = round(size / most * width * 8)
        rest = end[eighths % 8 - 1] if end and eighths % 8 else ""
        drawn.append(paint(block * (eighths // 8) + rest, "cyan"))
    return drawn


def shows_blocks() -> bool:
    """Return whether stdout can show the characters of which bars are drawn."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def _notes(found: CostReport) -> list[str]:
    total, said = found.total, list[str]()
    if total.weighed and total.usage.input_tokens:
        parts = {"read again": total.prompt.reread, "results of tools": sum(total.prompt.results.values())}
        parts["instructions and tools"] = total.prompt.instructions
        shares = ", ".join(f"{tokens / total.weighed:.0%} {name}" for name, tokens in parts.items())
        cache = total.usage.cached_tokens / total.usage.input_tokens
        cached = f"; {cache:.0%} came from the provider's cache" if cache else ""
        said.append(f"Of what was sent: {shares}{cached}. A result that is read again counts as both.")
    gave_nothing = total.failed + total.lost
    if gave_nothing:
        usd = "" if total.wasted_usd is None else f", {money(total.wasted_usd, 0, 1)}"
        tokens = total.wasted.input_tokens + total.wasted.output_tokens
        lost = f" ({total.lost:,} lost with a worker or broken off)" if total.lost else ""
        said.append(f"Wasted: {gave_nothing:,} of {total.requests:,} requests{lost}, {tokens:,} tokens{usd}.")
    if total.estimated:
        said.append(f"Estimated, since no provider told: the usage of {total.estimated:,} requests (~).")
    if total.unpriced:
        of_all = f"{total.unpriced:,} of {total.requests:,} requests"
        said.append(f"No price is known for {of_all}: see ModelSettings.price.")
    if found.live:
        said.append(f"Runs that go on, or have just ended, are counted so far: {len(found.live):,}.")
    return said


def _wrapped(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, max(width, 20), subsequent_indent="  ")


# -- for programs ------------------------------------------------------------------------------------------

_COLUMNS = (
    *("name", "runs", "requests", "failed", "lost", "estimated", "input_tokens", "cached_tokens", "output_tokens"),
    *("reasoning_tokens", "cost_usd", "known_usd", "unpriced", "wasted_tokens", "wasted_usd"),
    *("instruction_tokens", "reread_tokens", "result_tokens"),
)


def as_lines_of_csv(found: CostReport) -> str:
    """Return a report as CSV, a line for each group; what is not known is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([found.by, *_COLUMNS[1:]])
    for one in found.groups:
        usage, prompt = one.usage, one.prompt
        more = {
            **{name: getattr(usage, name) for name in _COLUMNS if name in type(usage).model_fields},
            "estimated": one.estimated,
            "wasted_tokens": one.wasted.input_tokens + one.wasted.output_tokens,
            "instruction_tokens": prompt.instructions,
            "reread_tokens": prompt.reread,
            "result_tokens": sum(prompt.results.values()),
        }
        values = [more.get(name, getattr(one, name, None)) for name in _COLUMNS]
        writer.writerow([format(value, "f") if isinstance(value, Decimal) else value for value in values])
    return text.getvalue().rstrip("\n")
