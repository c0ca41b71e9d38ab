"""Actions that wait for the answer: recorded when the model asks for them, and approved together afterwards. Pure."""

from __future__ import annotations

from datetime import datetime

from perdure.decisions import DecisionRecord
from perdure.messages import JSON, ToolCall, content_hash
from perdure.outcomes import close_call, fold_if_all_closed, result_of
from perdure.state import STAGED, CallState, CallStatus, Outcome, RunState

_TOLD = (
    "It is staged: it will be executed after your final answer, once a person has approved all that is staged. Its "
    "result will not be known before. Do not ask for it again."
)


def stage(state: RunState, call: CallState) -> None:
    """Record a call as an intended action, and tell the model so."""
    state.staged.append(call.model_copy(deep=True, update={"deferred": True, "parallel": False}))
    close_call(call, result_of(call, "staged", _TOLD))


def present(state: RunState, now: datetime) -> None:
    """Once the model has answered, ask a person about all staged actions at once: the run ends after them."""
    if not state.staged or state.outcome != Outcome(status="completed"):
        return
    actions: list[JSON] = [
        {"call": call.position, "name": call.call.name, "arguments": call.arguments} for call in state.staged
    ]
    arguments: dict[str, JSON] = {"actions": actions}
    count = len(actions)
    why = f"{'One action is' if count == 1 else f'{count} actions are'} to be executed, in this order."
    if state.forked_from:
        why = f"{why} {state.may_repeat}"
    asked = CallState(
        call=ToolCall(id="", name="actions", arguments=arguments, ask=why),
        position=STAGED,
        key="",
        deferred=True,
        status=CallStatus.ASKING,
        arguments=arguments,
        hash=content_hash(arguments),
        asked_at=now,
    )
    state.calls, state.outcome = [asked], None


def decide(state: RunState, decision: DecisionRecord, why: str) -> None:
    """Take a decision about all staged actions into the state: they are executed one after another, or not at all."""
    state.calls, state.staged = state.staged, []
    for call in state.calls:
        call.decision, call.status = decision, CallStatus.READY
        if not decision.approve:
            close_call(call, result_of(call, "denied", f"Denied by {decision.by}{why} It was not executed."))
    if not decision.approve:
        reason = f"The staged actions were denied by {decision.by}{why} Nothing of them was executed."
        state.outcome = Outcome(status="completed", reason=reason)
        fold_if_all_closed(state)
