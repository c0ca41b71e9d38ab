"""Probes: who asks whether an effect happened, and when the answer counts."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from perdure.tools import Done, NotDone, ToolContext, Unknown, tool

SCRIPT = [{"calls": [{"name": "act", "arguments": {"seat": "1A"}}]}, "done"]


def doubtful(probe, *, timeout=0.3, error=None, **options):
    """A tool whose outcome is in doubt at its first call, and that can be looked up."""
    calls = []

    @tool(name="act", timeout=timeout, probe=probe, **options)
    async def act(seat: str, ctx: ToolContext) -> str:
        """Act."""
        calls.append(ctx.idempotency_key)
        if len(calls) == 1:
            raise error or OSError("reset")
        return "done now"

    return act, calls


async def test_a_probe_that_finds_it_done_gives_the_result(stage):
    asked = []

    async def probe(ctx, seat):
        asked.append((ctx.idempotency_key, seat))
        return Done({"seat": seat})

    act, calls = doubtful(probe)
    done = await stage.run(SCRIPT, [act])
    [result] = done.results
    assert (result.status, result.content) == ("ok", '{"seat": "1A"}')
    assert "look-up" in result.note
    assert asked == [(calls[0], "1A")]
    assert [event.outcome for event in done.told("probed")] == ["done"]
    assert not done.told("in_doubt")


async def test_not_done_is_believed_only_from_the_hard_deadline_on(stage):
    asked = []

    def probe(ctx, seat):
        asked.append(datetime.now(UTC))
        return NotDone()

    act, calls = doubtful(probe, timeout=1.5)
    began = datetime.now(UTC)
    done = await stage.run(SCRIPT, [act])
    [result] = done.results
    assert (result.status, result.error_type) == ("error", "not_done")
    assert len(asked) == 2  # at once, in case it was done, and after the deadline
    assert asked[1] - began >= timedelta(seconds=1.5)
    assert len(calls) == 1
    assert [event.outcome for event in done.told("probed")] == ["not_done", "not_done"]


async def test_an_effect_that_happens_after_the_first_look_is_found_by_the_second(stage):
    world: list[str] = []

    async def probe(ctx, seat):
        found = Done("booked") if world else NotDone()
        world.append(seat)  # the request was still on its way
        return found

    act, _ = doubtful(probe)
    done = await stage.run(SCRIPT, [act])
    assert [(result.status, result.content) for result in done.results] == [("ok", "booked")]
    assert [event.outcome for event in done.told("probed")] == ["not_done", "done"]


RUBBISH = {
    "nothing": lambda ctx, seat: None,
    "a_word": lambda ctx, seat: "done",
    "the_class": lambda ctx, seat: Done,
    "true": lambda ctx, seat: True,
    "raises": lambda ctx, seat: 1 / 0,
    "wants_to_exit": lambda ctx, seat: exit(1),  # noqa: PLR1722
    "other_arguments": lambda ctx: Done(),
    "unknown": lambda ctx, seat: Unknown(),
}


@pytest.mark.parametrize("probe", RUBBISH.values(), ids=RUBBISH)
async def test_a_probe_that_can_not_tell_leaves_it_to_a_person(stage, probe):
    act, _ = doubtful(probe)
    handle = await stage.start(SCRIPT, [act])
    await stage.until(handle, "in_doubt")
    projection = await handle.projection()
    assert {event.outcome for event in projection.events if event.type == "probed"} == {"unknown"}
    await handle.settle("1.1", "done")
    done = await stage.end(handle)
    assert [result.status for result in done.results] == ["ok"]


async def test_a_probe_that_hangs_is_given_up_and_a_person_asked(stage):
    async def probe(ctx, seat):
        await asyncio.sleep(30)
        return Done()

    act, _ = doubtful(probe)
    handle = await stage.start(SCRIPT, [act])
    await stage.until(handle, "in_doubt")
    assert "did not end in time" in (await stage.until(handle, "probed")).message
    await handle.settle("1.1", "not-done")
    await stage.end(handle)


async def test_a_person_may_settle_while_the_probe_looks(stage, anchor):
    looking = asyncio.Event()

    def probe(ctx, seat):
        stage_loop.call_soon_threadsafe(looking.set)
        anchor.wait(20)
        return NotDone()

    stage_loop = asyncio.get_running_loop()
    act, _ = doubtful(probe, timeout=20)
    handle = await stage.start(SCRIPT, [act])
    await asyncio.wait_for(looking.wait(), 10)
    await handle.settle("1.1", "done", result="seen")
    done = await stage.end(handle)
    anchor.set()
    assert [result.content for result in done.results] == ["seen"]


async def test_a_person_may_ask_for_a_retry_while_the_probe_looks(stage, anchor):
    looks: asyncio.Queue[str] = asyncio.Queue()

    def probe(ctx, seat):
        stage_loop.call_soon_threadsafe(looks.put_nowait, seat)
        anchor.wait(20)
        return Unknown()

    calls = []

    @tool(timeout=2, probe=probe)
    async def act(seat: str, ctx: ToolContext) -> str:
        """Act."""
        calls.append(ctx.idempotency_key)
        raise OSError("reset")

    stage_loop = asyncio.get_running_loop()
    handle = await stage.start(SCRIPT, [act])
    await asyncio.wait_for(looks.get(), 10)
    await handle.settle("1.1", "retry")
    await asyncio.wait_for(looks.get(), 1.5)  # a second look-up has begun before the first has ended
    anchor.set()
    await stage.until(handle, "in_doubt")
    await handle.settle("1.1", "not-done")
    done = await stage.end(handle)
    assert [result.error_type for result in done.results] == ["not_done"]
    assert len(calls) == 2
    assert len(set(calls)) == 1


async def test_of_a_tool_that_still_runs_not_done_is_never_believed(stage, anchor):
    def probe(ctx, seat):
        return NotDone()

    @tool(timeout=0.3, probe=probe)
    def act(seat: str) -> str:
        """Act, whatever the deadline."""
        anchor.wait(20)
        return "late"

    handle = await stage.start(SCRIPT, [act])
    await stage.until(handle, "in_doubt")
    anchor.set()
    await handle.settle("1.1", "done")
    await stage.end(handle)


async def test_a_probe_that_was_removed_meanwhile_knows_nothing(stage):
    act, _ = doubtful(lambda ctx, seat: Done())
    agent = stage.agent(SCRIPT, [act])
    without = type(agent)("subject", agent.spec.model, tools=[doubtful(None)[0]])
    await stage.serve(without)
    handle = await stage.start_again(agent)  # by the rules of the agent with the probe
    await stage.until(handle, "in_doubt")
    assert "no probe any more" in (await stage.until(handle, "probed")).message
    await handle.settle("1.1", "done")
    await stage.end(handle)


async def test_an_idempotent_effect_is_looked_up_only_after_its_last_attempt(stage):
    asked = []

    async def probe(ctx, seat):
        asked.append(ctx.idempotency_key)
        return Done("booked")

    calls = []

    @tool(effect="idempotent", attempts=2, probe=probe)
    async def act(seat: str, ctx: ToolContext) -> str:
        """Act."""
        calls.append(ctx.idempotency_key)
        raise OSError("reset")

    done = await stage.run(SCRIPT, [act])
    assert [result.content for result in done.results] == ["booked"]
    assert len(calls) == 2
    assert set(calls) == set(asked)
    assert len(asked) == 1


async def test_with_tell_model_the_probe_is_asked_first(stage):
    act, _ = doubtful(lambda ctx, seat: Done("booked"), in_doubt="tell_model")
    done = await stage.run(SCRIPT, [act])
    assert [result.content for result in done.results] == ["booked"]
    act, _ = doubtful(lambda ctx, seat: Unknown(), in_doubt="tell_model")
    done = await stage.run(SCRIPT, [act])
    assert [result.status for result in done.results] == ["in_doubt"]
    assert done.result.status == "completed"
