"""Every fault of a model server, through both APIs, in pieces and whole: what becomes of the run, and what is told."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from perdure import Agent, ModelSettings, tool
from perdure.cli import report, standing
from perdure.settings import Settings
from perdure.testing import ModelServer

pytestmark = pytest.mark.long

KEY = "sk-test-0123456789abcdef"
STREAMED = (("openai", True), ("openai-responses", True))
WHOLE = (("openai", False), ("openai-responses", False))
EVERY_WAY = (*STREAMED, *WHOLE)
SOON = timedelta(seconds=0.3)
LONG = "A reply of some length. " * 20


@tool(effect="read")
async def search(q: str) -> str:
    """Search."""
    return f"found {q}"


@dataclass
class Row:
    """A script of the model server, and what has to come of it.

    `waits` are the least seconds between one request and the next.
    """

    script: Sequence[Any]
    status: str
    requests: int
    shows: Sequence[str] = ()
    failure: str | None = None
    waits: Sequence[float] = ()
    ways: Sequence[tuple[str, bool]] = EVERY_WAY
    settings: dict[str, Any] = field(default_factory=dict[str, Any])


def error(kind: str, message: str = "own words", **more: Any) -> dict[str, Any]:
    return {"error": {"kind": kind, "message": f"{message} {KEY}", **more}}


def passing(kind: str, times: int, waits: float, **more: Any) -> Row:
    """It fails some times, with a delay asked for, and then it is fine."""
    trouble = {**error(kind, retry_after=waits, **more), "times": times, "text": "fine"}
    settings = {"attempts": 1 if kind == "rate_limited" else times + 1}  # of which a rate limit uses up none
    shows = [f"attempt {times + 1}", "fine"]
    return Row([trouble], "completed", times + 1, shows, waits=[waits] * times, ways=STREAMED, settings=settings)


def final(kind: str, requests: int, status: int, **more: Any) -> Row:
    """It fails for good: the run ends in the provider's words."""
    words = f"own words [key] (HTTP {status})"
    return Row([error(kind, **more)], "failed", requests, [f"failed ({kind})", words], kind, ways=STREAMED)


def too_late(script: dict[str, Any], limit: str, ways: Sequence[tuple[str, bool]] = EVERY_WAY) -> Row:
    never = timedelta(seconds=20)
    settings = {"attempts": 1, "first_byte": never, "between_chunks": never, "timeout": never, limit: SOON}
    return Row([script], "failed", 1, ["failed (timeout)", f"({limit})"], "timeout", ways=ways, settings=settings)


def told(reply: dict[str, Any], *shows: str) -> Row:
    """The model is told what was wrong with its reply, and does better."""
    return Row([reply, "fine"], "completed", 2, [*shows, "fine"])


def called(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"calls": [{"name": "search", "arguments": {"q": "x"}, **call} for call in calls], **more}


ONCE = {"times": 1, "text": "fine"}
TABLE: dict[str, dict[str, Row]] = {
    "what may pass is tried again, as late as is asked for": {
        "429 in seconds, twice": passing("rate_limited", 2, 0.05),
        "429 in milliseconds": passing("rate_limited", 1, 0.12, retry_after_as="ms"),
        "429 as a date": passing("rate_limited", 1, 1, retry_after_as="date"),
        "429 without a delay": Row(
            [{**error("rate_limited"), **ONCE}], "completed", 2, ["attempt 2", "fine"], waits=[0.4], ways=STREAMED
        ),
        "500 twice": passing("server", 2, 0.03),
        "500": final("server", 3, 500, retry_after=0.01),
        "503": final("overloaded", 3, 503, retry_after=0.01),
        "the socket closes": Row(
            [{"drop": True, **ONCE}], "completed", 2, ["attempt 2", "fine"], waits=[0.4], ways=WHOLE
        ),
        "the socket closes in the body": Row(
            [{"drop": "body", "text": LONG}],
            "failed",
            1,
            ["failed (connection)", "in the middle of the reply"],
            "connection",
            settings={"attempts": 1},
        ),
        "an error in the stream": Row(
            [{**error("overloaded", "Overloaded, try again in 30ms.", streamed=True), "times": 1, "text": LONG}],
            "completed",
            2,
            ["attempt 2"],
            waits=[0.03],
            ways=STREAMED,
        ),
        "malformed, once": Row(
            [{"malformed": True, "times": 1, "text": LONG}], "completed", 2, ["attempt 2"], ways=STREAMED
        ),
        "malformed": Row(
            [{"malformed": True, "text": LONG}],
            "failed",
            1,
            ["failed (server)", "The answer is not"],
            "server",
            settings={"attempts": 1},
        ),
    },
    "each wait ends": {
        "hangs": too_late({"hang": True}, "first_byte", STREAMED),
        "hangs, whole": too_late({"hang": True}, "timeout", WHOLE),
        "hangs in the body": too_late({"hang": "body", "text": LONG}, "between_chunks"),
        "drips": too_late({"drip": 0.05, "text": LONG}, "timeout"),
        "only keeps alive": too_late({"hang": "ping"}, "first_byte", STREAMED),
        "only keeps alive, whole": too_late({"hang": "ping"}, "timeout", WHOLE),
        "hangs, once": Row(
            [{"hang": True, **ONCE}],
            "completed",
            2,
            ["attempt 2", "fine"],
            ways=STREAMED,
            settings={"first_byte": timedelta(seconds=2)},
        ),
    },
    "what will not pass ends the run at once": {
        "400 context length": final("context_too_long", 1, 400),
        "401": final("authentication", 1, 401),
        "insufficient quota": final("quota", 1, 429, retry_after=0.01),
        "400": final("bad_request", 1, 400),
        "400 content filter": final("content_filtered", 1, 400),
    },
    "the model is told of a reply that can not be used": {
        "truncated arguments": told(called({"arguments": '{"q": '}), "search error"),
        "arguments that do not fit": told(called({"arguments": {"r": 1}}), "search error"),
        "a wrong tool name": told(called({"name": "no_such_tool"}), "no_such_tool error"),
        "repeated ids": told(called({"id": "same"}, {"id": "same"}, {"id": ""}, {"id": None}), "search ok"),
        "no choices": told({"empty": True}, "model replied"),
        "cut off": told({"text": "so", "finish": "length"}, "length"),
        "refusal": told({"text": "I can't.", "finish": "refusal"}, "refusal"),
        "filtered reply": told({"text": "", "finish": "filtered"}, "filtered"),
        "no choices, thrice": Row([{"empty": True}], "failed", 3, ["failed (malformed_output)"], "malformed_output"),
    },
    "what is only odd is fine": {
        "no usage": Row([{"text": "fine", "usage": None}], "completed", 1, ["about "]),
        "any Unicode": Row([{"text": "上海 😀 \u202e \x00\x1b[31m é\u0301 \ufffe"}], "completed", 1, ["上海 😀"]),
    },
}


