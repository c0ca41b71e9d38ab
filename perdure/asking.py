"""What an open run wants of people, and how each of these wishes is answered. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from perdure.messages import JSON, OpenStatus
from perdure.state import CallState, CallStatus, RunState

Wish = Literal["approval", "answer", "settlement", "more", "resumption"]


@dataclass(frozen=True)
class Request:
    """What a run wants of a person: about a call, or to go on (`more` at a limit, `resumption` where one paused it).

    Attributes:
        call: Its position; "" where it is about the run.
        why: The policy that asks, why the outcome is unknown, which limit is reached, or who paused it.
        hash: Of the arguments; for approvals.
        key: The idempotency key under which the effect may be found; for settlements.
    """

    run_id: str
    call: str
    tool: str
    wants: Wish
    arguments: dict[str, JSON]
    why: str
    hash: str
    key: str
    since: datetime | None

    @property
    def commands(self) -> list[str]:
        """The exact commands that answer it."""
        run = shlex.quote(self.run_id)
        match self.wants:
            case "answer":
                return [f"perdure answer {run} TEXT --call {self.call}"]
            case "approval":
                return [f"perdure approve {run} {self.call}", f"perdure deny {run} {self.call}"]
            case "settlement":
                return [f"perdure settle {run} {self.call} {outcome}" for outcome in ("done", "not-done", "retry")]
            case "more":
                return [f"perdure resume {run} --add-…", f"perdure resume {run}"]
            case "resumption":
                return [f"perdure resume {run}"]


_WANTS: dict[CallStatus, Wish] = {
    CallStatus.ASKING: "approval",
    CallStatus.QUESTION: "answer",
    CallStatus.IN_DOUBT: "settlement",
}


def requests(state: RunState, since: Mapping[str, datetime] | None = None) -> Iterator[Request]:
    """Yield what an open run wants of people: to go on, and what its calls wait for, in call order.

    Args:
        since: When each wish came up, by the position of its call; "" for the run itself.
    """
    since = since or {}
    if state.outcome and state.outcome.status in ("cancelled", "failed"):
        return  # it ends, whatever anybody says
    if state.short or state.paused:
        yield _to_go_on(state, since.get(""))
    for call in state.open_calls:
        if call.status in _WANTS:
            yield _request(state.run_id, call, since.get(call.position))


Kind = Literal["approval", "answer", "settlement", "budget", "resumption"]
"""What a run waits for, as it is indexed: `budget` where it asks for more at a limit."""


def kinds(state: RunState) -> list[Kind]:
    """Return what an open run waits for, each kind once; `[]` where it waits for nobody.

    Also where it goes on meanwhile, with other calls or another turn of the model; and what runs wait for that are
    calls of it.
    """
    found: dict[Kind, None] = {}
    for request in requests(state):
        found["budget" if request.wants == "more" else request.wants] = None
    for call in state.open_calls:
        if call.waits in _BELOW:
            found[_BELOW[call.waits]] = None
    return list(found)


_BELOW: dict[OpenStatus, Kind] = {
    "waiting_approval": "approval",
    "waiting_input": "answer",
    "waiting_decision": "settlement",
    "paused": "resumption",
}


def held(state: RunState) -> str:
    """Return why an open run is paused, or ""."""
    by = f"paused by {state.paused.by}" if state.paused else ""
    why = state.paused.reason if state.paused else ""
    return ". ".join(part for part in (f"{by}: {why}" if why else by, state.short) if part)


def _to_go_on(state: RunState, since: datetime | None) -> Request:
    wants: Wish = "more" if state.short else "resumption"
    return Request(
        run_id=state.run_id, call="", tool="", wants=wants, arguments={}, why=held(state), hash="", key="", since=since
    )


def _request(run_id: str, call: CallState, since: datetime | None) -> Request:
    wants = _WANTS[call.status]
    if since is None and call.status is not CallStatus.IN_DOUBT:
        since = call.asked_at  # it has continued as new since then
    doubt = call.doubt.message if call.doubt else ""
    return Request(
        run_id=run_id,
        call=call.position,
        tool=call.call.name,
        wants=wants,
        arguments=call.arguments,
        why=(call.call.ask or "") if wants == "approval" else doubt,
        hash=call.hash,
        key=call.key,
        since=since,
    )
