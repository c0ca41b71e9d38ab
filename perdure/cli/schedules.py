"""`perdure schedule`: runs that begin by themselves, created, looked at and changed."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from perdure.cli import session
from perdure.cli.output import AsJSON, Misuse, columns, data, emit, lay_out, moment, one_line, paint, safe, say
from perdure.cli.runs import Tenant, User, Var
from perdure.errors import PerdureError

if TYPE_CHECKING:
    from perdure.cli.choice import Choice
    from perdure.client import Client
    from perdure.schedules import ScheduleHandle, ScheduleView
    from perdure.times import Rules, When

Overlap = Literal["skip", "buffer-one", "buffer-all", "cancel-other", "allow-all"]
Id = Annotated[str, typer.Argument(metavar="ID", help="The schedule's id, as `perdure schedule list` shows it.")]
Cron = Annotated[list[str] | None, typer.Option(help="When: such as '0 8 * * MON-FRI'. May come several times.")]
Every = Annotated[str | None, typer.Option(metavar="DURATION", help="Or how often: 15m, 2h, 1d, 1h30m.")]
Timezone = Annotated[str | None, typer.Option(metavar="ZONE", help="Of --cron, such as Europe/Oslo. Default: UTC.")]
Meeting = Annotated[
    Overlap | None, typer.Option(help="What becomes of a run that is due while the last one goes on. Default: skip.")
]
Pausing = Annotated[
    bool | None,
    typer.Option("--pause-on-failure/--no-pause-on-failure", help="A run that fails pauses the schedule."),
]
Catchup = Annotated[
    str | None, typer.Option(metavar="DURATION", help="How late a run may begin that was missed. Default: a year.")
]
Why = Annotated[str, typer.Option(help="Why, for whoever looks at it.")]

_PATIENCE = 5.0
"""Seconds until a run that was asked for has begun."""

app = typer.Typer(help="Runs that begin by themselves: create, list, show, change.", no_args_is_help=True)


@app.command()
def create(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="As for `perdure run`.")],
    text: Annotated[
        str | None,
        typer.Argument(metavar="INPUT", help="What each run is to do; {{last.text}} is what the last one answered."),
    ] = None,
    *,
    id: Annotated[str | None, typer.Option("--id", help="The schedule's id. Default: made up.")] = None,
    cron: Cron = None,
    every: Every = None,
    timezone: Timezone = None,
    overlap: Meeting = None,
    pause_on_failure: Pausing = None,
    catchup: Catchup = None,
    paused: Annotated[bool, typer.Option("--paused", help="No run begins until `perdure schedule unpause`.")] = False,
    input_file: Annotated[Path | None, typer.Option(help="Read INPUT from this file.")] = None,
    var: Var = None,
    keep_variables: Annotated[
        bool, typer.Option("--keep-variables", help="A run begins with the variables as the last one left them.")
    ] = False,
    user: User = "",
    steps: Annotated[int | None, typer.Option(min=1, help="Limit of model turns. Default: the agent's.")] = None,
    priority: Annotated[int | None, typer.Option(min=1, max=5, help="1: most urgent. Default: 3.")] = None,
    tenant: Tenant = "",
    task_queue: Annotated[str | None, typer.Option(help="Where its workers listen, if that is not plain.")] = None,
    as_json: AsJSON = False,
) -> None:
    """Have runs of an agent begin by themselves; all keep the agent as it is now, until `perdure schedule update`."""
    from perdure.cli.choice import read_input, read_task

    when = _when(cron, every, timezone)
    if when is None:
        raise Misuse("Say when: --cron '0 8 * * MON-FRI', or --every 2h.")
    rules = _rules(None, overlap, pause_on_failure, catchup)
    task = read_task(read_input(text, input_file, []), user=user, tenant=tenant, var=var)
    task = task.model_copy(update={"priority": priority})
    settings = session.settings(task_queue=task_queue)

    async def created() -> ScheduleView:
        client = await session.connect(settings)
        chosen = await _chosen(client, agent)
        limits = chosen.agent.limits.model_copy(update={"steps": steps}) if steps else None
        handle = await client.schedule(
            chosen.spec,
            task.model_copy(update={"limits": limits}),
            when,
            id=id,
            rules=rules,
            keep_variables=keep_variables,
            paused=paused,
            task_queue=chosen.task_queue,
        )
        return await handle.show()

    view = session.finish(created())
    if as_json:
        emit(_told(view))
        return
    next_one = f"; the first run is due at {moment(view.next[0])}" if view.next and not view.paused else ""
    say(f"Schedule {safe(view.id)} is there{next_one}. `perdure schedule show {safe(shlex.quote(view.id))}` shows it.")
    data(view.id)


@app.command("list")
def list_(as_json: AsJSON = False) -> None:
    """List schedules, with their next and last times."""
    session.finish(_list(as_json))


@app.command()
def show(id: Id, as_json: AsJSON = False) -> None:
    """Show a schedule: its times, its rules, its runs, and whether its agent has changed since."""
    session.finish(_show(id, as_json))


@app.command()
def pause(id: Id, reason: Why = "", as_json: AsJSON = False) -> None:
    """Begin no more runs; those that go on are left alone."""
    _do(id, lambda handle: handle.pause(reason), "is paused", as_json)


@app.command()
def unpause(id: Id, reason: Why = "", as_json: AsJSON = False) -> None:
    """Begin runs again."""
    _do(id, lambda handle: handle.unpause(reason), "begins runs again", as_json)


@app.command()
def trigger(id: Id, overlap: Meeting = None, as_json: AsJSON = False) -> None:
    """Begin a run now, and print its id."""
    run_id = session.finish(_trigger(id, overlap))
    if as_json:
        emit({"schedule": id, "run_id": run_id})
    elif run_id:
        say(f"Run {safe(run_id)} has begun; `perdure watch {safe(shlex.quote(run_id))}` follows it.")
        data(run_id)
    else:
        say("No run has begun yet: the last one still goes on, or the engine is busy.")


@app.command()
def backfill(
    id: Id,
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="Such as 2026-12-01T08:00; included.")],
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="Not included.")],
    overlap: Annotated[Overlap, typer.Option(help="How its runs meet. Default: one after another.")] = "buffer-all",
    as_json: AsJSON = False,
) -> None:
    """Begin the runs that would have been due in a time that has passed."""
    begin, until = _time(start), _time(end)
    _do(id, lambda handle: handle.backfill(begin, until, overlap=overlap), "begins the runs of that time", as_json)


@app.command()
def update(
    id: Id,
    agent: Annotated[
        str | None, typer.Argument(metavar="AGENT", help="Default: the served agent of the same name, as it is now.")
    ] = None,
    *,
    goal: Annotated[
        str | None, typer.Option("--input", help="What each run is to do, in place of what it was.")
    ] = None,
    cron: Cron = None,
    every: Every = None,
    timezone: Timezone = None,
    overlap: Meeting = None,
    pause_on_failure: Pausing = None,
    catchup: Catchup = None,
    task_queue: Annotated[str | None, typer.Option(help="Where its workers listen, if that is not plain.")] = None,
    as_json: AsJSON = False,
) -> None:
    """Give a schedule its agent as it is now, and other times or rules; what is not said stays."""
    when = _when(cron, every, timezone)
    if when is None and timezone:
        raise Misuse("--timezone goes with --cron: say both.")
    settings = session.settings(task_queue=task_queue)

    async def updated() -> ScheduleView:
        client = await session.connect(settings)
        handle = client.schedule_handle(id)
        before = await handle.show()
        chosen = await _chosen(client, agent or before.spec.name)
        if chosen.spec.name != before.spec.name:
            raise Misuse(f"Schedule {id!r} is of agent {before.spec.name!r}, not of {chosen.spec.name!r}.")
        rules = _rules(before.rules, overlap, pause_on_failure, catchup)
        await handle.update(chosen.spec, task_queue=chosen.task_queue, input=goal, when=when, rules=rules)
        return await handle.show()

    view = session.finish(updated())
    if as_json:
        emit(_told(view))
    else:
        say(f"Schedule {safe(id)} begins runs of {safe(view.spec.name)} as it is now ({view.spec_hash}).")


@app.command()
def delete(id: Id, as_json: AsJSON = False) -> None:
    """Delete a schedule; its runs are left alone, those that go on included."""
    _do(id, lambda handle: handle.delete(), "is deleted; its runs are left alone", as_json)


# -- what is said ------------------------------------------------------------------------------------------


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def read_duration(text: str, option: str) -> timedelta:
    """Return a duration such as `90s`, `15m`, `1h30m` or `1d`.

    Raises:
        Misuse: If it is none.
    """
    if not re.fullmatch(r"(\d+[smhdw])+", text):
        raise Misuse(f"{option} takes a duration such as 15m, 2h, 1h30m or 1d; {text!r} is none.")
    seconds = sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([smhdw])", text))
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        raise Misuse(f"{option} takes a duration such as 15m, 2h, 1h30m or 1d; {text!r} is too long.") from None


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise Misuse(f"{text!r} is no time; times look like 2026-12-01T08:00 or 2026-12-01T08:00+01:00.") from None
    return time if time.tzinfo else time.astimezone()


def _when(cron: Sequence[str] | None, every: str | None, timezone: str | None) -> When | None:
    from perdure.times import When

    if not cron and every is None:
        return None
    interval = None if every is None else read_duration(every, "--every")
    if every is not None and not interval:
        raise Misuse(f"--every takes a duration of at least 1s, such as 15m or 2h; {every!r} is less.")
    return When(tuple(cron or ()), interval, timezone or "")


def _rules(before: Rules | None, overlap: Overlap | None, pause_on_failure: bool | None, catchup: str | None) -> Rules:
    from perdure.times import Rules

    was = before or Rules()
    return Rules(
        overlap or was.overlap,
        was.pause_on_failure if pause_on_failure is None else pause_on_failure,
        read_duration(catchup, "--catchup") if catchup else was.catchup,
    )


async def _chosen(client: Client, reference: str) -> Choice:
    from perdure.cli.choice import choose

    return await choose(reference, client)


# -- what is done ------------------------------------------------------------------------------------------


def _do(id: str, act: Callable[[ScheduleHandle], Awaitable[None]], done: str, as_json: bool) -> None:
    """Do something to a schedule, and say that it was done."""

    async def work() -> None:
        client = await session.connect()
        await act(client.schedule_handle(id))

    session.finish(work())
    if as_json:
        emit({"schedule": id, "done": True})
    else:
        say(f"Schedule {safe(id)} {done}.")


async def _trigger(id: str, overlap: Overlap | None) -> str:
    """Begin a run now and return its id; "" where none has begun after a moment."""
    client = await session.connect()
    handle = client.schedule_handle(id)
    before = {run.run_id for run in (await handle.show()).recent}
    await handle.trigger(overlap)
    deadline = asyncio.get_running_loop().time() + _PATIENCE
    while asyncio.get_running_loop().time() < deadline:
        new = [run.run_id for run in (await handle.show()).recent if run.run_id not in before]
        if new:
            return new[-1]
        await asyncio.sleep(0.1)
    return ""


# -- what is shown -----------------------------------------------------------------------------------------


async def _list(as_json: bool) -> None:
    client = await session.connect()
    found = await client.schedules()
    if as_json:
        emit([{**vars(one)} for one in found])
        return
    if not found:
        say("No schedules.")
        return
    rows = [["SCHEDULE", "AGENT", "STATUS", "NEXT", "LAST", "WHY"]]
    for one in found:
        due = moment(one.next[0]) if one.next and not one.paused else "-"
        last = moment(one.last) if one.last else "-"
        why = one_line(one.note, 60) if one.paused else ""
        rows.append([safe(one.id), safe(one.agent), "paused" if one.paused else "active", due, last, why])
    lay_out(columns(rows, {0: lambda cell: paint(cell, "bold")}))


async def _show(id: str, as_json: bool) -> None:
    client = await session.connect()
    view = await client.schedule_handle(id).show()
    now, ends = await asyncio.gather(_agent_now(client, view), _statuses(client, view))
    outdated = now not in ("", view.spec_hash)
    if as_json:
        emit(
            {**_told(view), "runs": [{**vars(run), "status": ends.get(run.run_id)} for run in view.recent]}
            | {
                "agent_now": now or None,
                "outdated": outdated,
            }
        )
        return
    lay_out("\n".join(_lines(view, ends, now if outdated else "")))


async def _agent_now(client: Client, view: ScheduleView) -> str:
    """Return the hash of its agent as workers have it now; "" where that is not known."""
    from perdure.messages import content_hash

    try:
        entries = await session.catalogue(client)
    except PerdureError:
        return ""
    found = [one for one in entries if (one.agent, one.task_queue) == (view.spec.name, view.task_queue)]
    return content_hash(found[-1].spec) if found else ""


async def _statuses(client: Client, view: ScheduleView) -> dict[str, str]:
    from perdure.cli import standing

    async def status(run_id: str) -> tuple[str, str]:
        try:
            return run_id, standing.status(await client.handle(run_id).projection(last=True))
        except PerdureError:
            return run_id, "gone"

    return dict(await asyncio.gather(*(status(run.run_id) for run in view.recent)))


def _lines(view: ScheduleView, ends: dict[str, str], now: str) -> list[str]:
    from perdure.cli import story

    rules_since = f"{view.spec_hash}: as it was when the schedule was created or updated"
    every = "nothing" if view.paused else ", ".join(moment(time) for time in view.next[:3]) or "nothing"
    rules = [f"overlap {view.rules.overlap}"]
    rules += ["pauses on failure"] if view.rules.pause_on_failure else []
    rules += ["keeps variables"] if view.keep_variables else []
    rows = [
        ("Schedule", paint(safe(view.id), "bold", sys.stdout)),
        ("Agent", f"{safe(view.spec.name)} ({rules_since})"),
        ("Input", one_line(story.words(view.input), 300)),
        ("When", safe(str(view.when))),
        ("Rules", ", ".join(rules)),
        ("Status", "paused" if view.paused else "active"),
        ("Note", one_line(view.note)),
        ("Next", every),
        ("Created", f"{moment(view.created_at)} by {safe(view.by)}"),
        ("So far", f"{view.fired} begun, {view.skipped} left out, {view.missed} missed"),
    ]
    lines = [f"{name:<9}{text}" for name, text in rows if text]
    if now:
        hint = f"`perdure schedule update {safe(shlex.quote(view.id))}` takes it"
        text = f"the agent has changed since, to {now}: {hint}"
        lines.append(paint(f"{'Outdated':<9}{text}", "yellow", sys.stdout))
    if view.recent:
        told = [[f"  {safe(run.run_id)}", ends.get(run.run_id, ""), moment(run.started_at)] for run in view.recent]
        lines += ["", paint("Runs", "bold", sys.stdout), columns(told, {1: story.status_word})]
    return lines


def _told(view: ScheduleView) -> dict[str, Any]:
    """Return what a program is told of a schedule."""
    return {
        "id": view.id,
        "agent": view.spec.name,
        "spec": view.spec_hash,
        "task_queue": view.task_queue,
        "input": view.input,
        "cron": list(view.when.cron),
        "every": view.when.every,
        "timezone": view.when.timezone or "UTC",
        "overlap": view.rules.overlap,
        "pause_on_failure": view.rules.pause_on_failure,
        "catchup": view.rules.catchup,
        "keep_variables": view.keep_variables,
        "paused": view.paused,
        "note": view.note,
        "next": view.next,
        "running": view.running,
        "fired": view.fired,
        "skipped": view.skipped,
        "missed": view.missed,
        "by": view.by,
        "created_at": view.created_at,
        "updated_at": view.updated_at,
    }
