"""Commands about what runs have done: go on from a step of one, tell two apart."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import session
from perdure.cli.output import DONE, FAILED, AsJSON, Misuse, emit, lay_out, paint, safe, say
from perdure.cli.runs import Begun, Detach, NoWait, RunId, begun_as, take_up
from perdure.errors import PerdureError

if TYPE_CHECKING:
    from perdure.client import Client
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
    instructions = _read(instructions_file)
    begun = session.finish(_fork(settings, run_id, at, text, model, instructions, id))
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


def _read(file: Path | None) -> str | None:
    try:
        return file.read_text("utf-8") if file else None
    except (OSError, UnicodeDecodeError) as error:
        raise Misuse(f"The instructions in {file} can't be read: {error}.") from error


async def _fork(
    settings: Settings,
    run_id: str,
    at: int,
    told: str | None,
    model: str | None,
    instructions: str | None,
    id: str | None,
) -> Begun:
    client = await session.connect(settings)
    run = client.handle(run_id)
    return begun_as(await run.fork(at, say=told, model=model, instructions=instructions, id=id))


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
