"""What is remembered reaches the model: before a run, and by its tool."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from perdure import Memory, Task
from perdure.activities.stores import Store, open_store, store_url
from perdure.memory import Fact
from perdure.messages import UserMessage

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.fixture
async def store(stage: Any) -> AsyncIterator[Store]:
    """The store that the stage's workers use."""
    async with aclosing(open_store(store_url(stage.client.settings))) as store:
        yield store


@pytest.fixture
def ann() -> str:
    """A user whom no other test knows."""
    return f"ann-{uuid4().hex[:8]}"


def fact(text: str, subject: str, **fields: Any) -> Fact:
    values = {"namespace": "default", "agent": "subject", "scope": "user", "source": "run-1", "at": NOON}
    return Fact.model_validate({"id": uuid4().hex, "text": text, "subject": subject, **values, **fields})


def seen(stage: Any, request: int = 0) -> str:
    """Return what the model was shown of the conversation."""
    return "\n".join(str(message.content) for message in stage.model.requests[request].messages)


async def test_the_model_is_told_what_is_remembered_of_the_user_and_of_nobody_else(
    stage: Any, store: Store, ann: str
) -> None:
    window, aisle = fact("Prefers window seats.", ann), fact("Prefers aisle seats.", f"{ann}-2")
    await store.remember([window, aisle, fact("Flies to Oslo.", ann, tenant="acme")])
    handle = await stage.start(["Booked."], memory=True, task=Task(input="Book a flight.", user=ann))
    done = await stage.end(handle)
    notes, said = stage.model.requests[0].messages
    assert (notes.source, notes.facts, said.content) == ("runtime", [window.id], "Book a flight.")
    assert "2026-01-02" in notes.content
    assert "run run-1" in notes.content
    assert "aisle" not in seen(stage)
    assert "Oslo" not in seen(stage)
    (told,) = done.told("recalled")
    assert (told.facts, told.problem) == (1, "")


@pytest.mark.parametrize("user", ["", "nobody-knows"])
async def test_a_run_without_a_user_or_without_notes_is_told_nothing(stage: Any, user: str) -> None:
    done = await stage.end(await stage.start(["Hello."], memory=True, task=Task(input="Hi.", user=user)))
    assert [message.content for message in stage.model.requests[0].messages] == ["Hi."]
    assert len(done.told("recalled")) == bool(user)


async def test_what_fits_the_input_is_told_where_there_is_not_room_for_all(stage: Any, store: Store, ann: str) -> None:
    old = fact("Is allergic to peanuts.", ann, at=NOON - timedelta(days=9))
    await store.remember([old, *(fact(f"Has been to city {n}.", ann) for n in range(5))])
    task = Task(input="May I eat peanuts?", user=ann)
    await stage.end(await stage.start(["No."], memory=Memory(recall=2), task=task))
    assert "peanuts" in str(stage.model.requests[0].messages[0].content)
    assert len(stage.model.requests[0].messages[0].facts) == 2


async def test_the_model_can_search_what_is_remembered(stage: Any, store: Store, ann: str) -> None:
    await store.remember([fact("Is allergic to peanuts.", ann), fact("Is allergic to peanuts, too.", f"{ann}-2")])
    script = [{"calls": [{"name": "search_memory", "arguments": {"query": "peanut"}}]}, "No peanuts."]
    task = Task(input="What may I eat?", user=ann)
    done = await stage.end(await stage.start(script, memory=Memory(recall=0), approval="always", task=task))
    assert [tool.name for tool in stage.model.requests[0].tools] == ["search_memory"]
    (result,) = done.results
    assert result.status == "ok"
    notes = json.loads(result.content)["notes"]
    assert notes == [
        {"note": "Is allergic to peanuts.", "about": f"user {ann}", "date": "2026-01-02", "source": "run-1"}
    ]


async def test_a_store_that_is_down_costs_a_run_what_is_remembered_and_not_its_end(stage: Any, ann: str) -> None:
    script = [{"calls": [{"name": "search_memory", "arguments": {"query": "seat"}}]}, "I can't look that up."]
    agent = stage.agent(script, memory=True)
    down = stage.client.settings.model_copy(update={"store": "postgresql://127.0.0.1:1/none"})
    await stage.serve(agent, settings=down)
    done = await stage.end(await stage.start_again(agent, Task(input="Book.", user=ann)))
    assert done.result.text == "I can't look that up."
    (told,) = done.told("recalled")
    assert (told.facts, "can't be used" in told.problem) == (0, True)
    (result,) = done.results
    assert (result.status, result.error_type, result.suggestion) == ("error", "unavailable", "Go on without the notes.")


