"""Every activity that a workflow starts: timeout, retry, heartbeat, summary, in one place."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy, TypedSearchAttributes
from temporalio.workflow import (
    ActivityCancellationType,
    ActivityHandle,
    ChildWorkflowCancellationType,
    ChildWorkflowHandle,
    ParentClosePolicy,
)

from perdure import concealing
from perdure.engine.search_attributes import SESSION, TENANT, at_start
from perdure.memory import Circle
from perdure.messages import JSON, RunResult, Segment
from perdure.policies import AgentSpec, ToolSpec
from perdure.reports import (
    CompactReport,
    Judgement,
    ModelTurn,
    ProbeReport,
    RecallReport,
    ToolReport,
    ToolsReport,
    UndoReport,
)
from perdure.results import KEEPING, REACHING, report_of_value
from perdure.sensitive import Vaulted
from perdure.state import CallState, DoneEffect
from perdure.wire import (
    CANCEL_RUN,
    COMPACT,
    JUDGE,
    LIST_TOOLS,
    MODEL,
    PROBE,
    PUT_AWAY,
    RECALL,
    UNDO,
    UNDO_SUFFIX,
    WORKFLOW,
    CompactInput,
    JudgeInput,
    ListToolsInput,
    ModelInput,
    ProbeInput,
    PutAway,
    RecallInput,
    RunRequest,
    ToolInput,
    UndoInput,
    model_queue,
)

_SLACK = timedelta(seconds=10)
"""Added to an attempt's own deadline: it reports by itself before the engine gives it up."""

_THRICE = RetryPolicy(initial_interval=timedelta(seconds=0.5), maximum_attempts=3)
_FOREVER = RetryPolicy(initial_interval=timedelta(seconds=0.5), backoff_coefficient=1)
"""For an attempt lost with its worker, which never ends a run. A failure itself says whether and when to try again."""


async def model(request: ModelInput, spec: AgentSpec, heartbeat: timedelta) -> ModelTurn:
    """Call the model. A lost worker uses up no try, but the run's time; a final failure has the provider's words."""
    handle = workflow.start_activity(
        MODEL,
        request,
        activity_id=f"{request.step}",
        result_type=ModelTurn,
        **_within_the_run(request, spec, heartbeat),
        summary=f"step {request.step}: {_asked(spec)}{', to answer now' if request.answer_only else ''}",
    )
    turn: ModelTurn = await _outcome(handle)
    return turn


def _asked(spec: AgentSpec) -> str:
    """Return who is asked what to do next."""
    led = spec.strategy
    return spec.model if led is None else f"{led.name}, {spec.model}" if led.asks else led.name


def _queue(spec: AgentSpec) -> str:
    """Return where that waits for a worker: a model's calls have a queue for each provider."""
    own = workflow.info().task_queue
    return own if spec.strategy and not spec.strategy.asks else model_queue(own, spec.model)


def _within_the_run(request: ModelInput, spec: AgentSpec, heartbeat: timedelta) -> dict[str, Any]:
    """Return how a model is asked: where its provider's calls wait, and within the time that the run has left."""
    seconds = request.allowance.seconds
    return {
        "task_queue": _queue(spec),
        "schedule_to_close_timeout": None if seconds is None else timedelta(seconds=seconds) + _SLACK,
        "start_to_close_timeout": spec.settings.timeout + _SLACK,
        "heartbeat_timeout": heartbeat,
        "retry_policy": _FOREVER,
        "cancellation_type": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    }


async def compact(request: CompactInput, spec: AgentSpec, heartbeat: timedelta) -> CompactReport:
    """Make the context shorter. It is no step, but has the time of the run alone, as a model call has."""
    handle = workflow.start_activity(
        COMPACT,
        request,
        activity_id=f"{request.step} compact {request.tight + 1}",
        result_type=CompactReport,
        **_within_the_run(request, spec, heartbeat),
        summary=f"before step {request.step}: compact the context ({request.why})",
    )
    report: CompactReport = await _outcome(handle)
    return report


async def tool(
    call: CallState,
    spec: ToolSpec,
    agent: str,
    heartbeat: timedelta,
    variables: dict[str, JSON],
    circle: Circle | None = None,
    secrets: Vaulted | None = None,
    *,
    window: int | None = None,
) -> ToolReport:
    """Execute one call, where its tool lives: in this worker, on the queue, or with somebody else."""
    if spec.remote:
        return await _remote(call, spec)
    request = tool_input(call, spec, agent, variables, secrets).model_copy(update={"circle": circle, "window": window})
    common: dict[str, Any] = {
        "activity_id": call.position,
        "result_type": ToolReport,
        "start_to_close_timeout": _longest(spec) + _keeping(secrets) + _SLACK,
        "retry_policy": _tries(spec),
        "cancellation_type": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        "summary": _summary(call),
    }
    report: ToolReport
    if spec.local:
        report = await _outcome(workflow.start_local_activity(spec.name, request, **common))
    else:
        report = await _outcome(workflow.start_activity(spec.name, request, heartbeat_timeout=heartbeat, **common))
    return report


