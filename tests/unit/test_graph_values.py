"""Values of a graph's state: whether types meet, what agents' answers are read as, and how texts are filled."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, TypeAdapter

from perdure.errors import AgentError
from perdure.messages import ToolResult
from perdure.schemas import inline_refs
from perdure.strategies.graph_shape import NodeSpec
from perdure.strategies.graph_state import Misfit, given, merged
from perdure.strategies.graph_text import fields_of, filled
from perdure.strategies.graph_types import fits, is_text, listed


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: int = 0


class Named(BaseModel):
    x: int
    name: str


def schema(hint: Any, mode: Literal["validation", "serialization"]) -> dict[str, Any]:
    return inline_refs(TypeAdapter(hint).json_schema(mode=mode))


FIT = [
    (int, int, True),
    (int, float, True),
    (float, int, False),
    (str, int, False),
    (int, str, False),
    (Any, int, True),
    (int, Any, True),
    (Literal["red"], Colour, True),
    (Colour, Literal["red", "blue", "green"], True),
    (Colour, Literal["red"], False),
    (str, Colour, False),
    (Colour, str, True),
    (bool, bool, True),
    (list[int], list[float], True),
    (list[str], list[int], False),
    (list[str], str, False),
    (date, date, True),
    (date, str, True),
    (str, date, False),
    (datetime, date, False),
    (Decimal, Decimal, True),
    (int | None, int, False),
    (int, int | None, True),
    (int | str, int, False),
    (Point, Point, True),
    (Named, Point, True),
    (Point, Named, False),
    (dict[str, int], Point, True),  # whether x is there, nobody can tell
]


@pytest.mark.parametrize(("written", "read", "fit"), FIT)
def test_types_meet_as_far_as_json_goes(written: Any, read: Any, fit: bool):
    assert fits(schema(written, "serialization"), schema(read, "validation")) is fit


def test_a_field_that_is_not_written_yet_is_no_mismatch():
    assert fits(schema(int | None, "serialization"), schema(int, "validation"), unset=True)
    assert not fits(schema(str | None, "serialization"), schema(int, "validation"), unset=True)


@pytest.mark.parametrize(
    ("hint", "values"),
    [
        (bool, [True, False]),
        (Colour, ["red", "blue"]),
        (Literal["a"], ["a"]),
        (Literal["a", 1], ["a", 1]),
        (bool | None, [True, False, None]),
        (int, None),
        (Colour | int, None),
    ],
)
def test_values_are_listed_where_there_is_an_end_of_them(hint: Any, values: Any):
    assert listed(schema(hint, "validation")) == values


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (str, True),
        (str | None, True),
        (int, False),
        (date, False),
        (Colour, False),
        (Literal["a"], False),
        (str | int, False),
        (None, False),
        (Any, False),
    ],
)
def test_text_is_what_takes_any_text_and_nothing_else(hint: Any, text: bool):
    assert is_text(schema(hint, "validation")) is text


class State(BaseModel):
    colour: Colour = Colour.RED
    points: list[Point] = []
    day: date | None = None
    word: str = ""
    count: int = 0


def agent(writes: str, **more: Any) -> NodeSpec:
    schemas = inline_refs(State.model_json_schema())["properties"]
    return NodeSpec(name="n", kind="agent", writes=writes, schema_of=schemas.get(writes, {}), **more)


def result(content: str, **more: Any) -> ToolResult:
    return ToolResult(call_id="c", name="n", status="ok", content=content, **more)


@pytest.mark.parametrize(
    ("node", "content", "value"),
    [
        (agent("colour"), "blue", "blue"),
        (agent("colour"), ' "Blue". ', "blue"),
        (agent("colour"), "**blue**", "blue"),
        (agent("points"), '```json\n[{"x": 1}]\n```', [{"x": 1, "y": 0}]),
        (agent("day"), '"2026-05-01"', "2026-05-01"),
        (agent("day"), "2026-05-01", "2026-05-01"),
        (agent("day"), "", None),
        (agent("count"), "7", 7),
        (NodeSpec(name="n", kind="agent", writes="word", is_text=True), "7", "7"),
        (NodeSpec(name="n", kind="agent", writes="word", is_text=True), '"as it is"', '"as it is"'),
    ],
)
def test_an_answer_is_read_as_the_field_that_it_is_for(node: NodeSpec, content: str, value: Any):
    assert merged(State, {}, given(node, result(content), {}), {}) == {node.writes: value}


@pytest.mark.parametrize(
    ("node", "answer", "why"),
    [
        (agent("colour"), result("green"), "no value of colour"),
        (agent("count"), result("many"), "no value of count"),
        (agent("points"), result('[{"y": 1}]'), r"no value of points\.0\.x: Field required"),
        (agent("word"), result("a", size=70_000), "70,000 bytes, of which a part alone is kept"),
        (NodeSpec(name="n", kind="tool", spreads=["word"]), result("5"), "is no object"),
        (NodeSpec(name="n", kind="tool", spreads=["word"]), result("{}"), "has no 'word'"),
    ],
)
def test_an_answer_that_is_no_value_of_its_field_is_a_misfit(node: NodeSpec, answer: ToolResult, why: str):
    with pytest.raises(Misfit, match=why):
        merged(State, {}, given(node, answer, {}), {})


def test_a_reducer_is_given_both_as_their_own_type_and_what_it_makes_is_checked():
    def add(old: list[Point] | None, new: list[Point]) -> list[Point]:
        return [*(old or []), *new]

    node, reducers = agent("points"), {"points": add}
    first = merged(State, {}, given(node, result('[{"x": 1}]'), {}), reducers)
    assert first == {"points": [{"x": 1, "y": 0}]}
    second = merged(State, first, given(node, result('[{"x": 2}]'), {}), reducers)
    assert second == {"points": [{"x": 1, "y": 0}, {"x": 2, "y": 0}]}
    with pytest.raises(Misfit):
        merged(State, first, {"points": []}, {"points": lambda old, new: "broken"})


def test_a_person_writes_only_what_was_changed():
    node = NodeSpec(name="n", kind="approval", shows=["word", "count"])
    proposed = {"question": "?", "word": "a", "count": 1}
    assert given(node, result('{"word": "a", "count": 2}'), proposed) == {"count": 2}


def test_texts_have_values_in_place_of_names():
    values = {"word": "a {b}", "points": [{"x": 1}], "point": {"x": {"y": 2}}, "day": None}
    text = "{word} {points} {point.x.y}{day}{gone} {{word}} {input}"
    assert filled(text, values, "asked") == 'a {b} [{"x": 1}] 2 {word} asked'
    assert fields_of(text) == ["word", "points", "point", "day", "gone"]


@pytest.mark.parametrize("text", ["{0}", "{}", "{word!r}", "{word:>9}", "{word[0]}", "{word", "{a b}"])
def test_texts_name_values_in_one_way_alone(text: str):
    with pytest.raises(AgentError, match=r"^Text "):
        fields_of(text)
