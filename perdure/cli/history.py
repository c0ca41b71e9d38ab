"""Commands about what runs have done: go on from a step of one, tell two apart."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import session
from perdure.cli.output import AsJSON, Misuse
from perdure.cli.runs import Begun, Detach, NoWait, RunId, take_up

if TYPE_CHECKING:
    from perdure.client import RunHandle
    from perdure.settings import Settings


def fork(
    run_id: RunId,
    *,
    at: Annotated[int, typer.Option(min=0, metavar="STEP", help="The last step that is kept; 0: only the task.")],
    say: Annotated[str | None, typer.Option(metavar="TEXT", help="What it is told next; `-` reads stdin.")] = None,
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
    text = sys.stdin.read() if say == "-" else say
    if text is not None and not text.strip():
        raise Misuse("What is said (--say) is empty.")
    settings = session.settings()
    instructions = _read(instructions_file)
    handle = session.finish(_fork(settings, run_id, at, text, model, instructions, id))
    return take_up(settings, Begun(handle.id), detach=detach, no_wait=no_wait, as_json=as_json)


def _read(file: Path | None) -> str | None:
    try:
        return file.read_text("utf-8") if file else None
    except (OSError, UnicodeDecodeError) as error:
        raise Misuse(f"The instructions in {file} can't be read: {error}.") from error


async def _fork(
    settings: Settings,
    run_id: str,
    at: int,
    say: str | None,
    model: str | None,
    instructions: str | None,
    id: str | None,
) -> RunHandle:
    client = await session.connect(settings)
    return await client.handle(run_id).fork(at, say=say, model=model, instructions=instructions, id=id)
