"""A run's state: plain data. What changes it is in `turns` and `outcomes`, no clock and no I/O there either.

The workflow folds outcomes into this state as they happen; the projection of a history folds the same
outcomes again with the same functions, which is why what `show` prints can't differ from what ran.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from perdure.decisions import Cancellation, DecisionRecord, Pause, Saying
from perdure.messages import (
    JSON,
    CallRecord,
    Content,
    ContextHealth,
    Data,
    Entry,
    OpenStatus,
    Published,
    RunStatus,
    Segment,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
)
from perdure.policies import AgentSpec, Effect, Limits, ToolSpec
from perdure.sensitive import Vaulted


class Phase(StrEnum):
    """What a run is doing, as seen from outside."""

    INITIALIZING = "initializing"
    GENERATING = "generating"
    COMPACTING = "compacting"
    EXECUTING_TOOLS = "executing_tools"
    WAITING = "waiting"
    UNDOING = "undoing"
    POST_PROCESSING = "post_processing"
    ENDED = "ended"


class CallStatus(StrEnum):
    """Where one call of the current turn stands."""

    ASKING = "asking"  # a person has to approve it
    QUESTION = "question"  # a person has to answer it
    READY = "ready"
    RUNNING = "running"
    DOUBTED = "doubted"  # its outcome is unknown; a probe is due
    PROBING = "probing"
    IN_DOUBT = "in_doubt"  # only a person can settle it
    CLOSED = "closed"


UNSETTLED = (CallStatus.RUNNING, CallStatus.DOUBTED, CallStatus.PROBING, CallStatus.IN_DOUBT)
"""A call that may have an effect which is not known yet."""


# -- the state ---------------------------------------------------------------------------------------------


_FOR_PEOPLE = (CallStatus.ASKING, CallStatus.IN_DOUBT)


class Doubt(Data):
    """Why an outcome is unknown, and from when on a probe's `NotDone` may be believed (None: never)."""

    message: str
    believed_from: datetime | None = None


STAGED = "staged"
"""Position of the one request for approval of all actions that wait for the answer."""


class CallState(BaseModel):
    """One call that has no place in the transcript yet."""

    model_config = ConfigDict(extra="ignore")

    call: ToolCall
    position: str
    key: str
    effect: Effect = "unsafe"
    parallel: bool = False
    probe: bool = False
    tell_model: bool = False
    deferred: bool = False  # it is executed after the answer
    status: CallStatus = CallStatus.READY
    arguments: dict[str, JSON] = Field(default_factory=dict)
    hash: str = ""
    asked_at: datetime | None = None
    decision: DecisionRecord | None = None
    doubt: Doubt | None = None
    probes: int = 0
    again: bool = False
    order: int | None = None
    result: ToolResult | None = None
    wrote: dict[str, JSON] = Field(default_factory=dict)  # variables that it has changed
    waits: OpenStatus = "running"  # of one that is a run: whom it waits for
    agent: str = ""  # that has made it
    hands_to: str = ""  # the agent that goes on with the conversation once it is approved
    publishes: str = ""  # the topic on which its arguments are an event then

    @property
    def asks_for_all(self) -> bool:
        """Whether it is no call, but the one request for approval of all staged ones."""
        return self.deferred and not self.call.id


class DoneEffect(BaseModel):
    """An effect that was done and can be undone: what that needs, and what became of it.

    Attributes:
        content: What the tool returned, as text; only the beginning of it where there is a `ref`.
        ref: The blob that holds the whole of a large one.
        before: Whether it was undone before the run was resumed, and the model has been told.
        agent: The agent that has done it.
    """

    model_config = ConfigDict(extra="ignore")

    position: str
    name: str
    key: str
    arguments: dict[str, JSON] = Field(default_factory=dict)
    content: str = ""
    ref: str | None = None
    order: int
    status: Literal["done", "undoing", "undone", "failed", "not_known"] = "done"
    message: str | None = None
    before: bool = False
    agent: str = ""


