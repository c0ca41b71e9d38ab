"""What is looked up before a run, in a conversation that has gone on before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from pathlib import Path

import pytest
from temporalio.testing import ActivityEnvironment

from perdure.activities.conversations import Conversations
from perdure.activities.memory import Recollection
from perdure.activities.stores import Store, open_store, run_owner, segments
from perdure.memory import Circle, notes_message
from perdure.messages import AssistantMessage, Compaction, Entry, Segment, UserMessage
from perdure.reports import RecallReport
from perdure.wire import RecallInput
from tests.unit.test_memory import fact

OLD, NEW = fact("old", "Ann likes Graz."), fact("new", "Ann likes Linz.", days=1)
HELLO = UserMessage(role="user", content="Hello")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with aclosing(open_store(f"sqlite:///{tmp_path / 'store.db'}")) as store:
        yield store


async def recall(store: Store, earlier: list[Entry] | None = None, query: str = "", limit: int = 10) -> RecallReport:
    """Return what a run of Ann's is told, after that conversation."""
    load = partial(segments.read, store)
    before: Segment | None = None
    for entry in earlier or ():
        before = await segments.write(store, run_owner("default", "a"), before, [entry])
    circle = Circle(agent="travel", user="ann", scopes=["user"])
    asked = RecallInput(circle=circle, query=query, before=before, limit=limit)
    return await ActivityEnvironment().run(Recollection(store, {}, Conversations(10**6, load), load).recall, asked)


async def test_facts_that_the_conversation_has_told_are_not_told_again(store: Store) -> None:
    await store.remember([OLD])
    first = await recall(store)
    assert first.message
    assert first.message.facts == ["old"]
    earlier: list[Entry] = [first.message, HELLO, AssistantMessage(role="assistant", text="Hi.")]
    assert await recall(store, earlier) == RecallReport()
    await store.remember([NEW])
    second = await recall(store, earlier)
    assert second.message
    assert second.message.facts == ["new"]


async def test_facts_that_are_shown_no_more_are_told_again(store: Store) -> None:
    await store.remember([OLD])
    earlier: list[Entry] = [notes_message([OLD]), HELLO, Compaction(role="compaction", covers=2, summary="They met.")]
    again = await recall(store, earlier)
    assert again.message
    assert again.message.facts == ["old"]


async def test_what_was_told_takes_no_room_from_what_was_not(store: Store) -> None:
    facts = [fact(f"f{n}", f"Ann has been to city {n}.", days=n) for n in range(6)]
    await store.remember(facts)
    earlier: list[Entry] = [notes_message(facts[3:])]
    report = await recall(store, earlier, query="Which city?", limit=2)
    assert report.message
    assert set(report.message.facts) == {"f2", "f1"}


async def test_a_conversation_that_the_store_has_lost_is_said_and_not_waited_for(store: Store) -> None:
    load = partial(segments.read, store)
    circle = Circle(agent="travel", user="ann", scopes=["user"])
    asked = RecallInput(circle=circle, before=Segment(ref="0" * 32, length=3, head="h"), limit=3)
    report = await ActivityEnvironment().run(Recollection(store, {}, Conversations(10**6, load), load).recall, asked)
    assert report.message is None
    assert "does not have blob" in report.problem
