"""What a model's reply, and a reset, do to a run's state. Plain data, no clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from perdure import budgets, handing, loops, pressure, settling, staging, variables
from perdure.hooks import DENIED
from perdure.messages import Message, ResultStatus, ToolCall, ToolResult, Usage, UserMessage, content_hash
from perdure.outcomes import close_call, end_turn, fold_if_all_closed, news_of, record_of, result_of
from perdure.reports import ModelTurn
from perdure.state import CallState, CallStatus, Generation, Outcome, RunState

CUT_OFF = "Your last reply was cut off by the length limit and could not be used. Answer again, more briefly."
LOOPED = "Your last reply said the same over and over until it was cut off. Answer again, and say each thing once."
EMPTY = "Your last reply was empty. Answer the user, or call a tool."
REFUSED = "Your last reply was withheld or declined. Say plainly what you can't do, and what you can do instead."
AGAIN = "Answer again: with one JSON value that fits the schema of the answer, and nothing else."
CLOSING = (
    "The limit of this run is reached: no tool can be called any more. Answer now with what you know, and say what "
    "is left undone."
)


def open_turn(state: RunState, *, answer_only: bool) -> None:
    """Make the transcript ready for the model: what still waits is parked, and what came meanwhile is told.

    Results of parked calls come first, then what people said, in the order in which it came.
    """
    if any(call.asks_for_all for call in state.calls):
        state.calls = []  # what is staged is presented again after the next answer
    _withdraw_questions(state)
    end_turn(state)
    for call in [call for call in state.parked if call.status is CallStatus.CLOSED]:
        variables.fold(state, call)
        state.messages.append(news_of(call))
        state.records.append(record_of(call))
        state.parked.remove(call)
        settling.fold(state, [call])
    state.messages.extend(UserMessage(role="user", content=said.content) for said in state.said)
    state.said, state.outcome, state.generating = [], None, Generation()
    if answer_only:
        close_soon(state)


def _withdraw_questions(state: RunState) -> None:
    """Close the questions of the turn: the user has said something else."""
    for call in state.calls:
        if call.status is CallStatus.QUESTION:
            close_call(call, result_of(call, "skipped", "The user wrote a message instead of an answer."))


def close_soon(state: RunState) -> None:
    """Tell the model, once, that its next turn is the last one."""
    if not state.closing and state.steps > 0:
        state.messages.append(UserMessage(role="user", content=CLOSING, source="runtime"))
    state.closing = True


def fold_turn(state: RunState, turn: ModelTurn, now: datetime) -> None:
    """Take a model's reply into the state: its calls, or the answer, or what was wrong with it."""
    state.generating = None
    if turn.finish == "full":
        pressure.fill(state, turn)
        return
    state.steps += 1
    state.progress = state.progress if turn.progress is None else turn.progress
    state.variables.update(turn.wrote)
    if turn.failure:
        state.outcome = Outcome(status="failed", reason=turn.message.text, failure=turn.failure)
        return
    if not turn.directed:
        pressure.relax(state, turn)
        budgets.spend(state, turn)
    if turn.finish == "interrupted":
        return
    message = turn.message
    state.messages.append(message)
    state.text = message.text or state.text
    usable = [call for call in message.calls if call.problem is None or call.problem.error_type == DENIED]
    state.output = turn.output.value if turn.output else None
    said = turn.directed or (turn.finish in ("stop", "calls") and bool(message.text.strip()))
    fine = bool(usable) if message.calls else said and not turn.misfit
    state.malformed = 0 if fine else state.malformed + 1
    if message.calls:
        _open_calls(state, message.calls, now)
    elif fine:
        state.outcome = state.outcome or _answered(state)
        staging.present(state, now)
    else:
        state.messages.append(_complaint(turn))
    if state.malformed >= state.limits.malformed_turns and not state.outcome:
        last = f" The last one: {turn.misfit}" if turn.misfit else ""
        reason = f"The model gave {state.malformed} unusable replies in a row.{last}"
        state.outcome = Outcome(status="failed", reason=reason, failure="malformed_output")


def _complaint(turn: ModelTurn) -> UserMessage:
    """Return what the model is told of a reply that can't be used."""
    if turn.misfit:
        private = turn.message.private  # the complaint may quote it
        return UserMessage(role="user", content=f"{turn.misfit} {AGAIN}", source="runtime", private=private)
    cut_off = LOOPED if loops.repeats_itself(turn.message.text) else CUT_OFF
    note = {"length": cut_off, "filtered": REFUSED, "refusal": REFUSED}.get(turn.finish, EMPTY)
    return UserMessage(role="user", content=note, source="runtime")


def is_mending(messages: Sequence[Message]) -> bool:
    """Return whether a conversation ends with a complaint about an answer that did not fit."""
    last = messages[-1] if messages else None
    said = last.content if isinstance(last, UserMessage) and last.source == "runtime" else ""
    return isinstance(said, str) and said.endswith(AGAIN)


def _answered(state: RunState) -> Outcome:
    if state.closing and state.spec.tools:
        return budgets.exhausted(state)
    return Outcome(status="completed")


BUDGET = "budget"
"""The type of a model call's failure that means: what the run may spend does not allow it."""


