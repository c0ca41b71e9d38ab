"""What happens to a run, as a closed union of typed events.

All but two are durable: projections of Temporal's history, which come once, in order, and again from any position.
`TextDelta` and `ToolProgress` come beside them while something is under way, and may be lost.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field

from perdure.budgets import LimitName
from perdure.event_base import EXECUTION, VERSION, EventBase, position_key
from perdure.messages import JSON, Content, ContextHealth, OpenStatus, ResultStatus, RunStatus, Usage
from perdure.people_events import (
    Answered,
    ApprovalDecided,
    ApprovalReminder,
    ApprovalRequested,
    Asked,
    CancelRequested,
    DecisionRefused,
    Paused,
    Resumed,
    Said,
    Settled,
)
from perdure.state import Fork, Phase
from perdure.strategies.plan_views import StepView

__all__ = [
    "EXECUTION",
    "VERSION",
    "Answered",
    "ApprovalDecided",
    "ApprovalReminder",
    "ApprovalRequested",
    "Asked",
    "BudgetWarning",
    "CancelRequested",
    "ContextCompacted",
    "DecisionRefused",
    "Event",
    "EventBase",
    "HandedOff",
    "InDoubt",
    "ModelFailed",
    "ModelFinished",
    "ModelStarted",
    "Moved",
    "Paused",
    "PhaseChanged",
    "PlanChanged",
    "Probed",
    "Recalled",
    "Resumed",
    "RetryScheduled",
    "RunFinished",
    "RunStarted",
    "RuntimeFault",
    "Said",
    "Settled",
    "TextDelta",
    "Told",
    "ToolFinished",
    "ToolProgress",
    "ToolStarted",
    "ToolsListed",
    "Undoing",
    "Undone",
    "WorkerTookOver",
    "position_key",
]


class RunStarted(EventBase):
    """The run exists. `resumed` if it goes on from a closed one, `forked_from` if from a step of another run.

    Attributes:
        schedule: The schedule that has begun it; "" for none.
        by: Who has created that.
    """

    type: Literal["run_started"]
    model: str
    schedule: str = ""
    by: str = ""
    resumed: bool = False
    forked_from: Fork | None = None


class WorkerTookOver(EventBase):
    """A worker has the run now: the first one, or another than before."""

    type: Literal["worker_took_over"]
    worker: str


class PhaseChanged(EventBase):
    """What the run does has changed, or what it waits for: `status` is `running` where it waits for nobody."""

    type: Literal["phase_changed"]
    phase: Phase
    before: Phase
    status: OpenStatus


class Recalled(EventBase):
    """What is remembered was looked up: so many `facts` are told. `problem` says why nothing could be."""

    type: Literal["recalled"]
    facts: int = 0
    problem: str = ""
    attempt: int = 1
    duration: timedelta | None = None


class ToolsListed(EventBase):
    """MCP servers were asked for their tools: names, and remarks, by server. `problem` says why they could not be."""

    type: Literal["tools_listed"]
    tools: dict[str, list[str]] = {}  # noqa: RUF012 - pydantic copies it, as the next one
    notes: dict[str, list[str]] = {}  # noqa: RUF012
    problem: str = ""
    attempt: int = 1
    duration: timedelta | None = None


class Told(EventBase):
    """The runtime itself has put words into the conversation, which the model reads as a user's.

    Such as those of the loop breaker, those about a reply that could not be used, the announcement of the last turn,
    the result of a call that had waited for a person, and what is remembered.
    """

    type: Literal["told"]
    content: Content


class ModelStarted(EventBase):
    """The model is being asked; `answer_only` if it may not call tools any more."""

    type: Literal["model_started"]
    model: str
    answer_only: bool = False


class ModelFinished(EventBase):
    """The model replied. `calls` are positions and names.

    Attributes:
        usage: Of all attempts, those that failed half-way included, as in `cost_usd`.
        wasted: Included in `usage`: of those that failed.
        fallback: Why the agent's first model was not the one that answered, "" where it was.
        context: How full its context was with the request.
        attempt: The engine's number of the attempt that succeeded.
        duration: Of that attempt.
    """

    type: Literal["model_finished"]
    model: str
    text: str = ""
    calls: list[str] = Field(default_factory=list)
    finish: str = "stop"
    usage: Usage = Usage()
    wasted: Usage = Usage()
    cost_usd: Decimal | None = None
    fallback: str = ""
    context: ContextHealth | None = None
    attempt: int = 1
    duration: timedelta | None = None


class Moved(EventBase):
    """What leads the run decided by itself what comes next, without the model. `calls` are positions and names."""

    type: Literal["moved"]
    strategy: str
    text: str = ""
    calls: list[str] = Field(default_factory=list)


class PlanChanged(EventBase):
    """A plan was made or amended, or some of its steps have begun or ended: all of them, as they stand.

    Attributes:
        amended: How often it was amended.
    """

    type: Literal["plan_changed"]
    steps: list[StepView]
    amended: int = 0


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
    """The model can't be reached or refuses; the run ends. `usage` is what that has cost all the same."""

    type: Literal["model_failed"]
    error_type: str
    message: str
    usage: Usage = Usage()
    attempt: int | None = None
    duration: timedelta | None = None


