"""What tools return, as a model gets to see it."""

import dataclasses
import enum
import json
from collections import OrderedDict, deque
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from perdure.parsing import parse_json
from perdure.results import LOCAL_LIMIT, as_text, clean, output_of_value, preview, report_of_value, short, words


class Flight(BaseModel):
    number: str
    leaves: date


@dataclasses.dataclass
class Hotel:
    name: str
    nights: int = 1


class Cabin(enum.Enum):
    FIRST = "first"


class Silent:
    def __repr__(self) -> str:
        raise RuntimeError


class Loud(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class Odd:
    def __repr__(self) -> str:
        return "Odd \ud83d"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is, “ja”", "as it is, “ja”"),
        ("", ""),
        (None, ""),
        (0, "0"),
        (False, "false"),
        ([], "[]"),
        ({"city": "上海"}, '{"city": "上海"}'),
        (Flight(number="MU1", leaves=date(2026, 1, 2)), '{"number": "MU1", "leaves": "2026-01-02"}'),
        ([Hotel("Lujiazui")], '[{"name": "Lujiazui", "nights": 1}]'),
        ((1, Cabin.FIRST), '[1, "first"]'),
        (Decimal("1.10"), '"1.10"'),
        (datetime(2026, 1, 1, tzinfo=UTC), '"2026-01-01T00:00:00Z"'),
        (timedelta(seconds=90), '"PT1M30S"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (Path("a/b"), '"a/b"'),
        (OrderedDict(a=deque([1])), '{"a": [1]}'),
        (b"\xff\x00", '"_wA="'),
        ({1: "a", None: "b"}, '{"1": "a", "None": "b"}'),
        ((n for n in (1, 2)), "[1, 2]"),
        (10**30, str(10**30)),
    ],
)
def test_whatever_pydantic_can_write_is_json_without_a_note(value, text):
    assert as_text(value) == (text, None)


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": float("-inf")}])
def test_numbers_beyond_json_are_null(value):
    text, note = as_text(value)
    assert "null" in text
    assert note is None


@pytest.mark.parametrize(
    ("value", "said", "kind"),
    [
        (SimpleNamespace(a=1), "namespace(a=1)", "SimpleNamespace"),
        ({"a": [SimpleNamespace(a=1)]}, "namespace(a=1)", "SimpleNamespace"),
        (Silent(), "<Silent>", "Silent"),
        ([Silent()], "<Silent>", "Silent"),
        (Odd(), "Odd ?", "Odd"),
        (lambda: 1, "<function", "function"),
    ],
)
def test_what_is_no_json_is_shown_as_text_with_a_note(value, said, kind):
    text, note = as_text(value)
    assert said in text
    assert note == f"The tool returned something that is not JSON ({kind}); it is shown as text."


def test_value_that_contains_itself_or_is_nested_too_deeply_is_shown_as_text():
    ring: list[object] = []
    ring.append(ring)
    deep: object = 1
    for _ in range(100_000):
        deep = [deep]
    for value in (ring, deep):
        text, note = as_text(value)
        assert text
        assert "(list)" in (note or "")
    while isinstance(deep, list):  # taken apart by hand: to be freed, it would be too deep as well
        deep = deep[0]


@pytest.mark.parametrize("value", ["half \ud83d emoji", {"a": "half \ud83d emoji"}, ["half \ud83d emoji"]])
def test_half_an_emoji_does_not_keep_a_result_from_being_written(value):
    text, note = as_text(value)
    assert "half ? emoji" in text
    assert note is None
    text.encode()


def test_generator_that_raises_is_shown_as_text():
    def rows():
        yield 1
        raise OSError

    text, note = as_text(rows())
    assert "generator" in text
    assert "(generator)" in (note or "")


@given(st.text(alphabet=st.characters(codec="utf-8")), st.integers(min_value=0, max_value=40))
def test_preview_is_the_longest_beginning_of_whole_characters_that_fits(text, limit):
    shown, size = preview(text, limit)
    whole = len(text.encode())
    assert text.startswith(shown)
    assert len(shown.encode()) <= limit
    assert size == (whole if whole > limit else None)
    if size is not None:
        assert len(text[: len(shown) + 1].encode()) > limit


def test_result_of_exactly_the_limit_is_whole():
    assert preview("上海", 6) == ("上海", None)
    assert preview("上海", 5) == ("上", 6)


@given(st.text(alphabet=st.sampled_from("a\0字\n"), max_size=80), st.integers(min_value=1, max_value=2_000))
def test_a_local_result_is_short_as_json_and_the_rest_is_kept(unit, times):
    text = unit * times
    output = output_of_value(text, "c", "t", 200_000, 1, local=True)
    content = output.report.result.content
    assert text.startswith(content)
    assert len(json.dumps(content, ensure_ascii=False).encode()) <= LOCAL_LIMIT
    assert output.whole == (None if content == text else text.encode())
    if output.whole:
        assert len(content.encode()) > LOCAL_LIMIT // 8


def test_report_carries_text_size_note_and_order():
    report = report_of_value("é" * 10, "c1", "find", 5, 3)
    result = report.result
    assert (result.call_id, result.name, result.status, result.execution_order) == ("c1", "find", "ok", 3)
    assert (result.content, result.size) == ("éé", 20)
    assert report_of_value(object(), "c1", "find", 99, None).result.note


def test_error_is_told_in_its_own_words_and_briefly():
    assert words(ValueError("no seat")) == "ValueError: no seat"
    assert words(Loud()) == "Loud"
    assert words(ValueError("half \ud83d")) == "ValueError: half ?"
    assert len(words(ValueError("x" * 10_000))) < 2_100
    assert short("x" * 10_000).endswith("…")
    assert short(3) == "3"
    assert clean("\ud800a") == "?a"


def test_error_of_arguments_names_each_field():
    with pytest.raises(ValueError) as caught:
        Flight.model_validate({"leaves": "soon"})
    assert words(caught.value) == (
        "number: Field required; leaves: Input should be a valid date or datetime, input is too short"
    )


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize(
    "text", ["[NaN]", "-Infinity", "1e999", '{"a": -1e999}', "{", "", "'a'", nested(102), nested(100_000), b"\xff"]
)
def test_json_from_outside_that_could_not_be_written_again_is_refused(text):
    with pytest.raises(ValueError):
        parse_json(text)


def test_json_from_outside_is_taken_as_it_is_but_for_half_emojis():
    assert parse_json('{"a": [1, 1.5, "\\ud83d\\ude00", null]}') == {"a": [1, 1.5, "😀", None]}
    assert parse_json(b'"\\ud83d"') == "?"
    assert json.dumps(parse_json(nested(100))).startswith("[[[[")
