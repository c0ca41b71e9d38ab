"""Three watch a run whose worker is killed with SIGKILL over and over; one of them leaves and comes back."""

import asyncio
import json
from typing import Any

import pytest
from pydantic import TypeAdapter

from perdure.drafts import Draft
from perdure.events import Event, ModelFinished, RunFinished, TextDelta, position_key
from tests.chaos.play import call
from tests.chaos.stage import Stage
from tests.chaos.world import World

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]

RUN = "watched"
TEXT = "What was looked up says that it is so, and nothing but so, whoever asks."
TASK = json.dumps(
    {"run": RUN, "replies": [{"calls": [call("read", run=RUN)], "text": "I look it up."}, {"text": TEXT}]}
)
EVENTS: TypeAdapter[Event] = TypeAdapter(Event)


class Watcher:
    """Someone who watches a run, and what they have seen so far."""

    def __init__(self, world):
        self._handle = world.client.handle(RUN)
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.seen: list[Event] = []

    def attach(self):
        """Watch from the last event that was seen on."""
        positions = [event.position for event in self.seen if event.position]
        self._task = asyncio.create_task(self._watch(positions[-1] if positions else ""))

    async def _watch(self, after):
        async for event in self._handle.events(after, live=True):
            self.seen.append(event)
            self._changed.set()

    async def leave(self):
        """Stop watching."""
        assert self._task
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def until_text(self, step, attempt):
        """Return once text of that attempt of that step was seen."""
        while not any(
            isinstance(event, TextDelta) and (event.step, event.attempt) == (step, attempt) for event in self.seen
        ):
            self._changed.clear()
            await self._changed.wait()

    async def end(self):
        """Return when the run has ended."""
        assert self._task
        await self._task

    @property
    def durable(self):
        return [event for event in self.seen if event.position]


async def break_it(world, first, coming_and_going):
    """Kill the worker while it streams, while it executes a tool, and while it streams again, twice."""
    points = ("model 1 after", "read before", "model 2 after", "model 2 after")
    held = [world.stage.arm(RUN, point) for point in points]
    texts: list[tuple[int, int] | None] = [(1, 1), None, (2, 1), (2, 2)]
    for point, streaming in zip(held, texts, strict=True):
        worker = world.worker()
        await point.reached
        if streaming is not None:
            await first.until_text(*streaming)
        if streaming == (1, 1):
            await coming_and_going.until_text(1, 1)
            await coming_and_going.leave()
        if streaming == (2, 1):
            coming_and_going.attach()
        worker.kill()
    world.worker()


async def watched(world):
    first, coming_and_going = Watcher(world), Watcher(world)
    await world.start(RUN, TASK)
    other_process = asyncio.create_task(world.output_of("watch", RUN, "--json"))
    first.attach()
    coming_and_going.attach()
    await break_it(world, first, coming_and_going)
    await asyncio.gather(first.end(), coming_and_going.end())
    lines = (await other_process).splitlines()
    return first, coming_and_going, [EVENTS.validate_json(line) for line in lines]


def drafts_at_their_ends(events):
    """Return what somebody who folds the pieces has when each reply is there, and the reply."""
    draft, found = Draft(), list[tuple[str, str]]()
    for event in events:
        if isinstance(event, ModelFinished):
            found.append((draft.text, event.text))
        draft.take(event)
    return found


async def test_three_watchers_see_each_event_once_and_in_order_and_the_right_text(tmp_path):
    async with Stage.open() as stage, World.open(tmp_path, stage) as world:
        first, coming_and_going, elsewhere = await asyncio.wait_for(watched(world), 200)
        events = (await world.client.handle(RUN).projection()).events
    assert first.durable == coming_and_going.durable == events
    assert [event for event in elsewhere if event.position] == events
    positions = [position_key(event.position) for event in events]
    assert positions == sorted(set(positions))
    end: Any = events[-1]
    assert isinstance(end, RunFinished)
    assert (end.status, end.text) == ("completed", TEXT)
    retried = [(event.activity, event.attempt) for event in events if event.type == "retry_scheduled"]
    assert retried == [("perdure.model", 1), ("read", 1), ("perdure.model", 2)]
    for seen in (first.seen, elsewhere):
        attempts = [(event.step, event.attempt) for event in seen if isinstance(event, TextDelta)]
        assert attempts == sorted(attempts)
        assert {(1, 1), (2, 1), (2, 2)} <= set(attempts)
        for text, whole in drafts_at_their_ends(seen):
            assert whole.startswith(text)