class Outcome(Data):
    """Why a run ends."""

    status: RunStatus
    reason: str | None = None
    failure: str | None = None


class Generation(BaseModel):
    """A model call under way, and what people have said about it meanwhile.

    Attributes:
        interrupted: Somebody wants it broken off.
        topped_up: A limit was raised: that the call was refused for lack of budget means nothing any more.
    """

    model_config = ConfigDict(extra="ignore")

    interrupted: bool = False
    topped_up: bool = False


class Pressure(Data):
    """How far a run's context has become too full for its model.

    Attributes:
        due: Why it is to be compacted before the model is asked again: it is `full`, or a request was `refused` as too
            long; "" where it is not.
        under_way: It is being compacted; the first `decided` of the run's decisions go into the summary.
        tight: How often it was compacted since the model last replied.
        over: Nothing is left to make it shorter: the model is asked as it is.
        relieved: How often it was compacted since little was left of the budget: once to make that last, and once more
            where it would not do for an answer otherwise.
        window: Tokens that the model can take, as a provider said when it refused a request; None: none has.
        words: What it said.
    """

    due: Literal["", "full", "refused"] = ""
    under_way: bool = False
    decided: int = 0
    tight: int = 0
    over: bool = False
    relieved: int = 0
    window: int | None = None
    words: str = ""

    @property
    def unasked(self) -> bool:
        """Whether the model was to be asked, and has not replied since for want of room."""
        return bool(self.due or self.tight or self.over)


class TurnSeen(Data):
    """What a turn asked for and was given: hash of each call → hash of its result, and of the words of a failed one."""

    calls: dict[str, str] = Field(default_factory=dict)
    words: str = ""


class Trail(Data):
    """The last turns with calls, and how far they repeat themselves; see `perdure.loops`.

    Attributes:
        turns: Oldest first, a bounded number.
        streaks: How many turns in a row were like the one 1, 2, 3 and 4 turns before.
        stale: How many turns in a row brought nothing new.
    """

    turns: list[TurnSeen] = Field(default_factory=list[TurnSeen])
    streaks: list[int] = Field(default_factory=lambda: [0, 0, 0, 0])
    stale: int = 0


class Amounts(Data):
    """Steps, tokens and money: what is added to a run's limits, lent, or used."""

    steps: int = Field(default=0, ge=0)
    input_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    usd: Decimal = Field(default=Decimal(0), ge=0)

    def to(self, limits: Limits) -> Limits:
        """Return `limits`, raised. A limit that is None stays so."""
        raised = {
            name: getattr(limits, name) + getattr(self, name)
            for name in type(self).model_fields
            if name in Limits.model_fields and getattr(limits, name) is not None
        }
        return limits.model_copy(update=raised)

    def __add__(self, other: Amounts) -> Amounts:
        """Return the sum, each for itself."""
        return Amounts(**{name: getattr(self, name) + getattr(other, name) for name in Amounts.model_fields})


class Bill(Data):
    """What a run has used, together with the runs under it; `usd` is not the whole where `unpriced`."""

    steps: int = 0
    usage: Usage = Usage()
    usd: Decimal = Decimal(0)
    unpriced: bool = False


class Lease(Data):
    """What one child was lent of a run's budget.

    Attributes:
        limits: The child's own, with all that it was granted; used up, for the lender, until the child has ended.
        answered: Ids of the requests for more that have been answered.
        bill: What the child has used, once it has ended: the rest is free again.
        told: What it says that it has used, where its end can't carry that: it was cancelled.
    """

    limits: Limits
    answered: list[str] = Field(default_factory=list)
    bill: Bill | None = None
    told: Bill | None = None

    @property
    def lent(self) -> Amounts:
        """What is reserved for the child."""
        return Amounts.model_validate({name: getattr(self.limits, name) or 0 for name in Amounts.model_fields})


