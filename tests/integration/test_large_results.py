"""Results of any size: the model is shown the beginning and reads on by itself; the history stays small."""

import asyncio
import json
import re
from contextlib import aclosing

import pytest

from perdure import worker
from perdure.activities.stores import store_of
from perdure.errors import ConnectionFailed
from perdure.messages import ToolMessage, blob_ref
from perdure.policies import ContextPolicy, Limits
from perdure.results import render_result
from perdure.tools import Done, ask_user, tool

ROOMY = {"limits": Limits(input_tokens=None), "context": ContextPolicy(window=10_000_000)}
"""Options of an agent that ends for no length, and is shown all of it."""


def book(lines: int) -> str:
    return "\n".join(f"line {number}: 上海" for number in range(lines))


BOOK = book(20_000)


def whole_book() -> str:
    """Give."""
    return BOOK


give = tool(effect="read", name="give")(whole_book)


def last_result(request):
    """What the model was told last, as it reads it."""
    return next(render_result(m.result) for m in reversed(request.messages) if isinstance(m, ToolMessage))


def reading(**arguments):
    """Return a reply that reads on where the model was told to, with `arguments` instead of what it was told."""

    def reply(request):
        told = re.search(r'read_result\("(\w+)", (.+?)\) gives', last_result(request))
        assert told
        handle, rest = told.groups()
        found = {key: json.loads(value) for key, value in re.findall(r'(\w+)=("[^"]*"|\d+)', rest)}
        return {"calls": [{"name": "read_result", "arguments": {"handle": handle, **found, **arguments}}]}

    return reply


async def history(stage, handle):
    workflow = stage.client.temporal.get_workflow_handle(handle.id)
    return sum([event.ByteSize() async for event in workflow.fetch_history_events()])


async def stored(stage, ref):
    store = store_of(stage.client.settings)
    try:
        return await store.get(ref)
    finally:
        await store.aclose()


# -- reading on ------------------------------------------------------------------------------------------------


@pytest.mark.reported(8)
async def test_a_model_reads_on_to_the_end_of_what_it_was_shown_in_part(stage):
    done = await stage.run([{"calls": [{"name": "give"}]}, *[reading(limit=65_536)] * 5, "read"], [give], **ROOMY)
    assert done.result.text == "read"
    assert {result.status for result in done.results} == {"ok"}
    assert "".join(result.content for result in done.results) == BOOK
    assert done.results[0].size == len(BOOK.encode())
    assert "its end" in (done.results[-1].note or "")
    assert done.results[0].ref == blob_ref(BOOK.encode())
    assert await stored(stage, done.results[0].ref) == BOOK.encode()


@pytest.mark.parametrize(("window", "page"), [(4_000, 3_000), (200_000, 16_384)])
async def test_a_page_fits_the_window_where_the_model_does_not_say_how_long_it_is_to_be(stage, window, page):
    short = tool(effect="read", name="give", result_limit=200)(whole_book)
    context = ContextPolicy(window=window)
    done = await stage.run([{"calls": [{"name": "give"}]}, reading(), "read"], [short], context=context)
    assert page - 3 <= len(done.results[1].content.encode()) <= page


async def test_a_model_finds_a_place_in_what_it_was_not_shown(stage):
    done = await stage.run([{"calls": [{"name": "give"}]}, reading(find="LINE 19999"), "found"], [give], **ROOMY)
    assert done.results[1].content.endswith("line 19999: 上海")


async def test_the_tool_is_offered_from_the_first_cut_result_on(stage):
    await stage.run([{"calls": [{"name": "give"}]}, "cut"], [give], **ROOMY)
    first, second = ([one.name for one in request.tools] for request in stage.model.requests)
    assert (first, second) == (["give"], ["give", "read_result"])


