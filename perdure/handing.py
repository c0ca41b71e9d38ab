"""Hand-offs: another agent goes on with the conversation, in the same run. Pure; shared by workflow and projection.

The rules of every agent that a run may be passed to are in its input, so a deploy changes nothing of it. The state's
`spec` is that of the agent that has the run now; calls keep the name of the one that has made them, by whose rules they
are decided, looked up and undone.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.messages import ToolResult, content_hash
from perdure.policies import AgentSpec
from perdure.results import short
from perdure.state import CallState, CallStatus, Pressure, RunState
from perdure.wire import RunRequest


def passed_to(spec: AgentSpec, name: str) -> AgentSpec:
    """Return the rules of the agent `name` as they are for a run that has `spec` now; `spec` where that knows none."""
    if name not in spec.peers:
        return spec
    entry = spec.entry or spec.name
    left = spec.model_copy(update={"peers": {}, "entry": ""})
    peers = {**{key: one for key, one in spec.peers.items() if key != name}, spec.name: left}
    return spec.peers[name].model_copy(update={"peers": peers, "entry": "" if entry == name else entry})


def refusal(state: RunState, call: CallState) -> str:
    """Return why a call of the turn can't hand the conversation over, in a sentence; "" where it can, or does not."""
    most = state.limits.handoffs
    if call.hands_to and state.handed >= most:
        return f"at most {most} hand-offs are allowed in one run."
    if call.hands_to and any(map(_hands_over, state.calls)):
        return "the conversation is handed over to another agent in this turn already."
    return ""


def _hands_over(call: CallState) -> bool:
    """Return whether a call hands the conversation over, or will once it is approved."""
    return bool(call.hands_to) and (call.result is None or call.result.status == "ok")


def result_of(call: CallState) -> ToolResult | None:
    """Return the result of a call that may hand the conversation over now; None of any other. Nothing is executed."""
    if not call.hands_to or call.status is not CallStatus.READY:
        return None
    to, why = call.hands_to, short(str(call.arguments.get("reason", "")))
    text = f"{to} goes on with the conversation from here, in place of {call.agent}: you are {to} now."
    content = f"{text} Reason: {why}" if why else text
    return ToolResult(call_id=call.call.id, name=call.call.name, status="ok", content=content)


def fold(state: RunState, closed: Sequence[CallState]) -> None:
    """Take into the state whom the conversation was passed to, by calls whose results have just entered it."""
    to = next((call.hands_to for call in closed if call.result and _hands_over(call)), "")
    if to in state.spec.peers and state.handed < state.limits.handoffs:
        state.spec = passed_to(state.spec, to)
        state.handed += 1
        state.malformed, state.pressure = 0, Pressure()  # of another model
        state.progress = {}  # of another strategy


def handed(request: RunRequest, name: str) -> RunRequest:
    """Return the input of a run that begins with the agent `name`; the limits stay those of its own agent."""
    spec = passed_to(request.spec, name)
    changed = {"spec": spec, "spec_hash": content_hash(spec), "limits": request.limits or request.spec.limits}
    return request.model_copy(update=changed)
