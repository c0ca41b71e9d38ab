"""Tools, wrapped: heartbeat, hard deadline, and an honest report of how each attempt ended.

What an end means for the run is decided by the tool's effect, in one place: `report_of`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, assert_never, get_type_hints

from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from perdure.activities import windows
from perdure.activities.acquaintance import Acquaintance
from perdure.activities.bodies import Ended, NeverBegan, Overdue, Raised, Returned, Stopped, run_body
from perdure.activities.breakers import breaker_of
from perdure.activities.context import CallContext
from perdure.activities.conversations import Conversations
from perdure.activities.heartbeats import counted, given_up, heartbeats
from perdure.activities.hooking import Hooks
from perdure.activities.mcp.connections import NotSent
from perdure.activities.mcp.servers import Servers, tool_of
from perdure.activities.memory import Recollection
from perdure.activities.outages import LATER, Outages, failure
from perdure.activities.outputs import Outputs, output_of
from perdure.activities.reading import read_result
from perdure.activities.secrets import Safe, without
from perdure.activities.spilling import Spilling
from perdure.activities.toolbox import Toolbox
from perdure.activities.unlocked import Unlocked
from perdure.agents import Agent
from perdure.errors import ConnectionFailed, ToolError, VariableError
from perdure.hooks import DENIED
from perdure.messages import DEFAULT_WINDOW, JSON, ResultStatus, ToolMessage, ToolResult
from perdure.paging import fitting
from perdure.parsing import parse_json
from perdure.policies import READ_RESULT, McpTool
from perdure.reports import ProbeReport, ToolReport, UndoReport
from perdure.results import Output, as_text, noted, sentence, short, words
from perdure.settings import Settings
from perdure.telemetry import signals
from perdure.telemetry.ids import of_attempt
from perdure.tools import Done, NotDone, Tool, Unknown
from perdure.wire import PROBE, UNDO, UNDO_SUFFIX, ProbeInput, ToolInput, UndoInput


class LeftBehind(Exception):
    """A reset has handed a call to a new execution of its run, while the old one may have done it."""


class ToolActivities:
    """Tools of one worker: one activity for all of them, started under each tool's own name.

    Args:
        agents: The agents served, by name.
        toolbox: Where tools run.
        conversations: Told of each result, so that the next model call finds it in memory.
        settings: `cancel_grace`, and `breaker_…` for tools that only read.
        spilling: Where large results go.
        recollection: What `search_memory` asks.
        safe: Where the secrets of runs are.
        acquaintance: Learns what is private.
        hooks: Called before and after.
        servers: MCP servers, whose tools they are as well.
    """

    def __init__(
        self,
        agents: Mapping[str, Agent],
        toolbox: Toolbox,
        conversations: Conversations,
        settings: Settings,
        spilling: Spilling,
        recollection: Recollection,
        *,
        safe: Safe,
        acquaintance: Acquaintance,
        servers: Servers,
        hooks: Hooks | None = None,
    ) -> None:
        self._hooks = hooks
        self._agents = agents
        self._toolbox = toolbox
        self._conversations = conversations
        self._spilling = spilling
        self._outputs = Outputs(toolbox, spilling)
        self._grace = settings.cancel_grace.total_seconds()
        self._outages = Outages(lambda: breaker_of(settings))
        self._recollection = recollection
        self._safe = safe
        self._acquaintance = acquaintance
        self._servers = servers

    @activity.defn(dynamic=True)
    async def tool(self, arguments: Sequence[RawValue]) -> ToolReport:
        """Execute one attempt of a call to the tool that the activity type names."""
        name = activity.info().activity_type
        call: ToolInput = activity.payload_converter().from_payload(arguments[0].payload, ToolInput)
        began = datetime.now(UTC)
        async with heartbeats() as pulse:
            with counted(pulse, name, call.agent):
                secrets = await self._safe.unlock(call.secrets)
                await self._acquaintance.with_call(call, self._agents.get(call.agent))
                report = secrets.model(await self._report(self._find(call.agent, name), call, name, secrets))
                if self._hooks and self._hooks.at("after_tool", call.agent):
                    report = await self._hooks.after_tool(call, name, report)
        wrong = "" if report.result.status == "ok" else report.result.error_type or report.result.status
        signals.current().called(name, call.agent, (datetime.now(UTC) - began).total_seconds(), wrong)
        report = report.model_copy(update={"made": pulse.made})
        self._conversations.remember(ToolMessage(role="tool", result=report.result))
        return report

    async def _report(self, tool: Tool | None, call: ToolInput, name: str, secrets: Unlocked) -> ToolReport:
        if tool is None and name == READ_RESULT.name:
            agent = self._agents.get(call.agent)
            window = windows.window_of(agent.spec, call.window) if agent else call.window or DEFAULT_WINDOW
            return await read_result(call, self._spilling, fitting(window))
        if tool is None and call.circle:
            return await self._recollection.search(call, name)
        if call.mcp:
            return await self._at_server(call.mcp, call, name, secrets)
        context = self._context(call, secrets)
        ended = await self._asked(tool, call, context, name)
        instead = await self._instead(tool, call, ended, context)
        return instead or report_of(ended, call, name, context.deadline, tool.not_done if tool else ())

    async def _at_server(self, mcp: McpTool, call: ToolInput, name: str, secrets: Unlocked) -> ToolReport:
        """Execute an attempt at an MCP server. Its deadline begins when something can be sent."""
        async with self._servers.place(call.agent, mcp.server, call.secrets, secrets) as place:
            context = self._context(call, place.secrets)
            if not place.problem:
                ended = await self._asked(tool_of(place, mcp, name, context), call, context, name)
            elif call.effect == "read" and not place.lasting:
                ended = Raised(ConnectionFailed(place.problem))
            else:
                ended = NeverBegan(place.problem, place.kind)
            return place.secrets.model(report_of(ended, call, name, context.deadline, ()))

    async def _asked(self, tool: Tool | None, call: ToolInput, context: CallContext, name: str) -> Ended[ToolReport]:
        """Make an attempt, unless it reads from what has just failed over and over."""
        if call.effect != "read":
            return await self._attempt(tool, call, context, name)
        outage = self._outages[call.agent, name]
        if why := outage.words:
            return NeverBegan(why, "unavailable")
        entered = outage.enter()
        ended: Ended[ToolReport] = Stopped(shutdown=False, abandoned=False)
        try:
            ended = await self._attempt(tool, call, context, name)
        finally:
            outage.leave(entered, ended)
        return ended

    async def _instead(
        self, tool: Tool | None, call: ToolInput, ended: Ended[ToolReport], before: CallContext
    ) -> ToolReport | None:
        """Return what another tool says, where this one is not available and names one; None where it is."""
        why, name = failure(ended), activity.info().activity_type
        down = isinstance(ended, NeverBegan)
        if not why or call.effect != "read" or not (down or activity.info().attempt >= call.tries):
            return None
        other = tool.fallback if tool and call.fallback else None
        if other is None:
            return _result(call, name, "error", why, error_type="unavailable", suggestion=LATER) if down else None
        context = self._context(call, before.secrets)
        answered = await self._asked(other, call, context, other.name)
        if reason := failure(answered):
            text = f"{name}: {sentence(why)} {other.name}: {reason}"
            return _result(call, name, "error", text, error_type="unavailable", suggestion=LATER)
        report = report_of(answered, call, name, context.deadline, other.not_done)
        note = short(f"Answered by {other.name}, as {name} is not available: {why}")
        result = noted(report.result, note).model_copy(update={"name": name})
        return report.having(result)

    async def _attempt(self, tool: Tool | None, call: ToolInput, context: CallContext, name: str) -> Ended[ToolReport]:
        if call.effect == "unsafe" and call.execution not in ("", activity.info().workflow_run_id):
            return Raised(LeftBehind("The run was reset while it was under way."))
        if tool is None or tool.function is None:
            return NeverBegan(f"Tool {name!r} of agent {call.agent!r} is not there any more.", "removed")
        if hindered := await self._hindered(tool, call, context, name):
            return hindered
        if call.effect == "unsafe" and await given_up():
            return NeverBegan("The worker learnt of the call too late.", "given_up")
        shaping = call.shaping if name == activity.info().activity_type else tool.spec.shaping
        ended = await run_body(
            _bound(tool, context.secrets.filled(tool), call, context, tool.context_parameter),
            lambda value: _kept(output_of(value, tool, call, shaping, context.secrets), context),
            context,
            self._toolbox,
            self._grace,
        )
        match without(context.secrets, ended):
            case Returned(output):
                return Returned(await self._outputs.report(output, tool, call, shaping, context.secrets))
            case Raised(Unfit() | NotSent() as error):
                return _never_began(error, call, name)
            case other:
                return other

    async def _hindered(self, tool: Tool, call: ToolInput, context: CallContext, name: str) -> NeverBegan | None:
        """Return why an attempt is not made that could be; None where it is."""
        if why := context.unfit():
            return NeverBegan(why, "invalid_variables")
        if why := context.secrets.lacks(tool.secrets):
            return NeverBegan(why, "no_secret")
        why = await self._hooks.before_tool(call, name) if self._hooks else ""
        return NeverBegan(why, DENIED) if why else None

    @activity.defn(name=PROBE)
    async def probe(self, request: ProbeInput) -> ProbeReport:
        """Return what the tool's probe finds; one that fails or is not there any more knows nothing."""
        async with heartbeats():
            secrets = await self._safe.unlock(request.call.secrets)
            return secrets.model(await self._probed(request, self._context(request.call, secrets)))

    async def _probed(self, request: ProbeInput, context: CallContext) -> ProbeReport:
        asked_at, tool = datetime.now(UTC), self._find(request.call.agent, request.tool)
        if tool is None or tool.probe is None:
            return ProbeReport(outcome="unknown", asked_at=asked_at, message="The tool has no probe any more.")
        try:
            keywords = bind(tool, request.call.arguments, context, None)
        except ValueError as error:
            return ProbeReport(outcome="unknown", asked_at=asked_at, message=words(error))
        body = functools.partial(tool.probe, context, **keywords)
        ended = await run_body(
            body, lambda value: _found(value, tool, request, asked_at, context), context, self._toolbox, self._grace
        )
        match without(context.secrets, ended):
            case Returned((report, output)):
                if output is None:
                    return report
                made = await self._outputs.report(output, tool, request.call, request.call.shaping, context.secrets)
                return report.model_copy(update={"result": made.result, "returned": made.returned})
            case Raised(raised):
                return ProbeReport(outcome="unknown", asked_at=asked_at, message=words(raised))
            case _:
                text = "The probe did not end in time."
                return ProbeReport(outcome="unknown", asked_at=asked_at, message=text)

    @activity.defn(name=UNDO)
    async def undo(self, request: UndoInput) -> UndoReport:
        """Undo what a call did.

        Raises:
            ApplicationError: Where the engine should try again; only the tool itself says that it can't be undone.
        """
        tool = self._find(request.call.agent, request.tool)
        if tool is None or tool.compensate is None:
            raise ApplicationError("The tool has no compensation any more.", type="removed")
        async with heartbeats():
            content, secrets = await self._whole(request), await self._safe.unlock(request.call.secrets)
            context = self._context(request.call, secrets)  # the time that the store took is not the compensation's
            context.undoes = request.call.key.removesuffix(UNDO_SUFFIX)
            function = functools.partial(tool.compensate, context, _returned(tool, content))
            body = _bound(tool, function, request.call, context, None)
            if self._hooks:
                await self._hooks.undoing("before_undo", request.call, request.tool)
            ended = await run_body(body, lambda value: _undone(value, context), context, self._toolbox, self._grace)
            if self._hooks and _is_settled(ended):
                await self._hooks.undoing("after_undo", request.call, request.tool, isinstance(ended, Returned))
        match without(secrets, ended):
            case Returned(report):
                return secrets.model(report)
            case Raised(ToolError() as error):
                return UndoReport(status="failed", message=short(error.message))
            case Raised(error):
                raise ApplicationError(words(error), type=type(error).__name__)
            case NeverBegan(message, error_type):
                raise ApplicationError(message, type=error_type)
            case _:
                raise ApplicationError("It did not end in time, or its worker was stopped.", type="timeout")

    async def _whole(self, request: UndoInput) -> str:
        """Return what the tool had returned; only its beginning where the store does not have the rest any more."""
        if request.ref is None:
            return request.content
        try:
            return (await self._spilling.read(request.ref)).decode()
        except LookupError as error:
            activity.logger.warning("undoing goes by the beginning of a result: %s", error)
            return request.content
        except ConnectionFailed as error:
            raise ApplicationError(str(error), type="unavailable") from error

    def _find(self, agent: str, name: str) -> Tool | None:
        live = self._agents.get(agent)
        tool = live.tool(name) if live else None
        return live.under_rules(tool) if live and tool else None

    def _context(self, call: ToolInput, secrets: Unlocked) -> CallContext:
        info = activity.info()
        deadline = datetime.now(UTC) + call.timeout
        live = self._agents.get(call.agent)
        variables = live.variables if live else None
        run = (info.workflow_id or "", info.attempt, deadline)
        ids = (info.namespace, info.workflow_id or "", info.workflow_run_id or "", info.activity_id, info.attempt)
        span = of_attempt(*ids, None if info.is_local else info.scheduled_time)
        return CallContext(call, *run, self._toolbox, variables, secrets, name=info.activity_type, span=span)


