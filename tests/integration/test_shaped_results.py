"""What a tool declares of its result reaches the model, and nothing else is changed by it."""

import asyncio
import dataclasses

import pytest

from perdure.policies import Limits
from perdure.results import RESULT_LIMIT
from perdure.tools import Done, tool

ROOM = Limits(input_tokens=None)
BOOKED: dict[str, object] = {"id": "b1", "price": {"cny": 740, "usd": 100}, "terms": "x" * 500}
CALL = {"calls": [{"name": "act"}]}


def acting(**options):
    """Return a tool that books."""

    @tool(name="act", **options)
    def act() -> dict[str, object]:
        """Act."""
        return BOOKED

    return act


async def result_of(stage, act, **options):
    done = await stage.run([CALL, "x"], [act], limits=ROOM, **options)
    [result] = done.results
    return result


async def test_the_model_is_shown_the_declared_fields_alone(stage):
    result = await result_of(stage, acting(fields=["id", "price.cny"]))
    assert (result.content, result.size, result.ref) == ('{"id": "b1", "price": {"cny": 740}}', None, None)


async def test_a_list_is_shown_up_to_its_limit_and_read_whole_where_the_model_wants_it(stage):
    @tool(effect="read", limit=2)
    def look() -> list[int]:
        """Look."""
        return list(range(50))

    def reading(request):
        handle = request.messages[-1].result.ref
        return {"calls": [{"name": "read_result", "arguments": {"handle": handle}}]}

    done = await stage.run([{"calls": [{"name": "look"}]}, reading, "x"], [look], limits=ROOM)
    shown, whole = done.results
    assert (shown.content, shown.trimmed) == ("[0, 1]", "2 of 50 items")
    assert whole.content == str(list(range(50)))


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_function_makes_what_the_model_is_shown(stage, kind):
    def briefly(booked):
        return f"booked for {booked['price']['cny']} CNY"

    async def briefly_later(booked):
        return briefly(booked)

    result = await result_of(stage, acting(shape=briefly if kind == "sync" else briefly_later))
    assert (result.content, result.note) == ("booked for 740 CNY", None)


async def test_a_function_is_given_the_value_itself(stage):
    @dataclasses.dataclass
    class Seat:
        row: int

    @tool(shape=lambda seat: seat.row)
    def act() -> object:
        """Act."""
        return Seat(7)

    assert (await result_of(stage, act)).content == "7"


def raises(_):
    raise SystemExit(1)


async def hangs(_):
    await asyncio.sleep(60)


@pytest.mark.parametrize("shape", [raises, hangs, lambda value: value["none"]], ids=["exits", "hangs", "fails"])
async def test_a_function_that_fails_is_no_failure_of_the_tool(stage, shape):
    act = acting(shape=shape, fields=["id"])
    result = await result_of(stage, act)
    assert (result.status, result.content) == ("ok", '{"id": "b1"}')
    assert "could not be shaped, and is shown as it is" in (result.note or "")


async def test_a_cancelled_run_does_not_lose_an_effect_to_a_slow_function(stage):
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def slow(value):
        loop.call_soon_threadsafe(begun.set)
        await asyncio.sleep(60)

    handle = await stage.start([CALL, "x"], [acting(shape=slow)])
    await asyncio.wait_for(begun.wait(), 30)
    await handle.cancel("enough")
    done = await stage.end(handle)
    assert [call.status for call in done.result.calls] == ["ok"]


async def test_what_a_probe_finds_is_shaped_alike(stage):
    @tool(probe=lambda ctx: Done(BOOKED), fields=["id"], shape=lambda booked: {**booked, "found": True})
    def act() -> dict[str, object]:
        """Act."""
        raise OSError

    assert (await result_of(stage, act)).content == '{"id": "b1"}'


async def test_a_fallback_is_shaped_as_it_says_itself(stage):
    @tool(effect="read", fields=["price.usd"])
    def other() -> dict[str, object]:
        """Act."""
        return BOOKED

    @tool(name="act", effect="read", fallback=other, fields=["id"])
    def act() -> dict[str, object]:
        """Act."""
        raise OSError

    result = await result_of(stage, act)
    assert result.content == '{"price": {"usd": 100}}'
    assert "Answered by other" in (result.note or "")


async def test_the_result_of_a_tool_elsewhere_is_shaped_as_declared(stage):
    await stage.serve_elsewhere(lambda _: {"rows": [{"a": 1, "b": 2}] * 9})
    result = await result_of(stage, stage.elsewhere(fields=["rows.a"], limit=1))
    assert (result.content, result.trimmed) == ('{"rows": [{"a": 1}]}', "rows: 1 of 9 items")


@pytest.mark.parametrize("size", [10, 2 * RESULT_LIMIT])
@pytest.mark.parametrize(
    "options", [{"fields": ["id"]}, {"shape": lambda booked: booked["id"]}], ids=["fields", "function"]
)
async def test_a_compensation_is_given_what_the_tool_returned(stage, options, size):
    given, booked = [], {"id": "b1", "terms": "x" * size}

    @tool(compensate=lambda ctx, result: given.append(result), **options)
    def act() -> dict[str, str]:
        """Act."""
        return booked

    @tool(approval="always")
    def wait() -> str:
        """Wait."""
        return ""

    handle = await stage.start(
        [CALL, {"calls": [{"name": "wait"}]}], [act, wait], compensate_on=["cancelled"], limits=ROOM
    )
    await stage.until(handle, "approval_requested")
    await handle.cancel("enough")
    done = await stage.end(handle)
    assert "terms" not in done.results[0].content
    assert given == [booked]


async def test_a_run_keeps_the_shape_that_it_started_with(stage):
    @tool(name="wait", approval="always")
    def wait() -> str:
        """Wait."""
        return ""

    handle = await stage.start([{"calls": [{"name": "wait"}]}, CALL, "x"], [wait, acting(fields=["id"])])
    await stage.until(handle, "approval_requested")
    agent = dataclasses.replace(stage.agents[0], tools=[wait, acting(fields=["terms"])])
    await stage.serve(agent)
    await handle.approve()
    done = await stage.end(handle)
    assert done.results[1].content == '{"id": "b1"}'