def _longest(spec: ToolSpec) -> timedelta:
    """Return how long an attempt may take, with what it waits for: a fallback, or a place at an MCP server."""
    return spec.timeout * (2 if spec.fallback else 1) + (REACHING if spec.mcp else timedelta())


def _keeping(secrets: Vaulted | None) -> timedelta:
    """Return how long the store may be away meanwhile: for what is put there, and before that for the secrets."""
    return 2 * KEEPING if secrets else KEEPING


_HOPS = 5
"""Turns of the event loop within which an activity's outcome reaches who waits for it; it takes two."""


async def _outcome(handle: ActivityHandle[Any] | ChildWorkflowHandle[Any, Any]) -> Any:
    """Return how an activity or a run ended, also where that and the cancellation of the run arrive together.

    The SDK would drop an outcome that is in the history then: an effect that was done, a reply that was paid.
    """
    try:
        return await asyncio.shield(handle)
    except asyncio.CancelledError:
        for _ in range(_HOPS):
            await asyncio.sleep(0)
        if not handle.done():
            handle.cancel()
        return await handle


_TASK = timedelta(seconds=5)
"""How long a run stands still after a worker was lost while it decided, as for those that somebody starts."""


async def run(request: RunRequest, id: str) -> RunResult:
    """Have another run do what a call asks for, and return what it gave. It is cancelled with this one."""
    starting = asyncio.create_task(
        workflow.start_child_workflow(
            WORKFLOW,
            request,
            id=id,
            result_type=RunResult,
            task_timeout=_TASK,
            cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
            parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
            search_attributes=_found_by(request),
            static_summary=f"agent {request.spec.name}",
        )
    )
    cut_off = False
    while not starting.done():  # one that has not begun yet could not be cancelled
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            cut_off = True
    handle = starting.result()
    if cut_off:
        handle.cancel()
    result: RunResult = await _outcome(handle)
    return result


def _found_by(request: RunRequest) -> TypedSearchAttributes:
    """Return what a run that another one has begun is found by: it belongs to that one's session and tenant."""
    own = workflow.info().typed_search_attributes
    session, tenant = own.get(SESSION) or "", own.get(TENANT) or ""
    return at_start(request.spec.name, more=request.indexed, session=session, tenant=tenant)


async def _remote(call: CallState, spec: ToolSpec) -> ToolReport:
    assert spec.remote is not None  # noqa: S101 - the caller looked
    arguments = dict(call.arguments)
    if spec.remote.key_argument:
        arguments[spec.remote.key_argument] = call.key
    handle = workflow.start_activity(
        spec.remote.activity,
        arguments,
        task_queue=spec.remote.task_queue,
        activity_id=call.position,
        start_to_close_timeout=spec.timeout,
        retry_policy=_tries(spec),
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        summary=_summary(call),
    )
    value = await _outcome(handle)
    report = report_of_value(value, call.call.id, spec.name, spec.result_limit, call.order, spec.shaping)
    return report.having(concealing.noted(report.result, value, spec.returns)) if spec.returns else report


def tool_input(
    call: CallState, spec: ToolSpec, agent: str, variables: dict[str, JSON], secrets: Vaulted | None
) -> ToolInput:
    """Return what a tool's wrapper is told."""
    return ToolInput(
        agent=agent,
        call_id=call.call.id,
        position=call.position,
        key=call.key,
        arguments=call.arguments,
        effect=spec.effect,
        timeout=spec.timeout,
        tries=spec.tries,
        result_limit=spec.result_limit,
        shaping=spec.shaping,
        local=spec.local,
        order=call.order,
        again=call.again,
        execution=workflow.info().run_id if spec.effect == "unsafe" else "",
        fallback=spec.fallback or "",
        variables=variables,
        secrets=secrets,
        mcp=spec.mcp,
    )


def _tries(spec: ToolSpec) -> RetryPolicy:
    return RetryPolicy(
        initial_interval=timedelta(seconds=0.5),
        maximum_interval=timedelta(seconds=10),
        maximum_attempts=spec.tries,
        non_retryable_error_types=["ToolError"],
    )


def _summary(call: CallState) -> str:
    # A summary is shown to whoever runs the system: nothing of what people have written, such as who they are.
    return f"call {call.position} ({call.effect}{', approved' if call.decision else ''})"[:200]


