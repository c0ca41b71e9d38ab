"""What travels between client, workflow and activities: names and payloads. Kept in histories."""

from __future__ import annotations

import base64
import zlib
from datetime import datetime, timedelta
from typing import Literal

from pydantic import Field

from perdure.budgets import Allowance
from perdure.decisions import Saying
from perdure.memory import Circle, Learnt
from perdure.messages import JSON, Content, Data, Entry, Private, Segment, content_hash
from perdure.notices import Notice, Occasion
from perdure.policies import AgentSpec, Effect, Limits, McpServerSpec, McpTool, Shaping
from perdure.recurring import Recurring
from perdure.sensitive import Vaulted
from perdure.state import Fork, RunState, SessionTurn, begin, keyed

WORKFLOW = "AgentWorkflow"
MODEL = "perdure.model"
COMPACT = "perdure.compact"
JUDGE = "perdure.judge"
PROBE = "perdure.probe"
UNDO = "perdure.undo"
UNDO_SUFFIX = ":undo"
"""What makes the key of an undoing out of that of the effect."""
CANCEL_RUN = "perdure.cancel"
AFTERWARDS = "perdure.afterwards"
ARCHIVE = "perdure.archive"
END_TURN = "perdure.end_turn"
LEARN = "perdure.learn"
REMEMBER = "perdure.remember"
RECALL = "perdure.recall"
LIST_TOOLS = "perdure.list_tools"
PUT_AWAY = "perdure.put_away"
NOTIFY = "perdure.notify"
END_NOTICE = "perdure.end_notice"
TRANSCRIPT = "transcript"
RECORDS = "records"
BEGAN = "began"
"""The memo in which a run that has continued as new says when its first execution started."""
STATE = "state"
DECIDE = "decide"
SETTLE = "settle"
LEASE = "lease"
GRANTED = "granted"
ANSWER = "answer"
SAY = "say"
PAUSE = "pause"
RESUME = "resume"
CANCEL = "cancel"
WAITS = "waits"


def model_queue(task_queue: str, model: str) -> str:
    """Return the queue of the calls of a model: that of its provider, for the runs of `task_queue`."""
    return f"{task_queue}/{model.partition(':')[0]}"


class Caller(Data):
    """The call of its parent that a run is: of an agent that is a tool of another.

    Attributes:
        position: Of the call, as in `2.1`.
        order: Its place in the order in which the parent's calls were started.
        bills: The parent takes to be told what a run has used that is cancelled.
    """

    position: str
    order: int | None = None
    bills: bool = False


class RunRequest(Data):
    """A run's input. What the user says comes first: the Web UI shows the beginning.

    Attributes:
        spec: The rules that the run keeps, whatever is deployed later.
        spec_hash: Its content hash.
        heartbeat: A worker silent for so long is taken for lost.
        carried: For a resumed run: where the closed one stopped; `input` is not used then.
        packed: The same, compressed: see `packed_state`.
        parent: The run whose budget `limits` are carved out of: asked for more before they are used up.
        shape: See `RunState.shape`; 0 where an older client started it.
        before: The conversation that it goes on from, such as the earlier turns of its session.
        variables: Those that it starts with.
        session: Which turn of which session it is.
        queued: What was said to the session and waits for its next turns.
        user: For whom it works, as far as memory goes.
        tenant: On whose behalf.
        secrets: Where those that it was given are.
        max_history_events: The run continues as new when its history has so many; 0: when the engine suggests it.
        executions: How many executions of the run came before this one, which goes on from `carried`.
        forked_from: Where a new run comes from that begins with `carried`.
        caller: The call of `parent` that it is.
        indexed: The namespace has all search attributes, also those that a run can do without.
        notify: Of what people are told; workers say how.
        private: What of `input` the model is shown handles of, as that of the run that has called this one is.
        recurring: The schedule that begins it; see `perdure.recurring.rendered`.
    """

    input: Content = ""
    spec: AgentSpec
    spec_hash: str = ""
    limits: Limits | None = None
    heartbeat: timedelta = timedelta(seconds=5)
    carried: RunState | None = None
    packed: str = ""
    parent: str = ""
    shape: int = 0
    before: Segment | None = None
    variables: dict[str, JSON] = Field(default_factory=dict)
    session: SessionTurn | None = None
    queued: list[Saying] = Field(default_factory=list[Saying])
    user: str = ""
    tenant: str = ""
    secrets: Vaulted | None = None
    max_history_events: int = 0
    executions: int = 0
    forked_from: Fork | None = None
    caller: Caller | None = None
    indexed: bool = False
    notify: list[Occasion] = Field(default_factory=list[Occasion])
    private: list[Private] = Field(default_factory=list[Private])
    recurring: Recurring | None = None


