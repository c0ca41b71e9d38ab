"""What a function's signature and docstring become for a model."""

import enum
from datetime import date
from typing import Annotated, Any, Literal, Optional, Union

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from perdure import ToolContext
from perdure.errors import ToolDefinitionError
from perdure.schemas import arguments_model, docstring_arguments, docstring_summary, inline_refs, parameters_schema


class Cabin(enum.Enum):
    ECONOMY = "economy"
    FIRST = "first"


class Leg(BaseModel):
    """One flight."""

    start: str
    end: str = Field(description="Where it lands.")


class Trip(BaseModel):
    legs: list[Leg]
    back: Leg | None = None


class Node(BaseModel):
    name: str
    children: list["Node"] = Field(default_factory=list["Node"])


class Even(BaseModel):
    odd: Optional["Odd"] = None


class Odd(BaseModel):
    even: Even | None = None


def schema_of(function, skip=None):
    return parameters_schema(arguments_model(function, skip))


def keys_of(node):
    """Return every key that occurs anywhere in a schema."""
    if isinstance(node, dict):
        return set(node) | {key for child in node.values() for key in keys_of(child)}
    return {key for child in node for key in keys_of(child)} if isinstance(node, list) else set()


def test_parameters_without_a_default_are_required_and_others_show_it():
    def find(city: str, nights: int = 2, price: float | None = None): ...

    assert schema_of(find) == {
        "type": "object",
        "additionalProperties": False,
        "required": ["city"],
        "properties": {
            "city": {"type": "string"},
            "nights": {"type": "integer", "default": 2},
            "price": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
        },
    }


def test_function_without_parameters_has_an_empty_object():
    def ping(): ...

    assert schema_of(ping) == {"type": "object", "properties": {}, "additionalProperties": False}


def test_annotated_text_beats_field_beats_docstring():
    def find(
        a: Annotated[str, "from the text"],
        b: Annotated[str, Field(description="from the field", max_length=3)],
        c: str,
        d: Annotated[int, Field(ge=1)],
        e: str = Field("x", description="from the default"),
    ):
        """Find.

        Args:
            a: not this
            b: not this
            c (str): from the docstring
            d: also from
                the docstring
            e: not this
        """

    told = schema_of(find)["properties"]
    assert {name: told[name]["description"] for name in told} == {
        "a": "from the text",
        "b": "from the field",
        "c": "from the docstring",
        "d": "also from the docstring",
        "e": "from the default",
    }
    assert told["b"]["maxLength"] == 3
    assert told["d"]["minimum"] == 1
    assert told["e"]["default"] == "x"


def test_enums_and_literals_become_lists_of_words():
    def find(cabin: Cabin, sort: Literal["price", "time"] = "price"): ...

    told = schema_of(find)["properties"]
    assert told["cabin"] == {"enum": ["economy", "first"], "type": "string"}
    assert told["sort"] == {"enum": ["price", "time"], "type": "string", "default": "price"}


@pytest.mark.reported(30)
def test_nested_models_and_lists_of_models_stand_in_place_without_refs_or_titles():
    def book(trip: Trip, more: list[Leg] | None = None): ...

    told = schema_of(book)
    assert not {"$ref", "$defs", "title"} & keys_of(told)
    leg = told["properties"]["trip"]["properties"]["legs"]["items"]
    assert leg["properties"] == {
        "start": {"type": "string"},
        "end": {"type": "string", "description": "Where it lands."},
    }
    assert told["properties"]["more"]["anyOf"][0]["items"]["required"] == ["start", "end"]
    assert not list(Draft202012Validator(told).iter_errors({"trip": {"legs": [{"start": "A", "end": "B"}]}}))
    assert list(Draft202012Validator(told).iter_errors({"trip": {"legs": [{"start": "A"}]}}))


def test_recursive_model_is_unrolled_so_that_three_levels_are_checked_and_deeper_ones_accepted():
    def show(root: Node): ...

    told = schema_of(show)
    assert not {"$ref", "$defs"} & keys_of(told)

    def at_depth(depth: int, leaf: Any) -> Any:
        return leaf if depth == 0 else {"name": "n", "children": [at_depth(depth - 1, leaf)]}

    valid = Draft202012Validator(told).is_valid
    assert valid({"root": at_depth(9, {"name": "leaf"})})
    assert not valid({"root": at_depth(2, {"no name": 1})})
    assert valid({"root": at_depth(3, {"no name": 1})})


def test_models_that_contain_each_other_end():
    def show(even: Even): ...

    assert not {"$ref", "$defs"} & keys_of(schema_of(show))


def test_parameter_named_title_or_ref_or_defs_is_no_keyword():
    def file(title: str, default: str, enum: int): ...

    assert set(schema_of(file)["properties"]) == {"title", "default", "enum"}
    raw = {"type": "object", "properties": {"$defs": {"type": "string"}, "title": {"title": "T", "type": "string"}}}
    assert inline_refs(raw) == raw