class Unfit(Exception):
    """The arguments do not fit the function's types: its body did not run."""


def _never_began(error: Unfit | NotSent, call: ToolInput, name: str) -> Ended[ToolReport]:
    if isinstance(error, Unfit):
        return NeverBegan(f"The arguments do not fit {name}: {error}.", "invalid_arguments")
    return Raised(error) if call.effect == "read" else NeverBegan(str(error), "unavailable")


def _bound(
    tool: Tool, function: Callable[..., Any], call: ToolInput, context: CallContext, parameter: str | None
) -> Callable[[], Awaitable[Any] | Any]:
    """Return what runs the body, arguments turned into its types there as well: validators are application code."""

    def keywords() -> dict[str, Any]:
        try:
            return bind(tool, call.arguments, context, parameter)
        except ValueError as error:
            raise Unfit(words(error)) from error

    if inspect.iscoroutinefunction(function):

        async def begin() -> Any:
            return await function(**keywords())

        return begin
    return lambda: function(**keywords())


def bind(tool: Tool, arguments: Mapping[str, Any], context: CallContext, parameter: str | None) -> dict[str, Any]:
    """Return the keywords with which the tool's function is called.

    Raises:
        ValueError: If the arguments do not fit the function's types (a validator of its own, or the function was
            changed after the run had started).
    """
    keywords = dict(arguments)
    if tool.arguments is not None:
        model = tool.arguments.model_validate(keywords)
        keywords = {name: vars(model)[name] for name in type(model).model_fields}
    return {**keywords, parameter: context} if parameter else keywords