async def test_a_handle_that_the_model_was_not_given_is_refused_with_those_that_there_are(stage):
    ref = blob_ref(BOOK.encode())
    other = {"calls": [{"name": "read_result", "arguments": {"handle": ref[:-1] + "x"}}]}
    done = await stage.run([other, {"calls": [{"name": "give"}]}, other, "x"], [give], **ROOMY)
    first, _, second = done.results
    assert (first.status, first.error_type) == ("error", "invalid_arguments")
    assert first.suggestion == "All results were shown whole."
    assert second.suggestion == f"Did you mean {ref}?"


async def test_an_offset_beyond_the_end_is_an_error_that_says_how_long_it_is(stage):
    done = await stage.run([{"calls": [{"name": "give"}]}, reading(offset=10**9), "x"], [give], **ROOMY)
    error = done.results[1]
    assert (error.status, error.error_type) == ("error", "offset")
    assert str(len(BOOK.encode())) in (error.message or "")


async def test_a_tool_of_the_agent_by_that_name_is_the_agents(stage):
    @tool(effect="read", name="read_result")
    def mine(handle: str) -> str:
        """Read."""
        return f"mine: {handle}"

    done = await stage.run(
        [{"calls": [{"name": "give"}]}, {"calls": [{"name": "read_result", "arguments": {"handle": "h"}}]}, "x"],
        [give, mine],
        **ROOMY,
    )
    assert done.results[1].content == "mine: h"
    assert [one.name for one in stage.model.requests[-1].tools] == ["give", "read_result"]


async def test_no_approval_is_needed_to_read_on(stage):
    done = await stage.run(
        [{"calls": [{"name": "look"}]}, reading(), "x"],
        [tool(effect="read", name="look", approval="never")(whole_book)],
        **ROOMY,
        approval="always",
    )
    assert [result.status for result in done.results] == ["ok", "ok"]


# -- a store that is away --------------------------------------------------------------------------------------


class Away:
    """A store that answers only when it is told to, or after so many failures."""

    def __init__(self, store):
        self._store = store
        self.left = 0.0
        self.refused = asyncio.Event()

    async def put(self, data, owner):
        if self.left > 0:
            self.left -= 1
            self.refused.set()
            raise ConnectionFailed("The store is away.")
        return await self._store.put(data, owner)

    async def aclose(self):
        await self._store.aclose()

    def __getattr__(self, name):
        return getattr(self._store, name)


@pytest.fixture
def away(monkeypatch, stage_settings):
    """The store of the workers that are served from now on."""
    store = Away(store_of(stage_settings))
    monkeypatch.setattr(worker, "opened", lambda _: aclosing(store))
    return store


@pytest.mark.parametrize("effect", ["unsafe", "idempotent", "read"])
async def test_a_store_that_is_away_just_after_an_effect_causes_no_second_one(stage, away, effect):
    ledger = []

    @tool(effect=effect, timeout=1)
    def act() -> str:
        """Act."""
        ledger.append(1)
        return BOOK

    away.left = 5
    done = await stage.run([{"calls": [{"name": "act"}]}, "x"], [act], **ROOMY)
    assert away.left == 0
    assert len(ledger) == 1
    [result] = done.results
    assert (result.status, result.ref) == ("ok", blob_ref(BOOK.encode()))


async def test_a_run_that_is_cancelled_while_the_store_is_away_keeps_what_was_done(stage, away):
    @tool
    def act() -> str:
        """Act."""
        return BOOK

    away.left = float("inf")
    handle = await stage.start([{"calls": [{"name": "act"}]}, "x"], [act])
    await asyncio.wait_for(away.refused.wait(), 30)
    await handle.cancel("enough")
    done = await stage.end(handle)
    assert [record.status for record in done.result.calls] == ["ok"]


async def test_a_worker_that_stops_while_the_store_is_away_reports_what_was_done(stage, away):
    ledger = []

    @tool
    def act() -> str:
        """Act."""
        ledger.append(1)
        return BOOK

    away.left = float("inf")
    handle = await stage.start([{"calls": [{"name": "act"}]}, "x"], [act], **ROOMY)
    await asyncio.wait_for(away.refused.wait(), 30)
    await stage.stop()
    away.left = 0
    await stage.serve(*stage.agents)
    done = await stage.end(handle)
    assert (len(ledger), [result.status for result in done.results]) == (1, ["ok"])
    assert "could not be kept" in (done.results[0].note or "")