class Borrowing(Data):
    """Where a run stands with the one that has lent it its budget.

    Attributes:
        parent: Its run id; "" for a run of its own.
        asked: How often it was asked for more.
        answers: Ids of the requests that were answered.
        over: It has nothing more to give, or does not answer.
        unfit: The last model call did not fit into what is left.
    """

    parent: str = ""
    asked: int = 0
    answers: list[str] = Field(default_factory=list)
    over: bool = False
    unfit: bool = False

    @property
    def possible(self) -> bool:
        """Whether there is somebody to ask."""
        return self.parent != "" and not self.over


class SessionTurn(Data):
    """The turn of a session that a run is; `number` counts from 1."""

    name: str
    number: int

    @property
    def run_id(self) -> str:
        """The id of its run: two who begin it at once begin one run."""
        return f"{self.name}.{self.number}"


class Fork(Data):
    """The run and the step from which another run goes on."""

    run_id: str
    step: int


SHAPE = 1
"""What runs that are started now can do; see `RunState.shape`."""


AFTER_RESET = "The run was reset: the part that was left behind may have done this already."


class RunState(BaseModel):
    """All that a run is: what a resumed run starts from.

    Attributes:
        shape: What it can do that those started by older clients can't, so that their histories replay. 1: it compacts
            its context, continues as new, and is archived at its end.
        before: The part of the transcript, and of the records, that was put away; `messages` and `records` come after.
        variables: What tools have written for each other and for the model; see `Agent(variables=…)`.
        recall: Whether the model has been told what is remembered.
        forked_from: Where its first steps come from, which it has not taken itself.
        start: How many entries of the transcript were there before the run.
        began: When its first execution started, or the first one since it was resumed; None in that one itself.
        listing: Its MCP servers are being asked for their tools.
        listed: Those whose tools are in `spec` now.
        decided: What people have decided about calls since the context was last summed up, in words.
        context: How full the model's context was at the last turn.
        progress: What the strategy that leads it said with its last move.
        schedule: The id of the schedule that has begun it; "" for none.
        output: The last reply as data, where the agent's answer is more than text, and it fits.
        published: The events that it has published, in order.
        handed: How often it has passed from one agent to another; `spec` is that of the one that has it now.
    """

    model_config = ConfigDict(extra="ignore")

    run_id: str
    spec: AgentSpec
    limits: Limits
    execution: str = ""
    resets: int = 0
    shape: int = 0
    before: Segment | None = None
    start: int = 0
    messages: list[Entry] = Field(default_factory=list[Entry])
    variables: dict[str, JSON] = Field(default_factory=dict)
    session: SessionTurn | None = None
    user: str = ""
    tenant: str = ""
    schedule: str = ""
    secrets: Vaulted | None = None
    decided: list[str] = Field(default_factory=list[str])
    context: ContextHealth | None = None
    pressure: Pressure = Pressure()
    progress: dict[str, JSON] = Field(default_factory=dict)
    began: datetime | None = None
    recall: Literal["", "asked", "done"] = ""
    listing: bool = False
    listed: list[str] = Field(default_factory=list[str])
    forked_from: Fork | None = None
    calls: list[CallState] = Field(default_factory=list[CallState])
    records: list[CallRecord] = Field(default_factory=list[CallRecord])
    staged: list[CallState] = Field(default_factory=list[CallState])  # to be executed after the answer
    effects: list[DoneEffect] = Field(default_factory=list[DoneEffect])  # of tools with a compensation
    text: str = ""
    output: JSON = None
    steps: int = 0
    started: int = 0
    malformed: int = 0
    trail: Trail = Trail()
    usage: Usage = Usage()
    last: Usage = Usage()  # of the last turn: what the next one will need at least
    cost: Decimal = Decimal(0)
    last_cost: Decimal = Decimal(0)
    unpriced: bool = False  # some turn's price is not known, and neither is the sum
    ran: timedelta = timedelta()  # up to the last model call, without the time spent waiting for people
    executed: dict[str, int] = Field(default_factory=dict)  # calls started, by tool
    closing: bool = False
    leases: dict[str, Lease] = Field(default_factory=dict[str, Lease])  # lent to children, by run id
    borrowing: Borrowing = Borrowing()
    outcome: Outcome | None = None
    taken: list[str] = Field(default_factory=list)  # ids of what people have sent and what took
    generating: Generation | None = None
    parked: list[CallState] = Field(default_factory=list[CallState])  # calls of earlier turns that wait for a person
    said: list[Saying] = Field(default_factory=list[Saying])  # what the model has yet to be told
    queued: list[Saying] = Field(default_factory=list[Saying])  # what the next turns of the session begin with
    paused: Pause | None = None
    short: str = ""  # the limit at which the run paused itself
    conceded: bool = False  # it was resumed from there without more: its last turn is next
    cancelling: Cancellation | None = None
    handed: int = 0
    published: list[Published] = Field(default_factory=list[Published])

    @property
    def length(self) -> int:
        """Entries of the whole transcript."""
        return (self.before.length if self.before else 0) + len(self.messages)

    @property
    def all_calls(self) -> list[CallState]:
        """Calls of the current turn and those parked in earlier ones, in call order."""
        return [*self.parked, *self.calls]

    @property
    def open_calls(self) -> list[CallState]:
        """Those of them that have no result yet."""
        return [call for call in self.all_calls if call.status is not CallStatus.CLOSED]

    @property
    def may_repeat(self) -> str:
        """Who else may have done what the run is about to do, as a sentence; "" where nobody has."""
        if self.resets:
            return AFTER_RESET
        if source := self.forked_from:
            where = f"{source.run_id} at step {source.step}"
            return f"The run was forked from {where}: that one may have done this already."
        return ""

    def rules_of(self, made: CallState | DoneEffect) -> AgentSpec:
        """Return the rules of the agent that has made a call."""
        return self.spec.of(made.agent)

    def tool_of(self, call: CallState) -> ToolSpec | None:
        """Return the tool of a call, as the agent has it that has made the call."""
        return self.rules_of(call).tool(call.call.name)

    def run_of(self, call: CallState) -> str:
        """Return the id of the run that a call to an agent is: `trip/2.1`; after a reset, another than before it."""
        again = f"~{self.execution}" if self.resets else ""
        return f"{self.run_id}/{call.position}{again}"

    @property
    def waiting_below(self) -> list[str]:
        """The runs that calls of this one are, and that wait for a person, or have one below that does."""
        return [self.run_of(call) for call in self.open_calls if call.waits.startswith("waiting_")]

    def find(self, name: str, *waiting: CallStatus) -> CallState | None:
        """Return the call with that position or provider's id; "" means the only one that waits so."""
        if not name:
            found = [call for call in self.open_calls if call.status in (waiting or _FOR_PEOPLE)]
            return found[0] if len(found) == 1 else None
        return next((call for call in self.all_calls if name in (call.position, call.call.id)), None)


def begin(
    run_id: str, spec: AgentSpec, content: Content, limits: Limits | None, execution: str, parent: str = "", **rest: Any
) -> RunState:
    """Return the state of a run that has just started. `execution` makes the idempotency keys unique."""
    before: Segment | None = rest.get("before")
    start = before.length if before else 0
    rules: dict[str, Any] = {"limits": limits or spec.limits, "execution": execution, "start": start, **rest}
    first = UserMessage(role="user", content=content, private=rules.pop("private", []))
    return RunState(run_id=run_id, spec=spec, messages=[first], borrowing=Borrowing(parent=parent), **rules)


def keyed(state: RunState) -> None:
    """Give what is staged in a run that was forked the idempotency keys of that run, whose execution is known now."""
    for call in state.staged:
        call.key = call.key or f"{state.run_id}:{state.execution}:{call.position}"