def _is_settled(ended: Ended[Any]) -> bool:
    """Return whether an attempt to undo is the last one."""
    return isinstance(ended, Returned) or (isinstance(ended, Raised) and isinstance(ended.error, ToolError))


def _returned(tool: Tool, content: str) -> JSON:
    """Return what a tool returned, of which the run has the text."""
    if tool.function and get_type_hints(tool.function).get("return") is str:
        return content
    try:
        return parse_json(content) if content else None
    except ValueError:
        return content


def _kept(output: Output, context: CallContext) -> Output:
    """Return `output` with the variables that the call has changed. It has done its work, whatever becomes of them."""
    report = output.report
    try:
        return replace(output, report=report.model_copy(update={"wrote": context.wrote()}))
    except VariableError as error:
        result = noted(report.result, short(f"What it wrote into the variables is lost. {error}"))
        return replace(output, report=report.having(result))


def _undone(value: Any, context: CallContext) -> UndoReport:
    said = short(as_text(value)[0])
    try:
        return UndoReport(status="undone", message=said, wrote=context.wrote())
    except VariableError as error:
        return UndoReport(status="undone", message=short(f"{said} Its variables are lost. {error}".strip()))


FOUND = "A look-up found that it was done."


def _found(
    value: Any, tool: Tool, request: ProbeInput, asked_at: datetime, context: CallContext
) -> tuple[ProbeReport, Output | None]:
    match value:
        case Done(result):
            output = _kept(output_of(result, tool, request.call, request.call.shaping, context.secrets), context)
            told = output.report.having(noted(output.report.result, FOUND))
            found = ProbeReport(outcome="done", asked_at=asked_at, wrote=told.wrote)
            return found, replace(output, report=told)
        case NotDone():
            return ProbeReport(outcome="not_done", asked_at=asked_at), None
        case Unknown():
            return ProbeReport(outcome="unknown", asked_at=asked_at), None
        case _:
            text = f"The probe returned {type(value).__name__}, not Done, NotDone or Unknown."
            return ProbeReport(outcome="unknown", asked_at=asked_at, message=text), None


