"""Playing a case again with the code, the prompt or the model of today, and telling where the path changes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from perdure.agents import Agent, Task
from perdure.comparing import Difference, Parting, Turn, parting, turns
from perdure.errors import ModelError, RecordingError, ToolError
from perdure.events import Event
from perdure.messages import AssistantMessage, Entry, RunResult, ToolMessage, ToolResult
from perdure.models import ModelReply, ModelRequest
from perdure.models.dialect import Names, level_calls, usage_or_estimate
from perdure.policies import ContextPolicy, Shaping
from perdure.testing.cases import Case, load_case
from perdure.testing.environment import Environment, Run, Script
from perdure.testing.fakes import Fake
from perdure.testing.script import seen_in
from perdure.tools import Tool, ToolContext

_PATIENCE = 3600
"""Seconds that a replay may take: a real model is asked as often as the run of then has asked its own."""

OWN = "agent"
"""In place of a model's name: the agent's own."""


@dataclass(frozen=True)
class Replayed:
    """What became of a case.

    Attributes:
        case: What was played.
        parting: The first turn that differs; None where the path is the same. `left` is what was recorded, `right` what
            happens today.
        answer: What is answered today; "" where it did not come to that.
        status: How the run of today ended.
    """

    case: Case
    parting: Parting | None
    answer: str
    status: str

    @property
    def same(self) -> bool:
        """Whether it went the same way, to the same end."""
        return self.parting is None

    def assert_same(self) -> None:
        """Fail where the path changes; the text says where, and how."""
        if self.parting is None:
            return
        lines = [f"Case {self.case.run_id} goes another way at step {self.parting.step}:"]
        for one in self.parting.differences:
            where = f"call {one.call}: " if one.call else ""
            lines.append(f"  {where}{one.what}: recorded {one.left!r}, today {one.right!r}")
        raise AssertionError("\n".join(lines))


def replay(
    case: Case | str | Path,
    agent: Agent,
    *,
    model: Script | Literal["agent"] | None = None,
    environment: Environment | None = None,
) -> Replayed:
    """Play a case with an agent as it is today, and return where its path changes.

    Tools are not run: a call that the case has gets the result of then. People decide as they did then. The run is
    broken off where it leaves the path.

    Args:
        case: Or the file that it is in.
        model: What is asked. Default: the model of the case, which says what it said then: what can change is what
            Perdure and the agent's declaration make of that. A scripted or a real model, or `"agent"` for its own, is
            asked anew: then its calls and their arguments are compared, and not its words.
        environment: Where it runs. Default: one of its own.

    Raises:
        RecordingError: If there is no such case, or the agent can't be played.
    """
    case = case if isinstance(case, Case) else load_case(case)
    _check(agent)
    with ExitStack() as stack:
        environment = environment or stack.enter_context(Environment())
        played = _Played(case, anew=model is not None)
        script: Any = None if model == OWN else model if model is not None else played.model(stack)
        with environment.start(played.agent(agent), Task(input=case.task), model=script) as run:
            return run.call(played.through(run), seconds=_PATIENCE)


def _check(agent: Agent) -> None:
    if agent.strategy is not None:
        text = (
            f"Agent {agent.name!r} is led by the strategy {agent.strategy.name!r}: replay cases of its members instead"
        )
        raise RecordingError(f"{text}.")


class _Played:
    """One replay: gives what was recorded, and watches whether it is asked for."""

    def __init__(self, case: Case, *, anew: bool) -> None:
        self.case, self.anew = case, anew
        self.turns = [turn for turn in turns(case.entries) if turn.replied]
        self.results = {
            turn.position(at): turn.results[call.id]
            for turn in self.turns
            for at, call in enumerate(turn.calls)
            if call.id in turn.results
        }
        self.calls = {turn.position(at): call for turn in self.turns for at, call in enumerate(turn.calls)}
        self.left = False

    def model(self, stack: ExitStack) -> str:
        """Return the name under which the model of the case is asked."""
        from uuid import uuid4

        from perdure.activities import providers

        prefix = f"case-{uuid4().hex[:8]}"
        providers.register(prefix, lambda _name, _settings: _Recorded(self.turns))
        stack.callback(providers.unregister, prefix)
        return f"{prefix}:recorded"

    def agent(self, agent: Agent) -> Agent:
        """Return the agent with tools that give what was recorded, and nothing that reaches beyond it."""
        listed = [Tool(spec.model_copy(update={"mcp": None})) for spec in self.case.listed] if agent.servers else []
        tools = [self._recorded(tool) for tool in [*agent.own_tools, *listed]]
        handoffs = [self.agent(one) if isinstance(one, Agent) else one for one in agent.handoffs]
        context = ContextPolicy(window=100_000_000)
        return replace(agent, tools=tools, handoffs=handoffs, memory=False, context=context, lifespan=None)

    def _recorded(self, tool: Tool) -> Tool:
        if tool.spec.asks_user or tool.spec.publishes:
            return tool

        async def body(**keywords: Any) -> Any:
            return self._result(tool, keywords.pop(_CONTEXT))

        faked = Fake().into(tool)
        spec = faked.spec.model_copy(update={"shaping": Shaping(), "fallback": None})
        return replace(
            faked, spec=spec, function=body, context_parameter=_CONTEXT, arguments=None, shape=None, fallback=None
        )

    def _result(self, tool: Tool, context: ToolContext) -> str:
        """Return what the call gave then, by its position; one that has none has left the path."""
        result = self.results.get(context.call)
        if result is None or result.name != tool.name:
            self.left = True
            raise ToolError("The recorded run has no such call.", error_type="not_recorded")
        if result.status == "ok":
            return result.content
        raise ToolError(
            result.message or result.status,
            suggestion=result.suggestion,
            error_type=result.error_type or "tool_error",
        )

    # -- the run -------------------------------------------------------------------------------------------

    async def through(self, run: Run) -> Replayed:
        """Follow the run to its end, or to where it leaves the path, and say which it was."""
        await self._follow(run)
        projection = await run.handle.projection()
        result = projection.result()
        found = parting(self._plain(self.case.entries), self._plain(projection.entries))
        found = _cause(_earlier(found, self._of_people(projection.events)))
        if found is None and not self.left and self._ends_otherwise(result):
            found = Parting(step=len(self.turns), differences=[self._end(result)])
        return Replayed(self.case, found, result.text, result.status)

    async def _follow(self, run: Run) -> None:
        async for event in run.handle.events():
            if event.type == "approval_requested":
                decided = self.case.decided.get(event.call)
                if decided is None:
                    self.left = True
                elif decided.approve:
                    by, why, edited = decided.by, decided.reason, decided.arguments
                    await run.handle.approve(event.call, arguments=edited, by=by, reason=why)
                else:
                    await run.handle.deny(event.call, by=decided.by, reason=decided.reason)
            elif event.type == "asked":
                result = self.results.get(event.call)
                if result is None or not result.content:
                    self.left = True
                else:
                    await run.handle.answer(result.content, event.call)
            elif event.type == "model_finished" and event.step > len(self.turns):
                self.left = True
            if self.left:
                return

    def _of_people(self, events: Sequence[Event]) -> Parting | None:
        """Return where people are asked today and were not then, or the other way round."""
        asked = {event.call for event in events if event.type == "approval_requested"}
        reached = {event.call for event in events if event.type == "tool_started"} | asked
        changed = sorted((asked ^ set(self.case.asked)) & reached, key=_place)
        if not changed:
            return None
        first = changed[0]
        words = ("nobody is asked", "a person is asked")
        left, right = words[first in self.case.asked], words[first in asked]
        return Parting(
            step=_place(first)[0], differences=[Difference(what="approval", call=first, left=left, right=right)]
        )

    def _plain(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return what is compared of a transcript: not why a call ended badly, nor the words of a model asked anew."""
        kept = list[Entry]()
        for entry in entries:
            if isinstance(entry, AssistantMessage) and self.anew:
                kept.append(entry.model_copy(update={"text": ""}))
            elif isinstance(entry, ToolMessage) and entry.result.status not in ("ok", "error"):
                kept.append(ToolMessage(role="tool", result=_ended(entry.result)))
            elif entry.role in ("assistant", "tool"):
                kept.append(entry)
        return kept

    def _ends_otherwise(self, result: RunResult) -> bool:
        if self.case.status not in ("completed", "failed", "budget_exhausted"):
            return False  # it was still open, or somebody had cancelled it
        return result.status != self.case.status or (not self.anew and result.text != self.case.text)

    def _end(self, result: RunResult) -> Difference:
        left, right = ({"status": one.status, "answer": one.text} for one in (self.case, result))
        return Difference(what="end", left=left, right=right)


