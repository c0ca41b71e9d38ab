"""Whatever a tool does or returns, its call ends as the table of outcomes says, and says why."""

import asyncio
import threading
import time
from contextlib import suppress
from datetime import timedelta

import pytest

from perdure.activities.tools import ToolActivities
from perdure.errors import ToolDefinitionError, ToolError
from perdure.policies import Limits
from perdure.tools import Tool, ToolContext, tool


def calling(name, arguments=None):
    return {"calls": [{"name": name, "arguments": arguments or {}}]}


class Odd:
    def __repr__(self):
        return "an odd thing"


class Unspeakable:
    def __repr__(self):
        raise RuntimeError("no words")


class Mute(BaseException):
    def __str__(self):
        raise RuntimeError("no words")


def cyclic():
    items: list[object] = [1]
    items.append(items)
    return items


def deep(levels):
    value: list[object] = []
    for _ in range(levels):
        value = [value]
    return value


# -- what it returns -------------------------------------------------------------------------------------------

RETURNED = {
    "nothing": (lambda: None, lambda r: r.content == ""),
    "object": (Odd, lambda r: "an odd thing" in r.content and "Odd" in r.note),
    "unspeakable": (Unspeakable, lambda r: "Unspeakable" in r.content + r.note),
    "inside": (lambda: {"a": [Unspeakable()]}, lambda r: "Unspeakable" in r.content + r.note),
    "bytes": (lambda: b"\xff\x00", lambda r: r.content),
    "set": (lambda: {1, 2}, lambda r: r.content == "[1, 2]"),
    "nan": (lambda: {"x": float("nan")}, lambda r: r.content == '{"x": null}'),
    "surrogate": (lambda: "half \ud83d", lambda r: r.content == "half ?"),
    "surrogate_inside": (lambda: {"\ud83d": "\ud83d"}, lambda r: "?" in r.content),
    "cyclic": (cyclic, lambda r: r.content and r.note),
    "deep": (lambda: deep(500), lambda r: r.content.startswith("[[[")),
    "deeper": (lambda: deep(100_000), lambda r: r.note),
    "big_integer": (lambda: 10**4_000, lambda r: len(r.content) == 4_001),
    "huge_integer": (lambda: 10**10_000, lambda r: r.content or r.note),
    "function": (lambda: len, lambda r: "built-in function len" in r.content),
    "coroutine": (lambda: asyncio.sleep(0, "late"), lambda r: r.content == "late"),
}


@pytest.mark.parametrize("effect", ["read", "unsafe"])
@pytest.mark.parametrize(("make", "holds"), RETURNED.values(), ids=RETURNED)
async def test_what_a_tool_returned_is_its_result_whatever_it_is(stage, make, holds, effect):
    times = []

    @tool(effect=effect)
    def give() -> object:
        """Give."""
        times.append(1)
        return make()

    done = await stage.run([calling("give"), "done"], [give])
    assert done.result.status == "completed"
    [result] = done.results
    assert result.status == "ok"
    assert holds(result)
    assert len(times) == 1


@pytest.mark.parametrize("letter", ["x", "字"], ids=["ascii", "chinese"])
async def test_ten_megabytes_reach_the_model_as_a_preview_that_says_what_is_missing(stage, letter):
    size = 10_000_000 // len(letter.encode())

    @tool(effect="read")
    def give() -> object:
        """Give."""
        return letter * size

    done = await stage.run([calling("give"), "done"], [give])
    [result] = done.results
    assert result.status == "ok"
    assert len(result.content.encode()) <= 65_536 < len(result.content.encode()) + 3
    assert result.size == size * len(letter.encode())
    assert done.result.status == "completed"


async def test_eight_large_results_at_once_are_recorded(stage):
    @tool(effect="read", result_limit=200_000)
    def give(number: int) -> str:
        """Give."""
        return "x" * 2_000_000

    calls = [{"name": "give", "arguments": {"number": number}} for number in range(8)]
    done = await stage.run([{"calls": calls}, "done"], [give], limits=Limits(input_tokens=None))
    assert [len(result.content) for result in done.results] == [200_000] * 8
    assert done.result.status == "completed"