# -- what an end means, by effect --------------------------------------------------------------------------


def report_of(
    ended: Ended[ToolReport], call: ToolInput, name: str, deadline: datetime, not_done: tuple[type[BaseException], ...]
) -> ToolReport:
    """Return the report of an attempt.

    Raises:
        ApplicationError: Where the engine should make another attempt.
    """
    match ended:
        case Returned(report):
            return report
        case NeverBegan(message, error_type) if _tried_before(call):
            return _unknown(call, name, f"An earlier attempt may have done it. {message}", error_type, deadline)
        case NeverBegan(message, error_type):
            status: ResultStatus = "denied" if error_type == DENIED else "error"
            return _result(call, name, status, f"{sentence(message)} Nothing was executed.", error_type=error_type)
        case Raised(ToolError() as error):
            return _result(call, name, "error", error.message, error_type=error.error_type, suggestion=error.suggestion)
        case Raised(error) if isinstance(error, not_done) and not _tried_before(call):
            return _result(call, name, "error", words(error), error_type=type(error).__name__)
        case Raised(error):
            return _unknown(call, name, words(error), type(error).__name__, deadline)
        case Overdue(abandoned):
            still = " It could not be stopped, and still runs." if abandoned else ""
            text = f"It did not end within {call.timeout.total_seconds():g} s (the tool's timeout).{still}"
            return _unknown(call, name, text, "timeout", deadline, abandoned=abandoned)
        case Stopped():
            return _stopped(ended, call, name, deadline)
        case _:
            assert_never(ended)


