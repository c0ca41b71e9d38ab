"""A run's state, and what each outcome does to it. Plain data, no clock, no I/O.

The workflow folds outcomes into this state as they happen; the projection of a history folds the same
outcomes again with the same functions, which is why what `show` prints can't differ from what ran.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from perdure.messages import (
    JSON,
    CallRecord,
    Content,
    Data,
    DecisionRecord,
    Message,
    ResultStatus,
    RunResult,
    RunStatus,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
    content_hash,
)
from perdure.policies import AgentSpec, Effect, Limits
from perdure.reports import ModelTurn, ProbeReport, ToolReport


class Phase(StrEnum):
    """What a run is doing, as seen from outside."""

    INITIALIZING = "initializing"
    GENERATING = "generating"
    EXECUTING_TOOLS = "executing_tools"
    WAITING = "waiting"
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


class Outcome(Data):
    """Why a run ends."""

    status: RunStatus
    reason: str | None = None
    failure: str | None = None


class Repeat(Data):
    """The last call, what it gave, and how often in a row that was the same."""

    call: str = ""
    result: str = ""
    count: int = 0


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
    text: str = ""
    steps: int = 0
    started: int = 0
    malformed: int = 0
    repeat: Repeat = Repeat()
    usage: Usage = Usage()
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


# -- folding a model's reply -------------------------------------------------------------------------------

CUT_OFF = "Your last reply was cut off by the length limit and could not be used. Answer again, more briefly."
EMPTY = "Your last reply was empty. Answer the user, or call a tool."
REFUSED = "Your last reply was withheld or declined. Say plainly what you can't do, and what you can do instead."
CLOSING = (
    "The limit of steps is reached: no tool can be called any more. Answer now with what you know, and say what "
    "is left undone."
)


def close_soon(state: RunState) -> None:
    """Tell the model, once, that its next turn is the last one."""
    if not state.closing and state.steps > 0:
        state.messages.append(UserMessage(role="user", content=CLOSING, source="runtime"))
    state.closing = True


def fold_turn(state: RunState, turn: ModelTurn, now: datetime) -> None:
    """Take a model's reply into the state: its calls, or the answer, or what was wrong with it."""
    state.steps += 1
    state.usage += turn.usage
    message = turn.message
    state.messages.append(message)
    state.text = message.text or state.text
    usable = [call for call in message.calls if call.problem is None]
    fine = bool(usable) if message.calls else turn.finish in ("stop", "calls") and bool(message.text.strip())
    state.malformed = 0 if fine else state.malformed + 1
    if message.calls:
        _open_calls(state, message.calls, now)
    elif fine:
        state.outcome = _answered(state)
    else:
        note = {"length": CUT_OFF, "filtered": REFUSED, "refusal": REFUSED}.get(turn.finish, EMPTY)
        state.messages.append(UserMessage(role="user", content=note, source="runtime"))
    if state.malformed >= state.limits.malformed_turns and not state.outcome:
        reason = f"The model gave {state.malformed} unusable replies in a row."
        state.outcome = Outcome(status="failed", reason=reason, failure="malformed_output")


def _answered(state: RunState) -> Outcome:
    if state.closing and state.spec.tools:
        return exhausted(state)
    return Outcome(status="completed")


def exhausted(state: RunState) -> Outcome:
    """Return the outcome of a run that has used up its steps."""
    limit = f"{state.limits.steps} step{'' if state.limits.steps == 1 else 's'}"
    return Outcome(status="budget_exhausted", reason=f"The limit of {limit} is reached.")


def _open_calls(state: RunState, calls: Iterable[ToolCall], now: datetime) -> None:
    state.calls = [_opened(state, call, index, now) for index, call in enumerate(calls)]
    _fold_if_all_closed(state)


def _opened(state: RunState, call: ToolCall, index: int, now: datetime) -> CallState:
    tool = state.spec.tool(call.name)
    position = f"{state.steps}.{index + 1}{_epoch(state)}"
    opened = CallState(
        call=call,
        position=position,
        key=f"{state.run_id}:{state.execution}:{position}",
        effect=tool.effect if tool else "read",
        parallel=bool(tool and tool.parallel),
        probe=bool(tool and tool.probe),
        tell_model=bool(tool and tool.in_doubt == "tell_model"),
        arguments=call.arguments,
        hash=content_hash(call.arguments),
    )
    refusal = _refusal(state, opened, index)
    if refusal:
        _close(opened, refusal)
    elif call.ask is not None:
        opened.status, opened.asked_at = CallStatus.ASKING, now
    _ask_after_reset(state, opened, now)
    return opened


