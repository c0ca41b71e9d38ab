"""Judging what a model wrote: parsed, validated, approved or not. Everything that a library decides, once."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from perdure.activities.checking import brief, complaints
from perdure.activities.fitting import fitted
from perdure.agents import Agent
from perdure.concealing import Book, book_of
from perdure.handling import texts
from perdure.messages import JSON, AssistantMessage, Problem, ToolCall, canonical_json
from perdure.models import ModelReply, RawCall
from perdure.parsing import parse_json
from perdure.policies import READ_RESULT, AgentSpec, ToolSpec
from perdure.reports import Judgement, ModelTurn
from perdure.results import clean, sentence, words

_PREDICATE_SECONDS = 5.0

Run = Callable[[Callable[..., Any], dict[str, JSON], float], Awaitable[Any]]
"""Runs application code where tools run, with keywords, for so many seconds: `Toolbox.run`."""


def validate(arguments: JSON, tool: ToolSpec) -> Problem | None:
    """Return what is wrong with `arguments` for `tool`, or None."""
    if not isinstance(arguments, dict):
        text = f"The arguments of {tool.name} have to be a JSON object, not {type(arguments).__name__}."
        return Problem(error_type="invalid_arguments", message=text)
    try:
        said = complaints(arguments, tool.parameters)
    except Exception as error:  # noqa: BLE001 - a number or pattern that the validator can't take: nobody may pass on it
        text = f"The arguments of {tool.name} can't be checked: {brief(words(error))}."
        return Problem(error_type="invalid_arguments", message=text)
    if not said:
        return None
    known = ", ".join(tool.parameters.get("properties", {}))
    return Problem(
        error_type="invalid_arguments",
        message=f"The arguments do not fit {tool.name}: {said}.",
        suggestion=f"Its arguments are: {known}." if known else "It takes no arguments.",
    )


async def judge_reply(
    reply: ModelReply,
    model: str,
    spec: AgentSpec,
    agent: Agent | None,
    run: Run,
    handles: Sequence[str] = (),
    book: Book | None = None,
) -> ModelTurn:
    """Return `model`'s reply as it enters the run: every call parsed, validated and judged for approval.

    Args:
        handles: Of the results that the model was shown in part.
        book: What the handles stand for that it was shown in place of private values.
    """
    book = book or book_of(spec)
    judged = [await _judge_call(raw, reply, spec, agent, run, book) for raw in reply.calls]
    calls = [_judge_reading(call, handles) if spec.tool(call.name) is READ_RESULT else call for call in judged]
    message = AssistantMessage(
        role="assistant",
        text=book.revealed(text := clean(reply.text)),
        private=book.written_in(text),
        calls=calls,
        reasoning=list(reply.reasoning),
        provider=model.partition(":")[0] if reply.reasoning else "",
        agent=spec.name if spec.peers else "",
    )
    turn = ModelTurn(message=message, finish=reply.finish, usage=reply.usage, model=model, served=reply.model)
    if spec.output is None or calls or reply.finish not in ("stop", "calls") or not text.strip():
        return turn
    return turn.model_copy(update=await fitted(text, spec.output, agent, run, book))


async def _judge_call(
    raw: RawCall, reply: ModelReply, spec: AgentSpec, agent: Agent | None, run: Run, book: Book
) -> ToolCall:
    name = clean(raw.name)[:200]
    if reply.finish in ("length", "filtered"):
        text = "The reply that asked for this call was cut off."
        return ToolCall(id=raw.id, name=name, problem=Problem(error_type="cut_off", message=text))
    tool = spec.tool(name)
    if tool is None:
        return ToolCall(id=raw.id, name=name, problem=_unknown(name, spec))
    try:
        arguments = parse_json(clean(raw.arguments) or "{}")
    except ValueError as error:
        text = f"The arguments of {name} are not valid JSON: {brief(str(error))}."
        suggestion = "Call it again with a complete JSON object."
        return ToolCall(
            id=raw.id, name=name, problem=Problem(error_type="invalid_json", message=text, suggestion=suggestion)
        )
    private = book.written_in(canonical_json(arguments)) if tool.agent else []
    arguments, problem = _revealed(arguments, tool, book)
    if problem:
        kept = cast("dict[str, JSON]", arguments) if isinstance(arguments, dict) else {}
        return ToolCall(id=raw.id, name=name, arguments=kept, problem=problem)
    ask = await must_ask(arguments, tool, spec, agent, run)
    return ToolCall(id=raw.id, name=name, arguments=arguments, ask=ask, private=private)


def _revealed(written: JSON, tool: ToolSpec, book: Book) -> tuple[JSON, Problem | None]:
    """Return what a model has written with the values that it was shown handles of, and what is wrong with it."""
    try:
        arguments = book.arguments(written)
    except LookupError as error:
        known = ", ".join(book.handles.names[-_MOST_NAMED:])
        told = f"The last ones are: {known}." if known else "There are none."
        return written, Problem(error_type="invalid_arguments", message=sentence(str(error.args[0])), suggestion=told)
    problem = validate(arguments, tool)
    if problem and arguments != written and not validate(texts(arguments), tool):
        return texts(arguments), None  # a value that one tool gives as a number, another takes as text
    return arguments, problem


_MOST_NAMED = 10


def _judge_reading(call: ToolCall, handles: Sequence[str]) -> ToolCall:
    """Return `call` of `read_result`, refused where it names no result that the model was shown in part."""
    handle = call.arguments.get("handle")
    if call.problem or handle in handles:
        return call
    close = difflib.get_close_matches(str(handle), handles, n=1)
    told = f"Did you mean {close[0]}?" if close else f"The last ones are: {', '.join(handles[-5:])}."
    problem = Problem(
        error_type="invalid_arguments",
        message=brief(f"There is no result with the handle {handle!r}."),
        suggestion=told if handles else "All results were shown whole.",
    )
    return call.model_copy(update={"problem": problem})


def _unknown(name: str, spec: AgentSpec) -> Problem:
    known = [tool.name for tool in spec.offered]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    listed = f"The tools are: {', '.join(known)}." if known else "There are no tools."
    return Problem(error_type="unknown_tool", message=f"There is no tool {name!r}.", suggestion=f"{listed}{hint}")


async def must_ask(
    arguments: dict[str, JSON], tool: ToolSpec, spec: AgentSpec, agent: Agent | None, run: Run
) -> str | None:
    """Return why a person has to approve the call, or None. A predicate that can't decide asks."""
    policy = spec.approval_policy(tool)
    if policy == "never":
        return None
    if policy == "always":
        return f"{tool.name} needs approval."
    name = policy.removeprefix("predicate:")
    ask = agent.predicate(name, tool.name) if agent else None
    if ask is None:
        return f"The approval predicate {name!r} is not there any more, so a person is asked."
    try:
        wanted = await run(ask, arguments, _PREDICATE_SECONDS)
    except Exception as error:  # noqa: BLE001 - a defect in it must not let the call through
        return f"The approval predicate {name!r} failed ({type(error).__name__}), so a person is asked."
    return f"{tool.name} needs approval for these arguments." if wanted else None


async def judge_edit(
    arguments: dict[str, JSON], name: str, spec: AgentSpec, agent: Agent | None, run: Run
) -> Judgement:
    """Return whether edited arguments may be executed. The person who edited them has approved them thereby."""
    tool = spec.tool(name)
    if tool is None:
        return Judgement(problem=_unknown(name, spec))
    if problem := validate(arguments, tool):
        return Judgement(problem=problem)
    if problem := await _checked(arguments, name, agent, run):
        return Judgement(problem=problem)
    return Judgement(ask=await must_ask(arguments, tool, spec, agent, run))


async def _checked(arguments: dict[str, JSON], name: str, agent: Agent | None, run: Run) -> Problem | None:
    """Return what the tool itself says against arguments that fit its schema, or None."""
    tool = agent.tool(name) if agent else None
    if tool is None or tool.check is None:
        return None
    try:
        said = await run(tool.check, arguments, _PREDICATE_SECONDS)
    except Exception as error:  # noqa: BLE001 - nobody may pass on arguments that it can't take
        said = f"The arguments of {name} can't be checked: {brief(words(error))}."
    return Problem(error_type="invalid_arguments", message=said) if said else None
