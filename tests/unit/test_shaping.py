"""What of a result reaches the model: fields, items, characters."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import tool
from perdure.errors import ToolDefinitionError
from perdure.messages import content_hash
from perdure.policies import Shaping
from perdure.results import output_of_value, render_result
from perdure.shaping import trim
from perdure.tools import Tool

FLIGHTS = {
    "flights": [{"id": n, "price": {"cny": n * 100, "usd": n}, "legs": [{"from": "PEK"}] * n} for n in range(1, 5)],
    "query": {"to": "SHA"},
    "took": 3,
}


def shaped(value, *, undoable=False, **shaping):
    """Return the output of a tool, as the activity makes it."""
    return output_of_value(value, "c", "t", 1_000, 1, Shaping(**shaping), undoable=undoable)


def content(value, **shaping):
    result = shaped(value, **shaping).report.result
    return json.loads(result.content)


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        (["took"], {"took": 3}),
        (["flights.id"], {"flights": [{"id": n} for n in range(1, 5)]}),
        (["flights.price.cny", "took"], {"flights": [{"price": {"cny": n * 100}} for n in range(1, 5)], "took": 3}),
        (["query", "query.to"], {"query": {"to": "SHA"}}),
        (["flights.id", "flights"], {"flights": FLIGHTS["flights"]}),
        (["took.hours"], {"took": 3}),
        (["none", "query.none"], {"query": {}}),
    ],
)
def test_fields_are_kept_along_their_paths_through_objects_and_lists(fields, kept):
    assert content(FLIGHTS, fields=fields) == kept


def test_fields_of_a_list_are_those_of_its_objects():
    assert content([{"a": 1, "b": 2}, {"b": 3}, 4], fields=["a"]) == [{"a": 1}, {}, 4]


def test_the_order_is_that_of_the_result():
    assert list(content({"b": 1, "a": 2, "c": 3}, fields=["a", "b"])) == ["b", "a"]


def test_json_in_a_string_is_shaped_as_well():
    assert content(json.dumps(FLIGHTS), fields=["took"]) == {"took": 3}


@pytest.mark.parametrize("value", ["plain text", 5, None, "{broken"])
def test_what_has_no_fields_is_shown_as_it_is_and_says_so(value):
    result = shaped(value, fields=["a"]).report.result
    assert result.content == ("" if value is None else str(value))
    assert "could not be picked" in (result.note or "")
    assert not shaped(value, limit=3).report.result.note
    assert not shaped(value, max_chars=9).report.result.note


def test_items_beyond_the_limit_are_counted_and_kept():
    assert shaped(list(range(150)), limit=150).whole is None
    output = shaped(list(range(250)), limit=3)
    result, whole = output.report.result, json.dumps(list(range(250))).encode()
    assert (result.content, result.size, output.whole) == ("[0, 1, 2]", len(whole), whole)
    kept = result.model_copy(update={"ref": "r"})
    assert render_result(kept) == (
        f'[0, 1, 2]\n[Trimmed: 3 of 250 items; 9 of {result.size} bytes are shown; read_result("r") gives all.]'
    )
    assert 'read_result("r")' not in render_result(result)


def test_lists_inside_are_limited_too_and_named_by_their_paths():
    _, _, told = trim(FLIGHTS, Shaping(limit=2))
    assert told == "flights: 2 of 4 items"
    shown, _, told = trim(FLIGHTS, Shaping(limit=1))
    assert told == "flights: 1 of 4 items"
    assert shown == {**FLIGHTS, "flights": [{"id": 1, "price": {"cny": 100, "usd": 1}, "legs": [{"from": "PEK"}]}]}
    _, _, told = trim({"a": [[1, 2, 3], [1, 2]], "b": [{"c": [1, 2, 3]}, {"c": [1, 2, 3, 4]}]}, Shaping(limit=2))
    assert told == "a: 2 of 3 items; b.c: 2 of up to 4 items each"
    _, _, told = trim({str(n): [1, 2] for n in range(7)}, Shaping(limit=1))
    assert str(told).endswith("4: 1 of 2 items; and 2 more lists")


def test_what_is_left_out_by_fields_is_not_in_what_can_be_read_either():
    output = shaped([{"a": 1, "secret": 2}] * 9, fields=["a"], limit=2)
    assert output.whole == json.dumps([{"a": 1}] * 9).encode()


def test_characters_beyond_the_limit_are_cut_and_kept():
    output = shaped("上海浦东", max_chars=2)
    result = output.report.result
    assert (result.content, result.size, result.trimmed) == ("上海", 12, None)
    assert output.whole == "上海浦东".encode()
    assert shaped("上海", max_chars=2).whole is None
    assert shaped("上海浦东", max_chars=3).report.result.content == "上海浦"


def test_all_three_at_once():
    result = shaped(FLIGHTS, fields=["flights.id"], max_chars=12).report.result
    assert result.content == '{"flights": '
    output = shaped(FLIGHTS, fields=["flights.id"], limit=2, max_chars=20)
    assert (output.report.result.content, output.report.result.trimmed) == (
        '{"flights": [{"id": ',
        "flights: 2 of 4 items",
    )
    assert json.loads(output.whole or b"") == {"flights": [{"id": n} for n in range(1, 5)]}


def test_what_a_compensation_needs_is_what_was_returned():
    assert json.loads(shaped(FLIGHTS, fields=["took"], undoable=True).returned or b"") == FLIGHTS
    assert shaped(FLIGHTS, fields=["took"]).returned is None
    assert shaped(FLIGHTS, undoable=True).returned is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=20,
)
PATHS = st.lists(st.sampled_from(["a", "b", "a.b", "b.a.c", "c.c"]), max_size=3)


@given(VALUES, PATHS, st.none() | st.integers(min_value=1, max_value=3))
def test_shaping_only_leaves_out_and_says_when_it_does(value, fields, limit):
    shown, whole, told = trim(value, Shaping(fields=fields, limit=limit))
    assert (told is None) == (shown == whole)
    assert trim(whole, Shaping(fields=fields)) == (whole, whole, None)
    assert len(json.dumps(shown)) <= len(json.dumps(whole)) <= len(json.dumps(value))


# -- declared --------------------------------------------------------------------------------------------------


def made(**options):
    @tool(**options)
    def act() -> str:
        """Act."""
        return ""

    return act


def test_a_declaration_is_data_and_an_older_one_keeps_its_hash():
    spec = made(fields=("a", "b.c"), limit=3, max_chars=9).spec
    assert spec.shaping == Shaping(fields=["a", "b.c"], limit=3, max_chars=9)
    assert content_hash(made().spec) == content_hash(made(fields=[], limit=None).spec)
    assert content_hash(made().spec) != content_hash(spec)
    assert type(spec).model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fields": "id"}, "fields has to be a list of names, such as ['id']"),
        ({"fields": [1]}, "option fields.0: Input should be a valid string"),
        ({"fields": ["a..b"]}, "option fields.0"),
        ({"fields": [""]}, "option fields.0"),
        ({"fields": 5}, "Tool 'act'"),
        ({"limit": 0}, "option limit: Input should be greater than or equal to 1"),
        ({"max_chars": -1}, "option max_chars"),
        ({"shape": "short"}, "shape has to be a function, not 'short'"),
        ({"shape": lambda: None}, "shape is called with what the tool returned, which does not fit"),
    ],
)
def test_a_bad_declaration_is_refused_in_one_sentence(options, said):
    with pytest.raises(ToolDefinitionError) as caught:
        made(**options)
    assert said in str(caught.value)
    assert str(caught.value).endswith(".")


def test_a_function_can_not_shape_what_is_made_elsewhere():
    with pytest.raises(ToolDefinitionError, match="on another worker, where shape can't be; use fields"):
        Tool.remote(activity="a", task_queue="q", parameters={}, description="A.", shape=len)
