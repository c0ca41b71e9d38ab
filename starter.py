"""The command line: puts the commands of `perdure.cli` together. `python starter.py` is the same as `perdure`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, NoReturn

import typer

from perdure import identity
from perdure.cli import (
    audit,
    chat,
    codec,
    control,
    cost,
    decisions,
    declare,
    demo,
    doctor,
    evals,
    graph,
    history,
    memory,
    output,
    processes,
    proof,
    runs,
    scaffold,
    schedules,
    secrets,
    sessions,
    trace,
)

app = typer.Typer(
    name="perdure",
    help="Agents whose runs survive crashes, deploys and long waits for people.",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def perdure(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    """Agents whose runs survive crashes, deploys and long waits for people."""
    if version:
        from importlib.metadata import PackageNotFoundError
        from importlib.metadata import version as version_of

        try:
            output.data(version_of("perdure"))
        except PackageNotFoundError:
            output.data("unknown: run from its source, not installed")
        raise typer.Exit


_PANELS: dict[str, tuple[Callable[..., object], ...]] = {
    "Processes": (demo.demo, processes.dev, processes.worker, codec.codec_server),
    "Runs": (runs.run, chat.chat, runs.ls, runs.show, runs.watch, control.say, control.pause, runs.resume, runs.cancel),
    "Insight": (trace.trace, cost.cost, graph.graph),
    "History": (history.fork, history.diff, history.archive, history.prune),
    "Decisions": (
        decisions.approvals,
        decisions.approve,
        decisions.deny,
        control.answer,
        decisions.settle,
        audit.audit,
    ),
    "Proof": (evals.eval, proof.record, proof.replay, proof.check_histories),
    "Declaring": (scaffold.new, declare.schema),
    "Help": (doctor.doctor,),
}
for panel, commands in _PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(schedules.app, name="schedule", rich_help_panel="Runs")
app.add_typer(sessions.app, name="sessions", rich_help_panel="State")
app.add_typer(memory.app, name="memory", rich_help_panel="State")
app.add_typer(secrets.app, name="secrets", rich_help_panel="State")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command that `arguments` (default: the process's own) name, and exit with its code."""
    identity.use_way("cli")
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    command = typer.main.get_command(app)
    output.leave(output.guarded(lambda: command.main(words, prog_name="perdure", standalone_mode=False), words))


if __name__ == "__main__":
    main()
