"""Calling hooks: those that decide hold the run, the others are told."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.afterwards import Copy, Kept
from perdure.activities.toolbox import Toolbox
from perdure.agents import Agent
from perdure.hooks import DENIED, FAILED, LONGEST_NOTE, STOPPED, Add, At, Call, Deny, Edge, Hook, Note, Stop, edges
from perdure.messages import JSON, AssistantMessage, Message, Problem, ToolCall
from perdure.reports import ModelTurn, ToolReport
from perdure.results import noted, sentence, short, words
from perdure.wire import ToolInput

_log = logging.getLogger("perdure.hooks")

_SECONDS = 5.0
"""For all hooks of one edge together."""


class Hooks:
    """The hooks of one worker's agents.

    Args:
        agents: The agents served, by name.
        toolbox: Where hooks run.
    """

    def __init__(self, agents: Mapping[str, Agent], toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self._by_edge: dict[tuple[str, str], list[Hook]] = {}
        for name, agent in agents.items():
            for hook in agent.hooks:
                for edge in edges(hook):
                    self._by_edge.setdefault((name, edge), []).append(hook)

    def at(self, edge: Edge, agent: str) -> Sequence[Hook]:
        """Return the agent's hooks that are called there."""
        return self._by_edge.get((agent, edge), ())

    # -- those that decide -----------------------------------------------------------------------------------

    async def before_model(self, agent: str, step: int, messages: Sequence[Message]) -> str:
        """Return what hooks add to a request, at its end.

        Raises:
            ApplicationError: If one stops the run, or fails.
        """
        added = list[str]()
        for hook, said in await self._decisions("before_model", agent, self._here(agent, step), messages):
            if isinstance(said, Add):
                added.append(said.text)
            else:
                _stop(hook, said, "Add or Stop")
        return "\n\n".join(added)[:LONGEST_NOTE]

    async def after_model(self, agent: str, step: int, turn: ModelTurn) -> ModelTurn:
        """Return a turn as it enters the run: calls that a hook says no to have a problem.

        Raises:
            ApplicationError: If one stops the run, or fails.
        """
        message = turn.message
        for hook, said in await self._decisions("after_model", agent, self._here(agent, step), message):
            if isinstance(said, Deny):
                message = _without(message, said)
            else:
                _stop(hook, said, "Deny or Stop")
        return turn if message is turn.message else turn.model_copy(update={"message": message})

    async def before_tool(self, call: ToolInput, name: str) -> str:
        """Return why a call is not to be made; "" where it is. A hook that fails says no."""
        try:
            decided = await self._decisions("before_tool", call.agent, self._at_call(call), _call(call, name))
        except ApplicationError as error:
            return error.message
        for hook, said in decided:
            if isinstance(said, Deny):
                return short(said.reason)
            return f"Hook {hook.name!r} returned {said!r}, which is no Deny."
        return ""

    async def _decisions(self, edge: Edge, agent: str, *given: Any) -> list[tuple[Hook, Any]]:
        """Return what the hooks say there, those left out that say nothing."""
        said = list[tuple[Hook, Any]]()
        loop = asyncio.get_running_loop()
        until = loop.time() + _SECONDS
        for hook in self.at(edge, agent):
            try:
                answer = await self._call(hook, edge, given, until - loop.time())
            except Exception as error:  # noqa: BLE001 - application code may raise anything
                activity.logger.warning("hook %r failed at %s", hook.name, edge, exc_info=error)
                text = f"Hook {hook.name!r} failed at {edge}: {words(error)}"
                raise ApplicationError(text, type=FAILED, non_retryable=True) from None
            if answer is not None:
                said.append((hook, answer))
        return said

    # -- those that are told ---------------------------------------------------------------------------------

    async def after_tool(self, call: ToolInput, name: str, report: ToolReport) -> ToolReport:
        """Return a report with what hooks add to it."""
        for said in await self.tell("after_tool", call.agent, self._at_call(call), _call(call, name), report.result):
            if isinstance(said, Note):
                report = report.having(noted(report.result, short(said.text)))
        return report

    async def starting(self, agent: str) -> None:
        """Tell that a run begins."""
        if self.at("on_run_start", agent):
            await self.tell("on_run_start", agent, self._here(agent, 1))

    async def undoing(self, edge: Edge, call: ToolInput, name: str, *given: Any) -> None:
        """Tell of an attempt to undo a call, or of what came of it."""
        if self.at(edge, call.agent):
            await self.tell(edge, call.agent, self._at_call(call), _call(call, name), *given)

    async def compacting(self, edge: Edge, agent: str, step: int, *given: Any) -> None:
        """Tell that the context is made shorter, or of what came of it."""
        if self.at(edge, agent):
            await self.tell(edge, agent, self._here(agent, step), *given)

    async def waiting(self, run_id: str, agent: str, step: int, told: dict[str, JSON]) -> None:
        """Tell that a run waits for a person."""
        at = At(run_id, agent, step, activity.info().attempt, self._toolbox.shared(agent))
        await self.tell("on_waiting", agent, at, told)

    async def tell(self, edge: Edge, agent: str, *given: Any) -> list[Any]:
        """Call the hooks there, and return what they say; one that fails is told in the log."""
        said = list[Any]()
        for hook in self.at(edge, agent):
            try:
                said.append(await self._call(hook, edge, given, _SECONDS))
            except Exception:  # noqa: BLE001 - application code may raise anything
                _log.exception("hook %r failed at %s", hook.name, edge)
        return said

    def copy(self) -> Copy:
        """Return what tells of the end of runs that have been archived."""

        async def ended(kept: Kept) -> None:
            run = kept.run
            if run.result and self.at("on_run_end", run.agent):
                at = At(run.run_id, run.agent, run.result.steps, shared=self._toolbox.shared(run.agent))
                await self.tell("on_run_end", run.agent, at, run.result)

        return ended

    # -- calling ---------------------------------------------------------------------------------------------

    async def _call(self, hook: Hook, edge: Edge, given: Sequence[Any], seconds: float) -> Any:
        function = getattr(hook, edge)
        if not inspect.iscoroutinefunction(function):
            function = functools.partial(function, *given)
            return await self._toolbox.run(function, {}, seconds)

        async def called() -> Any:
            return await function(*given)

        return await self._toolbox.run(called, {}, seconds)

    def _here(self, agent: str, step: int) -> At:
        info = activity.info()
        return At(info.workflow_id or "", agent, step, info.attempt, self._toolbox.shared(agent))

    def _at_call(self, call: ToolInput) -> At:
        step = call.position.partition(".")[0]
        return self._here(call.agent, int(step) if step.isdecimal() else 0)


def _call(call: ToolInput, name: str) -> Call:
    return Call(name, call.arguments, call.position, call.key, call.effect)


def _stop(hook: Hook, said: Any, wanted: str) -> None:
    """Stop the run, as a hook says; or since what it says is nothing that it can.

    Raises:
        ApplicationError: Always.
    """
    if isinstance(said, Stop):
        raise ApplicationError(f"Stopped by hook {hook.name!r}: {said.reason}", type=STOPPED, non_retryable=True)
    text = f"Hook {hook.name!r} returned {said!r}, which is no {wanted}."
    raise ApplicationError(short(text), type=FAILED, non_retryable=True)


def _without(message: AssistantMessage, said: Deny) -> AssistantMessage:
    problem = Problem(error_type=DENIED, message=sentence(short(said.reason)))

    def judged(call: ToolCall) -> ToolCall:
        meant = said.tools is None or call.name in said.tools
        return call.model_copy(update={"problem": problem}) if meant and call.problem is None else call

    return message.model_copy(update={"calls": [judged(call) for call in message.calls]})
