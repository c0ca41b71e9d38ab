"""From the state of a closed run to the one that it goes on from. Pure."""

from __future__ import annotations

from perdure import loops, undoing
from perdure.budgets import Additions
from perdure.messages import UserMessage
from perdure.outcomes import doubt
from perdure.state import CallStatus, Doubt, Pressure, RunState

GO_ON = "The limit was raised: tools can be called again. Go on where you stopped."
ONCE_MORE = "The run was resumed: what failed may work now. Try it once more, or do something else."


AFRESH = {
    "outcome": None,
    "closing": False,
    "malformed": 0,
    "generating": None,
    "listing": False,
    "pressure": Pressure(),
    "paused": None,
    "short": "",
    "conceded": False,
    "cancelling": None,
    "began": None,
}
"""What is said and done with when a run has ended."""


def carried_on(state: RunState, more: Additions) -> RunState:
    """Return the state from which a closed run is resumed: same transcript, no outcome, higher limits.

    A call that was under way when the run ended is in doubt, or starts again if it only reads. The loop breaker's
    counters stay; a run that it ended may go one round more before calls are refused again.
    """
    recall = state.recall if state.recall == "done" else ""
    changed = {"limits": more.to(state.limits), "recall": recall, **AFRESH}
    resumed = state.model_copy(deep=True, update=changed)
    resumed.borrowing = state.borrowing.model_copy(update={"over": False, "unfit": False})
    if state.closing:
        resumed.messages.append(UserMessage(role="user", content=GO_ON, source="runtime"))
    if state.outcome and state.outcome.failure == loops.NO_PROGRESS:
        resumed.trail = loops.one_more_chance(state)
        resumed.messages.append(UserMessage(role="user", content=ONCE_MORE, source="runtime"))
    for call in resumed.open_calls:
        if call.status is CallStatus.RUNNING and call.effect == "read":
            call.status = CallStatus.READY
        elif call.status in (CallStatus.RUNNING, CallStatus.PROBING):
            doubt(resumed, call, call.doubt or Doubt(message="The run ended while it was under way."))
    undoing.carry_on(resumed, state)
    return resumed