async def test_a_local_read_is_kept_as_well(stage, away):
    away.left = 2
    local = tool(effect="read", name="look", local=True)(whole_book)
    done = await stage.run([{"calls": [{"name": "look"}]}, reading(), "x"], [local], **ROOMY)
    assert [result.status for result in done.results] == ["ok", "ok"]
    assert BOOK.startswith(done.results[0].content + done.results[1].content)


async def test_what_a_fallback_or_a_probe_returns_is_kept_as_well(stage):
    other = tool(effect="read", name="other")(whole_book)

    @tool(effect="read", fallback=other)
    def look() -> str:
        """Look."""
        raise OSError

    def probe(ctx):
        return Done(BOOK)

    @tool(probe=probe)
    def act() -> str:
        """Act."""
        raise OSError

    done = await stage.run([{"calls": [{"name": "look"}, {"name": "act"}]}, "x"], [look, act, other], **ROOMY)
    assert [(result.status, result.ref) for result in done.results] == [("ok", blob_ref(BOOK.encode()))] * 2


async def test_a_compensation_is_given_all_that_the_tool_returned(stage):
    given = []

    @tool(compensate=lambda ctx, result: given.append(result))
    def act() -> dict[str, str]:
        """Act."""
        return {"book": BOOK}

    @tool(approval="always")
    def wait() -> str:
        """Wait."""
        return ""

    script = [{"calls": [{"name": "act"}]}, {"calls": [{"name": "wait"}]}]
    handle = await stage.start(script, [act, wait], compensate_on=["cancelled"], **ROOMY)
    await stage.until(handle, "approval_requested")
    await handle.cancel("enough")
    done = await stage.end(handle)
    assert given == [{"book": BOOK}]
    assert [one.status for one in done.result.undone] == ["undone"]


# -- what a person says -----------------------------------------------------------------------------------------


async def test_a_large_result_that_a_person_gives_is_kept_as_well(stage):
    @tool
    def act() -> str:
        """Act."""
        raise OSError

    handle = await stage.start([{"calls": [{"name": "act"}]}, reading(limit=65_536), "x"], [act], **ROOMY)
    await stage.until(handle, "in_doubt")
    await handle.settle("1.1", "done", result={"book": BOOK})
    done = await stage.end(handle)
    whole = json.dumps({"book": BOOK}, ensure_ascii=False)
    assert [result.status for result in done.results] == ["ok", "ok"]
    assert done.results[0].size == len(whole.encode())
    assert whole.startswith(done.results[0].content + done.results[1].content)


async def test_a_long_answer_to_a_question_is_kept_as_well(stage):
    asking = {"calls": [{"name": "ask_user", "arguments": {"question": "Which book?"}}]}
    handle = await stage.start([asking, reading(limit=65_536), "x"], [ask_user], **ROOMY)
    await stage.until_status(handle, "waiting_input")
    await handle.answer(BOOK)
    done = await stage.end(handle)
    assert BOOK.startswith(done.results[0].content + done.results[1].content)


# -- sizes -----------------------------------------------------------------------------------------------------


@pytest.mark.reported(3, 8)
async def test_a_result_of_40_megabytes_costs_the_history_no_more_than_its_beginning(stage):
    @tool(effect="read", timeout=60)
    def huge() -> str:
        """Give."""
        return "0123456789" * 4_000_000

    done = await stage.run([{"calls": [{"name": "huge"}]}, reading(offset=39_999_990), "x"], [huge], **ROOMY)
    assert (done.results[0].size, done.results[1].content) == (40_000_000, "0123456789")
    assert await history(stage, done.handle) < 2 * 65_536
