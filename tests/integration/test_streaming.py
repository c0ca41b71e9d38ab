"""What is told to those who watch while it comes: text as it is written, progress of tools, between the events."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import Agent, ModelSettings, ToolContext, tool
from perdure.activities.afterwards import Kept
from perdure.activities.copies import of_events
from perdure.activities.stores import ArchivedRun
from perdure.activities.stores.copied import EventRow
from perdure.client import RunHandle
from perdure.drafts import Draft
from perdure.events import Event, ModelFinished, TextDelta, ToolProgress, position_key
from perdure.telemetry.event_log import EventLog
from perdure.telemetry.live import folder_of, name_of
from perdure.testing import ModelServer

PATIENCE = 60
TEXT = "The quick brown fox jumps over the lazy dog again. " * 6


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer(["unused"]) as server:
        yield server


def writer(server: ModelServer, *replies: Any, tools: Any = (), **settings: Any) -> Agent:
    """Return an agent whose model is the server's."""
    os.environ.setdefault("OPENAI_API_KEY", "test")
    server.follow(list(replies))
    return Agent(
        "writer", "openai:small", tools=list(tools), settings=ModelSettings(base_url=server.base_url, **settings)
    )


async def watched(handle: RunHandle, after: str = "") -> list[Event]:
    async def look() -> list[Event]:
        return [event async for event in handle.events(after, live=True)]

    return await asyncio.wait_for(look(), PATIENCE)


def durable(events: list[Event]) -> list[Event]:
    return [event for event in events if event.position]


async def test_text_is_seen_while_it_is_written_and_the_events_are_those_of_the_history(stage, server):
    agent = writer(server, {"text": TEXT, "drip": 0.005})
    await stage.serve(agent)
    handle = await stage.start_again(agent)
    seen = await watched(handle)
    assert durable(seen) == (await handle.projection()).events
    ended, reply = next((at, event) for at, event in enumerate(seen) if isinstance(event, ModelFinished))
    deltas = [event for event in seen if isinstance(event, TextDelta) and event.attempt == reply.attempt]
    assert len(deltas) > 3
    assert all(seen.index(delta) < ended for delta in deltas)
    text = "".join(delta.text for delta in deltas)
    assert TEXT.startswith(text)
    assert len(text) > len(TEXT) / 2
    assert {(delta.agent, delta.step) for delta in deltas} == {("writer", 1)}
    assert [delta.offset for delta in deltas] == [len(text[: delta.offset]) for delta in deltas]


async def test_reply_that_broke_off_is_replaced_by_that_of_the_next_attempt(stage, server):
    agent = writer(server, {"text": TEXT, "hang": "body", "drip": 0.005}, timeout=timedelta(seconds=1))
    await stage.serve(agent)
    handle = await stage.start_again(agent)
    draft, drafts = Draft(), list[str]()
    async for event in handle.events(live=True):
        before = draft.text
        if draft.take(event):
            drafts.append(before)
        if isinstance(event, TextDelta):
            server.follow([{"text": TEXT, "drip": 0.005}])
    assert len(drafts) >= 2
    assert all(TEXT.startswith(one) for one in drafts)
    finished = (await handle.projection()).result()
    assert finished.text == TEXT


async def test_whoever_attaches_again_sees_the_rest_of_the_events_and_the_text_of_now(stage, server, anchor):
    @tool(effect="read")
    def hold() -> str:
        """Hold."""
        anchor.wait(PATIENCE)
        return "ok"

    agent = writer(
        server, {"calls": [{"name": "hold"}], "text": "First. "}, {"text": TEXT, "drip": 0.005}, tools=[hold]
    )
    await stage.serve(agent)
    handle = await stage.start_again(agent)
    position = (await stage.until(handle, "tool_started")).position
    watching = asyncio.create_task(watched(handle, position))
    anchor.set()
    seen = await watching
    events = (await handle.projection()).events
    assert durable(seen) == [one for one in events if position_key(one.position) > position_key(position)]
    assert {event.step for event in seen if isinstance(event, TextDelta)} == {2}


