"""What holds for a run, whatever its shape: the same twelve behaviours for each of them."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from perdure import Limits, Task, tool
from perdure.engine.converter import data_converter
from perdure.events import position_key
from perdure.state import CallStatus
from perdure.steps import open_status
from perdure.workflows.agent import AgentWorkflow
from tests.integration.conftest import PATIENCE
from tests.integration.shapes import SHAPES


class Trip:
    """A run of some shape with all that is under it, and what it has really done."""

    def __init__(self, stage: Any, shape: str) -> None:
        self.stage = stage
        self.shape = SHAPES[shape]
        self.booked: list[str] = []
        self.under_way = threading.Event()  # tools have a loop of their own
        self.held = False
        self.broken = False

    def agent(self, **policy: Any) -> Any:
        """Return an agent of the shape; `policy` holds for the booking."""

        @tool(effect="read")
        def look(place: str) -> str:
            """Look at a place."""
            return f"{place} is fine"

        @tool(timeout=60, **policy)
        async def book(seat: str) -> str:
            """Book a seat."""
            self.under_way.set()
            if self.held:
                await asyncio.Event().wait()
            self.booked.append(seat)
            if self.broken:
                raise RuntimeError("the line went dead")
            return f"booked {seat}"

        return self.shape(self.stage, look, book)

    async def begin(self, task: Any = "go", **policy: Any) -> Any:
        """Serve an agent of the shape, and start a run of it."""
        agent = self.agent(**policy)
        await self.stage.serve(agent)
        return await self.stage.start_again(agent, task)

    async def tree(self, handle: Any) -> AsyncIterator[Any]:
        """Yield the run, and those under it."""
        yield handle
        for event in (await handle.projection()).events:
            if event.type == "tool_started" and event.child:
                async for below in self.tree(self.stage.client.handle(event.child)):
                    yield below

    async def waiting(self, handle: Any, status: CallStatus = CallStatus.ASKING) -> tuple[Any, str]:
        """Return the run of the tree that waits for a person, and the call that it waits with."""

        async def look() -> tuple[Any, str]:
            while True:
                async for run in self.tree(handle):
                    projection = await run.projection()
                    for call in projection.state.open_calls if projection.state else ():
                        if call.status is status:
                            return run, call.position
                await asyncio.sleep(0.05)  # the engine can only be asked

        return await asyncio.wait_for(look(), PATIENCE)

    async def approved(self, handle: Any) -> Any:
        """Return the run's end, with all approved that is asked for."""
        end = asyncio.create_task(self.stage.end(handle))
        while not end.done():
            asked = asyncio.create_task(self.waiting(handle))
            await asyncio.wait({end, asked}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done() and not end.done():
                run, call = asked.result()
                await run.approve(call)
            asked.cancel()
        return await end


@pytest.fixture(params=sorted(SHAPES))
def trip(request: Any, stage: Any) -> Trip:
    return Trip(stage, request.param)


@pytest.mark.reported(13)
async def test_it_goes_on_where_it_was_when_its_worker_is_another_one(trip, stage):
    handle = await trip.begin(approval="always")
    run, call = await trip.waiting(handle)
    await stage.serve(*stage.agents)
    await run.approve(call)
    assert (await stage.end(handle)).result.status == "completed"
    assert trip.booked == ["1A"]


async def test_an_effect_of_which_nobody_knows_is_settled_by_a_person_and_not_repeated(trip, stage):
    trip.broken = True
    handle = await trip.begin()
    run, call = await trip.waiting(handle, CallStatus.IN_DOUBT)
    await run.settle(call, "done", result="booked 1A")
    assert (await stage.end(handle)).result.status == "completed"
    assert trip.booked == ["1A"]


async def test_nothing_is_done_before_it_is_approved(trip, stage):
    handle = await trip.begin(approval="always")
    run, call = await trip.waiting(handle)
    assert open_status((await handle.projection()).state) == "waiting_approval"
    assert trip.booked == []
    await run.approve(call)
    assert (await stage.end(handle)).result.status == "completed"
    assert trip.booked == ["1A"]


async def test_what_is_denied_is_not_done_and_the_run_ends_by_name(trip, stage):
    handle = await trip.begin(approval="always")
    run, call = await trip.waiting(handle)
    await run.deny(call, reason="too dear")
    assert (await stage.end(handle)).result.status in ("completed", "failed")
    assert trip.booked == []


async def test_an_edited_call_is_done_as_it_was_edited(trip, stage):
    handle = await trip.begin(approval="always")
    run, call = await trip.waiting(handle)
    await run.approve(call, arguments={"seat": "2B"})
    assert (await stage.end(handle)).result.status == "completed"
    assert trip.booked == ["2B"]


async def test_a_budget_ends_it_with_what_it_has_and_more_lets_it_go_on(trip, stage):
    handle = await trip.begin(Task(input="go", limits=Limits(steps=1)))
    assert (await stage.end(handle)).result.status == "budget_exhausted"
    await handle.resume(add_steps=30)
    assert (await stage.end(handle)).result.status == "completed"
    assert trip.booked == ["1A"]


async def test_cancelling_it_leaves_nothing_running(trip, stage):
    trip.held = True
    handle = await trip.begin()
    assert await asyncio.to_thread(trip.under_way.wait, PATIENCE)
    await handle.cancel("enough")
    assert (await stage.end(handle)).result.status == "cancelled"
    async for run in trip.tree(handle):
        ended = (await stage.end(run)).result
        unfinished = [record for record in ended.calls if record.status in ("cancelled", "in_doubt")]
        assert ended.status == ("cancelled" if unfinished else "completed")  # some had done their part before
    assert trip.booked == []


async def test_while_it_is_paused_nothing_begins(trip, stage):
    handle = await trip.begin(approval="always")
    run, call = await trip.waiting(handle)
    await handle.pause()
    await stage.until_status(run, "paused") if run.id == handle.id else await stage.until(run, "paused")
    await run.approve(call)
    await stage.until(run, "approval_decided")
    assert not trip.under_way.is_set()
    await handle.resume()
    assert (await stage.end(handle)).result.status == "completed"
    assert trip.booked == ["1A"]


async def test_what_a_person_says_meanwhile_is_heard_and_holds_nothing_up(trip, stage):
    handle = await trip.begin(approval="always")
    run, call = await trip.waiting(handle)
    await handle.say("a window seat, please")
    await run.approve(call)
    done = await trip.approved(handle)
    assert done.result.status == "completed"
    assert "a window seat, please" in [entry.content for entry in done.projection.entries if entry.role == "user"]
    assert trip.booked == ["1A"]


async def test_a_fork_of_it_repeats_no_effect_that_nobody_has_approved(trip, stage):
    handle = await trip.begin()
    assert (await stage.end(handle)).result.status == "completed"
    assert trip.booked == ["1A"]
    fork = await handle.fork(0)
    stage.audit(fork)
    await trip.waiting(fork)
    assert trip.booked == ["1A"]
    assert (await trip.approved(fork)).result.status == "completed"
    assert trip.booked == ["1A", "1A"]


async def test_its_events_come_once_and_in_order(trip, stage):
    handle = await trip.begin()
    await stage.end(handle)
    async for run in trip.tree(handle):
        told = [event async for event in run.events()]
        places = [position_key(event.position) for event in told]
        assert places == sorted(places)
        assert [event.type for event in told if event.type in ("run_started", "run_finished")] == [
            "run_started",
            "run_finished",
        ]
        begun = [event.call for event in told if event.type == "tool_started"]
        ended = [event.call for event in told if event.type == "tool_finished"]
        executed = [one.position for one in (await run.projection()).records if one.execution_order]
        assert sorted(begun) == sorted(call for call in ended if call in executed)
        assert len(ended) == len(set(ended))


async def test_its_history_replays(trip, stage):
    handle = await trip.begin(approval="always")
    run, call = await trip.waiting(handle)
    await run.approve(call)
    await stage.end(handle)
    runner = UnsandboxedWorkflowRunner()
    replayer = Replayer(workflows=[AgentWorkflow], workflow_runner=runner, data_converter=data_converter)
    async for each in trip.tree(handle):
        await replayer.replay_workflow(await stage.client.temporal.get_workflow_handle(each.id).fetch_history())
