"""What a run is doing, as seen from outside, by the step that it takes. Pure."""

from __future__ import annotations

from perdure.state import Phase, RunState
from perdure.steps import Borrow, CallModel, Compact, ContinueAsNew, Finish, ListTools, Recall, Step, Undo, Wait


def phase_of(step: Step, state: RunState, before: Phase) -> Phase:
    """Return the phase in which a run is that takes `step`; `before` it was in another one, or the same."""
    match step:
        case CallModel() | Borrow():
            return Phase.GENERATING
        case Compact():
            return Phase.COMPACTING
        case Undo():
            return Phase.UNDOING
        case Finish():
            return Phase.POST_PROCESSING
        case Wait():
            return _waiting(step, state, before)
        case ListTools() | Recall() | ContinueAsNew():
            return before
        case _:
            return Phase.EXECUTING_TOOLS


def _waiting(step: Wait, state: RunState, before: Phase) -> Phase:
    if state.listing or state.recall == "asked":
        return before
    if state.pressure.under_way:
        return Phase.COMPACTING
    if state.generating:
        return Phase.GENERATING
    return Phase.EXECUTING_TOOLS if step.status == "running" else Phase.WAITING
