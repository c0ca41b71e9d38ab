"""Agents as tools of others: each call is a run of its own. What begins it, and what its end means. Pure."""

from __future__ import annotations

from perdure import leases, outcomes, variables
from perdure.failures import end_of_run, partial_result
from perdure.messages import Data, OpenStatus, ResultStatus, RunResult, ToolResult
from perdure.policies import AgentSpec, Limits, SubAgent
from perdure.reports import ToolReport
from perdure.results import as_text, preview, short
from perdure.state import Bill, CallState, CallStatus, RunState
from perdure.wire import Caller, RunRequest

UNFUNDED = "unfunded"
"""The memo that names the call for which nothing of the budget was left to lend."""


class Waits(Data):
    """What a run tells the one that has called it: whom it waits for now.

    Attributes:
        used: What it has used, where it is about to end as cancelled: that end carries nothing.
    """

    child: str
    status: OpenStatus
    used: Bill | None = None


def child_id(state: RunState, call: CallState) -> str:
    """Return the run that a call is, such as `trip/2.1`; after a reset, another one than that of before."""
    return state.run_of(call)


def request(parent: RunRequest, state: RunState, call: CallState, agent: SubAgent, limits: Limits) -> RunRequest:
    """Return with what the run that a call is begins."""
    return RunRequest(
        input=str(call.arguments.get("task", "")),
        spec=_spec(state, call, agent),
        variables=variables.current(state) if agent.part and agent.spec.variables else {},
        limits=limits,
        heartbeat=parent.heartbeat,
        parent=state.run_id,
        caller=Caller(position=call.position, order=call.order, bills=True),
        shape=state.shape,
        user=state.user,
        tenant=state.tenant,
        secrets=state.secrets,
        max_history_events=parent.max_history_events,
        indexed=parent.indexed,
        notify=[occasion for occasion in parent.notify if occasion == "waiting"],
        private=call.call.private,
    )


def _spec(state: RunState, call: CallState, agent: SubAgent) -> AgentSpec:
    """Return the rules of the run that a call is: those of its agent, with those tools alone that a part of work names.

    What its caller's servers have listed is among these, so that they are not asked once more.
    """
    named = call.arguments.get("tools")
    if not agent.part or not isinstance(named, list):
        return agent.spec
    own = {tool.name for tool in agent.spec.tools}
    listed = (tool for tool in state.spec.tools if tool.mcp and tool.name not in own)
    tools = [tool for tool in (*agent.spec.tools, *listed) if tool.name in named]
    return agent.spec.model_copy(update={"tools": tools, "mcp": []})


def share(state: RunState, call: CallState, agent: SubAgent) -> float:
    """Return the most that a call is lent of what is free now, so that it gets as much as those beside it."""
    if not agent.part:
        return agent.share
    beside = [one for one in state.open_calls if one.call.name == call.call.name]
    lent = sum(child_id(state, one) in state.leases for one in beside)
    return min(agent.share / max(len(beside) - lent * agent.share, 1) + _A_HAIR, 1)


_A_HAIR = 1e-9
"""So that a third of 42 is 14, not a hair less."""


def called(state: RunState, child: str) -> CallState | None:
    """Return the call that the run `child` is, while it is under way."""
    running = (call for call in state.open_calls if call.status is CallStatus.RUNNING)
    return next((call for call in running if child_id(state, call) == child), None)


def under_way(state: RunState) -> list[str]:
    """Return the runs that calls of a run are, as long as they go on."""
    running = [call for call in state.open_calls if call.status is CallStatus.RUNNING]
    return [child for child in (child_id(state, call) for call in running) if child in state.leases]


def unfunded(state: RunState, call: CallState) -> None:
    """Refuse a call for which nothing is left to lend."""
    text = "Nothing is left of the run's budget that could be lent to it."
    advice = "Answer with what is known, or do it without that agent."
    outcomes.close(state, call, outcomes.result_of(call, "error", text, error_type="budget", suggestion=advice))


def waits(state: RunState, told: Waits) -> None:
    """Take in whom the run waits for that a call is, or what it has used."""
    if told.used:
        leases.told(state, told.child, told.used)
    if call := called(state, told.child):
        call.waits = told.status


def fold(state: RunState, call: CallState, child: str, ended: RunResult | BaseException) -> None:
    """Take the end of the run that a call is into the state: what it gave, and what it has left of its lease."""
    result = ended if isinstance(ended, RunResult) else partial_result(ended)
    leases.give_back(state, child, result)
    call.waits = "running"
    if result is None:
        assert isinstance(ended, BaseException)  # noqa: S101 - of a result there is always one
        word, what = end_of_run(ended)
        status: ResultStatus = "cancelled" if word == "cancelled" else "error"
        told = outcomes.result_of(call, status, f"Run {child} {what}", error_type=None if status == word else word)
    else:
        told = _told(call, child, result, _limit(state, call)).model_copy(update={"published": result.published})
    outcomes.fold_report(state, call, ToolReport(result=told))


def _limit(state: RunState, call: CallState) -> int:
    spec = state.tool_of(call)
    return spec.result_limit if spec else 0


def _told(call: CallState, child: str, result: RunResult, limit: int) -> ToolResult:
    """Return what the caller's model is told of a run that has ended by itself."""
    text, note = as_text(result.text if result.output is None else result.output)
    shown, _ = preview(text, limit)
    size = len(text.encode()) if len(shown) < len(text) else None
    private = result.private or None
    if result.status == "completed":
        told = outcomes.result_of(call, "ok", content=shown)
        remark = " ".join(one for one in (note, short(result.reason or "")) if one)
        return told.model_copy(update={"size": size, "note": remark or None, "private": private})
    unknown = sum(one.status == "in_doubt" for one in result.calls)
    doubt = f" Of {unknown} of its calls nobody knows whether they were done." if unknown else ""
    message = f"Run {child} ended as {result.status}: {short(result.reason or 'no reason was given')}{doubt}"
    advice = "What it has done stays done. Go on with what it has found, or ask for what is missing."
    given = outcomes.result_of(call, "error", message, error_type=result.failure or result.status, suggestion=advice)
    return given.model_copy(update={"note": f"It has said so far: {shown}", "private": private}) if shown else given
