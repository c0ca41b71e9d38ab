"""From the state of a closed run to the one that it goes on from. Pure."""

from __future__ import annotations

from perdure.budgets import Additions
from perdure.messages import UserMessage
from perdure.outcomes import doubt
from perdure.state import CallStatus, Doubt, RunState

GO_ON = "The limit was raised: tools can be called again. Go on where you stopped."


def carried_on(state: RunState, more: Additions) -> RunState:
    """Return the state from which a closed run is resumed: same transcript, no outcome, higher limits.

    A call that was under way when the run ended is in doubt, or starts again if it only reads.
    """
    changed = {"limits": more.to(state.limits), "outcome": None, "closing": False, "malformed": 0}
    resumed = state.model_copy(deep=True, update=changed)
    if state.closing:
        resumed.messages.append(UserMessage(role="user", content=GO_ON, source="runtime"))
    for call in resumed.calls:
        if call.status is CallStatus.RUNNING and call.effect == "read":
            call.status = CallStatus.READY
        elif call.status in (CallStatus.RUNNING, CallStatus.PROBING):
            doubt(resumed, call, call.doubt or Doubt(message="The run ended while it was under way."))
    return resumed
