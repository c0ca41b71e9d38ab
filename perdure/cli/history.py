"""Commands about what runs have done: go on from a step of one, tell two apart, keep or remove them."""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import session
from perdure.cli.output import DONE, FAILED, AsJSON, Misuse, emit, lay_out, paint, safe, say
from perdure.cli.runs import Begun, Detach, NoWait, RunId, begun_as, take_up
from perdure.cli.secrets import Secrets, read_secrets
from perdure.errors import PerdureError

if TYPE_CHECKING:
    from perdure.client import Client
    from perdure.retention import Pruned
    from perdure.settings import Settings
    from perdure.telemetry.projection import Projection


def fork(
    run_id: RunId,
    *,
    at: Annotated[int, typer.Option(min=0, metavar="STEP", help="The last step that is kept; 0: only the task.")],
    told: Annotated[
        str | None, typer.Option("--say", metavar="TEXT", help="What it is told next; `-` reads stdin.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="PROVIDER:NAME, in place of the agent's first model.")] = None,
    instructions_file: Annotated[
        Path | None, typer.Option(help="Instructions in place of the agent's, from this file.")
    ] = None,
    id: Annotated[str | None, typer.Option("--id", help="The new run's id; the same id twice is one run.")] = None,
    secret: Secrets = None,
    detach: Detach = False,
    no_wait: NoWait = False,
    as_json: AsJSON = False,
) -> int:
    """Start a run that goes on from a step of RUN, and follow it. Nothing that was done up to there is done again.

    What has an effect after that is asked about first: RUN may have done it already. Exit codes as for `run`.
    """
    text = sys.stdin.read() if told == "-" else told
    if text is not None and not text.strip():
        raise Misuse("What is said (--say) is empty.")
    settings = session.settings()
    changes: dict[str, Any] = {"say": text, "model": model, "instructions": _read(instructions_file), "id": id}
    begun = session.finish(_fork(settings, run_id, at, secrets=read_secrets(secret or []), **changes))
    return take_up(settings, begun, detach=detach, no_wait=no_wait, as_json=as_json)


def diff(
    left: Annotated[str, typer.Argument(metavar="RUN", help="A run's id.")],
    right: Annotated[str, typer.Argument(metavar="RUN", help="Another's.")],
    as_json: AsJSON = False,
) -> int:
    """Show where two runs part: the first turn that differs, and what they came to, side by side.

    Exit code: 0 they are the same, 1 they differ, 2 one can't be read.
    """
    return session.finish(_diff(left, right, as_json))


def archive(as_json: AsJSON = False) -> None:
    """Archive runs that have ended without: those that were terminated, or lost their workers for good.

    Every other run is archived by itself, and a worker looks for these every hour.
    """
    found = session.finish(_archive())
    if as_json:
        emit({"archived": found})
        return
    for run_id in found:
        say(f"Archived {safe(run_id)}.")
    say("Nothing was left to be archived." if not found else f"{_count(len(found), 'run')} archived.")


def prune(
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="What ended so long ago goes: 30d, 12h, 2w; s and m too.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing; say what would be.")] = False,
    from_engine: Annotated[
        bool, typer.Option("--from-engine", help="Also what the engine still has: it is deleted there.")
    ] = False,
    usage: Annotated[bool, typer.Option("--usage", help="Also what requests of that age have used and cost.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Remove old runs from the archive, and what nothing refers to any more; never what a run that goes on needs.

    Runs that the engine still has are kept: its own retention has to end first. What sessions, and forks of a run, need
    of it is theirs as well, and stays; so do the newest runs of a schedule. What runs have cost stays known, unless
    --usage is given.
    """
    age = parse_age(older_than)
    pruned = session.finish(_prune(age, dry_run=dry_run, from_engine=from_engine, usage=usage))
    freed = pruned.freed
    blobs, size = (freed.blobs, freed.size) if freed else (0, 0)
    if as_json:
        kept = {"open": pruned.open, "in_engine": pruned.in_engine, "scheduled": pruned.scheduled}
        removed = {"runs": pruned.runs, "blobs": blobs, "bytes": size, "usage": pruned.usage}
        emit({"dry_run": dry_run, **removed, "kept": kept})
        return
    verb = "Would remove" if dry_run else "Removed"
    say(f"{verb} {_count(len(pruned.runs), 'run')} and {_count(blobs, 'blob')}, {size:,} bytes.")
    if usage:
        say(f"{verb} what {_count(pruned.usage, 'request')} used.")
    if pruned.open:
        say(f"{_count(len(pruned.open), 'run')} of that age went on since: kept.")
    if pruned.scheduled:
        say(f"{_count(len(pruned.scheduled), 'run')} of that age a schedule still knows of: kept.")
    if pruned.in_engine:
        say(f"{_count(len(pruned.in_engine), 'run')} of that age the engine still has: kept. See --from-engine.")


_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_age(text: str) -> timedelta:
    """Return the age that is written as `30d`, `12h`, `2w`, `45m` or `90s`.

    Raises:
        Misuse: If it is not.
    """
    found = _AGE.fullmatch(text.strip())
    try:
        if found:
            return timedelta(**{_UNITS[found[2]]: float(found[1])})
    except OverflowError:
        pass
    raise Misuse(f"{text!r} is no age: write a number and one of s, m, h, d, w, such as 30d, 12h or 2w.")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


async def _archive() -> list[str]:
    from perdure.retention import catch_up

    return await catch_up(await session.connect())


async def _prune(age: timedelta, **how: bool) -> Pruned:
    from perdure.retention import prune as prune_runs

    return await prune_runs(await session.connect(), age, **how)


def _read(file: Path | None) -> str | None:
    try:
        return file.read_text("utf-8") if file else None
    except (OSError, UnicodeDecodeError) as error:
        raise Misuse(f"The instructions in {file} can't be read: {error}.") from error


async def _fork(settings: Settings, run_id: str, at: int, **changes: Any) -> Begun:
    client = await session.connect(settings)
    return begun_as(await client.handle(run_id).fork(at, **changes))


async def _diff(left: str, right: str, as_json: bool) -> int:
    from perdure.cli import differing

    client = await session.connect()
    told = differing.Told(await _whole(client, left), await _whole(client, right))
    if as_json:
        emit(told.as_data())
    else:
        lay_out("\n".join(told.as_lines(sys.stdout)))
    return DONE if told.same else FAILED


async def _whole(client: Client, run_id: str) -> Projection:
    """Return a run with what it has put away."""
    from perdure.earlier import complete

    try:
        projection = await client.handle(run_id).projection()
        missing = await complete(client.settings, projection)
    except PerdureError as error:
        unread = Misuse(str(error))
        unread.kind = error.kind
        raise unread from error
    if missing:
        say(paint(safe(missing), "yellow", sys.stderr))
    return projection
