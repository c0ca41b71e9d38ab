"""Undoing what a run did, where it ends cancelled or failed and its agent says so. Pure."""

from __future__ import annotations

from perdure.decisions import Saying
from perdure.messages import ToolResult, Undone, UserMessage
from perdure.policies import AgentSpec
from perdure.reports import UndoReport, Unshaped
from perdure.state import UNSETTLED, CallState, CallStatus, DoneEffect, RunState

ENDING = "ending"
"""The memo in which a run records that it was cut off, and as what it ends, before it undoes anything."""


def wanted(state: RunState) -> bool:
    """Return whether the run has come to an end after which its effects are undone."""
    if state.outcome is None:
        return False
    return any(_says(state, spec) for spec in (state.spec, *map(state.rules_of, state.effects)))


def _says(state: RunState, spec: AgentSpec) -> bool:
    return state.outcome is not None and state.outcome.status in spec.compensate_on


def undoable(state: RunState, call: CallState) -> bool:
    """Return whether the effect of a call can be undone."""
    tool = state.tool_of(call)
    return bool(tool and tool.compensate)


def note(state: RunState, call: CallState, result: ToolResult, returned: Unshaped | None) -> None:
    """Keep what undoing needs of an effect that was done; of one in doubt, that nobody knows."""
    if result.status not in ("ok", "in_doubt") or call.order is None or not undoable(state, call):
        return
    state.effects.append(
        DoneEffect(
            position=call.position,
            name=call.call.name,
            key=call.key,
            arguments=call.arguments,
            content=returned.content if returned else result.content,
            ref=returned.ref if returned else result.ref,
            order=call.order,
            status="done" if result.status == "ok" else "not_known",
            message=None if result.status == "ok" else result.message,
            agent=call.agent,
        )
    )


def looked_up(state: RunState) -> list[CallState]:
    """Return the calls that have to be looked up before it is known what there is to undo."""
    due = (CallStatus.DOUBTED, CallStatus.PROBING)
    return [
        call
        for call in state.open_calls
        if call.status in due and undoable(state, call) and _says(state, state.rules_of(call))
    ]


def due(state: RunState) -> DoneEffect | None:
    """Return the effect that is undone now or next: the last one first, one at a time."""
    stands = [effect for effect in state.effects if effect.status in ("done", "undoing")]
    left = [effect for effect in stands if effect.status == "undoing" or _says(state, state.rules_of(effect))]
    return max(left, key=lambda effect: effect.order, default=None)


def find(state: RunState, position: str) -> DoneEffect | None:
    """Return the effect of the call at that position."""
    return next((effect for effect in state.effects if effect.position == position), None)


def fold(state: RunState, effect: DoneEffect, report: UndoReport) -> None:
    """Take into the state what became of the undoing of `effect`."""
    effect.status, effect.message = report.status, report.message or None
    state.variables.update(report.wrote)


def undone(state: RunState) -> list[Undone]:
    """Return what was undone so far, also before the run was resumed, and what could not be; the last done first."""
    ended = wanted(state)
    effects = [one for one in state.effects if one.before or (ended and one.status not in ("done", "undoing"))]
    told = {effect.order: _told(effect.position, effect.name, effect.status, effect.message) for effect in effects}
    for call in state.open_calls if ended else []:
        if call.status in UNSETTLED and call.order is not None and undoable(state, call):
            doubt = call.doubt.message if call.doubt else "It was under way."
            told[call.order] = _told(call.position, call.call.name, "not_known", doubt)
    return [told[order] for order in sorted(told, reverse=True)]


def _told(position: str, name: str, status: str, message: str | None) -> Undone:
    return Undone.model_validate({"position": position, "name": name, "status": status, "message": message})


# -- going on afterwards -----------------------------------------------------------------------------------


def carry_on(resumed: RunState, closed: RunState) -> None:
    """Prepare a run that is resumed after its effects were undone: the model has to know, and the rest can be undone.

    What could not be undone still stands, and is tried again if the run ends so once more.
    """
    known = {effect.position for effect in closed.effects if effect.before}
    told = [one for one in undone(closed) if one.position not in known]
    for effect in resumed.effects:
        effect.status = "done" if effect.status in ("undoing", "failed") else effect.status
        effect.before = effect.status == "undone"
    if told and resumed.open_calls:
        resumed.said.append(Saying(content=_words(told), by="perdure"))  # no result may be missing before it
    elif told:
        resumed.messages.append(UserMessage(role="user", content=_words(told), source="runtime"))


def _words(told: list[Undone]) -> str:
    gone = [f"{one.name} (call {one.position})" for one in told if one.status == "undone"]
    stands = [f"{one.name} (call {one.position})" for one in told if one.status != "undone"]
    said = ["The run had been ended, and goes on now."]
    if gone:
        said.append(f"Meanwhile this was undone, as if it had never been: {', '.join(gone)}. Do again what is wanted.")
    if stands:
        said.append(f"This was to be undone, and may still stand: {', '.join(stands)}.")
    return " ".join(said)
