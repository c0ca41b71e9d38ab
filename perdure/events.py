"""What happens to a run, as a closed union of typed events. Each is a projection of Temporal's history."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field

from perdure.budgets import Additions
from perdure.messages import JSON, Content, ContextHealth, Data, ResultStatus, RunStatus, Usage
from perdure.state import Fork


class EventBase(Data):
    """What every event has.

    Attributes:
        run_id: The run.
        position: Where in the history: Temporal's event id, a dot, and a counter; ordered, and never used twice in one
            run. In a run that has continued as new, event 17 of its third execution is 200017.
        time: Of the history's event.
        step: Model turn, from 1; 0 before the first.
    """

    run_id: str
    position: str
    time: datetime
    step: int = 0


class RunStarted(EventBase):
    """The run exists. `resumed` if it goes on from a closed one, `forked_from` if from a step of another run."""

    type: Literal["run_started"]
    agent: str
    model: str
    spec_hash: str
    resumed: bool = False
    forked_from: Fork | None = None


class WorkerTookOver(EventBase):
    """A worker has the run now: the first one, or another than before."""

    type: Literal["worker_took_over"]
    worker: str


class Recalled(EventBase):
    """What is remembered was looked up: so many `facts` are told. `problem` says why nothing could be."""

    type: Literal["recalled"]
    facts: int = 0
    problem: str = ""


class ModelStarted(EventBase):
    """The model is being asked; `answer_only` if it may not call tools any more."""

    type: Literal["model_started"]
    model: str
    answer_only: bool = False


class ModelFinished(EventBase):
    """The model replied. `duration` is that of the attempt that succeeded; `calls` are positions and names.

    `fallback` says why the agent's first model was not the one that answered, "" where it was. `context` is how full
    its context was with the request.
    """

    type: Literal["model_finished"]
    model: str
    text: str = ""
    calls: list[str] = Field(default_factory=list)
    finish: str = "stop"
    usage: Usage = Usage()
    cost_usd: Decimal | None = None
    fallback: str = ""
    context: ContextHealth | None = None
    attempt: int = 1
    duration: timedelta | None = None


class ContextCompacted(EventBase):
    """The model is shown less of the conversation from now on, since its context was too full.

    Attributes:
        why: It was `full`, its provider `refused` a request as too long, or little was left of the `budget`.
        how: `shortened`: long results are shown as previews; `summarised`: and old turns as a summary; `nothing` was
            left to make it shorter.
        by: The model that wrote the summary, as the agent names it; "" where none did.
        message: What did not go as it should.
    """

    type: Literal["context_compacted"]
    why: Literal["full", "refused", "budget"]
    how: Literal["shortened", "summarised", "nothing"]
    by: str = ""
    before: ContextHealth
    after: ContextHealth
    usage: Usage = Usage()
    cost_usd: Decimal | None = None
    message: str = ""
    attempt: int = 1
    duration: timedelta | None = None


class ModelFailed(EventBase):
    """The model can't be reached or refuses; the run ends."""

    type: Literal["model_failed"]
    error_type: str
    message: str


class ToolStarted(EventBase):
    """A call was handed to a worker."""

    type: Literal["tool_started"]
    call: str
    name: str
    effect: str
    arguments: dict[str, JSON] = Field(default_factory=dict)


class ToolFinished(EventBase):
    """A call has its result. `duration` is None for one that was never executed; `wrote` names changed variables."""

    type: Literal["tool_finished"]
    call: str
    name: str
    status: ResultStatus | Literal["open"]
    message: str | None = None
    wrote: list[str] = Field(default_factory=list)
    attempt: int | None = None
    duration: timedelta | None = None


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
    """A call was approved or denied: by whom, by which way, why."""

    type: Literal["approval_decided"]
    call: str
    name: str
    approve: bool
    by: str
    via: Literal["update", "signal", "expiry"]
    reason: str = ""
    edited: bool = False


class DecisionRefused(EventBase):
    """A signal or update from outside did not take; why. `by` is "" where it could not be understood."""

    type: Literal["decision_refused"]
    name: str
    by: str = ""
    via: Literal["update", "signal"]
    reason: str


class InDoubt(EventBase):
    """Nobody knows whether a call's effect happened; `key` is its idempotency key."""

    type: Literal["in_doubt"]
    call: str
    name: str
    key: str
    message: str


class Probed(EventBase):
    """A probe looked up whether a call in doubt was done."""

    type: Literal["probed"]
    call: str
    name: str
    outcome: Literal["done", "not_done", "unknown"]
    message: str = ""


class Settled(EventBase):
    """A person said what became of a call in doubt."""

    type: Literal["settled"]
    call: str
    name: str
    outcome: Literal["done", "not-done", "retry"]
    by: str
    reason: str = ""


class Undoing(EventBase):
    """What a call did is being undone."""

    type: Literal["undoing"]
    call: str
    name: str


class Undone(EventBase):
    """What became of undoing it: `failed` and `not_known` may still stand. `attempt` is None where none was made."""

    type: Literal["undone"]
    call: str
    name: str
    status: Literal["undone", "failed", "not_known"]
    message: str | None = None
    attempt: int | None = None


class Asked(EventBase):
    """The model has put a question to the user; the run waits for the answer."""

    type: Literal["asked"]
    call: str
    name: str
    question: str


class Answered(EventBase):
    """A question was answered."""

    type: Literal["answered"]
    call: str
    name: str
    text: str
    by: str
    via: Literal["update", "signal"]


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


class RuntimeFault(EventBase):
    """The engine could not execute the workflow's code, and tries again; the text says why."""

    type: Literal["runtime_fault"]
    message: str


class RunFinished(EventBase):
    """The run has ended."""

    type: Literal["run_finished"]
    status: RunStatus
    text: str = ""
    reason: str | None = None
    failure: str | None = None
    usage: Usage = Usage()
    cost_usd: Decimal | None = None
    duration: timedelta = timedelta()


Event = Annotated[
    RunStarted
    | WorkerTookOver
    | Recalled
    | ModelStarted
    | ModelFinished
    | ContextCompacted
    | ModelFailed
    | ToolStarted
    | ToolFinished
    | ApprovalRequested
    | ApprovalReminder
    | ApprovalDecided
    | DecisionRefused
    | InDoubt
    | Probed
    | Settled
    | Undoing
    | Undone
    | Asked
    | Answered
    | Said
    | Paused
    | Resumed
    | CancelRequested
    | RuntimeFault
    | RunFinished,
    Field(discriminator="type"),
]


EXECUTION = 100_000
"""What positions gain with each execution of a run that has continued as new: the engine allows half as many events."""


def position_key(position: str) -> tuple[int, int]:
    """Return a position as something that compares in order; "" comes before all."""
    first, _, second = position.partition(".")
    return (int(first or 0), int(second or 0))
