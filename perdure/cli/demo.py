"""`perdure demo`: an agent books a journey, and its worker is killed in the middle of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perdure.cli.output import AsJSON


def demo(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Approve the bookings without asking.")] = False,
    model: Annotated[
        str | None,
        typer.Option(help="A real model, such as openai:gpt-5-mini (with OPENAI_API_KEY, OPENAI_BASE_URL)."),
    ] = None,
    slow: Annotated[bool, typer.Option("--slow", help="Add a tool that takes three seconds, to watch it.")] = False,
    home: Annotated[Path | None, typer.Option(help="Folder of the embedded engine. Default: .perdure")] = None,
    as_json: AsJSON = False,
) -> int:
    """Book a flight and a hotel, kill the worker in the middle, and count the bookings: one each.

    Needs neither key nor network. Starts engine, booking service, scripted model and worker, and ends them again.
    """
    from perdure.cli.demo_play import Options, perform

    return perform(Options(yes=yes, model=model, slow=slow, home=home, as_json=as_json))
