"""Commands by which people decide: approve, deny, settle, and the list of what waits for that."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from perdure.cli import session
from perdure.cli.output import AsJSON, Misuse, emit, lay_out, safe, say
from perdure.cli.typed import read_arguments, read_json
from perdure.errors import DecisionRejected, RunNotFound

if TYPE_CHECKING:
    from perdure.asking import Request
    from perdure.client import Client, RunHandle
    from perdure.decisions import Answer, Decision, Pause, Receipt, Saying, Settlement

    Sent = Answer | Decision | Pause | Saying | Settlement

AT_ONCE = 10
"""Runs read side by side."""

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
CallId = Annotated[str, typer.Argument(metavar="CALL", help="Position such as 2.1; not needed where only one waits.")]
By = Annotated[str | None, typer.Option(help="Who decides. Default: user and host.")]
Reason = Annotated[str, typer.Option(help="Why, for the record.")]


def approvals(
    limit: Annotated[int, typer.Option(min=1, help="Look at so many open runs at most, the newest.")] = 500,
    as_json: AsJSON = False,
) -> None:
    """List all that waits for a person: approvals, questions, calls in doubt, runs that ask for more at a limit."""
    session.finish(_list(limit, as_json))


def approve(
    run_id: RunId,
    call: CallId = "",
    *,
    args: Annotated[str | None, typer.Option(metavar="JSON", help="Execute it with these arguments instead.")] = None,
    args_file: Annotated[Path | None, typer.Option(help="The same, from a file.")] = None,
    hash: Annotated[
        str | None, typer.Option("--hash", help="Refuse if the arguments are not those of this hash.")
    ] = None,
    by: By = None,
    reason: Reason = "",
    as_json: AsJSON = False,
) -> None:
    """Approve a call, as it is or with other arguments."""
    from perdure.decisions import Decision
    from perdure.identity import whoami

    arguments = _arguments(args, args_file)
    decision = Decision(call=call, approve=True, hash=hash, arguments=arguments, by=by or whoami(), reason=reason)
    how = "" if arguments is None else " with other arguments"
    session.finish(deliver(run_id, decision, "approved", as_json, how))


def deny(run_id: RunId, call: CallId = "", by: By = None, reason: Reason = "", as_json: AsJSON = False) -> None:
    """Deny a call; the model is told so, and why."""
    from perdure.decisions import Decision
    from perdure.identity import whoami

    decision = Decision(call=call, approve=False, by=by or whoami(), reason=reason)
    session.finish(deliver(run_id, decision, "denied", as_json))


def settle(
    run_id: RunId,
    call: Annotated[str, typer.Argument(metavar="CALL", help="Position such as 2.1.")],
    outcome: Annotated[Literal["done", "not-done", "retry"], typer.Argument(help="retry: again, with the same key.")],
    result: Annotated[
        str | None, typer.Option(metavar="JSON", help="For `done`: what the tool would have returned.")
    ] = None,
    by: By = None,
    reason: Reason = "",
    as_json: AsJSON = False,
) -> None:
    """Say what became of a call whose outcome nobody knows."""
    from perdure.decisions import Settlement
    from perdure.identity import whoami

    returned = None if result is None else read_json(result, "--result")
    settlement = Settlement(call=call, outcome=outcome, result=returned, by=by or whoami(), reason=reason)
    session.finish(deliver(run_id, settlement, f"settled as {outcome}", as_json))


def _arguments(text: str | None, file: Path | None) -> dict[str, Any] | None:
    if text is not None and file is not None:
        raise Misuse("Give --args or --args-file, not both.")
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Misuse(f"{file} can't be read: {error}.") from error
    if text is None:
        return None
    return read_arguments(text, str(file or "--args"))


# -- delivering ------------------------------------------------------------------------------------------------------


async def deliver(run_id: str, wanted: Sent, what: str, as_json: bool, how: str = "") -> None:
    """Deliver what a person says to a run, and say whether a worker has taken it or will; to people, also how.

    Raises:
        DecisionRejected: If it did not take, or would not.
    """
    client = await session.connect()
    handle = client.handle(run_id)
    call = await _would_take(handle, wanted)
    receipt = await _send(handle, wanted, call)
    queued = receipt.reason == "queued"
    if as_json:
        emit({"run_id": run_id, **({"call": call} if call else {}), "outcome": what, "queued": queued})
    else:
        subject = f"Call {safe(call)} of {safe(run_id)}" if call else f"Run {safe(run_id)}"
        say(f"{subject}: {f'queued. {receipt.message}' if queued else f'{what}{how}.'}")


async def _send(handle: RunHandle, wanted: Sent, call: str) -> Receipt:
    from perdure.decisions import Answer, Decision, Pause, Saying, Settlement

    match wanted:
        case Answer():
            return await handle.answer(wanted.text, call, by=wanted.by)
        case Saying():
            return await handle.say(wanted.content, now=wanted.now, by=wanted.by)
        case Pause():
            return await handle.pause(by=wanted.by, reason=wanted.reason)
        case Settlement(by=by, reason=why):
            return await handle.settle(call, wanted.outcome, result=wanted.result, by=by, reason=why)
        case Decision(by=by, reason=why) if wanted.approve:
            return await handle.approve(call, arguments=wanted.arguments, hash=wanted.hash, by=by, reason=why)
        case Decision(by=by, reason=why):
            return await handle.deny(call, by=by, reason=why)


async def _would_take(handle: RunHandle, wanted: Sent) -> str:
    """Return the call that is meant, by the run's history alone, so that a wrong one is told at once."""
    from perdure import control

    projection = await handle.projection(last=True)
    if projection.ended or projection.state is None:
        raise DecisionRejected(f"Run {handle.id} has ended.", "closed")
    receipt = control.check(projection.state, wanted)
    if not receipt.accepted:
        raise DecisionRejected(receipt.message, receipt.reason)
    return receipt.call


# -- listing ---------------------------------------------------------------------------------------------------------


async def _list(limit: int, as_json: bool) -> None:
    from perdure.cli.story import request_lines

    client = await session.connect()
    requests = await _requests(client, limit)
    if as_json:
        emit(requests)
        return
    if not requests:
        say("Nothing waits for a person.")
    for number, request in enumerate(requests):
        head = f"{safe(request.run_id)}"
        lay_out("\n".join([*([""] if number else []), head, *request_lines(request, sys.stdout)]))


async def _requests(client: Client, limit: int) -> list[Request]:
    """Return what the open runs want of people, the oldest request first."""
    # A run may ask about one call while it executes another: it is `running` then.
    statuses = ("waiting_approval", "waiting_decision", "waiting_input", "paused", "running")
    found = await asyncio.gather(*(client.list_runs(status=status, limit=limit) for status in statuses))
    runs = list({run.id: None for listed in found for run in listed})
    if len(runs) > limit:
        say(f"There are more open runs; only {limit} of them were looked at (--limit).")
    gate = asyncio.Semaphore(AT_ONCE)
    each = await asyncio.gather(*(_requests_of(client, run, gate) for run in runs[:limit]))
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    return sorted((request for some in each for request in some), key=lambda request: request.since or now)


async def _requests_of(client: Client, run_id: str, gate: asyncio.Semaphore) -> list[Request]:
    from perdure.cli import standing

    async with gate:
        try:
            wanted = standing.requests(await client.handle(run_id).projection(last=True))
            return [request for request in wanted if request.wants != "resumption"]  # whoever paused it knows
        except RunNotFound:
            return []  # its retention has just ended
