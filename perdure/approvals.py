"""Decisions of people: whether they take, and what they do to a run. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Literal

from perdure import settling, staging
from perdure.decisions import Answer, Decision, DecisionRecord, Receipt, Settlement
from perdure.messages import JSON, CallRecord, ToolResult, content_hash
from perdure.outcomes import close, not_done, record_of, result_of
from perdure.results import report_of_value, short
from perdure.state import STAGED, CallState, CallStatus, Outcome, RunState

Via = Literal["update", "signal", "expiry"]

_NOT_BEGUN = (CallStatus.READY, CallStatus.ASKING, CallStatus.QUESTION)
_DOUBTFUL = (CallStatus.IN_DOUBT, CallStatus.DOUBTED, CallStatus.PROBING)


def check(state: RunState, wanted: Decision | Settlement) -> Receipt:
    """Return whether `wanted` would take: `accepted`, or the reason why not. Changes nothing."""
    if wanted.id and wanted.id in state.taken:
        return Receipt(accepted=True, call=wanted.call, reason="repeated")
    call = state.find(wanted.call)
    if call is None:
        return unknown(state, wanted.call)
    if isinstance(wanted, Settlement):
        if call.status in _DOUBTFUL:
            return Receipt(accepted=True, call=call.position)
        text = f"The outcome of call {call.position} is not in doubt: {standing(call)}."
        return Receipt(accepted=False, call=call.position, reason="not_in_doubt", message=text)
    if call.status is not CallStatus.ASKING:
        decided = call.decision is not None
        below = f"; what it waits for is in {state.run_of(call)}" if call.waits.startswith("waiting_") else ""
        text = f"Call {call.position} does not wait for approval: {standing(call)}{below}."
        if call.status is CallStatus.QUESTION:
            text += _how_to_answer(state, call)
        reason = "already_decided" if decided else "not_waiting"
        return Receipt(accepted=False, call=call.position, reason=reason, message=text)
    return _check_approval(state, call, wanted)


def _check_approval(state: RunState, call: CallState, wanted: Decision) -> Receipt:
    if call.asks_for_all and wanted.arguments is not None:
        text = "Staged actions are approved or denied together, as they are: their arguments can't be changed."
        return Receipt(accepted=False, call=call.position, reason="invalid_edit", message=text)
    if wanted.hash is not None and wanted.hash != call.hash:
        text = (
            f"Call {call.position} has other arguments (hash {call.hash}) than those that were shown ({wanted.hash})."
        )
        return Receipt(accepted=False, call=call.position, reason="stale_hash", message=text)
    if changed := _fixed_and_changed(state, call, wanted):
        text = f"The argument {changed!r} of {call.call.name} can't be changed; leave it out."
        return Receipt(accepted=False, call=call.position, reason="invalid_edit", message=text)
    return Receipt(accepted=True, call=call.position)


def _fixed_and_changed(state: RunState, call: CallState, wanted: Decision) -> str:
    """Return an argument that an edit changes although it can't be changed; "" where there is none."""
    tool, edit = state.tool_of(call), wanted.arguments or {}
    fixed = tool.fixed if tool else []
    return next((name for name in fixed if name in edit and edit[name] != call.arguments.get(name)), "")


def edited(state: RunState, call: CallState, decision: Decision) -> dict[str, JSON] | None:
    """Return the arguments that a person wants instead of those of a call, all of them; None where they want no others.

    Where some of a tool's arguments are fixed, those that the edit leaves out are as they were.
    """
    if decision.arguments is None:
        return None
    tool = state.tool_of(call)
    return {**call.arguments, **decision.arguments} if tool and tool.fixed else decision.arguments


def takes(receipt: Receipt) -> bool:
    """Return whether something is to be done: one that has come by two ways is accepted both times, and taken once."""
    return receipt.accepted and receipt.reason != "repeated"


EARLY = timedelta(seconds=1)
"""How long a decision about a call that is not there yet waits for it."""

EARLY_SUMMARY = "decision: is its call there yet?"
ALARM_SUMMARY = "approval: reminder or expiry"


def premature(receipt: Receipt) -> bool:
    """Return whether what was refused is about a call, and may only have come too early.

    What a person has seen in the history may reach the workflow together with their decision about it, as after
    the loss of a worker, and the decision first.
    """
    return receipt.reason in ("unknown_call", "not_waiting", "not_in_doubt")