@pytest.mark.parametrize("limit", [0, -1, 200_001, 10_000_000])
def test_a_result_limit_that_the_engine_could_not_record_is_refused(limit):
    with pytest.raises(ToolDefinitionError, match="result_limit"):

        @tool(result_limit=limit)
        def give() -> str:
            """Give."""
            return ""


# -- what it raises --------------------------------------------------------------------------------------------

ERRORS = [ValueError("no"), SystemExit(1), KeyboardInterrupt(), GeneratorExit(), Mute(), asyncio.CancelledError()]


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.reported(26)
async def test_a_read_that_raises_anything_is_tried_again_and_then_an_error_result(stage, error, kind):
    times = []

    def fail() -> str:
        """Fail."""
        times.append(1)
        raise error

    async def fail_async() -> str:
        """Fail."""
        times.append(1)
        raise error

    failing = tool(effect="read", name="fail")(fail if kind == "sync" else fail_async)
    done = await stage.run([calling("fail"), "done"], [failing])
    assert done.result.status == "completed"
    [result] = done.results
    assert (result.status, result.error_type) == ("error", type(error).__name__)
    assert type(error).__name__ in result.message
    assert len(times) == 2
    assert done.told("tool_finished")[0].attempt == 2


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.reported(26)
async def test_an_unsafe_tool_that_raises_anything_leaves_its_outcome_in_doubt(stage, error):
    @tool
    async def fail() -> str:
        """Fail."""
        raise error

    handle = await stage.start([calling("fail"), "done"], [fail])
    event = await stage.until(handle, "in_doubt")
    assert type(error).__name__ in event.message
    await handle.settle("1.1", "not-done")
    assert (await stage.end(handle)).result.status == "completed"


async def test_a_known_failure_with_odd_words_is_an_error_result(stage):
    @tool
    def fail() -> str:
        """Fail."""
        raise ToolError("half \ud83d " + "x" * 5_000_000, suggestion="y" * 5_000_000, error_type="z" * 5_000_000)

    done = await stage.run([calling("fail"), "done"], [fail])
    [result] = done.results
    assert result.status == "error"
    assert result.message.startswith("half ? x")
    assert len(result.model_dump_json()) < 20_000


# -- how long it takes -----------------------------------------------------------------------------------------


async def test_an_async_tool_that_blocks_its_loop_is_given_up_and_holds_up_neither_run_nor_heartbeats(stage, anchor):
    @tool(effect="unsafe", timeout=1)
    async def block() -> str:
        """Block the loop, longer than a heartbeat."""
        anchor.wait(20)
        return "late"

    handle = await stage.start([calling("block"), "done"], [block])
    event = await stage.until(handle, "in_doubt")
    assert "did not end within 1 s" in event.message
    await handle.settle("1.1", "done")
    assert (await stage.end(handle)).result.status == "completed"
    anchor.set()


async def test_a_tool_that_blocks_its_loop_is_no_lost_worker(stage, anchor):
    @tool(effect="read", timeout=20)
    async def block() -> str:
        """Block the loop for longer than the heartbeat timeout of 2 s."""
        anchor.wait(3)
        return "slow"

    done = await stage.run([calling("block"), "done"], [block])
    assert [result.content for result in done.results] == ["slow"]
    assert done.told("tool_finished")[0].attempt == 1


