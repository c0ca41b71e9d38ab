"""Runs from outside: started once, cancelled, resumed, and told of, against a real server."""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client as TemporalClient
from temporalio.service import RetryConfig

from perdure import Client, ConnectionFailed, Limits, PerdureError, RunCancelled, RunFailed, RunNotFound, Settings, Task
from perdure.engine import connection
from perdure.engine.converter import data_converter
from perdure.engine.server import DevServer
from perdure.errors import ModelError
from perdure.events import position_key
from tests.integration.client.office import own_state, until

# -- starting -------------------------------------------------------------------------------------------------


async def test_same_id_twice_is_one_run_whatever_the_second_asks_for(office, client):
    agent, run_id = office.agent("Hello."), f"once-{uuid4().hex[:8]}"
    await office.serve(agent)
    starts = [client.start(agent, f"go {n}", id=run_id, task_queue=office.queue) for n in range(5)]
    handles = await asyncio.gather(*starts)
    results = [await handle.result() for handle in handles]
    again = await client.start(agent, Task(input="once more", id=run_id), task_queue=office.queue)
    assert (again.existing, again.same_task) == (True, False)
    assert sum(not handle.existing for handle in handles) == 1
    assert (await again.result()).text == "Hello."
    assert {result.run_id for result in results} == {run_id}
    assert office.model.calls == 1


async def test_run_without_an_id_is_named_after_its_agent(office, client):
    agent = office.agent("Hello.")
    first, second = [await client.start(agent, "go", task_queue=office.queue) for _ in range(2)]
    assert first.id != second.id
    assert first.id.startswith(f"{agent.name}-")


async def test_limits_of_the_task_beat_the_agents(office):
    handle = await office.start(1, "Done.", approval="never", task=Task(input="go", limits=Limits(steps=1)))
    assert (await handle.result()).status == "budget_exhausted"


@pytest.mark.parametrize("text", ["x" * 20_000_000, "上" * 7_000_000])
@pytest.mark.reported(2)
async def test_input_too_large_to_be_recorded_is_refused_before_anything_is_started(office, client, text):
    with pytest.raises(PerdureError, match=r"have 2\d,\d{3},\d{3} bytes; at most 16,000,000 are taken") as caught:
        await client.start(office.agent("Hello."), text, id="large", task_queue=office.queue)
    assert not isinstance(caught.value, ConnectionFailed)
    with pytest.raises(RunNotFound):
        await client.handle("large").result()


async def test_half_an_emoji_in_the_input_starts_a_run_all_the_same(office, client):
    handle = await office.start("Hello.", task="half \ud83d")
    assert (await handle.result()).text == "Hello."
    assert (await own_state(client, handle)).messages[0].content == "half ?"  # type: ignore[union-attr] # pyright: ignore[reportAttributeAccessIssue]


async def test_spec_needs_a_queue(office, client):
    with pytest.raises(PerdureError, match="say on which task queue"):
        await client.start(office.agent("Hello.").spec, "go")


async def test_server_that_does_not_answer_is_named(office):
    with pytest.raises(ConnectionFailed, match="No Temporal server answers"):
        await Client.connect(Settings(home=office.client.settings.home / "nowhere"))


async def test_server_that_went_away_is_named_whatever_is_asked_of_it(office, tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "LONGEST_ABSENCE", 0)
    async with await DevServer.start(Settings(home=tmp_path)) as server:
        once = RetryConfig(max_retries=1, initial_interval_millis=1)
        temporal = await TemporalClient.connect(server.address, data_converter=data_converter, retry_config=once)
    gone = Client(temporal)
    handle = gone.handle("any")
    asked: list[Callable[[], Any]] = [
        lambda: gone.start(office.agent("Hello."), "go", task_queue="q"),
        gone.list_runs,
        handle.result,
        handle.approve,
        handle.cancel,
        handle.projection,
        handle.resume,
        lambda: anext(handle.events()),
    ]
    for one in asked:
        with pytest.raises(ConnectionFailed) as caught:
            await one()
        assert server.address in str(caught.value)
        assert str(caught.value).endswith(".")
        assert "\n" not in str(caught.value)


async def test_run_that_does_not_exist_is_not_found_whatever_is_asked_of_it(client):
    handle = client.handle("no-such-run")
    asked: list[Callable[[], Any]] = [
        handle.result,
        handle.approve,
        lambda: handle.deny("1.1"),
        lambda: handle.settle("1.1", "done"),
        handle.cancel,
        handle.projection,
        handle.resume,
        lambda: anext(handle.events()),
    ]
    for one in asked:
        with pytest.raises(RunNotFound, match="There is no run 'no-such-run' on "):
            await one()


