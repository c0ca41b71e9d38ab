"""What the strategy that leads a run decides: asked before the model is, and instead of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure import variables
from perdure.activities.fitting import fitted
from perdure.activities.judging import Run, must_ask, validate
from perdure.agents import Agent
from perdure.concealing import Book
from perdure.messages import AssistantMessage, Entry, Problem, ToolCall, UserMessage, canonical_json, content_hash
from perdure.models import ModelRequest
from perdure.policies import AgentSpec, StrategySpec
from perdure.reports import ModelTurn
from perdure.results import words
from perdure.strategies import FAILED, UNAVAILABLE, Answer, Ask, Directed, Do, Fail, Move, Situation, Strategy
from perdure.wire import ModelInput

MOVE_SECONDS = 10.0
"""Within which a strategy has to decide."""

LARGEST_PROGRESS = 65_536
"""Bytes of JSON: it is in each turn of the run's history twice."""


async def move(
    spec: AgentSpec, agent: Agent | None, entries: Sequence[Entry], request: ModelInput, run: Run
) -> Move | None:
    """Return what the strategy of a run decides; None where it has none.

    Raises:
        ApplicationError: If there is none of that name any more, or it fails.
    """
    if spec.strategy is None:
        return None
    strategy = _strategy(spec.strategy, agent)
    seen = Situation(
        run_id=activity.info().workflow_id or "",
        spec=spec,
        entries=entries,
        progress=request.led.progress if request.led else {},
        variables=request.led.variables if request.led else {},
        step=request.step,
        answer_only=request.answer_only,
    )
    try:
        decided: Any = await run(strategy.move, {"seen": seen}, MOVE_SECONDS)
        _check(decided, seen)
    except Exception as error:  # noqa: BLE001 - application code may raise anything
        activity.logger.warning("strategy %r failed", strategy.name, exc_info=error)
        raise _ended(f"Strategy {strategy.name!r} failed: {words(error)}", FAILED) from None
    made: Move = decided
    return made


def _strategy(wanted: StrategySpec, agent: Agent | None) -> Strategy:
    own = agent.strategy if agent else None
    if own is None or own.name != wanted.name:
        text = f"The agent that is deployed now has no strategy {wanted.name!r}, by which this run is led."
        raise _ended(f"{text} Deploy it again, then resume the run.", UNAVAILABLE)
    return own


def _check(decided: Any, seen: Situation) -> None:
    """Refuse what is no move, or can't be kept."""
    if not isinstance(decided, Ask | Do | Answer | Fail):
        raise TypeError(f"it decided {decided!r}, which is no Ask, Do, Answer or Fail")
    if isinstance(decided, Do) and not decided.calls:
        raise ValueError("it decided to make calls, and named none")
    if decided.variables:
        variables.check_size({**seen.variables, **decided.variables})
    size = len(canonical_json(decided.progress).encode("utf-8", "surrogatepass")) if decided.progress else 0
    if size > LARGEST_PROGRESS:
        raise ValueError(f"what it wants to know next time has {size:,} bytes; at most {LARGEST_PROGRESS:,} can be")


def _ended(text: str, kind: str) -> ApplicationError:
    return ApplicationError(text, type=kind, non_retryable=True)


def narrowed(spec: AgentSpec, asked: Ask) -> AgentSpec:
    """Return a run's rules with those tools alone that the model may call now."""
    if asked.tools is None:
        return spec
    tools = [tool for tool in spec.tools if tool.name in asked.tools]
    return spec.model_copy(update={"tools": tools})


def request_with(asked: Ask, request: ModelRequest) -> ModelRequest:
    """Return a request as a strategy wants it: the same one where nothing is wanted of it."""
    if asked == Ask():
        return request
    instructions = "\n\n".join(filter(None, (request.instructions, asked.instructions)))
    note = [UserMessage(role="user", content=asked.note, source="runtime")] if asked.note else []
    only = request.answer_only or asked.answer_only
    wanted = replace(request, instructions=instructions, messages=[*request.messages, *note], answer_only=only)
    if not asked.must_call or only:
        return wanted
    return replace(wanted, settings=request.settings.model_copy(update={"tool_choice": "required"}), first=True)


async def directed(
    made: Do | Answer | Fail, step: int, spec: AgentSpec, agent: Agent | None, run: Run, book: Book
) -> ModelTurn:
    """Return the turn that a strategy has decided, as it enters the run: judged as a model's reply is."""
    asked = made.calls if isinstance(made, Do) else ()
    calls = [await _judged(call, f"{step}.{at}", spec, agent, run, book) for at, call in enumerate(asked, 1)]
    text, failure = (made.reason, made.kind) if isinstance(made, Fail) else (made.text, "")
    message = AssistantMessage(role="assistant", text=text, calls=calls, source="strategy")
    kept: dict[str, Any] = {"progress": made.progress, "wrote": made.variables, "failure": failure}
    if isinstance(made, Answer) and spec.output:
        kept |= await fitted(book.text(made.text), spec.output, agent, run, book)
    return ModelTurn(message=message, finish="calls" if calls else "stop").model_copy(update=kept)


async def _judged(call: Directed, place: str, spec: AgentSpec, agent: Agent | None, run: Run, book: Book) -> ToolCall:
    tool = spec.tool(call.name)
    made = ToolCall(
        id=f"call_{content_hash([activity.info().workflow_id, place])}", name=call.name, arguments=call.arguments
    )
    if tool is None:
        text = f"The strategy has called {call.name!r}, which is no tool of {spec.name}."
        return made.model_copy(update={"problem": Problem(error_type="unknown_tool", message=text)})
    if problem := validate(call.arguments, tool):
        return made.model_copy(update={"problem": problem})
    private = book.written_in(book.text(canonical_json(call.arguments))) if tool.agent else []
    ask = await must_ask(call.arguments, tool, spec, agent, run)
    return made.model_copy(update={"ask": ask, "private": private})
