"""A long text in pages: whole characters, nothing twice, nothing left out."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.paging import MOST, find, fitting, page

TEXT = st.text(alphabet=st.characters(codec="utf-8"), min_size=1)


@given(TEXT, st.integers(min_value=1, max_value=9))
@example("多多", 1)
def test_pages_read_one_after_the_other_are_the_text(text, limit):
    data, read = text.encode(), ""
    offset: int | None = 0
    while offset is not None:
        part = page(data, offset, limit)
        assert part.text
        assert len(part.text.encode()) <= max(limit, 4)
        read, offset = read + part.text, part.then
    assert read == text


@given(TEXT, st.integers(min_value=0, max_value=50), st.integers(min_value=1, max_value=9))
def test_whatever_the_offset_there_are_whole_characters(text, offset, limit):
    assert "\ufffd" not in page(text.replace("\ufffd", "").encode(), offset, limit).text


def test_a_page_says_which_part_it_is_and_where_the_next_begins():
    first = page(b"abcdef", 1, 3)
    assert (first.text, first.where, first.then) == ("bcd", "Bytes 1 to 4 of 6.", 4)
    last = page(b"abcdef", 4, 3)
    assert (last.text, last.where, last.then) == ("ef", "Bytes 4 to 6 of 6, its end.", None)


def test_a_page_has_a_largest_size():
    assert len(page(b"a" * MOST * 2, 0, MOST * 2).text) == MOST


@given(TEXT, TEXT.filter(str.strip), st.integers(min_value=0, max_value=20))
def test_a_place_that_is_found_is_where_it_is_said_to_be(before, words, offset):
    data = f"{before}{words}".encode()
    found = find(data, words, min(offset, len(before.encode())))
    assert found.text
    for line in re.findall(r"^Byte (\d+): ", found.text, re.MULTILINE)[:1]:
        assert re.match(re.escape(words), data[int(line) :].decode(), re.IGNORECASE)


def test_words_are_found_in_whatever_case_with_what_is_around_them():
    found = find(f"{'x' * 500}Flight MU511{'y' * 500}".encode(), "flight mu", 10)
    assert found.text == f"Byte 500: …{'x' * 120}Flight MU511{'y' * 117}…"
    assert (found.where, found.then) == ("1 of 1 places from byte 10 on.", None)


def test_many_places_are_returned_a_few_at_a_time():
    data = "多 key, ".encode() * 25
    seen, rounds = set[str](), 0
    offset: int | None = 0
    while offset is not None:
        found = find(data, "key", offset)
        seen |= set(re.findall(r"^Byte \d+", found.text, re.MULTILINE))
        offset, rounds = found.then, rounds + 1
    assert (len(seen), rounds) == (25, 3)
    assert find(data, "key", 0).where == "10 of 25 places from byte 0 on."


@pytest.mark.parametrize("words", ["(", "no such thing"])
def test_words_that_are_nowhere_are_said_to_be_nowhere(words):
    found = find(b"some text", words, 2)
    assert (found.text, found.where, found.then) == ("", f"{words!r} is not in bytes 2 to 9 of 9.", None)


@given(st.integers(min_value=256, max_value=2_000_000))
def test_a_page_leaves_room_in_any_window_and_is_worth_a_call(window):
    assert 500 <= fitting(window) <= 16_384
    assert fitting(window) <= max(window * 3 / 4, 500)
