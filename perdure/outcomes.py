"""What each call's end does to a run's state. Plain data, no clock, no I/O: workflow and projection fold alike."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from perdure import budgets, concealing, loops, settling, undoing, variables
from perdure.messages import (
    JSON,
    AssistantMessage,
    CallRecord,
    Private,
    ResultStatus,
    RunResult,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from perdure.reports import ProbeReport, ToolReport, Unshaped
from perdure.results import render_result, short
from perdure.state import CallState, CallStatus, Doubt, Outcome, RunState


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


def close_call(call: CallState, result: ToolResult) -> None:
    """Give `call` its result, and nothing else."""
    call.status = CallStatus.CLOSED
    call.result = result


def close(state: RunState, call: CallState, result: ToolResult, returned: Unshaped | None = None) -> None:
    """Give `call` its result; when it was the turn's last, all results enter the transcript in call order.

    `returned` is what its tool returned, where the result is shaped for the model.
    """
    undoing.note(state, call, result, returned)
    close_call(call, result)
    if call.deferred and result.status != "ok":
        _skip_rest(state, call, result.status)
    fold_if_all_closed(state)


def fold_if_all_closed(state: RunState) -> None:
    """Where all calls of the turn have their results, move them into the transcript, in call order."""
    if any(call.status is not CallStatus.CLOSED for call in state.calls):
        return
    if any(call.deferred for call in state.calls):
        _fold_staged(state)
    else:
        end_turn(state)


def end_turn(state: RunState) -> None:
    """Move the turn's results into the transcript, in call order; a call that has none yet is parked."""
    for call in state.calls:
        state.messages.append(ToolMessage(role="tool", result=call.result or waiting(call)))
        if call.result is None:
            state.parked.append(call)
            continue
        variables.fold(state, call)
        state.records.append(record_of(call))
    if told := loops.watch(state):
        state.messages.append(UserMessage(role="user", content=told, source="runtime"))
    closed, state.calls = state.calls, []
    settling.fold(state, closed)


def _skip_rest(state: RunState, failed: CallState, status: ResultStatus) -> None:
    """Skip the staged actions after one that did not succeed: they may depend on it."""
    text = f"Not executed: call {failed.position} before it ended as {status}."
    for call in state.calls:
        if call.status is CallStatus.READY:
            close_call(call, result_of(call, "skipped", text))


def _fold_staged(state: RunState) -> None:
    """Where all staged actions have ended, so has the run; the records tell what became of each."""
    for call in state.calls:
        variables.fold(state, call)
    state.records, calls, state.calls = records(state), state.calls, []
    if state.session:  # its next turn has to know
        told = "\n".join(staged_news(call) for call in calls)
        state.messages.append(UserMessage(role="user", content=told, source="runtime"))
    bad = [call for call in calls if call.result and call.result.status not in ("ok", "skipped")]
    done = sum(call.result is not None and call.result.status == "ok" for call in calls)
    reason = f"{done} of {len(calls)} staged actions were executed: call {bad[0].position} was not." if bad else None
    state.outcome = state.outcome or Outcome(status="completed", reason=reason)


def staged_news(call: CallState) -> str:
    """Return what the model is told of an action that waited for the answer, and has its result now."""
    assert call.result is not None  # noqa: S101 - closed calls have one
    return f"Staged action {call.position} {call.call.name}: {render_result(call.result)}"


def records(state: RunState) -> list[CallRecord]:
    """Return all calls for audit, in call order; staged ones as they stand now."""
    current = {call.position: record_of(call) for call in state.all_calls if not call.asks_for_all}
    return list(({record.position: record for record in state.records} | current).values())


def waiting(call: CallState) -> ToolResult:
    """Return what stands in the transcript for a call that goes on waiting for a person."""
    if call.doubt:
        text = "It is not known yet whether it was done: a person looks it up. You will be told."
    else:
        text = "It was not executed yet: it waits for a person. You will be told what becomes of it."
    return result_of(call, "waiting", text, suggestion="Do not ask for the same again meanwhile.")


def news_of(call: CallState) -> UserMessage:
    """Return what the model is told of a parked call that has its result now."""
    assert call.result is not None  # noqa: S101 - closed calls have one
    decided = call.decision
    by = f", {'approved' if decided.approve else 'denied'} by {decided.by}" if decided else ""
    text = f"Call {call.position} {call.call.name}{by}: {render_result(call.result)}"
    return UserMessage(role="user", content=text, source="runtime", result=call.result)


