"""Odd declarations, numbers and settings, each of which once did harm."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from perdure.activities.judging import validate
from perdure.errors import ToolDefinitionError
from perdure.messages import ToolMessage, ToolResult
from perdure.policies import AgentSpec
from perdure.settings import Settings
from perdure.state import begin
from perdure.tools import Tool, tool
from perdure.wire import RunRequest, opening_state, packed_state


class And(BaseModel):
    all: list[Expression]


class Or(BaseModel):
    any: list[Expression]


class Not(BaseModel):
    term: Expression


class Compare(BaseModel):
    field: str
    value: str | int


Expression = And | Or | Not | Compare
for model in (And, Or, Not):
    model.model_rebuild()


def test_a_number_that_the_validator_cannot_take_is_a_problem_and_no_defect() -> None:
    parameters = {"type": "object", "properties": {"amount": {"type": "number", "multipleOf": 0.01}}}
    spec = Tool.from_schema(lambda amount: amount, parameters, name="pay", description="Pay.").spec
    problem = validate({"amount": 10**400}, spec)
    assert problem is not None
    assert "can't be checked" in problem.message


def test_types_that_refer_to_each_other_make_a_schema_that_a_model_can_read() -> None:
    @tool(effect="read")
    def search(where: Expression) -> str:
        """Search."""
        return ""

    schema = json.dumps(search.spec.parameters)
    assert "$ref" not in schema
    assert len(schema) < 50_000
    assert validate({"where": {"term": {"field": "a", "value": 1}}}, search.spec) is None
    assert validate({"where": {"term": 5}}, search.spec) is not None


@pytest.mark.parametrize("count", [6, 12])
def test_a_schema_of_endless_references_is_bounded_or_refused(count: int) -> None:
    every = {f"p{n}": {"$ref": f"#/$defs/d{n}"} for n in range(count)}
    definitions = {f"d{n}": {"type": "object", "properties": every} for n in range(count)}
    schema = {"type": "object", "properties": every, "$defs": definitions}
    try:
        said = json.dumps(Tool.from_schema(print, schema, name="x", description="X.").spec.parameters)
    except ToolDefinitionError as error:
        said = str(error)
    assert len(said) < 50_000
    assert "simplify" in said or "$ref" not in said


def test_a_parameter_may_be_called_as_a_model_calls_its_own_things() -> None:
    @tool(effect="read")
    def look(model_extra: str, model_fields_set: int) -> str:
        """Look."""
        return f"{model_extra} {model_fields_set}"

    from perdure.activities.tools import bind

    arguments = {"model_extra": "a", "model_fields_set": 3}
    assert bind(look, arguments, None, None) == arguments  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_what_can_not_be_a_tool_is_refused_in_one_sentence() -> None:
    async def stream() -> Any:
        """Stream."""
        yield 1

    with pytest.raises(ToolDefinitionError, match="async generator"):
        tool(stream)
    with pytest.raises(ToolDefinitionError, match="has to be an object, not True"):
        Tool.from_schema(print, True, name="x", description="X.")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("name", "value"),
    [("heartbeat_timeout", -1), ("heartbeat_timeout", 0), ("grace", -1), ("threads", 0), ("max_runs", -1)],
)
def test_settings_that_would_stop_every_run_are_refused(name: str, value: int) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate({name: value})


@dataclass
class _Big:
    text: str = "0123456789 the same again and again " * 40_000


def test_a_state_too_large_to_be_carried_is_packed_and_comes_back_the_same() -> None:
    spec = AgentSpec(name="a", model="scripted:x")
    state = begin("run", spec, "go", None, "old")
    result = ToolResult(call_id="1", name="look", status="ok", content=_Big().text)
    state.messages.append(ToolMessage(role="tool", result=result))
    packed = packed_state(state)
    assert len(packed) < 100_000
    opened = opening_state(RunRequest(spec=spec, packed=packed), "run", "new")
    assert opened.messages == state.messages
    assert opened.execution == "new"
