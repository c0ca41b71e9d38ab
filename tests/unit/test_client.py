"""Runs from outside: started once, decided, cancelled, resumed, and told of, against a real server."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client as TemporalClient

from perdure import (
    Agent,
    Client,
    ConnectionFailed,
    DecisionRejected,
    Limits,
    PerdureError,
    RunCancelled,
    RunFailed,
    RunHandle,
    RunNotFound,
    Settings,
    Task,
    tool,
)
from perdure.activities import providers
from perdure.client import whoami
from perdure.messages import AssistantMessage
from perdure.models import ModelReply, RawCall
from perdure.state import RunState
from perdure.wire import STATE
from perdure.worker import serving


class Gate:
    """Holds back a model's replies until it is opened."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()


class Model:
    """Gives the reply that is due: text, or a call of `pay` with an amount; an exception is raised."""

    provider = "test"

    def __init__(self, replies: Sequence[Any], gate: Gate) -> None:
        self.replies = replies
        self.gate = gate
        self.calls = 0

    async def generate(self, request: Any) -> ModelReply:
        self.calls += 1
        self.gate.asked.set()
        await self.gate.open.wait()
        reply = self.replies[sum(isinstance(message, AssistantMessage) for message in request.messages)]
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, str):
            return ModelReply(text=reply)
        return ModelReply(calls=[RawCall(f"c{uuid4().hex}", "pay", f'{{"amount": {reply}}}')], finish="calls")

    async def aclose(self) -> None:
        """Nothing is open."""


class Office:
    """An agent of one tool, `pay`, which asks, with a worker that can be stopped and started."""

    def __init__(self, client: Client, stack: AsyncExitStack) -> None:
        self.client = client
        self.queue = f"q-{uuid4().hex[:8]}"
        self.gate = Gate()
        self.paid: list[float] = []
        self.model: Model
        self._stack = stack
        self._worker: AsyncExitStack | None = None

    def agent(self, *replies: Any, **options: Any) -> Agent:
        """Return an agent whose model gives these replies; any tool option is the tool's."""

        @tool(approval=options.pop("approval", "always"), **options.pop("tool", {}))
        def pay(amount: float) -> str:
            """Pay."""
            if amount < 0:
                raise OSError("the connection broke")
            self.paid.append(amount)
            return f"paid {amount}"

        self.model = Model(replies, self.gate)
        name = f"test-{uuid4().hex[:8]}"
        model = self.model
        providers.register(name, lambda _name, _settings: model)
        self._stack.callback(providers.unregister, name)
        return Agent(f"payer-{uuid4().hex[:8]}", f"{name}:x", tools=[pay], **options)

    async def serve(self, agent: Agent) -> None:
        await self.stop()
        self._worker = AsyncExitStack()
        await self._worker.enter_async_context(serving(self.client.temporal, [agent], self.queue, self.client.settings))

    async def stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker:
            await worker.aclose()

    async def start(self, *replies: Any, task: Any = "go", **options: Any) -> RunHandle:
        """Serve an agent and start a run of it."""
        agent = self.agent(*replies, **options)
        await self.serve(agent)
        return await self.client.start(agent, task, task_queue=self.queue)


@pytest.fixture
async def office(client: Client) -> AsyncGenerator[Office]:
    """An office on the engine that all tests share."""
    async with AsyncExitStack() as stack:
        office = Office(client, stack)
        yield office
        office.gate.open.set()
        await office.stop()


async def until(handle: RunHandle, kind: str) -> Any:
    """Return the first event of that type."""

    async def look() -> Any:
        async for event in handle.events():
            if event.type == kind:
                return event
        pytest.fail(f"the run ended without {kind}")

    return await asyncio.wait_for(look(), 30)


async def told(handle: RunHandle, kind: str) -> list[Any]:
    return [event for event in (await handle.projection()).events if event.type == kind]


async def own_state(client: Client, handle: RunHandle) -> RunState:
    workflow = client.temporal.get_workflow_handle(handle.id)
    state: RunState = await workflow.query(STATE, result_type=RunState, rpc_timeout=timedelta(seconds=20))
    return state


# -- starting -------------------------------------------------------------------------------------------------


async def test_same_id_twice_is_one_run_whatever_the_second_asks_for(office, client):
    agent, run_id = office.agent("Hello."), f"once-{uuid4().hex[:8]}"
    await office.serve(agent)
    starts = [client.start(agent, f"go {n}", id=run_id, task_queue=office.queue) for n in range(5)]
    handles = await asyncio.gather(*starts)
    results = [await handle.result() for handle in handles]
    again = await client.start(agent, Task(input="once more", id=run_id), task_queue=office.queue)
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


@pytest.mark.parametrize("text", ["x" * 2_000_000, "上" * 700_000])
async def test_input_too_large_to_be_recorded_is_refused_before_anything_is_started(office, client, text):
    with pytest.raises(PerdureError, match=r"are 2,\d{3},\d{3} bytes together; at most 1,500,000 can be kept") as caught:
        await client.start(office.agent("Hello."), text, id="large", task_queue=office.queue)
    assert not isinstance(caught.value, ConnectionFailed)
    with pytest.raises(RunNotFound):
        await client.handle("large").result()


async def test_input_that_cannot_be_written_is_refused_in_one_sentence(office, client):
    with pytest.raises(PerdureError, match="can't be written") as caught:
        await client.start(office.agent("Hello."), "half \ud83d", task_queue=office.queue)
    assert "\n" not in str(caught.value)


async def test_spec_needs_a_queue(office, client):
    with pytest.raises(PerdureError, match="say on which task queue"):
        await client.start(office.agent("Hello.").spec, "go")


