"""`perdure audit`: who did what to runs and to what is kept of them."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import session
from perdure.cli.history import parse_age
from perdure.cli.output import DONE, FAILED, AsJSON, Misuse, columns, emit, lay_out, moment, one_line, paint, safe, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.audit import Action, AuditEntry, AuditState

_WIDEST = 80
"""Characters of a reason in a list."""


def audit(
    run_id: Annotated[str | None, typer.Argument(metavar="RUN", help="Only what was done to this run.")] = None,
    *,
    by: Annotated[str | None, typer.Option(help="Only what somebody did whose name has this in it.")] = None,
    action: Annotated[
        list[str] | None, typer.Option(metavar="ACTION", help="Only this, such as approved; may be given again.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Only from then on: 2026-05-01, 2026-05-01T12:00, or 7d ago.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 100,
    verify: Annotated[bool, typer.Option("--verify", help="Check that no entry was changed or taken out.")] = False,
    as_json: AsJSON = False,
) -> int:
    """Print who started, approved, denied, answered, cancelled, deleted …, when, and by which way; the oldest first.

    Entries are only ever added, and outlive what they tell of. With --verify the exit code is 1 where one does not
    follow from the one before it.
    """
    if verify:
        if run_id or by or action or since:
            raise Misuse("--verify looks through all entries: it takes no RUN, --by, --action or --since.")
        return _tell_state(session.finish(_verify()), as_json=as_json)
    entries = session.finish(_read(run_id, by, _actions(action or []), _moment(since) if since else None, limit))
    if as_json:
        emit([entry.model_dump(mode="json", exclude={"namespace", "position"}) for entry in entries])
    elif entries:
        _print(entries)
    else:
        say("Nothing is noted." if not (run_id or by or action or since) else "Nothing of that is noted.")
    return DONE


async def _read(
    run_id: str | None, by: str | None, actions: Sequence[Action], since: datetime | None, limit: int
) -> list[AuditEntry]:
    client = await session.connect()
    return await client.audit(run_id, by=by, actions=actions, since=since, limit=limit)


async def _verify() -> AuditState:
    return await (await session.connect()).verify_audit()


def _actions(named: Sequence[str]) -> list[Action]:
    from typing import get_args

    from perdure.audit import Action

    known: tuple[Action, ...] = get_args(Action)
    found: list[Action] = [action for name in named for action in known if action == name.replace("-", "_")]
    if len(found) < len(named):
        raise Misuse(f"--action is one of {', '.join(known)}; {', '.join(map(repr, named))} is not.")
    return found


_AGO = re.compile(r"(.+?)(?:\s+ago)?")


def _moment(text: str) -> datetime:
    """Return the moment that is written as a date, with or without a time and a zone, or as an age."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        found = _AGO.fullmatch(text.strip())
        return datetime.now(UTC) - parse_age(found[1] if found else text)


def _tell_state(state: AuditState, *, as_json: bool) -> int:
    if as_json:
        emit(state)
    elif state.broken and state.broken_at:
        which = f"Entry {state.broken} of {state.entries}, of {moment(state.broken_at)}"
        told = paint(f"{which}, does not follow from the one before it", "red", sys.stderr)
        say(f"{told}: it was changed, or others were taken out or put in there.")
    else:
        noted = f" The newest has hash {state.last}: note it to see later that none was cut off." if state.last else ""
        say(f"All {state.entries} entries are as they were written.{noted}")
    return FAILED if state.broken else DONE


def _print(entries: Sequence[AuditEntry]) -> None:
    rows = [["WHEN", "WHO", "DID", "RUN", "WHAT", "BY WAY OF", "WHY"]]
    rows += [_row(entry) for entry in entries]
    lay_out(columns(rows, {1: lambda cell: paint(cell, "bold")}))


def _row(entry: AuditEntry) -> list[str]:
    about = f"{entry.call} {entry.tool}".strip() or entry.subject or entry.session or entry.agent
    via = f"{entry.via} ({one_line(entry.client, 40)})" if entry.client else entry.via
    did = entry.action.replace("_", " ")
    outcome = entry.details.get("outcome")
    who = one_line(entry.by, 40) or ("nobody" if entry.via == "expiry" else "unknown")
    run = safe(entry.run_id) or "-"
    done = f"{did} {outcome}" if outcome else did
    return [moment(entry.at), who, done, run, one_line(about, 60), via, one_line(entry.reason, _WIDEST)]
