"""Structured output: an answer that is more than text. Declared as a type, kept as a JSON Schema, read out of text."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic_core import from_json

from perdure.errors import AgentError
from perdure.messages import JSON, RunResult
from perdure.parsing import parse_json
from perdure.policies import OutputSpec
from perdure.schemas import sentence, type_schema

RESULT = "result"
"""The one property of the object in which a model writes an output that is no object by itself."""


def declared(agent: str, output_type: Any) -> OutputSpec | None:
    """Return what `Agent(output_type=…)` of `agent` means, as data; None where its answer is text.

    Raises:
        AgentError: If the type has no JSON Schema.
    """
    if output_type is None or output_type is str:
        return None
    try:
        try:
            return _spec(output_type)
        except TypeError:  # it can't be hashed
            return _spec.__wrapped__(output_type)
    except Exception as error:
        text = f"Agent {agent!r}: output_type {_name(output_type)} has no JSON Schema: {sentence(error)}"
        raise AgentError(text) from error


@lru_cache(maxsize=256)
def _spec(output_type: Any) -> OutputSpec:
    schema = type_schema(output_type)
    if schema.get("type") == "object":
        return OutputSpec(name=_name(output_type), json_schema={"properties": {}, **schema})
    wrapped = {"type": "object", "properties": {RESULT: schema}, "required": [RESULT], "additionalProperties": False}
    return OutputSpec(name=_name(output_type), json_schema=wrapped, wrapped=True)


def _name(output_type: Any) -> str:
    return output_type.__name__ if isinstance(output_type, type) else str(output_type).replace("typing.", "")


def adapter_of(output_type: Any) -> TypeAdapter[Any]:
    """Return what validates outputs of that type."""
    try:
        return _adapter(output_type)
    except TypeError:  # it can't be hashed
        return TypeAdapter(output_type)


@lru_cache(maxsize=256)
def _adapter(output_type: Any) -> TypeAdapter[Any]:
    return TypeAdapter(output_type)


# -- what a model has written ------------------------------------------------------------------------------


_FENCED = re.compile(r"```[a-zA-Z]*\s*\n(.*?)\n?\s*```", re.DOTALL)


def read(text: str) -> JSON:
    """Return the JSON value of an answer: all of it, the one fenced block in it, or the one object in its words.

    Raises:
        ValueError: If there is none, or more than one.
    """
    try:
        return parse_json(text)
    except ValueError as error:
        first = error
    fenced = _FENCED.findall(text)
    begin, end = text.find("{"), text.rfind("}")
    within = fenced[0] if len(fenced) == 1 else text[begin : end + 1] if 0 <= begin < end else ""
    if not within:
        raise first
    return parse_json(within)


def unwrapped(value: JSON, spec: OutputSpec) -> JSON:
    """Return the output that is in what a model has written and fits."""
    return cast("dict[str, JSON]", value)[RESULT] if spec.wrapped else value


def partial(text: str) -> JSON:
    """Return what there is of an answer that is still being written: the value so far; None where there is none yet.

    `text` is the beginning of an answer, as the `TextDelta`s of a step give it. What is open is taken as closed:
    of the last string what there is of it, and no last number or word that may go on.
    """
    begin = next((at for at, letter in enumerate(text) if letter in "{["), None)
    if begin is None:
        return None
    rest = text[begin:]
    fence = rest.rfind("```")
    try:
        return from_json(
            rest[:fence] if fence > 0 and text[:begin].rstrip().endswith(("```", "json")) else rest,
            allow_partial="trailing-strings",
        )
    except ValueError:
        return None


def answer(result: RunResult) -> str:
    """Return what a run has answered, for a person or a pipe: its output as JSON, else its text."""
    return result.text if result.output is None else as_text(result.output)


def as_text(value: JSON) -> str:
    """Return an output for a person: JSON with indents."""
    return json.dumps(value, ensure_ascii=False, indent=2)
