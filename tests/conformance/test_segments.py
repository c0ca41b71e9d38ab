"""Transcripts that are put away part by part."""

from functools import partial

import pytest

from perdure.activities.stores import segments, session_owner
from perdure.messages import Entry, Segment, UserMessage
from perdure.transcripts import Chain, pieces, put_away

OWNER = session_owner("default", "s")


def turn(number: int) -> list[Entry]:
    return [UserMessage(role="user", content=f"{number} {part}") for part in range(2)]


@pytest.fixture(autouse=True)
def four_at_once(monkeypatch):
    monkeypatch.setattr(segments, "MERGED", 4)


async def test_a_session_of_many_turns_is_read_in_a_few_pieces_and_is_the_same_whatever_was_put_together(store):
    before: Segment | None = None
    whole: list[Entry] = []
    chain = Chain()
    for number in range(1, 44):
        before = await segments.append(store, OWNER, before, turn(number))
        whole.extend(turn(number))
        chain.extend(whole)
        assert (before.length, before.head) == (len(whole), chain.head(len(whole)))
    found = [piece async for piece, _ in pieces(before, partial(segments.read, store))]
    assert len(found) == 2 + 2 + 3  # of 16 turns, 4 turns and one turn
    assert await put_away(before, partial(segments.read, store)) == whole
    assert await put_away(before, partial(segments.read, store), 70) == whole[70:]


async def test_what_a_run_has_put_away_by_itself_stays_as_it_is(store):
    before: Segment | None = None
    for number in range(1, 4):
        before = await segments.append(store, OWNER, before, turn(number))
    own = await segments.write(store, OWNER, before, turn(4))
    after = own
    for number in range(5, 11):
        after = await segments.append(store, OWNER, after, turn(number))
    found = [piece async for piece, _ in pieces(after, partial(segments.read, store))]
    assert own.ref in [piece.ref for piece in found]
    assert len(found) == 3 + 1 + 1 + 2
    read = await put_away(after, partial(segments.read, store))
    assert read == [entry for number in range(1, 11) for entry in turn(number)]