_CONTEXT = "perdure_context"


def _ended(result: ToolResult) -> ToolResult:
    return ToolResult(call_id=result.call_id, name=result.name, status=result.status)


def _earlier(one: Parting | None, other: Parting | None) -> Parting | None:
    if one is None or other is None:
        return one or other
    if one.step == other.step:
        return Parting(step=one.step, differences=[*other.differences, *one.differences])
    return min(one, other, key=lambda found: found.step)


def _cause(found: Parting | None) -> Parting | None:
    """Return where two paths part without what only follows from it: a call that is another one ends otherwise."""
    if found is None:
        return None
    causes = [one for one in found.differences if one.what not in ("status", "result")]
    return Parting(step=found.step, differences=causes or found.differences)


def _place(position: str) -> tuple[int, int]:
    step, _, number = position.partition(".")
    return (int(step), int(number or 0)) if step.isdigit() else (0, 0)


class _Recorded:
    """A model that says what was recorded."""

    provider = "case"

    def __init__(self, said: Sequence[Turn]) -> None:
        self._turns = said

    async def generate(self, request: ModelRequest) -> ModelReply:
        """Return the reply that is due, by the replies that the conversation holds."""
        number = seen_in(request.messages, request.hidden).replies
        if number >= len(self._turns):
            raise ModelError("bad_request", "The recorded run has no further reply.")
        turn = self._turns[number]
        written = [(call.id, call.name, "{" if call.problem else call.arguments) for call in turn.calls]
        calls = level_calls(written, request, Names(tool.name for tool in request.tools))
        answer = ModelReply(text=turn.text, calls=calls, finish="calls" if calls else "stop", model="recorded")
        return replace(answer, usage=usage_or_estimate({}, request, answer))

    async def aclose(self) -> None:
        """Nothing is open."""