def unknown(state: RunState, name: str) -> Receipt:
    """Return the refusal of something about a call that the run does not have, or not any more."""
    closed = next((record for record in state.records if record.position == name), None)
    if closed and closed.status == "staged":
        text = f"Call {name} is staged: it is approved or denied together with the others, as call {STAGED}."
        return Receipt(accepted=False, call=name, reason="not_waiting", message=text)
    if closed:
        text = f"Call {name} {_closed(closed)}."
        return Receipt(accepted=False, call=name, reason="already_decided", message=text)
    if _was_put_away(state, name):
        text = f"Call {name}, if there was one, was closed long ago."
        return Receipt(accepted=False, call=name, reason="already_decided", message=text)
    calls = list(_waiting(state))
    waiting = [f"{call.position} ({call.call.name})" for call in calls]
    listed = f"waiting are {', '.join(waiting)}" if waiting else f"nothing waits for a decision in {state.run_id}"
    if name or waiting:
        listed = f"The run has no call {name!r}: {listed}" if name else f"Say which call is meant: {listed}"
    below = f"; what it waits for is in {', '.join(state.waiting_below)}" if state.waiting_below else ""
    text = short(f"{listed[0].upper()}{listed[1:]}{below}.")
    if len(calls) == 1 and calls[0].status is CallStatus.QUESTION:
        text += _how_to_answer(state, calls[0])
    return Receipt(accepted=False, call=name, reason="unknown_call", message=text)


def _was_put_away(state: RunState, name: str) -> bool:
    """Return whether `name` is the position of a call of which the run has kept nothing, as it has continued as new."""
    step, dot, _ = name.partition(".")
    return bool(state.before and state.before.records and dot and step.isdigit()) and int(step) <= state.steps


def _how_to_answer(state: RunState, call: CallState) -> str:
    return f" Answer it with `perdure answer {shlex.quote(state.run_id)} TEXT --call {call.position}`."


def _waiting(state: RunState) -> Iterator[CallState]:
    yield from (
        call for call in state.open_calls if call.status in (CallStatus.ASKING, CallStatus.QUESTION, *_DOUBTFUL)
    )


_STANDINGS: dict[CallStatus, str] = {
    CallStatus.ASKING: "waits for approval",
    CallStatus.QUESTION: "asks the user",
    CallStatus.READY: "has not begun yet",
    CallStatus.RUNNING: "is being executed",
    CallStatus.DOUBTED: "is in doubt, and is looked up next",
    CallStatus.PROBING: "is in doubt, and is being looked up",
    CallStatus.IN_DOUBT: "is in doubt",
}


def standing(call: CallState) -> str:
    """Return where a call stands, in words: `it is being executed`."""
    now = _closed(record_of(call)) if call.status is CallStatus.CLOSED else _STANDINGS[call.status]
    if call.decision and call.status is not CallStatus.ASKING:
        verb = "approved" if call.decision.approve else "denied"
        return f"it was {verb} by {call.decision.by}, and {now}"
    return f"it {now}"


def _closed(record: CallRecord) -> str:
    """Return what became of a call that has its result."""
    if record.status in ("denied", "skipped", "cancelled"):
        return f"was {record.status} already"
    verb = "was executed" if record.execution_order else "has its result"
    return f"{verb} already: {record.status}"


def apply_decision(state: RunState, decision: Decision, via: Via, now: datetime) -> None:
    """Take a decision that `check` accepted into the state. Edited arguments have been judged before."""
    call = state.find(decision.call)
    assert call is not None  # noqa: S101 - `check` found it
    state.taken.extend([decision.id] if decision.id else [])
    arguments = edited(state, call, decision)
    others = arguments is not None and arguments != call.arguments
    call.decision = DecisionRecord(
        by=decision.by, via=via, at=now, approve=decision.approve, reason=decision.reason, edited=others
    )
    if state.shape and not call.asks_for_all:
        state.decided.append(_in_words(call, call.decision))
    if call.asks_for_all:
        staging.decide(state, call.decision, _why(decision))
        return
    if not decision.approve:
        _deny(state, call, decision)
        return
    if others and arguments is not None:
        call.arguments, call.hash = arguments, content_hash(arguments)
    call.status = CallStatus.READY
    if given := settling.result_of(call):
        close(state, call, given)


