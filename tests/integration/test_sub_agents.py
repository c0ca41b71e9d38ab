"""Agents as tools of others: each call is a run of its own, on its caller's budget, and ends with it."""

import asyncio
from typing import Any

import pytest
from pydantic import SecretStr

from perdure import Agent, Limits, tool
from perdure.asking import kinds
from perdure.errors import AgentError, ToolDefinitionError
from perdure.policies import Approval

ROOMY: dict[str, Any] = {"input_tokens": None, "output_tokens": None}


def asking(*tasks, name="scout"):
    return {"calls": [{"name": name, "arguments": {"task": task}} for task in tasks]}


@tool(effect="read")
def look(place: str) -> str:
    """Look at a place."""
    return f"{place} is fine"


@pytest.fixture
def booked():
    return []


@pytest.fixture
def book(booked):
    @tool(approval="always")
    def book(seat: str) -> str:
        """Book a seat."""
        booked.append(seat)
        return f"booked {seat}"

    return book


LOOKING = {"calls": [{"name": "look", "arguments": {"place": "Rome"}}]}
BOOKING = {"calls": [{"name": "book", "arguments": {"seat": "1A"}}]}


async def test_an_agent_that_is_a_tool_does_its_task_in_a_run_of_its_own(stage):
    scout = stage.agent([LOOKING, "Rome it is"], [look], name="scout")
    done = await stage.run([asking("find a place"), "go to Rome"], [scout.as_tool("Finds places.")], name="guide")
    assert (done.result.status, done.result.text) == ("completed", "go to Rome")
    [result] = done.results
    assert (result.status, result.content) == ("ok", "Rome it is")
    child = stage.client.handle(f"{done.handle.id}/1.1")
    stage.audit(child)
    own = await child.result()
    assert [call.name for call in own.calls] == ["look"]
    assert done.result.steps == 2 + own.steps
    assert (await child.projection()).task == "find a place"
    [started] = done.told("tool_started")
    assert (started.name, started.child) == ("scout", child.id)


async def test_agents_that_only_read_work_beside_each_other_and_are_answered_in_call_order(stage):
    both = asyncio.Barrier(2)

    @tool(effect="read")
    async def meet() -> str:
        """Wait for the other one."""
        await both.wait()
        return "met"

    scout = stage.agent([{"calls": [{"name": "meet"}]}, "there"], [meet], name="scout")
    done = await stage.run([asking("one", "two"), "both"], [scout.as_tool("Meets.")], name="guide")
    assert [(result.status, result.content) for result in done.results] == [("ok", "there")] * 2


async def test_one_that_fails_is_an_error_with_its_words_and_what_it_has_said(stage):
    scout = stage.agent(
        [LOOKING, {"error": {"kind": "authentication", "message": "no such key"}}], [look], name="scout"
    )
    done = await stage.run([asking("find"), "sorry"], [scout.as_tool("Finds places.")], name="guide")
    [result] = done.results
    assert (done.result.status, result.status, result.error_type) == ("completed", "error", "authentication")
    assert "no such key" in result.message
    assert done.result.steps >= 2


async def test_one_that_reaches_its_limit_says_so_and_what_it_has_found(stage):
    looking = [{"text": "so far: Rome", **LOOKING}, {"text": "and Oslo", **LOOKING}, "Rome, perhaps"]
    scout = stage.agent(looking, [look], name="scout", limits=Limits(steps=3, calls_per_tool={"look": 1}))
    done = await stage.run([asking("find"), "ok"], [scout.as_tool("Finds places.")], name="guide")
    [result] = done.results
    assert result.status in ("ok", "error")
    assert "Rome" in (result.content or result.note)


async def test_who_approves_what_a_sub_agent_does_finds_it_waiting_from_the_top(stage, book, booked):
    booker = stage.agent([BOOKING, "booked"], [book], name="booker")
    handle = await stage.start([asking("book", name="booker"), "done"], [booker.as_tool("Books.")], name="guide")
    await stage.until(handle, "tool_started")
    await stage.until_status(handle, "waiting_approval")
    child = stage.client.handle(f"{handle.id}/1.1")
    stage.audit(child)
    assert booked == []
    assert kinds(await stage.state(handle)) == ["approval"]
    await child.approve("1.1", by="Ann")
    done = await stage.end(handle)
    assert (done.result.text, booked) == ("done", ["1A"])


async def test_what_a_sub_agent_may_begin_is_asked_before(stage, book, booked):
    booker = stage.agent([BOOKING, "booked"], [book], name="booker")
    as_tool = booker.as_tool("Books.", approval="always")
    handle = await stage.start([asking("book", name="booker"), "then not"], [as_tool], name="guide")
    await stage.until(handle, "approval_requested")
    await handle.deny("1.1", by="Ann", reason="too dear")
    done = await stage.end(handle)
    assert (done.results[0].status, booked) == ("denied", [])


async def test_where_nothing_is_left_to_lend_the_model_is_told(stage):
    scout = stage.agent(["found"], [look], name="scout")
    limits = Limits(steps=3, **ROOMY)
    done = await stage.run([asking("find"), "without it"], [scout.as_tool("Finds.")], name="guide", limits=limits)
    [result] = done.results
    assert (done.result.text, result.status, result.error_type) == ("without it", "error", "budget")
    assert done.result.steps == 2


