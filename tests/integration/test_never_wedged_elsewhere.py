"""Tools in the workflow's own worker, and tools of somebody else's worker."""

import asyncio

import pytest

from perdure.tools import tool


def calling(name, arguments=None):
    return {"calls": [{"name": name, "arguments": arguments or {}}]}


async def test_a_local_tool_runs_without_an_activity_task_and_is_told_of(stage):
    @tool(effect="read", local=True)
    def look(q: str) -> str:
        """Look."""
        return f"saw {q}"

    done = await stage.run([calling("look", {"q": "x"}), "done"], [look])
    assert [result.content for result in done.results] == ["saw x"]
    assert [event.name for event in done.told("tool_started")] == ["look"]
    assert [event.status for event in done.told("tool_finished")] == ["ok"]


async def test_a_local_tool_that_fails_is_tried_again_and_then_an_error_result(stage):
    times = []

    @tool(effect="read", local=True)
    def look() -> str:
        """Look."""
        times.append(1)
        raise OSError("unplugged")

    done = await stage.run([calling("look"), "done"], [look])
    assert (done.results[0].status, done.results[0].error_type) == ("error", "OSError")
    assert len(times) == 2
    assert done.result.status == "completed"


async def test_a_local_tool_that_does_not_end_is_given_up(stage, anchor):
    @tool(effect="read", local=True, timeout=0.3)
    def stay() -> str:
        """Stay."""
        anchor.wait(20)
        return "late"

    done = await stage.run([calling("stay"), "done"], [stay])
    assert (done.results[0].status, done.results[0].error_type) == ("error", "timeout")
    anchor.set()


async def test_a_remote_tool_without_a_worker_is_waited_for(stage):
    handle = await stage.start([calling("act"), "done"], [stage.elsewhere()])
    await stage.until(handle, "tool_started")
    assert [activity.kind for activity in (await handle.projection()).pending.values()] == ["Act"]
    await handle.cancel()
    done = await stage.end(handle)
    assert done.result.status == "cancelled"
    assert [call.status for call in done.result.calls] == ["cancelled"]


async def test_a_remote_tool_is_given_arguments_and_key_and_returns_json(stage):
    seen = []

    def act(arguments):
        seen.append(arguments)
        return {"fine": True}

    await stage.serve_elsewhere(act)
    remote = stage.elsewhere(effect="idempotent", key_argument="key")
    done = await stage.run([calling("act", {"q": "x"}), "done"], [remote])
    assert [result.content for result in done.results] == ['{"fine": true}']
    [given] = seen
    assert given["q"] == "x"
    assert given["key"].startswith(f"{done.handle.id}:")
    assert given["key"].endswith(":1.1")


@pytest.mark.parametrize("effect", ["read", "idempotent", "unsafe"])
async def test_an_activity_that_the_other_worker_does_not_know_did_nothing(stage, effect):
    await stage.serve_elsewhere(lambda _: 1, name="Other")
    done = await stage.run([calling("act"), "done"], [stage.elsewhere(effect=effect, attempts=2)])
    [result] = done.results
    assert result.status == "error"
    assert "Act" in result.message
    assert done.result.status == "completed"


async def test_a_remote_read_that_fails_is_tried_again_and_then_an_error_result(stage):
    times = []

    def fail(_):
        times.append(1)
        raise RuntimeError("unplugged")

    await stage.serve_elsewhere(fail)
    done = await stage.run([calling("act"), "done"], [stage.elsewhere()])
    assert done.results[0].status == "error"
    assert "unplugged" in done.results[0].message
    assert len(times) == 2


async def test_a_remote_effect_that_fails_is_in_doubt_unless_it_says_that_nothing_was_done(stage):
    from temporalio.exceptions import ApplicationError

    def fail(arguments):
        raise ApplicationError("sold out", type="ToolError") if arguments.get("known") else RuntimeError("unplugged")

    await stage.serve_elsewhere(fail)
    script = [calling("act", {"known": True}), calling("act"), "done"]
    handle = await stage.start(script, [stage.elsewhere(effect="unsafe")])
    event = await stage.until(handle, "in_doubt")
    assert event.call == "2.1"
    assert "unplugged" in event.message
    await handle.settle("2.1", "done", result={"seat": "1A"})
    done = await stage.end(handle)
    assert [(r.status, r.message or r.content) for r in done.results] == [
        ("error", "sold out"),
        ("ok", '{"seat": "1A"}'),
    ]


@pytest.mark.parametrize("value", [b"\xff", None, "text", "x" * 1_500_000, [1, 2]], ids=lambda v: type(v).__name__)
async def test_a_remote_tool_may_return_anything_that_the_engine_records(stage, value):
    await stage.serve_elsewhere(lambda _: value)
    done = await stage.run([calling("act"), "done"], [stage.elsewhere()])
    assert [result.status for result in done.results] == ["ok"]
    assert len(done.results[0].content) <= 65_536


async def test_a_remote_result_that_is_too_large_for_the_engine_ends_by_the_effect(stage):
    await stage.serve_elsewhere(lambda _: "x" * 3_000_000, without_store=True)
    done = await stage.run([calling("act"), "done"], [stage.elsewhere()])
    assert [result.status for result in done.results] == ["error"]
    assert done.result.status == "completed"


# -- cancelled in the same moment ------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["cancelled", "completed"])
async def test_an_effect_that_was_done_is_known_also_where_the_run_is_cancelled_in_the_same_moment(
    stage, anchor, first
):
    async def act(_):
        await asyncio.to_thread(anchor.wait, 20)
        return "done"

    await stage.serve_elsewhere(act)
    handle = await stage.start([calling("act"), "done"], [stage.elsewhere(effect="unsafe", timeout=30)])
    await stage.until_held(handle, "Act")
    await stage.stop()  # nobody decides now: both events reach the next worker together
    if first == "cancelled":
        await handle.cancel()
    anchor.set()
    await ended(handle)
    if first == "completed":
        await handle.cancel()
    await stage.serve(*stage.agents)
    done = await stage.end(handle)
    assert done.result.status == "cancelled"
    assert [(call.name, call.status) for call in done.result.calls] == [("act", "ok")]


async def ended(handle):
    """Wait until no activity of the run is pending."""
    while (await handle.projection()).pending:
        await asyncio.sleep(0.02)  # the engine can only be asked