def _stopped(ended: Stopped, call: ToolInput, name: str, deadline: datetime) -> ToolReport:
    if not ended.shutdown and call.effect == "read":
        return _result(call, name, "cancelled", "The run was cancelled before it ended.")
    why = "The worker was stopped" if ended.shutdown else "The run was cancelled"
    text = f"{why} while it was under way."
    return _unknown(call, name, text, "stopped", deadline, abandoned=ended.abandoned)


def _tried_before(call: ToolInput) -> bool:
    """Return whether an earlier attempt with the same key ended unknown: then this one's failure proves nothing."""
    return call.effect != "read" and (call.again or activity.info().attempt > 1)


def _unknown(
    call: ToolInput, name: str, message: str, error_type: str, deadline: datetime, *, abandoned: bool = False
) -> ToolReport:
    """Return the report of an attempt of which nobody knows what it did: again, an error, or in doubt."""
    last = activity.info().attempt >= call.tries
    if call.effect != "unsafe" and not last:
        raise ApplicationError(message, type=error_type)
    if call.effect == "read":
        return _result(call, name, "error", message, error_type=error_type)
    report = _result(call, name, "in_doubt", message, error_type=error_type)
    return report.model_copy(update={"deadline": deadline, "abandoned": abandoned})


def _result(
    call: ToolInput,
    name: str,
    status: ResultStatus,
    message: str,
    *,
    error_type: str | None = None,
    suggestion: str | None = None,
) -> ToolReport:
    result = ToolResult(
        call_id=call.call_id,
        name=name,
        status=status,
        message=short(message),
        error_type=short(error_type) if error_type else None,
        suggestion=short(suggestion) if suggestion else None,
        execution_order=call.order,
    )
    return ToolReport(result=result)
