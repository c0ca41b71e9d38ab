"""What a run does next: one pure function over a closed union."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from perdure import leases, pressure, recalling, toolsets, undoing
from perdure.budgets import asks_for_more, exhausted, turns_left
from perdure.messages import AssistantMessage, OpenStatus
from perdure.state import UNSETTLED, Amounts, CallState, CallStatus, Outcome, RunState


@dataclass(frozen=True, slots=True)
class CallModel:
    """Ask the model; `answer_only` where it is the last turn and no tool may be called."""

    answer_only: bool = False


@dataclass(frozen=True, slots=True)
class Recall:
    """Look up what is remembered that fits what the user says, before the model is asked for the first time."""


@dataclass(frozen=True, slots=True)
class ListTools:
    """Ask the agent's MCP servers for their tools, before the model is asked for the first time."""


@dataclass(frozen=True, slots=True)
class CallTools:
    """Start these calls of the current turn, by position."""

    positions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """Look up whether a call in doubt happened; not before `after`."""

    position: str
    after: datetime | None = None


@dataclass(frozen=True, slots=True)
class Undo:
    """Undo what the call at `position` did: the run ends so that its effects must not stand."""

    position: str


@dataclass(frozen=True, slots=True)
class Compact:
    """Make what the model is shown shorter; with `free`, without asking a model, since little is left of the budget."""

    free: bool = False


@dataclass(frozen=True, slots=True)
class Borrow:
    """Ask the parent for more budget, and wait for its answer; not for ever."""

    wanted: Amounts


@dataclass(frozen=True, slots=True)
class AskForMore:
    """A limit is reached, and the run is to pause itself until a person resumes it. `reason` says which limit."""

    reason: str


@dataclass(frozen=True, slots=True)
class ContinueAsNew:
    """Go on in a new execution of the workflow: the history of this one is full, and nothing is under way."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to start: wait for a call under way, or for a person."""

    status: OpenStatus


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over."""

    outcome: Outcome


UNDER_WAY = (CallStatus.RUNNING, CallStatus.PROBING)
"""A call that goes on by itself."""

Step = (
    CallModel
    | ListTools
    | Recall
    | CallTools
    | Probe
    | Undo
    | Borrow
    | AskForMore
    | Wait
    | Finish
    | ContinueAsNew
    | Compact
)


def next_step(state: RunState, *, full: bool = False) -> Step:
    """Return what to do next. Pure and total.

    Never returns `CallModel` or `Compact` while something is under way, nor the former past a limit of the run. Where
    it returns that while calls wait for people, they are to be parked: see `turns.open_turn`.

    Args:
        full: The history gets too long: nothing is started any more, and once nothing is under way, the run is to
            continue as new. What waits for people goes along. One that ends, or undoes what it did, ends in this one.
    """
    if state.outcome and state.outcome.status in ("cancelled", "failed"):
        return _ending(state, state.outcome)
    step = _going_on(state)
    if not full or isinstance(step, Finish):
        return step
    if not (_is_under_way(state, UNDER_WAY) or state.cancelling):
        return ContinueAsNew()
    return step if isinstance(step, Wait) else Wait(open_status(state))


def _going_on(state: RunState) -> Step:
    for call in state.open_calls:
        if call.status is CallStatus.DOUBTED:
            return Probe(call.position, _probe_after(call))
    outcome = _final(state)
    held = outcome or state.paused or state.short
    if not held and (ready := startable(state)):
        return CallTools(ready)
    if _is_under_way(state, UNSETTLED if outcome else UNDER_WAY):
        return Wait(open_status(state))
    if outcome:
        return Finish(outcome)
    if held:
        return Wait("paused")
    if not _due(state):
        return Wait(open_status(state))
    if toolsets.due(state):
        return ListTools()
    return Recall() if recalling.due(state) else _next_turn(state)


def _is_under_way(state: RunState, statuses: Sequence[CallStatus]) -> bool:
    """Return whether the model is busy, something is looked up for it, or a call of one of those statuses goes on."""
    if _model_is_busy(state) or state.listing or state.recall == "asked":
        return True
    return any(call.status in statuses for call in state.open_calls)


def _model_is_busy(state: RunState) -> bool:
    return state.generating is not None or state.pressure.under_way


def _final(state: RunState) -> Outcome | None:
    """Return the run's outcome. An answer is none yet while something is left that the model is to be told."""
    outcome = state.outcome
    answered = outcome is not None and outcome.status == "completed" and outcome.reason is None
    return None if answered and (state.parked or state.said) else outcome