def _in_words(call: CallState, decided: DecisionRecord) -> str:
    verb = f"approved{' with other arguments' if decided.edited else ''}" if decided.approve else "denied"
    return short(f"{call.position} {call.call.name} {verb} by {decided.by}: {decided.reason}".rstrip(": "))


def _why(decision: Decision) -> str:
    return short(f": {decision.reason.rstrip('.')}." if decision.reason else ".")


def _deny(state: RunState, call: CallState, decision: Decision) -> None:
    why = _why(decision)
    text = short(f"Denied by {decision.by}{why} It was not executed.")
    stop = state.rules_of(call).approval.on_denial == "stop"
    if stop:
        state.outcome = Outcome(status="completed", reason=short(f"{call.call.name} was denied by {decision.by}{why}"))
        for other in state.open_calls:
            if other is not call and other.status in _NOT_BEGUN:
                close(state, other, result_of(other, "skipped", "Not executed: another call of the turn was denied."))
    suggestion = None if stop else "Do not ask for the same again; go on without it, or ask the user."
    close(state, call, result_of(call, "denied", text, suggestion=suggestion))


def apply_settlement(state: RunState, settlement: Settlement) -> None:
    """Take a settlement that `check` accepted into the state."""
    call = state.find(settlement.call)
    assert call is not None  # noqa: S101 - `check` found it
    state.taken.extend([settlement.id] if settlement.id else [])
    match settlement.outcome:
        case "done":
            close(state, call, _settled_done(state, call, settlement))
        case "not-done":
            result = not_done(call)
            close(
                state,
                call,
                result.model_copy(update={"note": short(f"Settled by {settlement.by}. {settlement.reason}".strip())}),
            )
        case "retry":
            call.status, call.doubt, call.again = CallStatus.READY, None, True


def _settled_done(state: RunState, call: CallState, settlement: Settlement) -> ToolResult:
    note = short(f"{settlement.by} looked it up and says that it was done. {settlement.reason}".strip())
    tool = state.tool_of(call)
    assert tool is not None  # noqa: S101 - only known tools were executed
    result = "It was done." if settlement.result in (None, "") else settlement.result
    report = report_of_value(result, call.call.id, call.call.name, tool.result_limit, call.order)
    return referring(report.result, settlement).model_copy(update={"note": note})


def referring(result: ToolResult, said: Settlement | Answer) -> ToolResult:
    """Return the `result` that a person gave, with the place of the whole where they gave only the beginning."""
    return result.model_copy(update={"ref": said.ref, "size": said.size}) if said.ref else result


# -- alarms: reminders and expiry --------------------------------------------------------------------------


def next_alarm(state: RunState, now: datetime) -> datetime | None:
    """Return when the next request for approval expires or is to be reminded of, or None."""
    times: list[datetime] = []
    for call in state.open_calls:
        if call.status is not CallStatus.ASKING or call.asked_at is None:
            continue
        rules = state.rules_of(call).approval
        if rules.expires:
            times.append(call.asked_at + rules.expires)
        if rules.remind_every:
            passed = (now - call.asked_at) // rules.remind_every
            times.append(call.asked_at + (passed + 1) * rules.remind_every)
    return min(times, default=None)


EXPIRED = "expired"
"""The memo in which a run records which requests have just expired: a decision may come in the same moment."""


def expire(state: RunState, now: datetime) -> list[str]:
    """Deny every request for approval that nobody decided in time, and return their positions."""
    asking = [call for call in state.open_calls if call.status is CallStatus.ASKING]
    late = [call.position for call in asking if _is_late(call, state.rules_of(call).approval.expires, now)]
    for position in late:
        let_expire(state, position, now)
    return late


def _is_late(call: CallState, limit: timedelta | None, now: datetime) -> bool:
    return limit is not None and call.asked_at is not None and now >= call.asked_at + limit


def let_expire(state: RunState, position: str, now: datetime) -> None:
    """Deny one request for approval, unless it has been decided."""
    call = state.find(position)
    if call and call.status is CallStatus.ASKING:
        limit = state.rules_of(call).approval.expires
        late = Decision(call=position, approve=False, by="nobody", reason=f"not decided within {limit}.")
        apply_decision(state, late, "expiry", now)