@pytest.fixture(scope="module")
def stage_settings(engine: Settings) -> Settings:
    """A worker that is slow for a moment is not taken for lost: that would be one more try."""
    return engine.model_copy(update={"heartbeat_timeout": timedelta(seconds=30)})


@pytest.mark.parametrize("policy", TABLE)
async def test_every_fault_of_a_model_has_its_policy(stage, monkeypatch, policy):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    cast = [await _enter(stage, name, row, *way) for name, row in TABLE[policy].items() for way in row.ways]
    await stage.serve(*(agent for _, _, agent in cast))
    few = asyncio.Semaphore(4)  # at once: they share a process with the servers
    await asyncio.gather(*(_play(stage, few, *one) for one in cast))


async def _enter(stage, name: str, row: Row, api: str, stream: bool) -> tuple[Row, ModelServer, Agent]:
    """Return a row with a server and an agent of its own."""
    server = await stage.enter(ModelServer(row.script))
    settings = ModelSettings(base_url=server.base_url, stream=stream, **row.settings)
    name = re.sub(r"\W+", "-", f"{name} {api} {'stream' if stream else 'whole'}")
    return row, server, Agent(name, f"{api}:{name}", tools=[search], settings=settings)  # whose limits no other shares


async def _play(stage, few: asyncio.Semaphore, row: Row, server: ModelServer, agent: Agent) -> None:
    async with few:
        done = await stage.end(await stage.start_again(agent))
    shown = "\n".join(report.as_lines(done.projection, standing.Now([], None), None, io.StringIO(), transcript=False))
    assert (done.result.status, done.result.failure) == (row.status, row.failure), f"{agent.name}: {shown}"
    assert len(server.requests) == row.requests, f"{agent.name}: {shown}"
    for words in row.shows:
        assert words in shown, f"{agent.name}: {shown}"
    waited = [later.at - earlier.at for earlier, later in pairwise(server.requests)]
    assert all(took >= least for took, least in zip(waited, row.waits, strict=False)), f"{agent.name}: {waited}"
    assert KEY not in shown
    assert all(request.headers["authorization"] == f"Bearer {KEY}" for request in server.requests)


async def test_a_wait_that_a_provider_asks_for_is_the_engines_and_shows_while_it_lasts(stage):
    server = await stage.enter(ModelServer([error("rate_limited", retry_after=300)]))
    agent = Agent("patient", "openai:m", settings=ModelSettings(base_url=server.base_url, attempts=1))
    await stage.serve(agent)
    handle = await stage.start_again(agent)

    async def look() -> standing.Attempt:
        while not (found := await standing.attempts(stage.client, handle.id)):
            await asyncio.sleep(0.02)  # the engine can only be asked
        return found[0]

    attempt = await asyncio.wait_for(look(), 20)
    assert (attempt.what, attempt.number) == ("model call", 2)
    assert "own words" in attempt.last_failure
    assert attempt.next_at
    assert attempt.next_at - datetime.now(UTC) > timedelta(minutes=2)
    assert len(server.requests) == 1