async def test_a_store_that_is_slow_is_not_waited_for(stage: Any, ann: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(*_: Any) -> list[Fact]:
        await asyncio.sleep(60)
        return []

    monkeypatch.setattr("perdure.activities.memory.PATIENCE", 0.2)
    monkeypatch.setattr("perdure.activities.stores.sql.SQLStore.recall", slow)
    done = await stage.end(await stage.start(["Hello."], memory=True, task=Task(input="Hi.", user=ann)))
    assert done.result.status == "completed"
    assert "within 0.2 s" in done.told("recalled")[0].problem


async def test_a_run_cancelled_while_it_asks_its_memory_ends(
    stage: Any, ann: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def held(*_: Any) -> list[Fact]:
        asked.set()
        await answer.wait()
        return [fact("Prefers window seats.", ann)]

    monkeypatch.setattr("perdure.activities.stores.sql.SQLStore.recall", held)
    handle = await stage.start(["Hello."], memory=True, task=Task(input="Hi.", user=ann))
    await asyncio.wait_for(asked.wait(), 30)
    await handle.cancel("enough")
    answer.set()
    done = await stage.end(handle)
    assert done.result.status == "cancelled"
    assert not stage.model.requests


class Backwards:
    """An index with an opinion of its own, which also makes things up."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    async def search(self, query: str, facts: Sequence[Fact], limit: int) -> Sequence[Fact]:
        self.asked.append((query, len(facts)))
        if query == "fail":
            raise RuntimeError("no index today")
        return [fact("Made up.", "ann"), *facts[::-1]][:limit]


async def test_an_index_of_ones_own_decides_what_fits_but_not_what_may_be_told(
    stage: Any, store: Store, ann: str
) -> None:
    facts = [fact(f"Has been to city {n}.", ann, at=NOON + timedelta(days=n)) for n in range(5)]
    await store.remember([*facts, fact("Is somebody else.", f"{ann}-2")])
    index = Backwards()
    memory = Memory(recall=2, index=index)
    await stage.end(await stage.start(["Hi."], memory=memory, task=Task(input="Where have I been?", user=ann)))
    assert index.asked == [("Where have I been?", 5)]
    assert stage.model.requests[0].messages[0].facts == [facts[0].id, facts[4].id]


async def test_an_index_that_fails_leaves_the_stores_own_search(stage: Any, store: Store, ann: str) -> None:
    known = fact("They fail at nothing.", ann)
    await store.remember([known])
    memory = Memory(recall=1, index=Backwards())
    await stage.end(await stage.start(["Hi."], memory=memory, task=Task(input="fail", user=ann)))
    notes = stage.model.requests[0].messages[0]
    assert isinstance(notes, UserMessage)
    assert notes.facts == [known.id]


async def test_a_session_is_told_each_fact_once_and_remembers_what_each_turn_says(
    stage: Any, store: Store, ann: str
) -> None:
    writer = stage.agent(['{"facts": []}'], name="writer")
    written = stage.model
    first = fact("Prefers window seats.", ann)
    await store.remember([first])
    agent = stage.agent(["Hi.", "Yes.", "No."], memory=Memory(model=str(writer.model)))
    model = stage.model
    await stage.serve(agent)
    async with stage.client.session(f"s-{ann}", agent, task_queue=stage.queue, user=ann) as session:
        await session.ask("Hello, I am Ann.")
        await session.ask("Do you know me?")
        second = fact("Lives in Graz.", ann, at=NOON + timedelta(days=1))
        await store.remember([second])
        await session.ask("And now?")
    told = [[message.facts for message in one.messages if message.role == "user"] for one in model.requests]
    assert told == [[[first.id], []], [[first.id], [], []], [[first.id], [], [], [second.id], []]]
    async with asyncio.timeout(60):
        while len(written.requests) < 3:
            await asyncio.sleep(0.05)  # nobody is told when it is asked
    shown = [str(one.messages[0].content) for one in written.requests]
    asked = ["Hello, I am Ann.", "Do you know me?", "And now?"]
    assert sorted(words for words in asked for text in shown if words in text) == sorted(asked)