def test_data_inside_a_schema_is_left_as_it_is():
    raw = {
        "enum": [{"$ref": "#/nowhere", "title": "t"}],
        "const": {"$ref": "x"},
        "default": {"$ref": "x"},
        "examples": [{"$ref": "x"}],
    }
    assert inline_refs(raw) == raw


def test_keywords_beside_a_ref_are_kept_and_beat_it():
    raw = {
        "properties": {"a": {"$ref": "#/$defs/A", "description": "mine"}},
        "$defs": {"A": {"type": "string", "description": "its own"}},
    }
    assert inline_refs(raw) == {"properties": {"a": {"type": "string", "description": "mine"}}}


@pytest.mark.reported(30)
def test_refs_to_the_root_and_with_escapes_are_followed():
    raw = {"properties": {"x": {"$ref": "#/$defs/a~1b~0c"}}, "$defs": {"a/b~c": {"type": "integer"}}}
    assert inline_refs(raw) == {"properties": {"x": {"type": "integer"}}}
    whole = inline_refs({"type": "object", "properties": {"more": {"$ref": "#"}}})
    assert not {"$ref"} & keys_of(whole)


@pytest.mark.parametrize("ref", ["#/$defs/missing", "https://example.com/schema", "other.json#/A", "#/type/x"])
def test_ref_that_leads_nowhere_is_refused_by_name(ref):
    with pytest.raises(ToolDefinitionError, match="points to nothing") as caught:
        inline_refs({"type": "object", "properties": {"a": {"$ref": ref}}})
    assert ref in str(caught.value)


def test_context_parameter_is_not_shown():
    def find(ctx: ToolContext, city: str): ...

    assert set(schema_of(find, "ctx")["properties"]) == {"city"}


def positional(a: int, /): ...
def starred(*args: int): ...
def keywords(**options: int): ...
def untyped(a): ...
def unresolved(a: "Nowhere"): ...  # type: ignore[name-defined] # pyright: ignore[reportUndefinedVariable] # noqa: F821
def misspelt(a: "list[int"): ...  # type: ignore[valid-type] # pyright: ignore[reportGeneralTypeIssues] # noqa: F722
def unschemed(a: type): ...
def hidden(_a: int): ...
def foreign(a: Annotated[str, Field(pattern=r"\p{L}")]): ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (positional, "parameter 'a' has to be a plain named one"),
        (starred, "parameter 'args' has to be a plain named one"),
        (keywords, "parameter 'options' has to be a plain named one"),
        (untyped, "parameter 'a' needs a type"),
        (unresolved, "can't be resolved: name 'Nowhere' is not defined"),
        (misspelt, "can't be resolved: Forward reference must be an expression"),
        (unschemed, "no JSON Schema"),
        (hidden, "can't be called '_a'"),
        (foreign, "bad escape"),
    ],
)
def test_signature_that_no_schema_can_show_is_refused_by_name(function, said):
    with pytest.raises(ToolDefinitionError, match=said) as caught:
        arguments_model(function, None)
    said = str(caught.value)
    assert said.startswith(f"Tool {function.__name__!r}")
    assert said.endswith(".")
    assert "\n" not in said


def test_parameters_called_as_methods_of_models_make_no_noise():
    def save(copy: str, json: int, schema: bool = False, handle: Any = object()): ...  # noqa: B008

    told = schema_of(save)
    assert list(told["properties"]) == ["copy", "json", "schema", "handle"]
    assert told["required"] == ["copy", "json"]


def test_model_of_the_arguments_turns_json_into_the_functions_types():
    def book(trip: Trip, day: date, cabin: Cabin = Cabin.ECONOMY): ...

    model = arguments_model(book, None)
    given = model.model_validate({"trip": {"legs": []}, "day": "2026-01-02"})
    assert dict(given) == {"trip": Trip(legs=[]), "day": date(2026, 1, 2), "cabin": Cabin.ECONOMY}


def test_any_and_dict_parameters_take_any_json():
    def keep(value: Any, table: dict[str, Union[int, str]]): ...  # noqa: UP007

    told = schema_of(keep)["properties"]
    assert told["value"] == {}
    assert told["table"]["additionalProperties"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}


def test_docstring_is_read_up_to_its_first_section():
    doc = "Find flights.\n\nAll.\n\nArgs:\n    city: Where: to.\n        More.\n\n    day: When.\nReturns:\n    x: no"
    assert docstring_summary(doc) == "Find flights.\n\nAll."
    assert docstring_arguments(doc) == {"city": "Where: to. More.", "day": "When."}
    assert docstring_summary("") == ""
    assert docstring_arguments("One line.") == {}