async def test_an_async_tool_that_never_began_behind_one_that_blocks_did_nothing(stage, anchor):
    began = []

    @tool(effect="read", timeout=1)
    async def block() -> str:
        """Block the loop."""
        anchor.wait(20)
        return "late"

    @tool(timeout=0.5)
    async def act() -> str:
        """Act."""
        began.append(1)
        return "acted"

    handle = await stage.start([{"calls": [{"name": "block"}, {"name": "act"}]}, "done"], [block, act])
    event = await stage.until(handle, lambda e: e.type == "tool_finished" and e.name == "act")
    assert event.status == "error"
    assert event.message.endswith("Nothing was executed.")
    assert "busy" in event.message
    anchor.set()
    await stage.end(handle)
    assert not began


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.reported(36)
async def test_a_tool_that_ignores_cancellation_is_left_behind_at_its_deadline(stage, anchor, kind):
    @tool(timeout=0.3, name="stay")
    def stay() -> str:
        """Stay."""
        anchor.wait(20)
        return "late"

    @tool(timeout=0.3, name="stay")
    async def stay_async() -> str:
        """Stay, whatever is asked."""
        while not anchor.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)
        return "late"

    handle = await stage.start([calling("stay"), "done"], [stay if kind == "sync" else stay_async])
    await stage.until(handle, "in_doubt")
    [call] = (await stage.state(handle)).calls
    assert call.doubt.believed_from is None  # it still runs: no look-up can say that it was not done
    await handle.settle("1.1", "not-done")
    done = await stage.end(handle)
    assert done.result.status == "completed"
    anchor.set()


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.reported(37)
async def test_a_run_that_is_cancelled_does_not_wait_for_a_tool_that_ignores_it(stage, anchor, kind):
    @tool(timeout=30, name="stay")
    def stay() -> str:
        """Stay."""
        anchor.wait(20)
        return "late"

    @tool(timeout=30, name="stay")
    async def stay_async() -> str:
        """Stay, whatever is asked."""
        while not anchor.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)
        return "late"

    handle = await stage.start([calling("stay"), "done"], [stay if kind == "sync" else stay_async])
    await stage.until_held(handle, "stay")
    await handle.cancel("enough")
    done = await stage.end(handle)
    assert done.result.status == "cancelled"
    assert [(call.name, call.status) for call in done.result.calls] == [("stay", "in_doubt")]
    anchor.set()


async def test_a_cancelled_read_is_closed_as_cancelled(stage):
    @tool(effect="read", timeout=30)
    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(30)
        return "late"

    handle = await stage.start([calling("wait"), "done"], [wait])
    await stage.until_held(handle, "wait")
    await handle.cancel()
    done = await stage.end(handle)
    assert done.result.status == "cancelled"
    assert [call.status for call in done.result.calls] == ["cancelled"]


async def test_more_sync_tools_than_threads_wait_for_each_other(stage):
    @tool(effect="read")
    def nap(number: int) -> int:
        """Nap."""
        time.sleep(0.05)
        return number

    calls = [{"name": "nap", "arguments": {"number": number}} for number in range(8)]
    agent = stage.agent([{"calls": calls}, "done"], [nap])
    await stage.serve(agent, settings=stage.client.settings.model_copy(update={"threads": 2}))
    done = await stage.end(await stage.start_again(agent))
    assert [result.content for result in done.results] == [str(number) for number in range(8)]


async def test_a_thread_that_never_ends_gives_its_place_to_others(stage, anchor):
    @tool(effect="read", timeout=0.3)
    def stay() -> str:
        """Stay."""
        anchor.wait(20)
        return "late"

    @tool(effect="read")
    def quick() -> str:
        """Be quick."""
        return "quick"

    agent = stage.agent([{"calls": [{"name": "stay"}, {"name": "quick"}]}, "done"], [stay, quick])
    await stage.serve(agent, settings=stage.client.settings.model_copy(update={"threads": 1}))
    done = await stage.end(await stage.start_again(agent))
    assert [result.status for result in done.results] == ["error", "ok"]
    anchor.set()


async def test_at_most_eight_reads_of_a_turn_run_at_once(stage):
    running, most = set(), []

    @tool(effect="read")
    async def look(number: int) -> int:
        """Look."""
        running.add(number)
        most.append(len(running))
        await asyncio.sleep(0.05)
        running.discard(number)
        return number

    calls = [{"name": "look", "arguments": {"number": number}} for number in range(20)]
    done = await stage.run([{"calls": calls}, "done"], [look])
    assert 2 <= max(most) <= 8
    assert [result.content for result in done.results] == [str(number) for number in range(20)]