async def test_tools_async_and_sync_tell_how_far_they_are(stage):
    @tool(effect="read")
    async def search(ctx: ToolContext) -> str:
        """Search."""
        ctx.progress("found 12 hotels for 13800138000, filtering", 0.4)
        await asyncio.sleep(0.5)
        return "ok"

    @tool(effect="read")
    def count(ctx: ToolContext) -> str:
        """Count."""
        for number in range(1000):
            ctx.progress(f"counted {number}", float("nan"))
        time.sleep(0.5)
        return "ok"

    @tool(effect="read", local=True)
    async def near(ctx: ToolContext) -> str:
        """Look in memory."""
        ctx.progress("nearly there")
        await asyncio.sleep(0.5)
        return "ok"

    calls = [{"name": "search"}, {"name": "count"}, {"name": "near"}]
    handle = await stage.start([{"calls": calls}, "done"], [search, count, near])
    told = {event.call: event for event in await watched(handle) if isinstance(event, ToolProgress)}
    assert (told["1.1"].name, told["1.1"].text, told["1.1"].fraction) == (
        *("search", "found 12 hotels for 138****8000, filtering"),
        0.4,
    )
    assert (told["1.2"].name, told["1.2"].text, told["1.2"].fraction) == ("count", "counted 999", None)
    assert (told["1.3"].name, told["1.3"].text) == ("near", "nearly there")


async def test_what_was_told_beside_a_run_is_deleted_after_its_end(stage, server):
    await stage.serve(agent := writer(server, {"text": TEXT, "drip": 0.005}))
    handle = await stage.start_again(agent)
    path = folder_of(stage.client.settings) / f"{name_of('default', handle.id)}.jsonl"
    was_there = False
    async for event in handle.events(live=True):
        was_there |= isinstance(event, TextDelta) and path.exists()
    assert was_there

    async def gone() -> None:
        while path.exists():
            await asyncio.sleep(0.05)  # the run's end is not held up for it

    await asyncio.wait_for(gone(), PATIENCE)


async def test_nothing_is_told_or_kept_where_streaming_is_off(stage, server):
    folder = folder_of(stage.client.settings)
    before = set(folder.glob("*"))
    agent = writer(server, {"text": TEXT, "drip": 0.005})
    await stage.serve(agent, settings=stage.client.settings.model_copy(update={"stream": False}))
    seen = await watched(await stage.start_again(agent))
    assert durable(seen) == seen
    assert set(folder.glob("*")) <= before


async def test_events_are_copied_into_the_store_and_logged_once_each(stage, caplog):
    with caplog.at_level(logging.INFO, "perdure.events"):
        done = await stage.run(["Call 13800138000."])
        events = done.projection.events

        async def kept() -> list[EventRow]:
            async with stage.client.store() as store:
                found: list[EventRow] = []
                while not found:
                    found = await store.events("default", run_id=done.handle.id)
                    await asyncio.sleep(0.05)  # the run's end is not held up for it
                return found

        rows = await asyncio.wait_for(kept(), PATIENCE)
        await stage.stop()
    assert [(row.position, row.type) for row in rows] == [(event.position, event.type) for event in events]
    assert "13800138000" not in json.dumps([row.body for row in rows])
    logged = [record.event["position"] for record in caplog.records if record.name == "perdure.events"]
    assert logged == [event.position for event in events]


async def test_copy_that_is_made_again_is_kept_and_logged_once(stage, caplog):
    done = await stage.run(["done"])
    async with stage.client.store() as store:
        run = ArchivedRun(
            namespace="again", run_id="r", agent="a", status="completed", started_at=datetime.now(UTC), result=None
        )
        log = EventLog()
        copy = of_events(store, log)
        with caplog.at_level(logging.INFO, "perdure.events"):
            for _ in range(3):
                await copy(Kept(run, "e1", done.projection, (), stage.client.temporal.data_converter))
            log.close()
        positions = [event.position for event in done.projection.events]
        logged = [record.event["position"] for record in caplog.records if record.name == "perdure.events"]
        assert logged[-len(positions) :] == positions
        assert logged.count(positions[0]) <= 2  # the run's own archiving, and this one
        assert [row.position for row in await store.events("again")] == positions