async def test_server_that_does_not_answer_is_named(office):
    with pytest.raises(ConnectionFailed, match="No Temporal server answers"):
        await Client.connect(Settings(home=office.client.settings.home / "nowhere"))


async def test_server_that_went_away_is_named_whatever_is_asked_of_it(office):
    gone = Client(await TemporalClient.connect("127.0.0.1:1", lazy=True))
    handle = gone.handle("any")
    asked = [
        gone.start(office.agent("Hello."), "go", task_queue="q"),
        gone.list_runs(),
        handle.result(),
        handle.approve(),
        handle.cancel(),
        handle.projection(),
        handle.resume(),
        anext(handle.events()),
    ]
    for one in asked:
        with pytest.raises(ConnectionFailed) as caught:
            await one
        assert "127.0.0.1:1" in str(caught.value)
        assert "\n" not in str(caught.value)


async def test_run_that_does_not_exist_is_not_found_whatever_is_asked_of_it(client):
    handle = client.handle("no-such-run")
    asked = [
        handle.result(),
        handle.approve(),
        handle.deny("1.1"),
        handle.settle("1.1", "done"),
        handle.cancel(),
        handle.projection(),
        handle.resume(),
        anext(handle.events()),
    ]
    for one in asked:
        with pytest.raises(RunNotFound, match="There is no run 'no-such-run' on "):
            await one


# -- deciding -------------------------------------------------------------------------------------------------


async def test_approved_call_is_executed_and_who_approved_it_is_told(office):
    handle = await office.start(5, "Done.")
    request = await until(handle, "approval_requested")
    receipt = await handle.approve(request.call, hash=request.hash, by="Ann", reason="fine")
    assert (receipt.accepted, receipt.call, receipt.reason) == (True, "1.1", "")
    assert (await handle.result()).text == "Done."
    assert office.paid == [5]
    (decided,) = await told(handle, "approval_decided")
    assert (decided.by, decided.via, decided.reason, decided.approve) == ("Ann", "update", "fine", True)


async def test_edited_arguments_are_executed_instead_and_wrong_ones_refused(office):
    handle = await office.start(5, "Done.")
    await until(handle, "approval_requested")
    with pytest.raises(DecisionRejected, match="'much' is not of type 'number'") as caught:
        await handle.approve(arguments={"amount": "much"})
    assert caught.value.reason == "invalid_edit"
    await handle.approve(arguments={"amount": 4})
    result = await handle.result()
    assert office.paid == [4]
    assert result.calls[0].arguments == {"amount": 4}
    assert [event.via for event in await told(handle, "decision_refused")] == ["update"]


async def test_denied_call_is_never_executed(office):
    handle = await office.start(5, "Then not.")
    await until(handle, "approval_requested")
    await handle.deny(reason="too dear")
    assert (await handle.result()).calls[0].status == "denied"
    assert office.paid == []
    (decided,) = await told(handle, "approval_decided")
    assert (decided.by, decided.approve) == (whoami(), False)


async def test_decision_that_does_not_take_says_why(office):
    handle = await office.start(5, 6, "Done.")
    await until(handle, "approval_requested")

    async def refused(decision: Any) -> str:
        with pytest.raises(DecisionRejected) as caught:
            await decision
        assert str(caught.value).endswith(".")
        return caught.value.reason

    assert await refused(handle.approve("9.9")) == "unknown_call"
    assert await refused(handle.approve("1.1", hash="0" * 16)) == "stale_hash"
    assert await refused(handle.settle("1.1", "done")) == "not_in_doubt"
    await handle.approve("1.1")
    await until(handle, "approval_decided")
    assert await refused(handle.approve("1.1")) == "already_decided"
    async for event in handle.events():
        if event.type == "approval_requested" and event.call == "2.1":
            await handle.deny("2.1")
    await handle.result()
    assert await refused(handle.approve("1.1")) == "closed"
    assert await refused(handle.cancel()) == "closed"
    assert office.paid == [5]


async def test_call_in_doubt_is_settled_by_a_person(office):
    handle = await office.start(-1, "Done.", approval="never")
    doubt = await until(handle, "in_doubt")
    assert "the connection broke" in doubt.message
    await handle.settle(doubt.call, "done", result="paid at the desk", by="Ann")
    result = await handle.result()
    assert result.calls[0].status == "ok"
    (settled,) = await told(handle, "settled")
    assert (settled.outcome, settled.by) == ("done", "Ann")


async def test_decision_left_while_no_worker_is_there_takes_effect_when_one_is_back(office, client):
    handle = await office.start(5, "Done.")
    await until(handle, "approval_requested")
    agent = office.agent(5, "Done.")
    await office.stop()
    receipt = await handle.approve("1.1", by="Ann")
    assert (receipt.accepted, receipt.reason) == (True, "queued")
    assert "takes effect when one is back" in receipt.message
    await office.serve(Agent(**{**vars(agent), "name": handle.id.rpartition("-")[0]}))
    assert (await handle.result()).calls[0].status == "ok"


@pytest.fixture
async def lost(office, client) -> RunHandle:
    """A run whose request for approval is in its history, but in nobody's memory: no worker ever saw it."""
    agent = office.agent(5, "Done.")
    office.gate.open.clear()
    await office.serve(agent)
    handle = await client.start(agent, "go", task_queue=office.queue)
    await office.gate.asked.wait()
    stopping = asyncio.create_task(office.stop())
    while not [task for task in asyncio.all_tasks() if "shutdown" in repr(task)] and not stopping.done():
        await asyncio.sleep(0)
    office.gate.open.set()
    await stopping
    await until(handle, "approval_requested")
    office.lost_agent = agent
    return handle