# -- after a reset of the workflow -------------------------------------------------------------------------

AFTER_RESET = "The run was reset: the part that was left behind may have done this already."


def _epoch(state: RunState) -> str:
    """Return what tells positions after a reset from those of the part that was left behind."""
    return f"r{state.resets}" if state.resets else ""


def fold_reset(state: RunState, execution: str, now: datetime) -> None:
    """Begin a new epoch: what was not started yet has a new position and key, and effects need approval again.

    Decisions of the part that was left behind, which the engine may send once more, fit no position any more.
    """
    state.resets += 1
    state.execution = execution
    for call in state.calls:
        if call.order is None:
            call.position = f"{call.position.partition('r')[0]}{_epoch(state)}"
            call.key = f"{state.run_id}:{execution}:{call.position}"
            call.decision = None
            _ask_after_reset(state, call, now)


def _ask_after_reset(state: RunState, call: CallState, now: datetime) -> None:
    if state.resets and call.effect != "read" and call.status in (CallStatus.READY, CallStatus.ASKING):
        call.status, call.asked_at = CallStatus.ASKING, now
        call.call = call.call.model_copy(update={"ask": AFTER_RESET})


def _refusal(state: RunState, call: CallState, index: int) -> ToolResult | None:
    """Return the result of a call that is not executed at all, or None."""
    if problem := call.call.problem:
        text = f"{problem.message} Nothing was executed."
        return result_of(call, "error", text, error_type=problem.error_type, suggestion=problem.suggestion)
    if state.closing:
        return result_of(call, "skipped", "Not executed: the limit of steps is reached.")
    limit = state.limits.calls_per_turn
    if index >= limit:
        return result_of(call, "skipped", f"Not executed: at most {limit} calls are allowed in one turn.")
    if state.repeat.call == _fingerprint(call) and state.repeat.count >= state.limits.repeat_refused - 1:
        text = f"Not executed: this call gave the same result {state.repeat.count} times in a row."
        return result_of(call, "skipped", text, suggestion="Try something else, or answer with what you know.")
    return None


# -- closing calls -----------------------------------------------------------------------------------------


def result_of(
    call: CallState,
    status: ResultStatus,
    message: str | None = None,
    *,
    error_type: str | None = None,
    suggestion: str | None = None,
    content: str = "",
) -> ToolResult:
    """Return a result for `call`."""
    return ToolResult(
        call_id=call.call.id,
        name=call.call.name,
        status=status,
        content=content,
        message=message,
        error_type=error_type,
        suggestion=suggestion,
        execution_order=call.order,
    )


def _close(call: CallState, result: ToolResult) -> None:
    call.status = CallStatus.CLOSED
    call.result = result


def close(state: RunState, call: CallState, result: ToolResult) -> None:
    """Give `call` its result; when it was the turn's last, all results enter the transcript in call order."""
    _close(call, result)
    _fold_if_all_closed(state)


def _fold_if_all_closed(state: RunState) -> None:
    if state.open_calls:
        return
    told_before = state.repeat.count
    for call in state.calls:
        assert call.result is not None  # noqa: S101 - closed calls have one
        state.messages.append(ToolMessage(role="tool", result=call.result))
        state.records.append(record_of(call))
        _count_repeat(state, call, call.result)
    count = state.repeat.count
    if count >= state.limits.repeat_told and count != told_before:
        text = (
            f"You have made the same call to {state.calls[-1].call.name} {count} times in a row with the same "
            "result. Repeating it again will not help: do something else, or answer with what you know."
        )
        state.messages.append(UserMessage(role="user", content=text, source="runtime"))
    state.calls = []


def _fingerprint(call: CallState) -> str:
    return content_hash([call.call.name, call.call.arguments])


def _count_repeat(state: RunState, call: CallState, result: ToolResult) -> None:
    if call.call.problem:
        return
    fingerprint = _fingerprint(call)
    given = content_hash([result.status, result.content, result.message])
    same_call = state.repeat.call == fingerprint
    same = same_call and (result.status == "skipped" or state.repeat.result == given)
    kept = state.repeat.result if same and result.status == "skipped" else given
    state.repeat = Repeat(call=fingerprint, result=kept, count=state.repeat.count + 1 if same else 1)


def record_of(call: CallState) -> CallRecord:
    """Return `call` as it is kept for audit."""
    return CallRecord(
        position=call.position,
        name=call.call.name,
        arguments=call.arguments,
        status=call.result.status if call.result else "in_doubt" if call.doubt else "open",
        message=call.result.message if call.result else call.doubt.message if call.doubt else None,
        execution_order=call.order,
    )


