"""What a webhook or a command is told of a run: that it waits for a person, nears its budget, or has ended. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shlex
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import Field

from perdure import asking, budgets
from perdure.messages import JSON, Data, RunResult, RunStatus
from perdure.policies import AgentSpec
from perdure.state import RunState

Occasion = Literal["waiting", "budget", "ended"]
OCCASIONS: tuple[Occasion, ...] = ("waiting", "budget", "ended")
"""Of what one is told: a person has to act; four fifths of a limit are gone; a run is over."""


class Wish(Data):
    """What a run waits for; see `asking.Request`. `parameters` say which of the arguments are sensitive."""

    wants: asking.Wish
    call: str = ""
    tool: str = ""
    why: str = ""
    arguments: dict[str, JSON] = Field(default_factory=dict)
    parameters: dict[str, JSON] = Field(default_factory=dict)
    commands: list[str] = Field(default_factory=list)


class Nearing(Data):
    """A limit of which most is gone: how much, and the whole in words."""

    limit: str
    share: float
    most: str


class Ending(Data):
    """How a run has ended."""

    status: RunStatus
    reason: str = ""
    steps: int = 0
    tokens: int = 0
    cost_usd: Decimal | None = None
    seconds: float = 0


class Notice(Data):
    """One notice, as it is kept until it is delivered.

    Attributes:
        id: The same however often it is sent: whoever gets it knows it again by that.
        at: When there was something to tell.
    """

    id: str
    occasion: Occasion
    run_id: str
    agent: str
    session: str = ""
    tenant: str = ""
    step: int = 0
    at: datetime
    wish: Wish | None = None
    nearing: list[Nearing] = Field(default_factory=list[Nearing])
    ending: Ending | None = None


@runtime_checkable
class Notifier(Protocol):
    """Carries notices somewhere: a chat, a pager. An extension of `perdure.notices`; see `perdure.extensions`.

    It is used where `PERDURE_NOTIFY_BY` names it on the worker, beside webhook and command.
    """

    async def deliver(self, id: str, told: dict[str, JSON]) -> None:
        """Deliver a notice, within 20 s; raise where it was not taken, and it is tried again for a day.

        Args:
            id: The same however often it is delivered.
            told: What a webhook is sent, redacted; see `body`.
        """
        ...


# -- what there is to tell ---------------------------------------------------------------------------------


def wishes(state: RunState) -> dict[str, Wish]:
    """Return what an open run waits for, each under a key that stays the same as long as that is open."""
    found: dict[str, Wish] = {}
    for request in asking.requests(state):
        if request.wants == "resumption":
            continue  # whoever paused it knows
        found[f"{request.call} {request.wants} {request.hash} {request.why}"] = _wish(request, state.spec)
    return found


def _wish(request: asking.Request, spec: AgentSpec) -> Wish:
    tool = spec.known_tool(request.tool) if request.tool else None
    return Wish(
        wants=request.wants,
        call=request.call,
        tool=request.tool,
        why=request.why,
        arguments=request.arguments,
        parameters=tool.parameters if tool else {},
        commands=request.commands,
    )


def nearing(state: RunState) -> dict[str, Nearing]:
    """Return the limits of a run that are nearly used up, by name."""
    return {
        name: Nearing(limit=name, share=share, most=budgets.in_words(state.limits, name))
        for name, share in budgets.near(state).items()
    }


def ending(result: RunResult) -> Ending:
    """Return what is told of a run's end."""
    return Ending(
        status=result.status,
        reason=result.reason or "",
        steps=result.steps,
        tokens=result.usage.input_tokens + result.usage.output_tokens,
        cost_usd=result.cost_usd,
        seconds=round(result.duration.total_seconds(), 3),
    )


# -- how it is told ----------------------------------------------------------------------------------------

Hide = Callable[[str], str]
HideIn = Callable[[JSON, Any], JSON]


def body(notice: Notice, hide: Hide, hide_in: HideIn) -> dict[str, JSON]:
    """Return a notice as it is sent, in the form of Standard Webhooks: `type`, `timestamp`, `data`.

    Args:
        hide: Hides what is personal in a text.
        hide_in: The same in JSON, with its schema.
    """
    told: dict[str, JSON] = {
        "id": notice.id,
        "run_id": notice.run_id,
        "agent": notice.agent,
        "session": hide(notice.session),
        "tenant": hide(notice.tenant),
        "step": notice.step,
        "text": hide(_sentence(notice)),
        "commands": [*_commands(notice)],
    }
    if wish := notice.wish:
        told |= {"wants": wish.wants, "call": wish.call, "tool": wish.tool, "why": hide(wish.why)}
        told["arguments"] = hide_in(wish.arguments, wish.parameters)
    if notice.nearing:
        told["limits"] = [one.model_dump(mode="json") for one in notice.nearing]
    if end := notice.ending:
        told |= {**end.model_dump(mode="json"), "reason": hide(end.reason)}
    return {"type": f"run.{notice.occasion}", "timestamp": notice.at.isoformat(), "data": told}


_WISHES: dict[asking.Wish, str] = {
    "approval": "waits for approval of",
    "answer": "waits for an answer to",
    "settlement": "does not know what became of",
    "more": "has reached a limit and asks for more",
    "resumption": "is paused",
}


def _sentence(notice: Notice) -> str:
    run = f"Run {notice.run_id} ({notice.agent})"
    if wish := notice.wish:
        about = f" call {wish.call} ({wish.tool})" if wish.call else ""
        return f"{run} {_WISHES[wish.wants]}{about}."
    if end := notice.ending:
        why = f": {end.reason}" if end.reason else ""
        return f"{run} has ended, {end.status.replace('_', ' ')}{why}".rstrip(".") + "."
    shares = " and ".join(f"{one.share:.0%} of {one.most}" for one in notice.nearing)
    return f"{run} has used {shares}."


def _commands(notice: Notice) -> list[str]:
    """Return how it is answered."""
    run = shlex.quote(notice.run_id)
    if notice.wish:
        return notice.wish.commands
    if notice.ending:
        return [f"perdure show {run}"]
    return [f"perdure resume {run} --add-…", f"perdure pause {run}", f"perdure cancel {run}"]


# -- signing -----------------------------------------------------------------------------------------------

_PREFIX = "whsec_"
_SHORTEST, _LONGEST = 24, 64


def key_of(secret: str) -> bytes:
    """Return the key that a webhook's secret is, `whsec_` and base64 of 24 to 64 bytes.

    Raises:
        ValueError: If it is none; the text does not show it.
    """
    try:
        key = base64.b64decode(secret.strip().removeprefix(_PREFIX), validate=True)
    except ValueError:
        key = b""
    if not _SHORTEST <= len(key) <= _LONGEST:
        how = 'echo "whsec_$(openssl rand -base64 32)"'
        raise ValueError(f"a webhook's secret is whsec_ and base64 of {_SHORTEST} to {_LONGEST} bytes, as from `{how}`")
    return key


def headers(id: str, timestamp: int, content: bytes, key: bytes | None) -> dict[str, str]:
    """Return the headers of a webhook, signed if there is a key, in the form of Standard Webhooks.

    Args:
        timestamp: Of this attempt, in seconds of the Unix epoch: whoever gets it refuses what is old.
    """
    told = {"content-type": "application/json", "webhook-id": id, "webhook-timestamp": str(timestamp)}
    if key:
        signed = hmac.new(key, f"{id}.{timestamp}.".encode() + content, hashlib.sha256).digest()
        told["webhook-signature"] = f"v1,{base64.b64encode(signed).decode()}"
    return told
