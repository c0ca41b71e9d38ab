"""Tool names, schemas, call ids, arguments and usage, levelled across model APIs."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import ModelError
from perdure.messages import (
    AssistantMessage,
    ImagePart,
    TextPart,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
)
from perdure.models import ModelReply, ModelRequest, RawCall
from perdure.models.dialect import (
    Names,
    arguments_text,
    function,
    function_parameters,
    level_calls,
    level_ids,
    sanitise,
    tool_choice,
    usage_or_estimate,
)
from perdure.policies import ModelSettings, ToolSpec

ACCEPTED = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def spec(name: str) -> ToolSpec:
    return ToolSpec(name=name, description="d", parameters={"type": "object", "properties": {}})


def asked(*messages, tools=(), **options) -> ModelRequest:
    settings = options.pop("settings", ModelSettings())
    return ModelRequest("", messages, [spec(name) for name in tools], settings, **options)


# -- names


@given(st.lists(st.text(min_size=1), unique=True, max_size=8))
def test_any_names_become_acceptable_different_and_map_back(names):
    mapping = Names(names)
    wires = [mapping.wire(name) for name in names]
    assert all(ACCEPTED.fullmatch(wire) for wire in wires)
    assert len(set(wires)) == len(wires)
    assert [mapping.own(wire) for wire in wires] == names


def test_an_acceptable_name_stays_as_it_is_whatever_others_become():
    names = Names(["book flight", "book_flight"])
    assert names.wire("book_flight") == "book_flight"
    assert names.wire("book flight").startswith("book_flight_")


def test_names_that_differ_only_at_their_end_stay_different_when_shortened():
    names = Names(["x" * 80 + "a", "x" * 80 + "b"])
    assert names.wire("x" * 80 + "a") != names.wire("x" * 80 + "b")


def test_a_name_is_spelt_the_same_whatever_other_tools_there_are():
    assert Names(["x" * 80]).wire("x" * 80) == Names(["y" * 80, "x" * 80]).wire("x" * 80)


@pytest.mark.parametrize(
    "written", ["book flight", "book_flight", "Book Flight", "book-flight", "functions.book_flight"]
)
def test_a_slightly_different_spelling_is_the_tool(written):
    assert Names(["book flight", "cancel"]).own(written) == "book flight"


def test_a_spelling_that_could_be_two_tools_is_left_unknown():
    assert Names(["get_user", "get-user"]).own("Get User") == "Get User"


def test_a_name_of_no_tool_is_made_acceptable_and_left_as_written():
    names = Names(["a"])
    assert names.own("no such tool!") == "no such tool!"
    assert ACCEPTED.fullmatch(names.wire("no such tool!"))
    assert ACCEPTED.fullmatch(names.wire(""))


def test_a_name_without_any_latin_letter_still_gets_one():
    assert sanitise("查航班") == "tool"
    names = Names(["查航班", "订航班"])
    assert names.own(names.wire("订航班")) == "订航班"


# -- schemas


def test_the_schema_is_copied_never_changed():
    schema = {"type": "object", "properties": {"a": {"type": "array", "$comment": "x"}}, "$schema": "https://x"}
    before = json.dumps(schema)
    function_parameters(schema)
    assert json.dumps(schema) == before


def test_a_plain_schema_is_sent_as_it_is():
    schema = {
        "type": "object",
        "properties": {"day": {"type": "string", "enum": ["mon", "tue"], "description": "When", "default": "mon"}},
        "required": ["day"],
        "additionalProperties": False,
    }
    assert function_parameters(schema) == schema


def test_what_servers_refuse_is_said_otherwise():
    levelled = function_parameters(
        {"$schema": "x", "type": "object", "properties": {"a": {"type": "array"}, "b": True}}
    )
    assert levelled == {"type": "object", "properties": {"a": {"type": "array", "items": {}}, "b": {}}}
    assert function_parameters({}) == {"type": "object", "properties": {}}


@pytest.mark.parametrize("pattern", [r"\d+", "abc", r"^\d{4}$", "^(?!x).*$", "^abc", r"^5\$"])
def test_a_pattern_that_grammars_cannot_express_moves_into_the_description(pattern):
    field = {"type": "string", "pattern": pattern, "description": "A code."}
    levelled = function_parameters({"type": "object", "properties": {"pattern": field}})["properties"]["pattern"]
    assert "pattern" not in levelled
    assert levelled["description"] == f"A code. Has to match the regular expression {pattern}"


def test_a_simple_pattern_stays():
    field = {"type": "string", "pattern": "^[A-Z]{3}$"}
    assert function_parameters({"type": "object", "properties": {"a": field}})["properties"]["a"] == field


def test_a_combination_at_the_top_becomes_properties_and_words():
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "anyOf": [{"required": ["a"]}, {"properties": {"b": {"type": "integer"}}, "required": ["b"]}],
    }
    levelled = function_parameters(schema)
    assert "anyOf" not in levelled
    assert levelled["properties"] == {"b": {"type": "integer"}, "a": {"type": "string"}}
    assert '"required":["b"]' in levelled["description"]


def test_properties_named_like_keywords_are_left_alone():
    schema = {"type": "object", "properties": {"$id": {"type": "string"}, "not": {"type": "string"}, "items": {}}}
    assert function_parameters(schema) == schema


def test_enumerated_values_are_never_taken_for_schemas():
    schema = {"type": "object", "properties": {"a": {"enum": [True, {"type": "array"}], "default": {"type": "array"}}}}
    assert function_parameters(schema) == schema


def test_a_description_over_the_limit_goes_on_in_the_parameters():
    words = " ".join(f"word{n}" for n in range(300))
    levelled = function("f", words, {"type": "object", "properties": {}, "description": "All of it."})
    first, rest = levelled["description"], levelled["parameters"]["description"]
    assert len(first) <= 1024
    joined = f"{first.removesuffix(' …')} {rest.removeprefix('(continued) ')}"
    assert joined == f"{words} All of it."


def test_a_description_without_spaces_is_cut_all_the_same():
    assert len(function("f", "x" * 3000, {})["description"]) <= 1024


# -- calls


def test_a_usable_id_is_kept_and_others_are_made_up():
    assert level_ids(["a", None, "", "a", 7, "b"], ["b"]) == ["a", "call_3", "call_4", "call_5", "call_6", "call_7"]


@given(
    st.lists(st.one_of(st.none(), st.sampled_from(["", "a", "b", "call_1", "call_2", "call_3"]))), st.sets(st.text())
)
def test_ids_are_always_unique_and_always_the_same(written, taken):
    ids = level_ids(written, taken)
    assert len(set(ids)) == len(ids) == len(written)
    assert not set(ids) & taken
    assert ids == level_ids(written, taken)


def test_ids_that_may_come_again_are_marked_once_replies_are_hidden():
    random = "call_9aKx02LmQzP4"
    assert level_ids([random, "call_0", None, "functions.look:0"], [], "12") == [
        random,
        "call_0_12",
        "call_4_12",
        "functions.look:0_12",
    ]
    assert level_ids(["call_0"], ["call_0_12"], "13") == ["call_0_13"]


def test_an_id_already_in_the_conversation_is_replaced():
    before = AssistantMessage(role="assistant", calls=[ToolCall(id="x", name="a")])
    calls = level_calls([("x", "a", {"n": 1}), ("y", "a", None)], asked(before, tools=["a"]), Names(["a"]))
    assert calls == [RawCall("call_3", "a", '{"n":1}'), RawCall("y", "a", "{}")]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ({"a": 1}, '{"a":1}'),
        (None, "{}"),
        ("", "{}"),
        ("  ", "{}"),
        ('{"a": 1}', '{"a": 1}'),
        ('{"a": ', '{"a": '),
        ([1], "[1]"),
        (3, "3"),
    ],
)
def test_arguments_become_text_however_they_were_written(written, text):
    assert arguments_text(written) == text


# -- tool choice


def test_required_and_a_name_hold_for_the_first_turn_only():
    for chosen, first in (("required", "required"), ("book flight", "book_flight"), ("auto", "auto")):
        settings, names = ModelSettings(tool_choice=chosen), Names(["book flight"])
        assert tool_choice(asked(tools=["book flight"], settings=settings, first=True), names) == first
        later = tool_choice(asked(tools=["book flight"], settings=settings), names)
        assert later == ("auto" if chosen == "auto" else None)


def test_an_answer_is_asked_for_by_choosing_no_tool():
    request = asked(tools=["a"], settings=ModelSettings(tool_choice="required"), first=True, answer_only=True)
    assert tool_choice(request, Names(["a"])) == "none"


def test_without_tools_nothing_is_chosen():
    assert tool_choice(asked(settings=ModelSettings(tool_choice="required"), first=True), Names([])) is None


def test_choosing_a_tool_that_is_not_there_is_one_clear_sentence():
    with pytest.raises(ModelError, match="tool_choice='fly' is not the name of one of the tools") as caught:
        tool_choice(asked(tools=["a"], settings=ModelSettings(tool_choice="fly"), first=True), Names(["a"]))
    assert caught.value.kind == "bad_request"


# -- usage


def test_usage_as_reported_is_kept():
    usage = usage_or_estimate({"input": 10, "cached": 4, "output": 0, "reasoning": None}, asked(), ModelReply())
    assert usage == Usage(input_tokens=10, cached_tokens=4, output_tokens=0)


def test_missing_usage_is_estimated_at_four_characters_a_token_and_flagged():
    request = asked(
        UserMessage(role="user", content="x" * 40),
        AssistantMessage(role="assistant", calls=[ToolCall(id="1", name="abcd", arguments={})]),
        ToolMessage(role="tool", result=ToolResult(call_id="1", name="abcd", status="ok", content="y" * 34)),
    )
    usage = usage_or_estimate({}, request, ModelReply(text="z" * 9, calls=[RawCall("1", "abc", "{}")]))
    assert usage == Usage(input_tokens=20, output_tokens=4, estimated=True)


def test_a_prompt_of_zero_tokens_counts_as_left_out():
    usage = usage_or_estimate({"input": 0, "output": 3}, asked(UserMessage(role="user", content="x" * 8)), ModelReply())
    assert usage == Usage(input_tokens=2, output_tokens=3, estimated=True)


def test_an_image_is_not_counted_by_the_length_of_its_data():
    image = ImagePart(kind="image", url="data:image/png;base64," + "A" * 100_000)
    message = UserMessage(role="user", content=[TextPart(kind="text", text="Look"), image])
    assert usage_or_estimate({}, asked(message), ModelReply()).input_tokens == 1001