async def test_effects_of_a_turn_run_one_after_another_in_call_order(stage):
    log = []

    @tool
    async def act(number: int) -> int:
        """Act."""
        log.append(("begin", number))
        await asyncio.sleep(0.02)
        log.append(("end", number))
        return number

    calls = [{"name": "act", "arguments": {"number": number}} for number in range(3)]
    done = await stage.run([{"calls": calls}, "done"], [act])
    assert log == [(what, number) for number in range(3) for what in ("begin", "end")]
    assert [result.execution_order for result in done.results] == [1, 2, 3]


# -- names -----------------------------------------------------------------------------------------------------

NAMES = ["look up", "飞机", "a/b.c-d:e", "x" * 100, "🛫", "perduremodel"]


@pytest.mark.parametrize("local", [False, True], ids=["activity", "local"])
async def test_a_defect_of_the_runtime_in_a_tools_attempt_is_that_calls_error(stage, monkeypatch, local):
    @tool(effect="read", local=local)
    async def look() -> str:
        """Look."""
        return "seen"

    async def breaks(*_):
        raise KeyError("a defect")

    monkeypatch.setattr(ToolActivities, "_attempt", breaks)
    done = await stage.run([{"calls": [{"name": "look", "arguments": {}}]}, "done"], [look])
    assert done.result.status == "completed"
    assert [result.status for result in done.results] == ["error"]


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:12])
@pytest.mark.parametrize("local", [False, True], ids=["activity", "local"])
@pytest.mark.reported(29)
async def test_a_tool_may_have_any_name(stage, name, local):
    @tool(effect="read", name=name, local=local)
    def act() -> str:
        """Act."""
        return "acted"

    done = await stage.run([calling(name), "done"], [act])
    assert [(result.name, result.content) for result in done.results] == [(name, "acted")]


@pytest.mark.parametrize("name", [" ", "x" * 2_000, "half \ud83d", "new\nline", "nul\0", "perdure.model"], ids=ascii)
def test_a_name_that_no_engine_takes_is_refused(name):
    with pytest.raises(ToolDefinitionError, match="name"):
        Tool.from_schema(print, {}, name=name, description="Act.")


@pytest.mark.parametrize(
    ("activity", "queue"), [("", "q"), ("a", ""), ("a" * 2_000, "q"), ("a", "q" * 2_000), ("a", "/_sys/q")]
)
def test_a_remote_address_that_no_engine_takes_is_refused(activity, queue):
    with pytest.raises(ToolDefinitionError):
        Tool.remote(activity=activity, task_queue=queue, name="act", description="Act.", parameters={})


# -- the turn as a whole ---------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.reported(2)
async def test_a_tool_with_arguments_of_a_megabyte_and_an_answer_of_a_megabyte_is_one_run(stage):
    @tool(effect="read")
    def echo(text: str) -> int:
        """Echo."""
        return len(text)

    script = [calling("echo", {"text": f"{number}" + "x" * 900_000}) for number in range(3)]
    limits = Limits(steps=10, input_tokens=None, output_tokens=None)
    done = await stage.run([*script, "y" * 900_000], [echo], limits=limits)
    assert done.result.status == "completed"
    assert [result.content for result in done.results] == ["900001"] * 3


async def test_a_sync_tool_sees_its_deadline(stage):
    seen = []

    @tool(effect="read", timeout=timedelta(seconds=0.3))
    def look(ctx: ToolContext) -> str:
        """Look until the deadline."""
        while not ctx.cancelled:
            time.sleep(0.02)
        seen.append(threading.current_thread().name)
        return "stopped in time"

    done = await stage.run([calling("look"), "done"], [look])
    assert [(result.status, result.content) for result in done.results] == [("ok", "stopped in time")]
    assert seen