def _due(state: RunState) -> bool:
    """Return whether the model is to be asked. What a person says does not wait for calls that wait for people.

    In a run that a strategy leads, it does: what becomes of its calls is what that goes by.
    """
    if any(call.deferred and not call.asks_for_all for call in state.calls):
        return False
    if state.said and not (state.calls and state.spec.strategy):
        return True
    if state.calls:
        return False
    if state.pressure.unasked:
        return True
    last = state.messages[-1]
    answered = isinstance(last, AssistantMessage) and not last.calls
    return not answered or len(state.parked) == 0 or any(call.status is CallStatus.CLOSED for call in state.parked)


def _next_turn(state: RunState) -> Step:
    """Return how the model is asked, by what the run may still spend. Its one last turn comes when nothing is open."""
    if state.closing and not state.pressure.unasked:
        return Finish(exhausted(state))
    if state.pressure.due:
        return Compact()
    if wanted := leases.wanted(state):
        return Borrow(wanted)
    left = turns_left(state)
    if left > 1 and not state.conceded and not state.closing:
        return CallModel()
    if pressure.relief_is_due(state, max(left, 0)):
        return Compact(free=True)
    if asks_for_more(state):
        return AskForMore(exhausted(state).reason or "")
    if state.open_calls:
        return Wait(open_status(state))
    return CallModel(answer_only=True) if left > 0 else Finish(exhausted(state))


def _ending(state: RunState, outcome: Outcome) -> Step:
    """Return what is left to do in a run that was cut off: where its agent says so, to undo what was done, last first.

    What is in doubt is looked up before; nobody is waited for.
    """
    if outcome.status == "failed" and any(call.status is CallStatus.RUNNING for call in state.open_calls):
        return Wait("running")
    if not undoing.wanted(state):
        return Finish(outcome)
    doubted = undoing.looked_up(state)
    for call in doubted:
        if call.status is CallStatus.DOUBTED:
            return Probe(call.position, _probe_after(call))
    effect = undoing.due(state)
    if doubted or (effect and effect.status == "undoing"):
        return Wait("running")
    return Undo(effect.position) if effect else Finish(outcome)


def _probe_after(call: CallState) -> datetime | None:
    """Return when to look: at once the first time, then at the hard deadline, then a second later each time."""
    if not call.probes or not call.doubt or not call.doubt.believed_from:
        return None
    return call.doubt.believed_from + timedelta(seconds=call.probes - 1)


def startable(state: RunState) -> tuple[str, ...]:
    """Return the calls that may start now: reads beside each other, effects one after another in call order.

    A call that waits for approval holds nothing back; one whose outcome is in doubt holds back the effects
    that follow, which may depend on it.
    """
    side_by_side = sum(call.status is CallStatus.RUNNING and _beside(call) for call in state.open_calls)
    busy = any(call.status in UNSETTLED and not _beside(call) for call in state.open_calls)
    chosen: list[str] = []
    for call in state.open_calls:
        if call.status is not CallStatus.READY:
            continue
        if _beside(call) and side_by_side < state.limits.parallel_reads:
            side_by_side += 1
            chosen.append(call.position)
        elif not _beside(call) and not busy:
            busy = True
            chosen.append(call.position)
    return tuple(chosen)


def _beside(call: CallState) -> bool:
    return call.effect == "read" or call.parallel


_FOR_PEOPLE: dict[CallStatus, OpenStatus] = {
    CallStatus.IN_DOUBT: "waiting_decision",
    CallStatus.ASKING: "waiting_approval",
    CallStatus.QUESTION: "waiting_input",
}
_FIRST: tuple[OpenStatus, ...] = (*_FOR_PEOPLE.values(), "paused")


def open_status(state: RunState) -> OpenStatus:
    """Return what an open run is waiting for; a person comes before a running call, but not before the model.

    What a run waits for that is a call of this one, this one waits for as well.
    """
    if _model_is_busy(state):
        return "running"
    waits = {_FOR_PEOPLE.get(call.status, call.waits) for call in state.open_calls}
    for status in _FIRST:
        if status in waits:
            return status
    return "running"
