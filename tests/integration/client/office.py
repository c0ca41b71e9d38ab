"""An office that pays, on a real server: its worker can be stopped, started, and lost half-way."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio import activity
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from perdure import Agent, Client, RunHandle, tool
from perdure.activities import providers
from perdure.messages import AssistantMessage, ToolCall
from perdure.models import ModelReply, RawCall
from perdure.reports import ModelTurn
from perdure.state import RunState
from perdure.wire import MODEL, STATE, ModelInput, model_queue
from perdure.worker import serving
from perdure.workflows.agent import AgentWorkflow


class Model:
    """Gives the reply that is due: text, or a call of `pay` with an amount; an exception is raised."""

    provider = "test"

    def __init__(self, replies: Sequence[Any]) -> None:
        self.replies = replies
        self.calls = 0

    async def generate(self, request: Any) -> ModelReply:
        self.calls += 1
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
        self.paid: list[float] = []
        self.tried = 0
        self.model: Model
        self._stack = stack
        self._worker: AsyncExitStack | None = None

    def agent(self, *replies: Any, **options: Any) -> Agent:
        """Return an agent whose model gives these replies; any tool option is the tool's."""

        @tool(approval=options.pop("approval", "always"), **options.pop("tool", {}))
        def pay(amount: float) -> str:
            """Pay."""
            self.tried += 1
            if amount < 0:
                raise OSError("the connection broke")
            self.paid.append(amount)
            return f"paid {amount}"

        self.model = Model(replies)
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


async def until(handle: RunHandle, kind: str, nth: int = 1) -> Any:
    """Return the `nth` event of that type."""

    async def look() -> Any:
        left = nth
        async for event in handle.events():
            left -= event.type == kind
            if not left:
                return event
        pytest.fail(f"the run ended without {kind}")

    return await asyncio.wait_for(look(), 30)


async def told(handle: RunHandle, kind: str) -> list[Any]:
    return [event for event in (await handle.projection()).events if event.type == kind]


async def own_state(client: Client, handle: RunHandle) -> RunState:
    workflow = client.temporal.get_workflow_handle(handle.id)
    state: RunState = await workflow.query(STATE, result_type=RunState, rpc_timeout=timedelta(seconds=20))
    return state


@asynccontextmanager
async def half_a_worker(client: Client, queue: str, **half: Any) -> AsyncGenerator[None]:
    """Serve only workflows, or only activities."""
    async with Worker(
        client.temporal,
        task_queue=queue,
        workflow_runner=UnsandboxedWorkflowRunner(),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
        **half,
    ):
        yield


async def unseen(office: Office, reply: AssistantMessage) -> tuple[Agent, RunHandle]:
    """Return a run whose last reply is in its history, but was never seen by its code: that worker was lost."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    @activity.defn(name=MODEL)
    async def model(request: ModelInput) -> ModelTurn:
        asked.set()
        await go_on.wait()
        return ModelTurn(message=reply, finish="calls")

    agent = office.agent(5, "Done.")
    async with half_a_worker(office.client, model_queue(office.queue, agent.spec.model), activities=[model]):
        async with half_a_worker(office.client, office.queue, workflows=[AgentWorkflow]):
            handle = await office.client.start(agent, "go", task_queue=office.queue)
            await asyncio.wait_for(asked.wait(), 30)
        go_on.set()
        await until(handle, "model_finished")
    return agent, handle


ASKS = AssistantMessage(role="assistant", calls=[ToolCall(id="c1", name="pay", arguments={"amount": 5}, ask="why")])


async def same_as_its_history(client: Client, handle: RunHandle) -> bool:
    """Return whether the workflow's own state is the one that its history tells."""
    own, told = await own_state(client, handle), (await handle.projection()).state
    assert told
    return own.model_dump(exclude={"ran"}) == told.model_dump(exclude={"ran"})