async def test_a_tree_of_runs_keeps_within_its_root_and_all_it_used_is_on_the_bill(stage):
    scout = stage.agent(
        [LOOKING] * 30 + ["found"],
        [look],
        name="scout",
        limits=Limits(steps=50, repeat_told=40, repeat_refused=40, repeat_ended=40),
    )
    guide = stage.agent([asking("find"), "ok"], [scout.as_tool("Finds.")], name="guide")
    limits = Limits(steps=20, **ROOMY)
    done = await stage.run(
        [asking("a tour", name="guide"), "ok"], [guide.as_tool("Guides.")], name="office", limits=limits
    )
    assert done.result.status == "completed"
    assert done.result.steps <= 20
    below = await stage.client.handle(f"{done.handle.id}/1.1").result()
    lowest = await stage.client.handle(f"{done.handle.id}/1.1/1.1").result()
    assert (below.steps, done.result.steps) == (2 + lowest.steps, 4 + lowest.steps)


@pytest.mark.reported(38)
async def test_cancelling_a_tree_of_fifty_runs_three_levels_deep_leaves_none_running(stage):
    begun = asyncio.Semaphore(0)

    @tool(effect="read", timeout=60)
    async def linger() -> str:
        """Take a while."""
        begun.release()
        await asyncio.sleep(60)
        return "late"

    roomy = Limits(steps=10_000, wall_time=None, parallel_reads=50, **ROOMY)
    low = stage.agent([{"calls": [{"name": "linger"}]}, "x"], [linger], name="low", limits=roomy)
    middle = stage.agent(
        [asking(*"abcdef", name="low"), "x"], [low.as_tool("Low.", share=0.05)], name="middle", limits=roomy
    )
    top = stage.agent(
        [asking(*"abcdefg", name="middle"), "x"], [middle.as_tool("Middle.", share=0.05)], name="top", limits=roomy
    )
    await stage.serve(top)
    handle = await stage.start_again(top)
    for _ in range(42):
        await asyncio.wait_for(begun.acquire(), 60)
    await handle.cancel("enough")
    done = await stage.end(handle)
    assert done.result.status == "cancelled"
    tree = [f"{handle.id}/1.{one}" for one in range(1, 8)]
    tree += [f"{above}/1.{one}" for above in tree for one in range(1, 7)]
    ended = [await stage.client.handle(child).projection() for child in tree]
    assert [one.ended.status for one in ended] == ["cancelled"] * 49


async def test_pausing_a_run_pauses_the_runs_that_its_calls_are_until_it_is_resumed(stage):
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def wait() -> str:
        """Wait."""
        begun.set()
        await go_on.wait()
        return "there"

    low = stage.agent([{"calls": [{"name": "wait"}]}, "low"], [wait], name="low")
    middle = stage.agent([asking("x", name="low"), "middle"], [low.as_tool("Low.")], name="middle")
    handle = await stage.start([asking("x", name="middle"), "top"], [middle.as_tool("Middle.")], name="top")
    await asyncio.wait_for(begun.wait(), 60)
    await handle.pause(by="Ann", reason="lunch")
    lowest = stage.client.handle(f"{handle.id}/1.1/1.1")
    stage.audit(lowest)
    await stage.until(lowest, "paused")
    go_on.set()
    for run in (lowest, handle):
        await stage.until_status(run, "paused")
    await handle.resume(by="Ann")
    done = await stage.end(handle)
    assert (done.result.text, done.results[0].content) == ("top", "middle")


async def test_a_run_that_is_cancelled_alone_is_told_to_its_caller(stage, book):
    booker = stage.agent([BOOKING, "booked"], [book], name="booker")
    handle = await stage.start([asking("book", name="booker"), "then not"], [booker.as_tool("Books.")], name="guide")
    await stage.until(handle, "tool_started")
    await stage.until_status(handle, "waiting_approval")
    await stage.client.handle(f"{handle.id}/1.1").cancel("not now")
    done = await stage.end(handle)
    assert (done.result.text, done.results[0].status) == ("then not", "cancelled")
    assert done.result.steps == 3, "only the step that it had taken is charged, not all that it was lent"


async def test_secrets_of_a_run_are_its_sub_agents_too(stage):
    from perdure.agents import Task
    from perdure.tools import ToolContext

    seen = []

    @tool(effect="read")
    def unlock(ctx: ToolContext) -> str:
        """Open it."""
        seen.append(ctx.secrets["pin"])
        return "open"

    opener = stage.agent([{"calls": [{"name": "unlock"}]}, "open"], [unlock], name="opener")
    again = [asking("one", name="opener"), asking("two", name="opener"), "done"]
    top = stage.agent(again, [opener.as_tool("Opens.")], name="guide")
    await stage.serve(top)
    done = await stage.end(await stage.start_again(top, Task(input="go", secrets={"pin": SecretStr("open-sesame-77")})))
    assert (done.result.text, seen) == ("done", ["open-sesame-77"] * 2)


def test_two_different_agents_of_one_name_are_refused_also_below(stage):
    one, other = stage.agent(["x"], name="scout"), stage.agent(["y"], name="scout", instructions="other")
    top = stage.agent(["z"], [one.as_tool("One."), other.as_tool("Other.", name="other")], name="guide")
    with pytest.raises(AgentError, match="Two agents of one file are named 'scout'"):
        asyncio.run(stage.serve(top))


def test_a_share_that_can_not_be_and_no_description_are_refused(stage):
    scout = Agent("scout", "scripted:x.json", approval=Approval())
    with pytest.raises(ToolDefinitionError, match="share"):
        scout.as_tool("Finds.", share=2)
    with pytest.raises(ToolDefinitionError, match="description"):
        scout.as_tool("")
