"""A run's state: plain data. What changes it is in `turns` and `outcomes`, no clock and no I/O there either.

The workflow folds outcomes into this state as they happen; the projection of a history folds the same
outcomes again with the same functions, which is why what `show` prints can't differ from what ran.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from perdure.messages import (
    JSON,
    CallRecord,
    Content,
    Data,
    DecisionRecord,
    Message,
    RunStatus,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
)
from perdure.policies import AgentSpec, Effect, Limits


class Phase(StrEnum):
    """What a run is doing, as seen from outside."""

    INITIALIZING = "initializing"
    GENERATING = "generating"
    EXECUTING_TOOLS = "executing_tools"
    WAITING = "waiting"
    UNDOING = "undoing"
    POST_PROCESSING = "post_processing"
    ENDED = "ended"


class CallStatus(StrEnum):
    """Where one call of the current turn stands."""

    ASKING = "asking"  # a person has to approve it
    READY = "ready"
    RUNNING = "running"
    DOUBTED = "doubted"  # its outcome is unknown; a probe is due
    PROBING = "probing"
    IN_DOUBT = "in_doubt"  # only a person can settle it
    CLOSED = "closed"


# -- the state ---------------------------------------------------------------------------------------------


class Doubt(Data):
    """Why an outcome is unknown, and from when on a probe's `NotDone` may be believed (None: never)."""

    message: str
    believed_from: datetime | None = None


class CallState(BaseModel):
    """One call of the current turn."""

    model_config = ConfigDict(extra="ignore")

    call: ToolCall
    position: str
    key: str
    effect: Effect = "unsafe"
    parallel: bool = False
    probe: bool = False
    tell_model: bool = False
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


class DoneEffect(BaseModel):
    """An effect that was done and can be undone: what that needs, and what became of it."""

    model_config = ConfigDict(extra="ignore")

    position: str
    name: str
    key: str
    arguments: dict[str, JSON] = Field(default_factory=dict)
    content: str = ""
    order: int
    status: Literal["done", "undoing", "undone", "failed", "not_known"] = "done"
    message: str | None = None


class Outcome(Data):
    """Why a run ends."""

    status: RunStatus
    reason: str | None = None
    failure: str | None = None


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


class RunState(BaseModel):
    """All that a run is: what a resumed run starts from."""

    model_config = ConfigDict(extra="ignore")

    run_id: str
    spec: AgentSpec
    limits: Limits
    execution: str = ""
    resets: int = 0
    messages: list[Message] = Field(default_factory=list[Message])
    calls: list[CallState] = Field(default_factory=list[CallState])
    records: list[CallRecord] = Field(default_factory=list[CallRecord])
    effects: list[DoneEffect] = Field(default_factory=list[DoneEffect])  # of tools with a compensation
    text: str = ""
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
    outcome: Outcome | None = None
    taken: list[str] = Field(default_factory=list)  # ids of the decisions and settlements that took

    @property
    def open_calls(self) -> list[CallState]:
        """Calls of the current turn that have no result yet."""
        return [call for call in self.calls if call.status is not CallStatus.CLOSED]

    def find(self, name: str) -> CallState | None:
        """Return the call of the current turn with that position or provider's id; "" means the only one."""
        if not name:
            waiting = [c for c in self.calls if c.status in (CallStatus.ASKING, CallStatus.IN_DOUBT)]
            return waiting[0] if len(waiting) == 1 else None
        return next((call for call in self.calls if name in (call.position, call.call.id)), None)


def begin(run_id: str, spec: AgentSpec, content: Content, limits: Limits | None, execution: str) -> RunState:
    """Return the state of a run that has just started. `execution` makes the idempotency keys unique."""
    first = UserMessage(role="user", content=content)
    return RunState(run_id=run_id, spec=spec, limits=limits or spec.limits, execution=execution, messages=[first])