async def probe(
    call: CallState,
    spec: ToolSpec,
    agent: str,
    number: int,
    heartbeat: timedelta,
    variables: dict[str, JSON],
    secrets: Vaulted | None,
) -> ProbeReport:
    """Look up whether the effect of a call in doubt happened; `number` tells the run's look-ups apart."""
    report: ProbeReport = await workflow.start_activity(
        PROBE,
        ProbeInput(
            tool=spec.name,
            call=tool_input(call, spec, agent, variables, secrets),
            believed_from=call.doubt.believed_from if call.doubt else None,
        ),
        activity_id=f"{call.position}?{number}",
        result_type=ProbeReport,
        start_to_close_timeout=spec.timeout + _keeping(secrets) + _SLACK,
        heartbeat_timeout=heartbeat,
        retry_policy=_FOREVER,
        cancellation_type=ActivityCancellationType.TRY_CANCEL,
        summary=f"was call {call.position} ({spec.name}) done?",
    )
    return report


async def undo(
    effect: DoneEffect,
    spec: ToolSpec,
    agent: str,
    heartbeat: timedelta,
    variables: dict[str, JSON],
    secrets: Vaulted | None,
) -> UndoReport:
    """Undo an effect, with a key of its own, over and over up to the tool's limit."""
    call = ToolInput(
        agent=agent,
        call_id=effect.position,
        position=effect.position,
        key=f"{effect.key}{UNDO_SUFFIX}",
        arguments=effect.arguments,
        effect="idempotent",
        timeout=spec.timeout,
        tries=spec.undo_attempts,
        variables=variables,
        secrets=secrets,
    )
    report: UndoReport = await workflow.start_activity(
        UNDO,
        UndoInput(tool=spec.name, call=call, content=effect.content, ref=effect.ref),
        activity_id=f"undo {effect.position}",
        result_type=UndoReport,
        start_to_close_timeout=_keeping(secrets) + spec.timeout + _SLACK,
        heartbeat_timeout=heartbeat,
        retry_policy=RetryPolicy(
            initial_interval=timedelta(seconds=1),
            maximum_interval=timedelta(seconds=30),
            maximum_attempts=spec.undo_attempts,
        ),
        summary=f"undo call {effect.position} ({spec.name})",
    )
    return report


async def cancel_run(reason: str) -> None:
    """Ask the engine to cancel this run; the request comes back as anybody's would."""
    handle = workflow.start_activity(
        CANCEL_RUN,
        reason,
        activity_id="cancel",
        start_to_close_timeout=_SLACK,
        retry_policy=_FOREVER,
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        summary="cancel this run",
    )
    await _outcome(handle)


_RECALL_PATIENCE = timedelta(seconds=5)
"""What is remembered is not worth a longer wait; the activity itself gives up before."""


async def recall(request: RecallInput) -> RecallReport:
    """Return what is remembered; one attempt, lost or not, is all it gets."""
    handle = workflow.start_activity(
        RECALL,
        request,
        activity_id="recall",
        result_type=RecallReport,
        schedule_to_close_timeout=_RECALL_PATIENCE,
        retry_policy=RetryPolicy(maximum_attempts=1),
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        summary="what is remembered",
    )
    report: RecallReport = await _outcome(handle)
    return report


async def list_tools(request: ListToolsInput, seconds: float | None, heartbeat: timedelta) -> ToolsReport:
    """Ask MCP servers for their tools; over and over, where one does not answer, within the time of the run."""
    handle = workflow.start_activity(
        LIST_TOOLS,
        request,
        activity_id=f"list tools of {len(request.servers)} from {request.servers[0].name}",
        result_type=ToolsReport,
        schedule_to_close_timeout=None if seconds is None else timedelta(seconds=seconds) + _SLACK,
        start_to_close_timeout=REACHING + _keeping(request.secrets) + _SLACK,
        heartbeat_timeout=heartbeat,
        retry_policy=RetryPolicy(
            initial_interval=timedelta(seconds=0.5),
            maximum_interval=timedelta(seconds=10),
            maximum_attempts=max(server.list_attempts for server in request.servers),
        ),
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        summary=f"tools of {', '.join(server.name for server in request.servers)}"[:200],
    )
    report: ToolsReport = await _outcome(handle)
    return report


async def put_away(request: PutAway, heartbeat: timedelta) -> Segment:
    """Put the earlier part of the run away in the store; for as long as that is down, over and over."""
    handle = workflow.start_activity(
        PUT_AWAY,
        request,
        activity_id=f"put away {request.length}",
        result_type=Segment,
        start_to_close_timeout=timedelta(minutes=1),
        heartbeat_timeout=heartbeat,
        retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=10)),
        summary=f"put away messages up to {request.length}",
    )
    segment: Segment = await _outcome(handle)
    return segment


async def judge(request: JudgeInput, activity_id: str, heartbeat: timedelta) -> Judgement:
    """Validate and judge edited arguments."""
    judgement: Judgement = await workflow.start_activity(
        JUDGE,
        request,
        activity_id=activity_id,
        result_type=Judgement,
        start_to_close_timeout=timedelta(seconds=30),
        heartbeat_timeout=heartbeat,
        retry_policy=_THRICE,
        summary=f"edited arguments of {request.tool}",
    )
    return judgement