# -- tools: started, ended, in doubt -----------------------------------------------------------------------


def start(state: RunState, call: CallState) -> None:
    """Mark `call` as running; its place in the order of execution is fixed now, for further attempts as well."""
    if call.order is None:
        state.started += 1
        call.order = state.started
    call.status = CallStatus.RUNNING


def fold_report(state: RunState, call: CallState, report: ToolReport) -> None:
    """Take the end of a tool's attempt into the state."""
    edited = call.decision is not None and call.decision.edited
    result = report.result
    if edited:
        note = "A person changed the arguments before they were executed."
        result = result.model_copy(update={"note": f"{note} Executed with: {_short(call.arguments)}"})
    if result.status != "in_doubt":
        close(state, call, result)
        return
    believed = None if report.abandoned else report.deadline
    doubt(state, call, Doubt(message=result.message or "Its outcome is not known.", believed_from=believed))


_LONGEST_NOTE = 2_000


def _short(arguments: dict[str, JSON]) -> str:
    text = json.dumps(arguments, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= _LONGEST_NOTE else f"{text[:_LONGEST_NOTE]}…"


def lost(state: RunState, call: CallState, message: str, now: datetime, timeout: timedelta) -> None:
    """Take the loss of a call's last attempt into the state, by the effect of its tool."""
    if call.effect == "read":
        suggestion = "It only reads: it may be tried again."
        close(state, call, result_of(call, "error", message, error_type="unavailable", suggestion=suggestion))
    else:
        doubt(state, call, Doubt(message=message, believed_from=now + timeout))


def doubt(state: RunState, call: CallState, why: Doubt) -> None:
    """Put `call` in doubt: a probe is next, else a person, or the model is told."""
    call.doubt, call.probes = why, 0
    if call.probe:
        call.status = CallStatus.DOUBTED
    else:
        _leave_to_people(state, call)


MOST_PROBES = 4
"""Bounds how often a probe is asked too early, where a worker's clock is behind the engine's."""


def fold_probe(state: RunState, call: CallState, report: ProbeReport) -> None:
    """Take a probe's answer into the state: `not_done` counts only if asked after the hard deadline."""
    if call.status is not CallStatus.PROBING:
        return  # a person was quicker
    call.probes += 1
    believed_from = call.doubt.believed_from if call.doubt else None
    if report.outcome == "done":
        result = report.result or result_of(call, "ok", "A look-up found that it was done.")
        close(state, call, result.model_copy(update={"execution_order": call.order}))
    elif report.outcome == "not_done" and believed_from is not None and report.asked_at >= believed_from:
        close(state, call, not_done(call))
    elif believed_from is not None and report.asked_at < believed_from and call.probes < MOST_PROBES:
        call.status = CallStatus.DOUBTED  # asked too early: again after the deadline
    else:
        _leave_to_people(state, call)


def not_done(call: CallState) -> ToolResult:
    """Return the result of a call that certainly did not happen."""
    return result_of(call, "error", "It was not done: its effect did not happen.", error_type="not_done")


def _leave_to_people(state: RunState, call: CallState) -> None:
    if not call.tell_model:
        call.status = CallStatus.IN_DOUBT
        return
    words = {
        "idempotent": "It may or may not have been done. The same operation may safely be asked for once more.",
        "unsafe": "It may or may not have been done. Do not repeat it; look up whether it happened, or tell the user.",
        "read": "It is not known.",
    }[call.effect]
    message = call.doubt.message if call.doubt else ""
    close(state, call, result_of(call, "in_doubt", f"{message} {words}".strip(), error_type="in_doubt"))


def fold_cancelled(state: RunState, call: CallState) -> None:
    """Close a call that was stopped before it could have any effect."""
    close(state, call, result_of(call, "cancelled", "The run was cancelled before it ended."))


# -- the end -----------------------------------------------------------------------------------------------


def fail(state: RunState, failure: str, reason: str) -> None:
    """End the run as `failed`."""
    state.outcome = Outcome(status="failed", reason=reason, failure=failure)


def result_from(state: RunState, outcome: Outcome, duration: timedelta) -> RunResult:
    """Return what the run gave so far."""
    return RunResult(
        run_id=state.run_id,
        status=outcome.status,
        text=state.text,
        calls=[*state.records, *(record_of(call) for call in state.calls)],
        usage=state.usage,
        steps=state.steps,
        duration=duration,
        reason=outcome.reason,
        failure=outcome.failure,
    )
