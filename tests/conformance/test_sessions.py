"""Conversations over many runs."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.activities.stores import Session, Turn, open_store, session_owner
from perdure.messages import Segment

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def session(name="s", minutes=0, **more):
    at = NOON + timedelta(minutes=minutes)
    values: dict[str, Any] = {"namespace": "default", "agent": "travel", "created_at": at, "updated_at": at, **more}
    return Session(name=name, **values)


def turn(number=1, run_id="", **more):
    return Turn(number=number, run_id=run_id or f"r{number}", status="completed", at=NOON, **more)


async def test_a_session_comes_back_whole_as_its_last_turn_left_it(store):
    whole = session(
        before=Segment(ref="a" * 32, length=4, head="h"), variables={"city": "北京\x00"}, user="ada", tenant="acme"
    )
    assert await store.end_turn(whole, turn(input="Hi\x00", text="Hello"))
    assert await store.session("default", "s") == whole.model_copy(update={"turns": 1})
    assert await store.turns("default", "s") == [turn(input="Hi\x00", text="Hello")]


async def test_one_that_was_never_used_is_none(store):
    assert await store.session("default", "s") is None
    assert await store.turns("default", "s") == []
    assert await store.sessions("default") == []
    assert not await store.drop_session("default", "s")


async def test_a_turn_that_ends_again_changes_nothing(store):
    assert await store.end_turn(session(), turn())
    assert await store.end_turn(session(minutes=1, variables={"n": 2}), turn(2))
    assert not await store.end_turn(session(minutes=9), turn())
    assert not await store.end_turn(session(minutes=9), turn(2))
    kept = await store.session("default", "s")
    assert kept
    assert (kept.turns, kept.variables, kept.created_at, kept.updated_at) == (
        2,
        {"n": 2},
        NOON,
        NOON + timedelta(minutes=1),
    )


async def test_the_last_turn_is_replaced_where_its_run_was_resumed_and_ended_once_more(store):
    assert await store.end_turn(session(), turn())
    assert await store.end_turn(session(minutes=1), turn(2, text="half"))
    again = turn(2, text="whole").model_copy(update={"at": NOON + timedelta(minutes=5)})
    late = turn(1, text="late").model_copy(update={"at": NOON + timedelta(minutes=5)})
    assert not await store.end_turn(session(minutes=5), late)
    assert await store.end_turn(session(minutes=5, variables={"n": 3}), again)
    assert not await store.end_turn(session(minutes=5, variables={"n": 4}), again)
    kept = await store.session("default", "s")
    assert kept
    assert (kept.turns, kept.variables, [one.text for one in await store.turns("default", "s")]) == (
        2,
        {"n": 3},
        ["", "whole"],
    )


async def test_a_turn_after_a_missing_one_is_refused_and_nothing_kept(store):
    with pytest.raises(ValueError, match="Turn 2 of session 's' can't follow turn 0"):
        await store.end_turn(session(), turn(2))
    assert await store.session("default", "s") is None
    assert await store.sessions("default") == []


@pytest.mark.parametrize("number", [1, 2])
async def test_of_two_turns_that_end_at_once_one_is_kept(url, number):
    stores = [open_store(url) for _ in range(4)]
    if number > 1:
        await stores[0].end_turn(session(), turn())
    said = [s.end_turn(session(variables={"run": at}), turn(number, run_id=f"run{at}")) for at, s in enumerate(stores)]
    kept = await asyncio.gather(*said)
    assert sorted(kept) == [False, False, False, True]
    after = await stores[0].session("default", "s")
    assert after
    assert after.variables == {"run": kept.index(True)}
    assert [t.run_id for t in await stores[0].turns("default", "s")][-1] == f"run{kept.index(True)}"
    await asyncio.gather(*(s.aclose() for s in stores))


async def test_sessions_are_listed_the_last_used_first(store):
    await store.end_turn(session("a", 1), turn())
    await store.end_turn(session("b", 3, agent="other"), turn())
    await store.end_turn(session("c", 2), turn())
    await store.end_turn(session("d", namespace="elsewhere"), turn())
    assert [s.name for s in await store.sessions("default")] == ["b", "c", "a"]
    assert [s.name for s in await store.sessions("default", agent="travel", limit=1)] == ["c"]


async def test_a_dropped_session_is_forgotten_with_what_it_owns(store):
    ref = await store.put(b"transcript", session_owner("default", "s"))
    await store.end_turn(session(), turn())
    await store.end_turn(session("t"), turn())
    assert await store.drop_session("default", "s")
    assert not await store.drop_session("default", "s")
    assert [s.name for s in await store.sessions("default")] == ["t"]
    assert await store.turns("default", "s") == []
    left = await store.session("default", "s")
    assert left
    assert (left.turns, left.agent, left.before, bool(left.deleted_at)) == (1, "", None, True)
    await store.sweep(datetime.now(UTC) + timedelta(hours=1))
    with pytest.raises(LookupError):
        await store.get(ref)


async def test_a_session_of_the_same_name_goes_on_counting_after_the_deleted_one(store):
    await store.end_turn(session(), turn())
    await store.drop_session("default", "s")
    assert not await store.end_turn(session(minutes=1), turn())  # told late, of what was deleted
    assert await store.end_turn(session(minutes=9, agent="other"), turn(2))
    kept = await store.session("default", "s")
    assert kept
    assert (kept.turns, kept.agent, kept.created_at, kept.deleted_at) == (2, "other", NOON + timedelta(minutes=9), None)
    assert [one.number for one in await store.turns("default", "s")] == [2]


async def test_a_session_is_listed_from_the_beginning_of_its_first_turn_on(store):
    await store.begin_session(session(user="ada"))
    [listed] = await store.sessions("default", agent="travel")
    assert (listed.name, listed.user, listed.turns, listed.begun) == ("s", "ada", 0, True)
    assert await store.end_turn(session(minutes=1), turn())
    await store.begin_session(session(agent="other", minutes=2))  # told late
    [listed] = await store.sessions("default")
    assert (listed.agent, listed.turns, listed.begun) == ("travel", 1, False)


async def test_a_session_that_was_deleted_is_listed_again_when_it_is_begun_again(store):
    await store.end_turn(session(), turn())
    await store.drop_session("default", "s")
    await store.begin_session(session(minutes=9))
    [listed] = await store.sessions("default")
    assert (listed.begun, listed.turns, listed.deleted_at) == (True, 1, None)
    assert not await store.end_turn(session(minutes=9), turn())
    assert await store.end_turn(session(minutes=9), turn(2))
    assert await store.drop_session("default", "s")
    await store.begin_session(session(minutes=10))
    assert await store.drop_session("default", "s")
    assert await store.sessions("default") == []
    left = await store.session("default", "s")
    assert left
    assert left.turns == 2
