"""What people say to a run: decisions, answers, messages, and whether they took. Kept in histories, as messages are."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from perdure.messages import JSON, Content, Data


class Decision(Data):
    """A person's answer to a request for approval.

    Attributes:
        call: The call's position in the run (`2.1`: step 2, first call) or its id.
        approve: True to execute it, False to deny it.
        hash: The hash of the arguments that the person was shown; None (only by hand) leaves it unchecked.
        arguments: Edited arguments, validated and judged again; None keeps the model's.
        by: Who decided, as they claim.
        reason: Why, for the record, and for the model where denied.
        id: Made up by the sender: what arrives by two ways is taken once. "" where sent by hand.
    """

    call: str
    approve: bool
    hash: str | None = None
    arguments: dict[str, JSON] | None = None
    by: str = "unknown"
    reason: str = ""
    id: str = ""


class Settlement(Data):
    """A person's answer to an outcome that nobody knows.

    Attributes:
        call: The call's position or id.
        outcome: `done` (with `result`), `not-done`, or `retry` with the same idempotency key.
        result: For `done`: what the tool would have returned, if known.
        ref: Where `result` is only the beginning of a text: the blob that holds the whole, of `size` bytes.
        id: As for `Decision`.
    """

    call: str
    outcome: Literal["done", "not-done", "retry"]
    result: JSON = None
    ref: str | None = None
    size: int | None = None
    by: str = "unknown"
    reason: str = ""
    id: str = ""


class Answer(Data):
    """A person's answer to a question that the model has put with `ask_user`.

    Attributes:
        text: The answer: it becomes the call's result.
        call: The call's position or id; "" where only one question is open.
        ref: Where `text` is only the beginning: the blob that holds the whole, of `size` bytes.
        id: As for `Decision`.
    """

    text: str
    call: str = ""
    ref: str | None = None
    size: int | None = None
    by: str = "unknown"
    id: str = ""


class Pause(Data):
    """Let what runs finish, and start nothing new. `id` as for `Decision`."""

    by: str = "unknown"
    reason: str = ""
    id: str = ""


class Cancellation(Data):
    """End the run, and keep what it did. `id` as for `Decision`."""

    by: str = "unknown"
    reason: str = ""
    id: str = ""


class Saying(Data):
    """What a person tells the agent while it works.

    Attributes:
        content: Reaches the model before its next turn.
        now: Break off the model call under way for it, if there is one.
        next: Keep it until the run has ended: the session's next turn begins with it.
        id: As for `Decision`.
    """

    content: Content
    by: str = "unknown"
    now: bool = False
    next: bool = False
    id: str = ""


class Receipt(Data):
    """Whether a decision took. `reason` is one of `DecisionRejected`'s where it did not."""

    accepted: bool
    call: str = ""
    reason: str = ""
    message: str = ""


class DecisionRecord(Data):
    """A decision as the run keeps it: who, when, why, by which way."""

    by: str
    via: Literal["update", "signal", "expiry"]
    at: datetime
    approve: bool
    reason: str = ""
    edited: bool = False
