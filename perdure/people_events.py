"""What people do to a run, and what they are asked for, as events."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field

from perdure.budgets import Additions
from perdure.event_base import EventBase
from perdure.messages import JSON, Content


class ApprovalRequested(EventBase):
    """A person has to decide about a call. `hash` is that of `arguments`."""

    type: Literal["approval_requested"]
    call: str
    name: str
    arguments: dict[str, JSON] = Field(default_factory=dict)
    hash: str
    why: str


class ApprovalReminder(EventBase):
    """A request for approval still waits."""

    type: Literal["approval_reminder"]
    call: str
    name: str


class ApprovalDecided(EventBase):
    """A call was approved or denied: by whom, by which way, why. `duration` is how long it had waited."""

    type: Literal["approval_decided"]
    call: str
    name: str
    approve: bool
    by: str
    via: Literal["update", "signal", "expiry"]
    reason: str = ""
    edited: bool = False
    duration: timedelta | None = None


class DecisionRefused(EventBase):
    """A signal or update from outside did not take; why. `by` is "" where it could not be understood."""

    type: Literal["decision_refused"]
    name: str
    by: str = ""
    via: Literal["update", "signal"]
    reason: str


class Settled(EventBase):
    """A person said what became of a call in doubt."""

    type: Literal["settled"]
    call: str
    name: str
    outcome: Literal["done", "not-done", "retry"]
    by: str
    via: Literal["update", "signal"] = "update"
    reason: str = ""


class Asked(EventBase):
    """The model has put a question to the user; the run waits for the answer."""

    type: Literal["asked"]
    call: str
    name: str
    question: str


class Answered(EventBase):
    """A question was answered. `duration` is how long it had waited."""

    type: Literal["answered"]
    call: str
    name: str
    text: str
    by: str
    via: Literal["update", "signal"]
    duration: timedelta | None = None


class Said(EventBase):
    """A person told the agent something: it reaches the model before its next turn, `now` breaks off this one.

    With `queued`, it waits for the session's next turn.
    """

    type: Literal["said"]
    content: Content
    by: str
    via: Literal["update", "signal"]
    now: bool = False
    queued: bool = False


class Paused(EventBase):
    """What runs is let finish, and nothing new starts. `by` is "" where a limit was reached; `reason` says which."""

    type: Literal["paused"]
    by: str = ""
    via: Literal["update", "signal"] | None = None
    reason: str = ""


class Resumed(EventBase):
    """A pause was lifted, or an open run given more: `add` was added to its limits."""

    type: Literal["resumed"]
    add: Additions = Additions()
    by: str
    via: Literal["update", "signal"]
    reason: str = ""


class CancelRequested(EventBase):
    """Somebody asked the run to end; `by` is "" where it is not known."""

    type: Literal["cancel_requested"]
    reason: str = ""
    by: str = ""