def fail(state: RunState, failure: str, reason: str, window: int | None = None) -> None:
    """End the run as `failed`, or as `budget_exhausted` where that is why its model was not asked.

    Before that, a run that has a parent asks it for more, and one that is to ask people pauses. It just goes on where
    its limits have been raised since the model was asked, or where its context can be made shorter.

    Args:
        window: Tokens that the model can take, where the failure says so.
    """
    topped_up, state.generating = bool(state.generating and state.generating.topped_up), None
    if failure == pressure.TOO_LONG and pressure.refuse(state, reason, window):
        return
    if failure == BUDGET and topped_up:
        return
    if failure == BUDGET and state.borrowing.possible and not state.borrowing.unfit:
        state.borrowing = state.borrowing.model_copy(update={"unfit": True})
    elif failure == BUDGET and budgets.asks_for_more(state):
        state.short = reason
    elif failure == BUDGET:
        state.outcome = Outcome(status="budget_exhausted", reason=reason)
    else:
        state.outcome = Outcome(status="failed", reason=reason, failure=failure)


def interrupt(state: RunState) -> None:
    """Take in that a model call was broken off before it could tell what it used."""
    state.generating = None
    pressure.relax(state)
    state.steps += 1
    state.unpriced = True
    budgets.waste(state, Usage(estimated=True))


def _open_calls(state: RunState, calls: Iterable[ToolCall], now: datetime) -> None:
    state.calls = []
    for index, call in enumerate(calls):
        state.calls.append(_opened(state, call, index, now))
    fold_if_all_closed(state)


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
        agent=state.spec.name if state.spec.peers else "",
        hands_to=tool.hands_to if tool else "",
        publishes=tool.publishes if tool else "",
    )
    refusal = _refusal(state, opened, index)
    if refusal:
        close_call(opened, refusal)
    elif tool and tool.defer:
        staging.stage(state, opened)
    elif tool and tool.asks_user:
        opened.status, opened.asked_at = CallStatus.QUESTION, now
    elif call.ask is not None:
        opened.status, opened.asked_at = CallStatus.ASKING, now
    _ask_after_reset(state, opened, now)
    if given := settling.result_of(opened):
        close_call(opened, given)
    return opened


# -- after a reset of the workflow, or in a fork -----------------------------------------------------------


def _epoch(state: RunState) -> str:
    """Return what tells positions after a reset from those of the part that was left behind."""
    return f"r{state.resets}" if state.resets else ""


def fold_reset(state: RunState, execution: str, now: datetime, decided: int | None = None) -> None:
    """Begin a new epoch: what was not started yet has a new position and key, and effects need approval again.

    Decisions of the part that was left behind, which the engine may send once more, fit no position any more.

    Args:
        decided: So many records were there when the run last decided; None: all. The run learns of the reset before
            what came since, so calls of that which were not executed are of the new epoch.
    """
    state.resets += 1
    state.execution = execution
    for place in range(len(state.records) if decided is None else decided, len(state.records)):
        record = state.records[place]
        if record.execution_order is None:
            new = f"{record.position.partition('r')[0]}{_epoch(state)}"
            state.records[place] = record.model_copy(update={"position": new})
    for call in [*state.all_calls, *state.staged]:
        if call.order is None:
            if not call.deferred or call.asks_for_all:  # decisions are about the request for all of them
                call.position = f"{call.position.partition('r')[0]}{_epoch(state)}"
            call.key = f"{state.run_id}:{execution}:{call.position}"
            call.decision = None
            _ask_after_reset(state, call, now)


def _ask_after_reset(state: RunState, call: CallState, now: datetime) -> None:
    why = state.may_repeat
    if why and call.effect != "read" and call.status in (CallStatus.READY, CallStatus.ASKING):
        call.status, call.asked_at = CallStatus.ASKING, now
        call.call = call.call.model_copy(update={"ask": why})


def _refusal(state: RunState, call: CallState, index: int) -> ToolResult | None:
    """Return the result of a call that is not executed at all, or None."""
    if problem := call.call.problem:
        text = f"{problem.message} Nothing was executed."
        status: ResultStatus = "denied" if problem.error_type == DENIED else "error"
        return result_of(call, status, text, error_type=problem.error_type, suggestion=problem.suggestion)
    if state.closing:
        return result_of(call, "skipped", "Not executed: the limit of this run is reached.")
    limit = state.limits.calls_per_turn
    if index >= limit:
        return result_of(call, "skipped", f"Not executed: at most {limit} calls are allowed in one turn.")
    most = state.limits.calls_per_tool.get(call.call.name)
    if most is not None and _called(state, call.call.name) >= most:
        text = f"Not executed: at most {most} calls of {call.call.name} are allowed in one run."
        return result_of(call, "skipped", text, suggestion="Go on without it, or answer with what you know.")
    if handed := handing.refusal(state, call):
        return result_of(call, "skipped", f"Not executed: {handed}", suggestion="Answer with what you know.")
    if why := loops.refusal(state, call):
        text = f"Not executed: {why}"
        return result_of(call, "skipped", text, suggestion="Try something else, or answer with what you know.")
    return None


def _called(state: RunState, tool: str) -> int:
    """Return how often `tool` has been started, or is about to be in this turn."""
    soon = sum(call.call.name == tool and call.order is None for call in [*state.open_calls, *state.staged])
    return state.executed.get(tool, 0) + soon
