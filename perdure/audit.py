"""Who did what to runs and to what is kept of them, and by which way. Data and pure functions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from perdure import events as ev
from perdure import identity
from perdure.budgets import Additions
from perdure.messages import JSON, Data, canonical_json

Action = Literal[
    "started",
    "forked",
    "resumed",
    "topped_up",
    "paused",
    "cancelled",
    "approved",
    "edited",
    "denied",
    "expired",
    "answered",
    "said",
    "settled",
    "refused",
    "session_deleted",
    "memory_added",
    "memory_corrected",
    "memory_deleted",
    "secrets_deleted",
    "pruned",
    "run_deleted",
    "schedule_created",
    "schedule_updated",
    "schedule_paused",
    "schedule_unpaused",
    "schedule_triggered",
    "schedule_backfilled",
    "schedule_deleted",
]
"""`edited`: approved with other arguments. `expired`: denied, since nobody decided. `refused`: it did not take."""


class AuditEntry(Data):
    """Something that somebody did.

    Attributes:
        run_id: The run that it was done to; "" where it was to none.
        position: In the run's history, as that of its event; for what is in none, made up, and never used twice.
        at: When.
        by: Who, as they claim; "" where that is not known.
        via: By which way: the command line, Python, a worker; where it was none of ours, an update or a signal of
            somebody else's client, or the engine's own request to cancel; `expiry` where nobody did it.
        client: What the engine has kept of who sent it, where that was none of ours.
        call: Position of the call that it was about.
        subject: What else it was about: a session, a fact, the name of what was refused, the run that was forked.
        reason: Why, as they said.
        details: What there is to know besides.
    """

    namespace: str
    run_id: str = ""
    position: str
    at: datetime
    action: Action
    by: str = ""
    via: Literal["cli", "python", "worker", "update", "signal", "engine", "expiry"]
    client: str = ""
    agent: str = ""
    session: str = ""
    tenant: str = ""
    call: str = ""
    tool: str = ""
    subject: str = ""
    reason: str = ""
    details: dict[str, JSON] = Field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str, datetime]:
        """What tells it from all others; the same for a copy of it. A run that was resumed counts anew."""
        return (self.namespace, self.run_id, self.position, self.at)


def link(before: str, entry: AuditEntry) -> str:
    """Return the hash of an entry that follows the one whose hash is `before`, "" for the first: 64 hex digits."""
    return hashlib.sha256(f"{before}\n{canonical_json(entry)}".encode("utf-8", "surrogatepass")).hexdigest()


class AuditState(Data):
    """What a look through all entries of a namespace has found.

    Attributes:
        entries: How many there are.
        last: Hash of the newest one. Whoever has noted it sees later whether anything before it was changed.
        broken: The first one, counted from 1, that does not follow from the one before it; 0: none.
        broken_at: When that one says that it happened.
    """

    entries: int = 0
    last: str = ""
    broken: int = 0
    broken_at: datetime | None = None


def deeds(events: Iterable[ev.Event], senders: Mapping[str, str], namespace: str, tenant: str = "") -> list[AuditEntry]:
    """Return what people did to a run, in order.

    Args:
        senders: Whom the engine has kept as the sender of what an event tells, by its position.
    """
    found: list[AuditEntry] = []
    for event in events:
        if told := _deed(event):
            common = {"run_id": event.run_id, "position": event.position, "at": event.time, "agent": event.agent}
            about = {"namespace": namespace, "session": event.session, "tenant": tenant}
            sent = _sent(told, senders.get(event.position, ""))
            found.append(AuditEntry.model_validate({**common, **about, **told, **sent}))
    return found


def _sent(told: Mapping[str, Any], sender: str) -> dict[str, Any]:
    """Return who did it by which way, from what the engine kept and what they say themselves."""
    who, way = identity.read(sender)
    via = told.get("via", "engine")
    if via == "expiry":
        return {"by": "", "via": via}
    if way:
        return {"by": told.get("by") or who, "via": way}
    return {"by": told.get("by", ""), "via": via, "client": sender}


def _deed(event: ev.Event) -> dict[str, Any] | None:  # noqa: PLR0911 - once per member of the union
    """Return what an event says of a deed; None where it tells of none."""
    match event:
        case ev.RunStarted():
            return _begun(event)
        case ev.ApprovalDecided():
            verb = "edited" if event.edited else "approved"
            action = "expired" if event.via == "expiry" else verb if event.approve else "denied"
            return {"action": action, **_about(event), "reason": event.reason}
        case ev.Answered():
            return {"action": "answered", **_about(event)}
        case ev.Settled():
            return {"action": "settled", **_about(event), "reason": event.reason, "details": {"outcome": event.outcome}}
        case ev.Said():
            return {"action": "said", **_by(event), "details": {"now": event.now, "queued": event.queued}}
        case ev.Paused(via=via) if via:
            return {"action": "paused", **_by(event), "reason": event.reason}
        case ev.Resumed():
            added = event.add.model_dump(mode="json", exclude_defaults=True)
            action = "resumed" if event.add == Additions() else "topped_up"
            return {"action": action, **_by(event), "reason": event.reason, "details": added}
        case ev.CancelRequested():
            return {"action": "cancelled", "by": event.by, "reason": event.reason}
        case ev.DecisionRefused():
            return {"action": "refused", **_by(event), "subject": event.name, "reason": event.reason}
        case _:
            return None


def _begun(event: ev.RunStarted) -> dict[str, Any]:
    if event.schedule:
        return {"action": "started", "by": event.by, "subject": f"schedule {event.schedule}"}
    fork = event.forked_from
    subject = f"{fork.run_id} at step {fork.step}" if fork else ""
    return {"action": "forked" if fork else "resumed" if event.resumed else "started", "subject": subject}


def _by(event: Any) -> dict[str, Any]:
    return {"by": event.by, "via": event.via}


def _about(event: Any) -> dict[str, Any]:
    via = {"via": event.via} if hasattr(event, "via") else {}
    return {"by": event.by, **via, "call": event.call, "tool": event.name}
