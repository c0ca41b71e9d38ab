"""Commands about the secrets of runs: which the vault holds, and their end. Their values are never shown."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from perdure.cli import session
from perdure.cli.output import AsJSON, Misuse, columns, emit, lay_out, moment, paint, safe, say

app = typer.Typer(help="Secrets that runs were given: list them, delete them.", no_args_is_help=True)

Secrets = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        metavar="NAME=@FILE",
        help="A secret for its tools; NAME=- reads stdin, NAME=env:VAR a variable of this environment.",
    ),
]


@app.command("ls")
def ls(as_json: AsJSON = False) -> None:
    """List which secrets the vault holds, for which runs; the oldest first."""
    session.finish(_list(as_json=as_json))


@app.command("drop")
def drop(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")],
    as_json: AsJSON = False,
) -> None:
    """Delete the secrets of a run now; they go by themselves when it ends."""
    session.finish(_drop(run_id, as_json=as_json))


async def _list(*, as_json: bool) -> None:
    client = await session.connect()
    async with client.store() as store:
        found = await store.deposits(client.temporal.namespace)
    if as_json:
        emit([deposit.model_dump(mode="json", exclude={"id", "namespace"}) for deposit in found])
        return
    if not found:
        say("No secrets.")
        return
    rows = [["RUN", "SECRETS", "SINCE"]]
    rows += [[safe(one.run_id), safe(", ".join(one.names)), moment(one.kept_at)] for one in found]
    lay_out(columns(rows, {0: lambda cell: paint(cell, "bold")}))


async def _drop(run_id: str, *, as_json: bool) -> None:
    from perdure.auditing import note

    client = await session.connect()
    async with client.store() as store:
        found = [one for one in await store.deposits(client.temporal.namespace) if one.run_id == run_id]
        for deposit in found:
            subject = ", ".join(deposit.names)
            await note(store, deposit.namespace, "secrets_deleted", run_id=run_id, subject=subject)
            await store.drop_secrets(deposit.id)
    names = sorted({name for deposit in found for name in deposit.names})
    if as_json:
        emit({"run_id": run_id, "deleted": names})
    elif names:
        say(f"Deleted {safe(', '.join(names))} of run {safe(run_id)}.")
    else:
        say(f"Run {safe(run_id)} has no secrets.")


def read_secrets(given: Sequence[str]) -> dict[str, str]:
    """Return what `--secret NAME=@FILE` says; one newline at the end of a file or of stdin is left out.

    Raises:
        Misuse: If one is not understood, or can't be a secret; a value is never shown.
    """
    from perdure.sensitive import unfit

    values: dict[str, str] = {}
    for one in given:
        name, equals, source = one.partition("=")
        if not equals or not name or not source:
            raise Misuse("--secret is NAME=@FILE, NAME=- or NAME=env:VARIABLE.")
        if name in values:
            raise Misuse(f"Secret {name!r} is given twice.")
        if source == "-" and any(other.endswith("=-") for other in given if other != one):
            raise Misuse("Only one secret can be read from stdin.")
        values[name] = _read(name, source)
        if problem := unfit(name, values[name]):
            raise Misuse(problem)
    return values


def _read(name: str, source: str) -> str:
    try:
        if source == "-":
            text = sys.stdin.read()
        elif source.startswith("@"):
            text = Path(source[1:]).read_text(encoding="utf-8")
        elif source.startswith("env:"):
            if (found := os.environ.get(source[4:])) is None:
                raise Misuse(f"Secret {name!r}: there is no variable {source[4:]!r} in this environment.")
            return found
        else:
            raise Misuse(f"Secret {name!r}: what is on a command line can be seen by others; give @FILE, - or env:VAR.")
    except UnicodeDecodeError:
        raise Misuse(f"Secret {name!r}: it is not text in UTF-8.") from None
    except OSError as error:
        raise Misuse(f"Secret {name!r}: {source[1:]} can't be read: {error.strerror}.") from error
    return text.removesuffix("\n").removesuffix("\r")