def packed_state(state: RunState) -> str:
    """Return a state as base64 of zlib of its JSON: for `RunRequest.packed`, where it is too large to be readable."""
    return base64.b64encode(zlib.compress(state.model_dump_json().encode(), 9)).decode()


def opening_state(request: RunRequest, run_id: str, execution: str) -> RunState:
    """Return the state with which a run starts or goes on. `execution` is the Temporal run id of this execution.

    A run that was resumed makes new idempotency keys; one that has continued as new goes on with those it had.
    """
    carried = request.carried
    if request.packed:
        carried = RunState.model_validate_json(zlib.decompress(base64.b64decode(request.packed)))
    if carried is None:
        more = {name: getattr(request, name) for name in _GIVEN}
        if request.before:  # its records are those of other runs
            more["before"] = request.before.model_copy(update={"records": 0})
        if request.recurring:
            more["schedule"] = request.recurring.schedule
        return begin(run_id, request.spec, request.input, request.limits, execution[-12:], request.parent, **more)
    carried = carried.model_copy(deep=True, update={"spec": request.spec})
    if not request.executions:
        carried.execution = execution[-12:]
        keyed(carried)
    return carried


_GIVEN = ("private", "shape", "before", "variables", "session", "queued", "user", "tenant", "secrets")
"""What a request says of a new run's state in the state's own words."""


class Led(Data):
    """What a strategy is told of a run besides the conversation.

    Attributes:
        progress: What it said with its last move.
        variables: All of the run's.
    """

    progress: dict[str, JSON] = Field(default_factory=dict)
    variables: dict[str, JSON] = Field(default_factory=dict)


class ModelInput(Data):
    """A model call, without the conversation: only what identifies it.

    Attributes:
        spec: Hash of the AgentSpec.
        length: Messages of the conversation.
        head: Chained hash over all of them.
        new: Content hashes of those since the last call, oldest first.
        allowance: What the call may spend.
        ran: How long the run has gone on, without the time spent waiting for people.
        variables: What the model is shown of them, at the end of the request; None where it is nothing.
        compacts: The model is not asked where the request fills too much of its context: the run compacts it first.
        window: See `Pressure.window`.
        led: What the strategy is told that leads the run; None where none does.
    """

    agent: str
    spec: str
    step: int
    length: int
    head: str
    new: list[str] = Field(default_factory=list)
    answer_only: bool = False
    allowance: Allowance = Allowance()
    ran: timedelta = timedelta()
    variables: dict[str, JSON] | None = None
    compacts: bool = False
    window: int | None = None
    led: Led | None = None

    @property
    def base(self) -> int:
        """Messages of the conversation at the last call."""
        return self.length - len(self.new)


class CompactInput(ModelInput):
    """A conversation that is too long for the model, named as in a model call.

    Attributes:
        why: It is `full`, a request was `refused`, or little is left of the `budget`: then no model is asked.
        tight: How often it was compacted since the model last replied: each time less is left of it.
        waiting: What waits for a person now, in words.
        decided: What people have decided since it was last summed up, in words.
    """

    why: Literal["full", "refused", "budget"]
    tight: int = 0
    waiting: list[str] = Field(default_factory=list[str])
    decided: list[str] = Field(default_factory=list[str])


class Page(Data):
    """Some entries of a transcript, oldest first.

    Attributes:
        messages: Empty where those asked for begin in the part that was put away.
        spec: Only where no entries are asked for.
        before: The part that was put away.
    """

    messages: list[Entry]
    spec: AgentSpec | None = None
    before: Segment | None = None


class PutAway(Data):
    """The part of a run to be put away in the store: what comes after `before`.

    Attributes:
        length: Entries of the transcript up to its end.
        head: Their chained hash.
        records: So many records, from the first one that is not put away on.
    """

    before: Segment | None = None
    length: int
    head: str
    records: int = 0