def record_of(call: CallState) -> CallRecord:
    """Return `call` as it is kept for audit."""
    return CallRecord(
        position=call.position,
        name=call.call.name,
        arguments=call.arguments,
        status=call.result.status if call.result else "in_doubt" if call.doubt else "open",
        message=_message_of(call),
        execution_order=call.order,
        wrote=list(call.wrote),
    )


def _message_of(call: CallState) -> str | None:
    if call.result and call.deferred:
        return call.result.message or short(call.result.content)  # the transcript has it nowhere
    return call.result.message if call.result else call.doubt.message if call.doubt else None


# -- tools: started, ended, in doubt -----------------------------------------------------------------------


def start(state: RunState, call: CallState) -> None:
    """Mark `call` as running; its place in the order of execution is fixed now, for further attempts as well."""
    if call.order is None:
        state.started += 1
        call.order = state.started
        state.executed[call.call.name] = state.executed.get(call.call.name, 0) + 1
    call.status = CallStatus.RUNNING


def fold_report(state: RunState, call: CallState, report: ToolReport) -> None:
    """Take the end of a tool's attempt into the state."""
    edited = call.decision is not None and call.decision.edited
    result = report.result
    if edited:
        note = "A person changed the arguments before they were executed."
        result = result.model_copy(update={"note": f"{note} Executed with: {_short(call.arguments)}"})
        result = _with_edited(state, call, result)
    if result.status != "in_doubt":
        call.wrote = report.wrote
        close(state, call, result, report.returned)
        return
    believed = None if report.abandoned else report.deadline
    doubt(state, call, Doubt(message=result.message or "Its outcome is not known.", believed_from=believed))


def _with_edited(state: RunState, call: CallState, result: ToolResult) -> ToolResult:
    """Return `result` with what is private in arguments that a person has given: the note tells the model of them."""
    spec = state.tool_of(call)
    values = concealing.found(call.arguments, spec.parameters) if spec else []
    return result.model_copy(update={"private": [*(result.private or ()), *values]}) if values else result


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
        call.wrote = report.wrote
        close(state, call, result.model_copy(update={"execution_order": call.order}), report.returned)
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
    message = call.doubt.message if call.doubt else ""
    text = f"{message} {words_of_doubt(call)}".strip()
    close(state, call, result_of(call, "in_doubt", text, error_type="in_doubt"))


def words_of_doubt(call: CallState) -> str:
    """Return what the model is told to do about an outcome that nobody knows, by the effect of its tool."""
    return {
        "idempotent": "It may or may not have been done. The same operation may safely be asked for once more.",
        "unsafe": "It may or may not have been done. Do not repeat it; look up whether it happened, or tell the user.",
        "read": "It is not known.",
    }[call.effect]


def fold_cancelled(state: RunState, call: CallState) -> None:
    """Close a call that was stopped before it could have any effect."""
    close(state, call, result_of(call, "cancelled", "The run was cancelled before it ended."))


# -- the end -----------------------------------------------------------------------------------------------


def begin_undoing(state: RunState, outcome: Outcome) -> None:
    """Take into the state that its run was cut off: nothing begins any more, and each look-up begins anew."""
    state.outcome = outcome
    state.generating = None
    state.pressure = state.pressure.model_copy(update={"under_way": False})
    for call in state.open_calls:
        if call.status in (CallStatus.ASKING, CallStatus.READY, CallStatus.QUESTION):
            text = "Not executed: the run was ended, and what it had done is undone."
            close(state, call, result_of(call, "cancelled", text))
        elif call.status is CallStatus.PROBING:
            call.status = CallStatus.DOUBTED
        elif call.status is CallStatus.RUNNING:  # cut off before it could tell
            call.status, call.doubt = CallStatus.IN_DOUBT, Doubt(message="It was under way.")


def result_from(state: RunState, outcome: Outcome, duration: timedelta) -> RunResult:
    """Return what the run gave so far."""
    total = budgets.bill(state)
    return RunResult(
        run_id=state.run_id,
        status=outcome.status,
        text=state.text,
        calls=records(state),
        usage=total.usage,
        steps=total.steps,
        duration=duration,
        cost_usd=budgets.cost(state),
        reason=outcome.reason,
        failure=outcome.failure,
        undone=undoing.undone(state),
        variables=variables.current(state),
        before=state.before if state.before and state.before.records else None,
        private=_private(state) if state.borrowing.parent or state.schedule else [],
        published=state.published,
        output=state.output,
    )


def _private(state: RunState) -> list[Private]:
    """Return what of the answer its model has written handles of."""
    replies = (entry for entry in reversed(state.messages) if isinstance(entry, AssistantMessage))
    return next((reply.private for reply in replies if reply.text == state.text), list[Private]())