# -- ending, resuming -----------------------------------------------------------------------------------------


async def test_cancelled_run_raises_with_what_it_had_done(office):
    handle = await office.start(5, "Done.")
    await until(handle, "approval_requested")
    await handle.cancel("changed my mind")
    with pytest.raises(RunCancelled, match="was cancelled") as caught:
        await handle.result()
    result = caught.value.result
    assert (result.status, result.reason, result.steps) == ("cancelled", "changed my mind", 1)
    assert [call.status for call in result.calls] == ["open"]
    assert office.paid == []


async def test_failed_run_raises_with_reason_and_kind(office):
    handle = await office.start(ModelError("authentication", "The key is wrong."))
    with pytest.raises(RunFailed, match="The key is wrong") as caught:
        await handle.result()
    assert (caught.value.result.status, caught.value.result.failure) == ("failed", "authentication")


async def test_run_that_was_terminated_from_outside_is_told_so(office, client):
    handle = await office.start(5, "Done.")
    await until(handle, "approval_requested")
    await client.temporal.get_workflow_handle(handle.id).terminate("by hand")
    with pytest.raises(RunFailed, match="ended from outside") as caught:
        await handle.result()
    assert caught.value.result.failure == "ended_from_outside"
    assert caught.value.result.steps == 1


@pytest.mark.reported(12)
async def test_run_that_used_up_its_steps_goes_on_with_more_and_does_nothing_twice(office):
    handle = await office.start(5, "So far.", 6, "Done.", approval="never", limits=Limits(steps=2))
    assert (await handle.result()).status == "budget_exhausted"
    with pytest.raises(PerdureError, match=r"The limit of 2 steps is reached\. Resume it with more"):
        await handle.resume()
    again = await handle.resume(add_steps=5)
    result = await again.result()
    assert (result.status, result.text, result.steps) == ("completed", "Done.", 4)
    assert office.paid == [5, 6]
    with pytest.raises(PerdureError, match="is completed; there is nothing to resume"):
        await handle.resume()


async def test_cancelled_run_can_be_resumed_and_asks_again(office):
    handle = await office.start(5, "Done.")
    await until(handle, "approval_requested")
    await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result()
    await handle.resume()
    await handle.approve("1.1")
    assert (await handle.result()).text == "Done."
    assert office.paid == [5]


async def test_open_run_that_is_not_paused_cannot_be_resumed_without_more(office):
    handle = await office.start(5, "Done.")
    await until(handle, "approval_requested")
    with pytest.raises(PerdureError, match="is not paused, and nothing is added"):
        await handle.resume()


# -- seeing ---------------------------------------------------------------------------------------------------


async def test_events_come_once_in_order_and_from_any_point(office):
    handle = await office.start(5, "Done.")
    await until(handle, "approval_requested")
    await handle.approve()
    whole = [event async for event in handle.events()]
    positions = [event.position for event in whole]
    assert positions == sorted(set(positions), key=position_key)
    assert [whole[0].type, whole[-1].type] == ["run_started", "run_finished"]
    for index in range(len(whole)):
        assert [event async for event in handle.events(positions[index])] == whole[index + 1 :]
    assert (await handle.projection()).events == whole


async def test_runs_are_listed_by_status_and_agent(office, client):
    handle = await office.start(5, "Done.")
    await until(handle, "approval_requested")
    agent = handle.id.rpartition("-")[0]

    async def listed(status: str | None) -> list[tuple[str, str]]:
        return [(run.id, run.status) for run in await client.list_runs(status=status, agent=agent)]

    async def settled(status: str) -> None:
        while await listed(None) != [(handle.id, status)]:  # the list follows the run at its own pace
            await asyncio.sleep(0.05)

    await settled("waiting_approval")
    assert await listed("waiting_approval") == [(handle.id, "waiting_approval")]
    assert await listed("running") == []
    await handle.approve()
    await handle.result()
    await settled("completed")
    assert await listed("completed") == [(handle.id, "completed")]
    assert await listed("budget_exhausted") == await listed("failed") == []


@pytest.mark.parametrize("name", ["it's", 'a"b', "a\\b", "a' OR ExecutionStatus = 'Running"])
async def test_odd_names_list_nothing_and_break_nothing(client, name):
    assert await client.list_runs(agent=name) == []


async def test_list_is_cut_at_its_limit(office, client):
    agent = office.agent("Hello.")
    for _ in range(3):
        await client.start(agent, "go", task_queue=office.queue)
    while len(await client.list_runs(agent=agent.name)) < 3:
        await asyncio.sleep(0.05)
    assert len(await client.list_runs(agent=agent.name, limit=2)) == 2
