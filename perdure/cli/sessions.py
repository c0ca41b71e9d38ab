"""`perdure sessions`: conversations over many runs, listed, shown, exported and deleted."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from perdure.cli import session
from perdure.cli.output import AsJSON, Misuse, as_json, columns, data, emit, lay_out, moment, one_line, paint, safe, say

if TYPE_CHECKING:
    from perdure.activities.sessions import Standing
    from perdure.activities.stores import Session, Turn
    from perdure.messages import Entry
    from perdure.sessions import SessionHandle
    from perdure.settings import Settings

Name = Annotated[str, typer.Argument(metavar="SESSION", help="The session's name, as `perdure sessions` shows it.")]

app = typer.Typer(help="Conversations that go on over many runs: list them.", invoke_without_command=True)


@app.callback()
def sessions(
    context: typer.Context,
    agent: Annotated[str | None, typer.Option(help="Only sessions with this agent.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the last used.")] = 50,
    as_json: AsJSON = False,
) -> None:
    """List conversations that go on over many runs, the last used first; or show, export, delete one."""
    if context.invoked_subcommand is None:
        session.finish(_list(agent, limit, as_json))


@app.command()
def show(
    name: Name,
    transcript: Annotated[bool, typer.Option("--transcript", help="The conversation as well.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Show a session: its turns, its variables, what is under way and what waits."""
    session.finish(show_session(session.settings(), name, as_json=as_json, transcript=transcript))


@app.command()
def export(
    name: Name,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write it to this file.")] = None,
) -> None:
    """Print every message of a session as JSON Lines, in the form of OpenAI's Chat Completions, calls included."""
    lines = session.finish(_exported(name))
    if output is None:
        for line in lines:
            data(line)
        return
    try:
        output.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise Misuse(f"{output} can't be written: {error.strerror}.") from error
    say(f"{len(lines)} messages are in {safe(str(output))}.")


@app.command()
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Delete a session: all that was said in it, and its runs with it. Not while a turn is under way."""
    turns = session.finish(_deletable(name))
    if not yes:
        _confirm(name, turns)
    session.finish(_delete(name))
    if as_json:
        emit({"session": name, "deleted": True, "turns": turns})
    else:
        say(f"Session {safe(name)} is deleted, with its {counted(turns)}.")


def counted(turns: int) -> str:
    """Return a number of turns, in words."""
    return f"{turns} turn{'' if turns == 1 else 's'}"


def _confirm(name: str, turns: int) -> None:
    if not sys.stdin.isatty():
        raise Misuse("Nobody is there to be asked; --yes deletes it without asking.")
    sys.stderr.write(f"Delete session {safe(name)} with its {counted(turns)}? [y]es, [N]o: ")
    sys.stderr.flush()
    if not sys.stdin.readline().strip().lower().startswith("y"):
        raise typer.Abort


async def _list(agent: str | None, limit: int, as_json: bool) -> None:
    client = await session.connect()
    async with client.store() as store:
        found = await store.sessions(client.temporal.namespace, agent=agent, limit=limit)
    if as_json:
        emit([_told(one) for one in found])
        return
    if not found:
        say("No sessions." if agent is None else "No such sessions.")
        return
    rows = [["SESSION", "AGENT", "TURNS", "USER", "LAST USED"]]
    rows += [[safe(s.name), safe(s.agent), str(s.turns), safe(s.user), moment(s.updated_at)] for s in found]
    lay_out(columns(rows, {0: lambda cell: paint(cell, "bold")}))


def _told(one: Session) -> dict[str, Any]:
    """Return what a program is told of a session."""
    return one.model_dump(exclude={"before", "deleted_at", "begun", "queued"}) | {
        "queued": [said.content for said in one.queued]
    }


async def _handle(name: str, settings: Settings | None = None) -> SessionHandle:
    return (await session.connect(settings)).session(name)


async def show_session(settings: Settings, name: str, *, as_json: bool, transcript: bool) -> None:
    """Print where a session stands, and what was said in it."""
    async with await _handle(name, settings) as handle:
        standing = await handle.standing()
        known = standing.session
        if known is None and not standing.open:
            known = await handle.session()  # which says that there is none
        turns, entries = (await handle.turns(), await handle.entries()) if known else ([], [])
    if as_json:
        run = f"{name}.{standing.open}" if standing.open else None
        told = {**(_told(known) if known else {"name": name}), "turns": turns, "open": standing.open, "open_run": run}
        emit({**told, "summary": _summary(entries), **({"messages": entries} if transcript else {})})
    else:
        lay_out("\n".join(_lines(name, standing, turns, entries, sys.stdout, transcript=transcript)))


def _lines(
    name: str, standing: Standing, turns: Sequence[Turn], entries: Sequence[Entry], stream: TextIO, *, transcript: bool
) -> Iterator[str]:
    from perdure.cli import report, story

    known = standing.session
    yield f"{'Session':<9}{paint(safe(name), 'bold', stream)}"
    yield from _head(known) if known else ()
    if standing.open:
        run = f"{name}.{standing.open}"
        yield f"{'Open':<9}turn {standing.open}: `perdure watch {safe(shlex.quote(run))}` follows it"
    for said in known.queued if known else ():
        yield f"{'Waits':<9}{one_line(story.words(said.content), 300)}"
    if known and known.variables:
        yield from ("", paint("Variables", "bold", stream), *report.variable_lines(known.variables))
    if summary := _summary(entries):
        yield from ("", paint("Summary of what came before", "bold", stream), safe(summary))
    if turns:
        yield from ("", paint("Turns", "bold", stream))
    for turn in turns:
        status = story.status_word(turn.status, stream)
        yield f"  {turn.number:<4}{moment(turn.at)}  {status}  {one_line(turn.input, 300)}"
        yield from (f"      {one_line(turn.text, 300)}",) if turn.text else ()
    if transcript:
        yield from ("", paint("Transcript", "bold", stream), *report.transcript_lines(entries, stream))


def _head(known: Session) -> Iterator[str]:
    of = [f"{what} {safe(who)}" for what, who in (("user", known.user), ("tenant", known.tenant)) if who]
    rows = {
        "Agent": safe(known.agent),
        "For": ", ".join(of),
        "Began": moment(known.created_at),
        "Used": f"{moment(known.updated_at)}, {counted(known.turns)}",
    }
    yield from (f"{what:<9}{text}" for what, text in rows.items() if text)


def _summary(entries: Sequence[Entry]) -> str:
    """Return what the model is shown in place of the older messages, "" where it is shown all of them."""
    from perdure.messages import Compaction

    return next((entry.summary for entry in reversed(entries) if isinstance(entry, Compaction) and entry.summary), "")


async def _exported(name: str) -> list[str]:
    from perdure.activities.providers.openai_chat import request_body
    from perdure.models import ModelRequest
    from perdure.policies import ModelSettings

    async with await _handle(name) as handle:
        messages = await handle.history(whole=True)
    asked = ModelRequest(instructions="", messages=messages, tools=[], settings=ModelSettings())
    said: Any = request_body("", asked, custom=True)["messages"]
    return [as_json(message) for message in said]


async def _deletable(name: str) -> int:
    return (await (await _handle(name)).deletable()).turns


async def _delete(name: str) -> None:
    await (await _handle(name)).delete()
