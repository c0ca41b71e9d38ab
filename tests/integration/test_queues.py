"""Where calls queue up: urgent runs come first, tenants share by weight, and no more a second pass than is set."""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta

import pytest
from temporalio import activity
from temporalio.common import Priority

from perdure import Client, Task, ToolContext, tool
from perdure.cli import standing
from perdure.errors import ModelError
from perdure.models import ModelReply
from perdure.worker import serving


class Queueing:
    """A model that notes who is served, and when; nobody is answered before `open` is set."""

    provider = "queueing"

    def __init__(self):
        self.begun = asyncio.Event()
        self.open = asyncio.Event()
        self.served = []
        self.times = []

    async def generate(self, request):
        self.served.append(request.messages[0].content)
        self.times.append(time.monotonic())
        self.begun.set()
        await self.open.wait()
        return ModelReply(text="done")

    async def aclose(self):
        pass


async def queued(stage, tasks, agent=None):
    """Start a run of each task in this order, and return them when the model call of each is due."""
    handles = [await stage.start_again(agent or stage.agents[0], task) for task in tasks]
    async with asyncio.timeout(25):
        for handle in handles:
            workflow = stage.client.temporal.get_workflow_handle(handle.id)
            while not (await workflow.describe()).raw_description.pending_activities:
                await asyncio.sleep(0.02)  # the engine can only be asked
    return handles


@pytest.fixture
async def model(stage, stage_settings):
    """A model with one slot: all calls but the first wait in its queue."""
    model = Queueing()
    stage.client.settings = stage_settings.model_copy(update={"model_slots": 1, "tenant_weights": {"big": 3}})
    await stage.serve(stage.agent(model))
    yield model
    model.open.set()


@pytest.mark.long
@pytest.mark.reported(50)
async def test_more_runs_than_a_worker_keeps_in_memory_wait_and_are_approved_each(stage, stage_settings):
    done = []

    @tool(approval="always")
    def book() -> str:
        """Book."""
        done.append(1)
        return "booked"

    agent = stage.agent([{"calls": [{"name": "book"}]}, {"text": "done"}], [book])
    await stage.serve(agent, settings=stage_settings.model_copy(update={"max_runs": 2}))
    runs = await asyncio.gather(*(stage.start_again(agent) for _ in range(10)))
    await asyncio.gather(*(stage.until(run, "approval_requested") for run in runs))
    await asyncio.gather(*(run.approve() for run in runs))
    ended = await asyncio.gather(*(stage.end(run) for run in runs))
    assert {one.result.status for one in ended} == {"completed"}
    assert len(done) == 10


async def test_an_urgent_run_overtakes_those_that_came_before_it(stage, model):
    patient = await queued(stage, ["first", *("patient" for _ in range(20))])
    urgent = await queued(stage, [Task(input="urgent", priority=1)])
    model.open.set()
    await asyncio.gather(*(stage.end(handle) for handle in [*patient, *urgent]))
    assert model.served.index("urgent") == 1


async def test_tenants_share_by_their_weights(stage, model):
    tasks = [Task(input=tenant, tenant=tenant) for tenant in ["small"] * 12 + ["big"] * 12]
    runs = await queued(stage, ["first", *tasks])
    model.open.set()
    await asyncio.gather(*(stage.end(handle) for handle in runs))
    assert 11 <= model.served[1:17].count("big") <= 13


async def test_priority_and_tenant_hold_for_whatever_a_run_does_and_after_a_resume(stage, raw_model, raw_call):
    seen = []

    def reply(request):
        seen.append(activity.info().priority)
        if len(seen) == 1:
            raise ModelError("quota", "pay first")
        return ModelReply(calls=[raw_call("note")], finish="calls") if len(seen) == 2 else "done"

    @tool(effect="read")
    async def note(ctx: ToolContext) -> None:
        """Note with what it is called."""
        if ctx.attempt == 1:
            raise OSError("the first attempt may have passed by the queue, from the run's worker to itself")
        seen.append(activity.info().priority)

    stage.client.settings = stage.client.settings.model_copy(update={"tenant_weights": {"acme": 2.5}})
    task = Task(input="go", priority=2, tenant="acme")
    handle = await stage.start(raw_model(reply), [note], task=task)
    await stage.end(handle)
    await handle.resume()
    await stage.end(handle)
    assert seen == [Priority(priority_key=2, fairness_key="acme", fairness_weight=2.5)] * 4


@pytest.mark.reported(41)
async def test_workers_together_keep_the_rate_of_a_provider(stage, stage_settings):
    model = Queueing()
    agent = stage.agent(model)
    rate = {agent.model.partition(":")[0]: 4}
    settings = stage_settings.model_copy(update={"model_slots": 1, "model_rate": rate})
    await stage.serve(agent, settings=settings)
    runs = await queued(stage, ["go"] * 14)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            another = await Client.connect(settings)
            await stack.enter_async_context(serving(another.temporal, [agent], stage.queue, settings))
        opened = time.monotonic()
        model.open.set()
        await asyncio.gather(*(stage.end(handle) for handle in runs))
    assert len(model.times) == 14
    held, burst = 3, 4
    assert model.times[-1] - opened >= (14 - held - burst - 1) / 4


async def test_a_run_goes_on_with_a_provider_that_no_agent_names_any_more(stage, model):
    [handle] = await queued(stage, ["before the deploy"])
    await stage.serve(stage.agent(["hello"]))
    model.open.set()
    assert (await stage.end(handle)).result.status == "completed"


async def test_a_run_whose_provider_is_in_no_worker_says_what_is_missing(stage, model, monkeypatch):
    monkeypatch.setattr(standing, "UNSERVED", timedelta(milliseconds=1))
    [agent] = stage.agents
    here, gone = await queued(stage, ["go"]), await queued(stage, ["go"], replace(agent, model="gone:model"))
    await model.begun.wait()
    assert await standing.unserved(stage.client, here[0].id) is None
    what = f"the model call of run {gone[0].id} (queue {stage.queue}/gone)"
    said = f"No worker takes {what}: start one that does. The run waits."
    assert await standing.unserved(stage.client, gone[0].id) == said
