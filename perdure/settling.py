"""Calls for which nothing is executed: what they ask for is done to the run itself, once they may. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from perdure import handing
from perdure.messages import Published, ToolResult
from perdure.state import CallState, CallStatus, RunState


def result_of(call: CallState) -> ToolResult | None:
    """Return the result of a call that hands the conversation over or publishes an event, and may; None of others."""
    if call.publishes and call.status is CallStatus.READY:
        text = f"Published on {call.publishes}."
        return ToolResult(call_id=call.call.id, name=call.call.name, status="ok", content=text)
    return handing.result_of(call)


def fold(state: RunState, closed: Sequence[CallState]) -> None:
    """Take into the state what calls have done to it whose results have just entered the transcript."""
    done = [call for call in closed if call.result and call.result.status == "ok"]
    state.published.extend(Published(topic=call.publishes, body=call.arguments) for call in done if call.publishes)
    handing.fold(state, closed)
