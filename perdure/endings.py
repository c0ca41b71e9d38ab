"""What a turn leaves to its session when its run has ended, however it ended. Pure.

The transcript that the next turn goes on from is complete: every call has its result, nothing that a person said is
lost, and the model is told what became of whatever was still open.
"""

from __future__ import annotations

from perdure import undoing
from perdure.messages import Entry, ToolMessage, ToolResult, UserMessage
from perdure.outcomes import news_of, result_of, staged_news, words_of_doubt
from perdure.state import UNSETTLED, CallState, RunState


def closing(state: RunState) -> list[Entry]:
    """Return what is to be added to the transcript of a run that has ended."""
    calls = [call for call in state.calls if not call.deferred]  # staged ones have their place in it already
    entries: list[Entry] = [ToolMessage(role="tool", result=_result(call)) for call in calls]
    for call in state.parked:
        closed = call.model_copy(update={"result": _result(call)})
        entries.append(news_of(closed))
    entries.extend(UserMessage(role="user", content=said.content) for said in state.said)
    if told := [*_staged(state), *_undone(state), *_ended(state)]:
        entries.append(UserMessage(role="user", content="\n".join(told), source="runtime"))
    return entries


def _result(call: CallState) -> ToolResult:
    """Return the result of a call, also of one that was open when the run ended."""
    if call.result:
        return call.result
    if call.status in UNSETTLED and call.effect != "read":
        why = call.doubt.message if call.doubt else "The run ended while it was under way."
        return result_of(call, "in_doubt", f"{why} {words_of_doubt(call)}", error_type="in_doubt")
    begun = call.status in UNSETTLED
    text = "The run ended before it did." if begun else "Not executed: the run ended before."
    return result_of(call, "cancelled", text)


def _staged(state: RunState) -> list[str]:
    """Return what became of actions that waited for the answer, where the run ended before all of them had."""
    waiting = [*state.staged, *(call for call in state.calls if call.deferred and not call.asks_for_all)]
    return [staged_news(call.model_copy(update={"result": _result(call)})) for call in waiting]


def _undone(state: RunState) -> list[str]:
    undone = [one for one in undoing.undone(state) if one.status == "undone"]
    names = ", ".join(f"{one.name} (call {one.position})" for one in undone)
    return [f"This was undone at the end, as if it had never been: {names}."] if undone else []


def _ended(state: RunState) -> list[str]:
    outcome = state.outcome
    if outcome is None or outcome.status == "completed":
        return []
    why = f": {outcome.reason.rstrip('.')}" if outcome.reason else ""
    return [f"That turn ended as {outcome.status}{why}."]
