"""Commands about runs: start, list, show, follow, end, go on."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from perdure.cli import session
from perdure.cli.output import DONE, FAILED, INTERRUPTED, WAITING, AsJSON, Misuse, data, emit, lay_out, paint, safe, say
from perdure.cli.secrets import Secrets, read_secrets

if TYPE_CHECKING:
    from perdure.agents import Task
    from perdure.budgets import Additions
    from perdure.cli.choice import Choice
    from perdure.client import Client, RunHandle
    from perdure.settings import Settings

Status = Literal[
    "running",
    "waiting_approval",
    "waiting_input",
    "waiting_decision",
    "paused",
    "completed",
    "budget_exhausted",
    "failed",
    "cancelled",
]
WaitingFor = Literal["approval", "answer", "settlement", "budget", "resumption"]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, as `perdure ls` shows it.")]
Detach = Annotated[bool, typer.Option("--detach", help="Print the run's id and leave it alone.")]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Exit with 3 where it waits for a person, 1 where no worker serves it.")
]


Var = Annotated[
    list[str] | None, typer.Option(metavar="NAME=JSON", help="A variable to start with; what is no JSON is a text.")
]
User = Annotated[str, typer.Option(help="For whom it works: whose notes it is told, and adds to.")]
Tenant = Annotated[str, typer.Option(help="On whose behalf; tenants share by weight.")]
WhenBusy = Annotated[
    Literal["say", "queue"],
    typer.Option(help="Where a turn of the session is under way: say it to that one, or queue it for the next."),
]


@dataclass(frozen=True)
class Begun:
    """A run that was begun, or found.

    Attributes:
        file: What declares its agent; None where that is not known.
        told: What a program is told of it besides.
        words: What a person is told of it, after its id.
    """

    run_id: str
    file: str | None = None
    told: Mapping[str, Any] = field(default_factory=dict[str, Any])
    words: str = ""


def run(
    agent: Annotated[
        str, typer.Argument(metavar="AGENT", help="FILE.py or .yaml[:name], module:name, or the name of a served one.")
    ],
    text: Annotated[
        str | None, typer.Argument(metavar="INPUT", help="What it is to do; `-` reads stdin. This or --input-file.")
    ] = None,
    *,
    id: Annotated[str | None, typer.Option("--id", help="The run's id; the same id twice is one run.")] = None,
    input_file: Annotated[Path | None, typer.Option(help="Read INPUT from this file.")] = None,
    image: Annotated[list[str] | None, typer.Option(help="An image that goes with it: a file or an address.")] = None,
    var: Var = None,
    secret: Secrets = None,
    in_session: Annotated[
        str | None, typer.Option("--session", help="The conversation that it is said in: the run is its next turn.")
    ] = None,
    when_busy: WhenBusy = "say",
    user: User = "",
    steps: Annotated[int | None, typer.Option(min=1, help="Limit of model turns. Default: the agent's.")] = None,
    priority: Annotated[int | None, typer.Option(min=1, max=5, help="1: most urgent. Default: 3.")] = None,
    tenant: Tenant = "",
    task_queue: Annotated[str | None, typer.Option(help="Where its workers listen, if that is not plain.")] = None,
    detach: Detach = False,
    no_wait: NoWait = False,
    as_json: AsJSON = False,
) -> int:
    """Start a run and follow it; the answer goes to stdout, everything else to stderr.

    Exit code: 0 completed; 1 ended otherwise, no server, or (--no-wait) no worker; 2 misuse, or a faulty agent file;
    3 waits for a person (--no-wait).
    """
    from perdure.cli.choice import read_input, read_task

    if in_session is not None and id is not None:
        raise Misuse("A turn of a session has the id that it has there: --session and --id do not go together.")
    content = read_input(text, input_file, image or [])
    settings = session.settings(task_queue=task_queue)
    task = read_task(content, user=user, tenant=tenant, var=var, secret=secret)
    task = task.model_copy(update={"id": id, "priority": priority})
    if in_session is None:
        begun = session.finish(_start(settings, agent, task, steps))
    else:
        begun = session.finish(_sent(settings, agent, task, steps, in_session, when_busy, wait=not detach))
    return take_up(settings, begun, detach=detach, no_wait=no_wait, as_json=as_json)


def resume(
    run_id: RunId,
    *,
    add_steps: Annotated[int, typer.Option(min=0, help="Raise the limit of model turns by so many.")] = 0,
    add_usd: Annotated[float, typer.Option(min=0, help="Raise the limit of cost by so many US dollars.")] = 0,
    add_input_tokens: Annotated[int, typer.Option(min=0, help="Raise the limit of tokens sent.")] = 0,
    add_output_tokens: Annotated[int, typer.Option(min=0, help="Raise the limit of tokens received.")] = 0,
    add_minutes: Annotated[float, typer.Option(min=0, help="Raise the limit of time.")] = 0,
    add_calls: Annotated[
        list[str] | None, typer.Option(metavar="TOOL=N", help="Raise the limit of calls of a tool that has one.")
    ] = None,
    secret: Secrets = None,
    reason: Annotated[str, typer.Option(help="Why, for the record of a paused run.")] = "",
    detach: Detach = False,
    no_wait: NoWait = False,
    as_json: AsJSON = False,
) -> int:
    """Go on with a run that is paused, failed, was cancelled or used up its budget; nothing done is done again."""
    settings = session.settings()
    from perdure.budgets import Additions

    more = Additions(
        steps=add_steps,
        usd=Decimal(str(add_usd)),
        input_tokens=add_input_tokens,
        output_tokens=add_output_tokens,
        wall_time=timedelta(minutes=add_minutes),
        calls=dict(_calls(text) for text in add_calls or []),
    )
    session.finish(_resume(settings, run_id, more, reason, read_secrets(secret or [])))
    return take_up(settings, Begun(run_id), detach=detach, no_wait=no_wait, as_json=as_json)


def _calls(text: str) -> tuple[str, int]:
    tool, _, number = text.partition("=")
    if not tool.strip() or not number.strip().isdecimal():
        raise Misuse(f"--add-calls is TOOL=N, such as search=5; {text!r} is not.")
    return tool.strip(), int(number)


def ls(
    status: Annotated[Status | None, typer.Option(help="Only runs of this status.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only runs of this agent.")] = None,
    *,
    in_session: Annotated[str | None, typer.Option("--session", help="Only turns of this session.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only runs on this tenant's behalf.")] = None,
    schedule: Annotated[str | None, typer.Option(help="Only runs that this schedule has begun.")] = None,
    waiting_for: Annotated[WaitingFor | None, typer.Option(help="Only open runs that wait for this.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 50,
    as_json: AsJSON = False,
) -> None:
    """List runs, the newest first; those that the engine has forgotten come from the archive."""
    wanted = {"status": status, "agent": agent, "session": in_session, "tenant": tenant}
    wanted |= {"waiting_for": waiting_for, "schedule": schedule}
    session.finish(_list({name: of for name, of in wanted.items() if of}, limit, as_json))


def show(
    run_id: RunId,
    transcript: Annotated[bool, typer.Option("--transcript", help="The conversation as well.")] = False,
    result: Annotated[str, typer.Option(metavar="CALL", help="Print only the result of that call, all of it.")] = "",
    as_json: AsJSON = False,
) -> None:
    """Show where a run stands, what it waits for, and what happened."""
    if result:
        session.finish(_show_result(run_id, result, as_json))
        return
    session.finish(_show(run_id, transcript=transcript, as_json=as_json))


def watch(
    run_id: RunId,
    after: Annotated[str, typer.Option(metavar="POSITION", help="Only events after this one, such as 19.1.")] = "",
    stream: Annotated[
        bool, typer.Option("--stream/--no-stream", help="Text while a model writes it, and progress of tools, as well.")
    ] = True,
    as_json: AsJSON = False,
) -> None:
    """Print a run's events as they happen, up to its end; with --json, one object a line.

    Text and progress come between them on a terminal, and with --json; they have no position, and may be lost.
    """
    from perdure.cli import watching

    session.finish(watching.watch(run_id, after, as_json=as_json, stream=stream))


def cancel(
    run_id: RunId,
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "",
    as_json: AsJSON = False,
) -> None:
    """Ask a run to end: what is under way is stopped, and what it did is kept."""
    absence = session.finish(_cancel(run_id, reason))
    if as_json:
        emit({"run_id": run_id, "cancel_requested": True, "queued": absence is not None})
        return
    say(f"Asked run {safe(run_id)} to end; `perdure show {safe(shlex.quote(run_id))}` shows what became of it.")
    if absence:
        say(safe(f"{absence.removesuffix(' The run waits.')} It keeps the request until then."))


async def _start(settings: Settings, reference: str, task: Task, steps: int | None) -> Begun:
    """Start a run, or find the one of that id."""
    client = await session.connect(settings)
    chosen, task = await _chosen(client, reference, task, steps)
    return begun_as(await client.start(chosen.spec, task, task_queue=chosen.task_queue), chosen.file)


def begun_as(handle: RunHandle, file: str | None = None) -> Begun:
    """Return what there is to say of a run that was started, or found under its id."""
    if not handle.existing:
        return Begun(handle.id, file)
    words = " exists already" if handle.same_task else " exists already, for another task"
    return Begun(handle.id, file, {"existing": True, "same_task": handle.same_task}, words)


async def _sent(
    settings: Settings,
    reference: str,
    task: Task,
    steps: int | None,
    name: str,
    when_busy: Literal["say", "queue"],
    *,
    wait: bool,
) -> Begun:
    """Say it in a session: return the run that takes it; with `wait`, once its turn has come where it is queued."""
    client = await session.connect(settings)
    chosen, task = await _chosen(client, reference, task, steps)
    handle = client.session(name, chosen.spec, task_queue=chosen.task_queue, user=task.user, when_busy=when_busy)
    async with handle:
        sent = await handle.send(task)
        how = sent.how
        if how == "queued" and wait:
            say(f"Turn {sent.turn} of session {safe(name)} is under way: this is queued behind it.")
            await sent.run()
    behind = how == "queued" and not wait
    words = " is under way: this is queued behind it" if behind else f", turn {sent.turn} of session {safe(name)}"
    told = {"session": name, "turn": sent.turn, "how": how}
    return Begun(handle.handle(sent.turn).id, chosen.file, told, words)


async def _chosen(client: Client, reference: str, task: Task, steps: int | None) -> tuple[Choice, Task]:
    """Return the agent, and the task with its limits."""
    from perdure.cli.choice import choose

    chosen = await choose(reference, client)
    limits = chosen.agent.limits.model_copy(update={"steps": steps}) if steps else None
    return chosen, task.model_copy(update={"limits": limits})


async def _resume(settings: Settings, run_id: str, more: Additions, reason: str, secrets: Mapping[str, str]) -> None:
    client = await session.connect(settings)
    await client.handle(run_id).resume(more, reason=reason, secrets=secrets)


def take_up(settings: Settings, begun: Begun, *, detach: bool, no_wait: bool, as_json: bool) -> int:
    """Follow a run that was just begun, or leave it alone; return the exit code."""
    if detach:
        if begun.words and not as_json:
            say(f"Run {safe(begun.run_id)}{begun.words}.")
        emit({"run_id": begun.run_id, **begun.told}) if as_json else data(begun.run_id)
        return DONE
    return _follow(settings, begun, no_wait=no_wait, as_json=as_json)


def _follow(settings: Settings, run: Begun, *, no_wait: bool, as_json: bool) -> int:
    """Follow a run to its end and print what it gave; Ctrl-C leaves it alone."""
    quoted = safe(shlex.quote(run.run_id))
    following = ": following it" if run.told.get("existing") else ""
    say(f"Run {safe(run.run_id)}{run.words}{following}{_page(settings, run.run_id)}")
    try:
        return session.finish(_followed(settings, run, no_wait=no_wait, as_json=as_json))
    except KeyboardInterrupt:
        say(f"\nThe run goes on. Watch it with `perdure watch {quoted}`; end it with `perdure cancel {quoted}`.")
        return INTERRUPTED


def _page(settings: Settings, run_id: str) -> str:
    page = session.web_page(settings, run_id)
    return f" · {page}" if page else ""


async def _followed(settings: Settings, run: Begun, *, no_wait: bool, as_json: bool) -> int:
    from perdure.cli.live import Follower

    client = await session.connect(settings)
    result = await Follower(client, run.run_id, no_wait=no_wait, file=run.file, ask=not as_json).follow()
    if result is None:
        if as_json:
            emit({**await _waiting(client, run.run_id), **run.told})
        return WAITING
    if as_json:
        emit({**result.model_dump(), **run.told})
    elif result.status in ("completed", "budget_exhausted"):
        from perdure import outputs

        data(outputs.answer(result))
    if result.status == "budget_exhausted":
        say(f"Go on from there: perdure resume {safe(shlex.quote(run.run_id))} {await _more(client, run.run_id)}")
    return DONE if result.status == "completed" else FAILED


async def _more(client: Client, run_id: str) -> str:
    """Return the options with which a run that has used up a limit can go on."""
    from perdure.handles import options_to_resume

    state = (await client.handle(run_id).projection()).state
    return (options_to_resume(state) if state else "") or "--add-steps 5"


async def _waiting(client: Client, run_id: str) -> dict[str, Any]:
    from perdure.cli import standing

    projection = await client.handle(run_id).projection(last=True)
    waiting = [*standing.requests(projection), *await standing.below(client, projection)]
    return {"run_id": run_id, "status": standing.status(projection), "waiting": waiting}


async def _list(wanted: Mapping[str, Any], limit: int, as_json: bool) -> None:
    from datetime import UTC, datetime

    from perdure.cli.output import columns, moment, span
    from perdure.cli.story import status_word

    client = await session.connect()
    runs = await client.list_runs(**wanted, limit=limit)
    if as_json:
        emit([{**vars(run)} for run in runs])
        return
    if not runs:
        say("No such runs." if wanted else "No runs.")
        return
    now = datetime.now(UTC)
    rows = [["RUN", "AGENT", "STATUS", "STARTED", "TOOK"]]
    for one in runs:
        took = span((one.closed_at or now) - one.started_at)
        rows.append([safe(one.id), safe(one.agent), one.status, moment(one.started_at), took])
    lay_out(columns(rows, {0: lambda cell: paint(cell, "bold"), 2: status_word}))


async def _show(run_id: str, *, transcript: bool, as_json: bool) -> None:
    from perdure.cli import report, standing
    from perdure.earlier import complete

    settings = session.settings()
    client = await session.connect(settings)
    projection, now = await asyncio.gather(client.handle(run_id).projection(), standing.now(client, run_id))
    if missing := await complete(settings, projection):
        say(paint(safe(missing), "yellow", sys.stderr))
    now = replace(now, below=await standing.below(client, projection))
    page = None if now.forgotten else session.web_page(settings, run_id)
    if as_json:
        emit(report.as_data(projection, now, page, transcript=transcript))
    else:
        lay_out("\n".join(report.as_lines(projection, now, page, sys.stdout, transcript=transcript)))


async def _show_result(run_id: str, call: str, as_json: bool) -> None:
    from perdure.cli import report
    from perdure.earlier import complete

    client = await session.connect()
    projection = await client.handle(run_id).projection()
    await complete(client.settings, projection)
    text = await report.whole_result(client, projection, call)
    if as_json:
        emit({"run_id": run_id, "call": call, "result": text})
    else:
        data(text)


async def _cancel(run_id: str, reason: str) -> str | None:
    """Ask a run to end; return a sentence if no worker takes the request."""
    from perdure.cli import standing

    client = await session.connect()
    await client.handle(run_id).cancel(reason)
    while await standing.due(client, run_id) is not None:
        if absence := await standing.unserved(client, run_id):
            return absence
        await asyncio.sleep(0.2)
    return None
