"""A step costs the same, however long the conversation is: each message enters the history once."""

import random
import string

import pytest

from perdure.messages import ToolMessage
from perdure.policies import ContextPolicy, Limits
from perdure.tools import tool

ROOM = Limits(steps=1_000, input_tokens=None, output_tokens=None)


def words(seed: str, length: int = 900) -> str:
    """Text that is nowhere else."""
    return "".join(random.Random(seed).choices(string.ascii_letters, k=length))


def script(steps):
    """A conversation with a text, a call and a result at every step."""
    turns = [
        {"text": words(f"text {n}"), "calls": [{"name": "look", "arguments": {"q": words(f"q {n}", 100)}}]}
        for n in range(steps)
    ]
    return [*turns, words("answer")]


@tool(effect="read")
async def look(q: str) -> str:
    """Look."""
    return words(f"result of {q}")


async def history(stage, handle):
    """The run's events as the engine keeps them, in bytes."""
    workflow = stage.client.temporal.get_workflow_handle(handle.id)
    return [event.SerializeToString() async for event in workflow.fetch_history_events()]


@pytest.mark.reported(7)
async def test_a_step_adds_as_much_to_the_history_at_60_steps_as_at_10(stage):
    sizes, events = {}, list[bytes]()
    for steps in (10, 60):
        done = await stage.run(script(steps), [look], limits=ROOM)
        assert done.result.status == "completed"
        events = await history(stage, done.handle)
        assert len(events) == steps * 12 + 17
        sizes[steps] = sum(map(len, events)) / steps
    assert sizes[60] <= sizes[10] * 1.1
    every = [sum(map(len, events[at : at + 12])) for at in range(2, len(events) - 15, 12)]
    assert len(every) == 60
    assert max(every) <= min(every) * 1.1


@pytest.mark.reported(1)
async def test_each_message_enters_the_history_once(stage):
    steps = 8
    done = await stage.run(script(steps), [look], task=words("task"), limits=ROOM)
    data = b"".join(await history(stage, done.handle))
    assert data.count(words("task").encode()) == 1
    for n in range(steps):
        assert data.count(words(f"text {n}").encode()) == 1
        assert data.count(words(f"q {n}", 100).encode()) == 3  # the reply, the call's own activity, and the audit
        assert data.count(words(f"result of {words(f'q {n}', 100)}").encode()) == 1
    assert data.count(words("answer").encode()) == 2  # the reply, and the run's result


async def test_the_spec_enters_the_history_once(stage):
    rules = words("instructions", 5_000)
    done = await stage.run(script(5), [look], instructions=rules, limits=ROOM)
    data = b"".join(await history(stage, done.handle))
    assert data.count(rules.encode()) == 1


# -- the conversation is right wherever the next model call lands ------------------------------------------------


async def test_a_worker_that_never_saw_the_conversation_asks_the_workflow_for_it(stage):
    @tool(approval="always")
    def book() -> str:
        """Book."""
        return "booked"

    turns = script(6)
    turns[4] = {"calls": [{"name": "book"}]}
    handle = await stage.start(turns, [look, book], instructions="Be polite.", limits=ROOM)
    await stage.until(handle, "approval_requested")
    await stage.stop()
    asked_so_far = len(stage.model.requests)
    await stage.serve(*stage.agents)  # with an empty memory
    await handle.approve()
    done = await stage.end(handle)
    assert done.result.text == words("answer")
    for request in stage.model.requests[asked_so_far:]:
        assert_conversation(request, done)
        assert request.instructions == "Be polite."


async def test_a_worker_without_room_for_conversations_asks_for_them_at_every_step(stage, misses):
    agent = stage.agent(script(6), [look], limits=ROOM)
    await stage.serve(agent, settings=stage.client.settings.model_copy(update={"cache_bytes": 4}))
    done = await stage.end(await stage.start_again(agent))
    assert done.result.text == words("answer")
    assert len(misses) >= 6
    for request in stage.model.requests:
        assert_conversation(request, done)


async def test_a_worker_with_room_asks_for_the_first_message_only(stage, misses):
    done = await stage.run(script(6), [look], limits=ROOM)
    assert done.result.status == "completed"
    assert len(misses) <= 1


@pytest.mark.long
@pytest.mark.parametrize("letter", ["x", "字"], ids=["ascii", "chinese"])
async def test_a_conversation_of_megabytes_is_asked_for_in_pages(stage, misses, letter):
    @tool(effect="read", result_limit=200_000)
    async def dump(q: str) -> object:
        """Dump."""
        return q + letter * 100_000

    @tool(approval="always")
    def book() -> str:
        """Book."""
        return "booked"

    turns = [{"calls": [{"name": "dump", "arguments": {"q": f"{n}-{m}"}} for m in range(6)]} for n in range(3)]
    replies = [*turns, {"calls": [{"name": "book"}]}, "done"]
    handle = await stage.start(replies, [dump, book], limits=ROOM, context=ContextPolicy(window=10_000_000))
    await stage.until(handle, "approval_requested")
    await stage.serve(*stage.agents)  # with an empty memory
    misses.clear()
    await handle.approve()
    done = await stage.end(handle)
    assert done.result.text == "done"
    assert misses[0][0] == 0
    assert_conversation(stage.model.requests[-1], done)


async def test_a_user_message_with_half_an_emoji_or_too_large_is_no_traceback(stage):
    from perdure.errors import PerdureError

    done = await stage.run(["done"], task="half \ud83d an emoji")
    assert done.state.messages[0].content == "half ? an emoji"
    with pytest.raises(PerdureError, match="at most"):
        await stage.start_again(stage.agents[0], "字" * 6_000_000)


@pytest.fixture
def misses(monkeypatch):
    """Each time that the workflow was asked for messages."""
    from perdure.activities.conversations import Conversations

    asked, ask = [], Conversations._ask

    async def noted(self, start, length, fetch):
        asked.append((start, length))
        return await ask(self, start, length, fetch)

    monkeypatch.setattr(Conversations, "_ask", noted)
    return asked


def assert_conversation(request, done):
    """Fail unless a model was sent exactly what the run holds, up to there."""
    sent = list(request.messages)
    assert sent == done.state.messages[: len(sent)]
    calls = sum(isinstance(message, ToolMessage) for message in sent)
    assert calls <= len(done.results)