class RetryScheduled(EventBase):
    """An attempt has failed, or was lost with its worker, and another one followed.

    History tells when that other one has ended; if several have failed before it, of the last of them alone.

    Attributes:
        activity: Temporal's name of what was tried: `perdure.model`, or that of the call's tool.
        activity_id: Temporal's id of it.
        call: Position of the call, "" where it was none.
        attempt: Number of the attempt that failed, from 1.
        error_type: A short word for why, such as `timeout` or `rate_limit`.
        message: Why.
    """

    type: Literal["retry_scheduled"]
    activity: str
    activity_id: str
    call: str = ""
    attempt: int
    error_type: str = ""
    message: str = ""


class BudgetWarning(EventBase):
    """Four fifths of one of the run's limits are gone, or more.

    Attributes:
        limit: Its name in `Limits`.
        share: How much of it is gone: 0.8 and up.
        most: The limit in words: `40 steps`.
    """

    type: Literal["budget_warning"]
    limit: LimitName
    share: float
    most: str


class ToolStarted(EventBase):
    """A call was handed to a worker, or to the run `child` of an agent that is a tool."""

    type: Literal["tool_started"]
    call: str
    name: str
    effect: str
    arguments: dict[str, JSON] = Field(default_factory=dict)
    child: str = ""


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
    attempt: int = 1
    duration: timedelta | None = None


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
    duration: timedelta | None = None


class HandedOff(EventBase):
    """The agent has passed the conversation `to` another one, which later events name; `times` so far in the run."""

    type: Literal["handed_off"]
    to: str
    times: int = 1


class RuntimeFault(EventBase):
    """The engine could not execute the workflow's code, and tries again; the text says why."""

    type: Literal["runtime_fault"]
    message: str


class RunFinished(EventBase):
    """The run has ended. `output` is the answer as data, where its agent has an `output_type` and it fits."""

    type: Literal["run_finished"]
    status: RunStatus
    text: str = ""
    output: JSON = None
    reason: str | None = None
    failure: str | None = None
    usage: Usage = Usage()
    cost_usd: Decimal | None = None
    duration: timedelta = timedelta()


class TextDelta(EventBase):
    """A piece of the reply that the model is writing, redacted as all diagnostics are. Not durable.

    A piece of another attempt, or of another request of the same one, than the pieces before it replaces all of them.
    `ModelFinished` has the whole.

    Attributes:
        model: Who writes, as the agent names it.
        attempt: The engine's number of the attempt.
        request: Which request of that attempt, from 1.
        offset: Characters of the reply, as it is shown, before this piece.
    """

    type: Literal["text_delta"]
    model: str = ""
    attempt: int = 1
    request: int = 1
    offset: int = 0
    text: str


class ToolProgress(EventBase):
    """What a tool says of how far it is, redacted as all diagnostics are. Not durable.

    Attributes:
        attempt: The engine's number of the attempt.
        fraction: From 0 to 1; None where it does not say.
        local: Of a tool with `local=True`: its start is told when it has ended.
    """

    type: Literal["tool_progress"]
    call: str
    name: str
    attempt: int = 1
    text: str
    fraction: float | None = None
    local: bool = False


Event = Annotated[
    RunStarted
    | WorkerTookOver
    | PhaseChanged
    | ToolsListed
    | Recalled
    | Told
    | ModelStarted
    | ModelFinished
    | Moved
    | PlanChanged
    | ContextCompacted
    | ModelFailed
    | RetryScheduled
    | BudgetWarning
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
    | HandedOff
    | Paused
    | Resumed
    | CancelRequested
    | RuntimeFault
    | RunFinished
    | TextDelta
    | ToolProgress,
    Field(discriminator="type"),
]
