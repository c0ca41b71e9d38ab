"""Commands by which people take hold of a run that goes on: say, answer, pause. `resume` and `cancel` are in `runs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perdure.cli import session
from perdure.cli.decisions import By, Reason, RunId, deliver
from perdure.cli.output import AsJSON


def say(
    run_id: RunId,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="What it is told; `-` reads stdin.")] = None,
    *,
    input_file: Annotated[Path | None, typer.Option(help="Read TEXT from this file.")] = None,
    image: Annotated[list[str] | None, typer.Option(help="An image that goes with it: a file or an address.")] = None,
    now: Annotated[bool, typer.Option("--now", help="Break off the model call under way.")] = False,
    by: By = None,
    as_json: AsJSON = False,
) -> None:
    """Tell a running agent something: the model hears it before its next turn, also while calls wait for people."""
    from perdure.cli.choice import read_input
    from perdure.decisions import Saying
    from perdure.identity import whoami

    content = read_input(text, input_file, image or [], "what the agent is to be told: as TEXT")
    session.finish(deliver(run_id, Saying(content=content, now=now, by=by or whoami()), "told", as_json))


def answer(
    run_id: RunId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The answer.")],
    call: Annotated[str, typer.Option(help="Position such as 2.1; not needed where one question is open.")] = "",
    by: By = None,
    as_json: AsJSON = False,
) -> None:
    """Answer a question that the model has put."""
    from perdure.decisions import Answer
    from perdure.identity import whoami

    session.finish(deliver(run_id, Answer(text=text, call=call, by=by or whoami()), "answered", as_json))


def pause(run_id: RunId, by: By = None, reason: Reason = "", as_json: AsJSON = False) -> None:
    """Let what runs finish, and start nothing new until `perdure resume`."""
    from perdure.decisions import Pause
    from perdure.identity import whoami

    session.finish(deliver(run_id, Pause(by=by or whoami(), reason=reason), "paused", as_json))