class ToolInput(Data):
    """One call of a tool, with the rules of the run that makes it.

    `again` if a person asked for another try after the outcome of an earlier one was in doubt. `execution`, of an
    unsafe call, is the Temporal run that started it: a reset hands what was under way to another one. `fallback` names
    the tool that is asked instead where this one is not available. `variables` are as they are when the call begins.

    `circle` is set for `search_memory` alone; `window`, if its model's provider has told one, for `read_result` alone.
    `secrets` are where those of the run are. `mcp` is the tool of an MCP server that it is.
    """

    agent: str
    call_id: str
    position: str
    key: str
    arguments: dict[str, JSON] = Field(default_factory=dict)
    effect: Effect = "unsafe"
    timeout: timedelta = timedelta(seconds=10)
    tries: int = 1
    result_limit: int = 65_536
    shaping: Shaping = Shaping()
    local: bool = False
    order: int | None = None
    again: bool = False
    execution: str = ""
    fallback: str = ""
    variables: dict[str, JSON] = Field(default_factory=dict)
    circle: Circle | None = None
    secrets: Vaulted | None = None
    window: int | None = None
    mcp: McpTool | None = None


class ProbeInput(Data):
    """A look-up whether a call's effect happened. Before `believed_from` (None: never), `NotDone` proves nothing."""

    tool: str
    call: ToolInput
    believed_from: datetime | None = None


class UndoInput(Data):
    """An effect to be undone. `call.key` is the undoing's own key; `content` and `ref` as in `DoneEffect`."""

    tool: str
    call: ToolInput
    content: str = ""
    ref: str | None = None


class JudgeInput(Data):
    """Edited arguments of one call, to be validated and judged again. `spec` has that tool alone."""

    agent: str
    spec: AgentSpec
    tool: str
    arguments: dict[str, JSON] = Field(default_factory=dict)


class RecallInput(Data):
    """What of an agent's memory a run is to be told.

    Attributes:
        query: What the user says.
        before: The conversation so far: what is told there already is not told again.
        told: Ids of the facts told after that.
        limit: So many facts.
    """

    circle: Circle
    query: str = ""
    before: Segment | None = None
    told: list[str] = Field(default_factory=list)
    limit: int


class ListToolsInput(Data):
    """The MCP servers whose tools a run wants to know.

    Attributes:
        taken: Names of tools that it has already.
        secrets: Where those of the run are.
    """

    agent: str
    servers: list[McpServerSpec]
    taken: list[str] = Field(default_factory=list[str])
    secrets: Vaulted | None = None


def edit_id(position: str, by: str) -> str:
    """Return the activity id of the judging of edited arguments; `by` tells edits of the same call apart."""
    return f"{position} edited by {by}"


# -- after a run -------------------------------------------------------------------------------------------


class AfterRun(Data):
    """An execution of a run that ends, to be seen to once it has.

    Attributes:
        execution: Its Temporal run id.
        agent: The agent's name.
        heartbeat: A worker silent for so long is taken for lost.
        goes_on: It continues as new: the run has not ended.
        session: The turn that it was, to be ended.
        remember: The model that picks out what is remembered of it; "" where nothing is.
        notify: Somebody is to be told of its end.
    """

    run_id: str
    execution: str
    agent: str = ""
    heartbeat: timedelta = timedelta(seconds=5)
    goes_on: bool = False
    session: SessionTurn | None = None
    remember: str = ""
    notify: bool = False


class NotifyInput(Data):
    """A notice to be delivered. A worker silent for `heartbeat` is taken for lost."""

    notice: Notice
    heartbeat: timedelta = timedelta(seconds=5)


class RememberInput(Data):
    """Facts of a run, to be kept in the memory of a circle; `at` is when they were picked out."""

    run_id: str
    circle: Circle
    facts: list[Learnt]
    at: datetime


_LONGEST_ID = 900
"""Bytes: the engine takes 1,000."""


def after_id(run_id: str, execution: str) -> str:
    """Return the workflow id of what follows an execution of a run; `execution` tells it from the run's others."""
    return f"{_short(run_id)}/afterwards/{execution}"


def notice_id(run_id: str, which: str) -> str:
    """Return the workflow id of a notice, which is its own id as well."""
    return f"{_short(run_id)}/notices/{which}"


def _short(run_id: str) -> str:
    return run_id if len(run_id.encode()) <= _LONGEST_ID else content_hash(run_id)
