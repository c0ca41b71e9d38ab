"""What the integration tests share: one dev server for all of them, and a stage that serves agents and audits runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from inspect import isawaitable
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from temporalio import activity
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.client import WorkflowQueryFailedError
from temporalio.worker import Worker

from perdure import continuing, earlier
from perdure.activities import providers
from perdure.agents import Agent
from perdure.client import Client, RunHandle
from perdure.engine.connection import connect
from perdure.errors import RunEnded
from perdure.messages import AssistantMessage, RunResult, ToolMessage, ToolResult
from perdure.models import ModelReply, RawCall
from perdure.settings import Settings
from perdure.state import RunState
from perdure.steps import Wait, next_step
from perdure.telemetry.executions import histories
from perdure.telemetry.projection import Projection
from perdure.testing import ScriptedModel
from perdure.tools import Tool
from perdure.wire import STATE
from perdure.worker import serving
from tests.conftest import running_engine

T = TypeVar("T")
PATIENCE = 60
"""Seconds after which something that a test waits for is taken for lost."""


class RawModel:
    """A model of a test: `reply` is given the request and returns a `ModelReply`, or raises whatever it likes."""

    provider = "raw"

    def __init__(self, *replies: Any) -> None:
        self._replies = replies
        self.calls = 0

    async def generate(self, request: Any) -> ModelReply:
        """Return the reply that is due, by the replies that the conversation holds."""
        self.calls += 1
        given = request.hidden + sum(isinstance(message, AssistantMessage) for message in request.messages)
        due = self._replies[min(given, len(self._replies) - 1)]
        reply: Any = due(request) if callable(due) else due
        return ModelReply(text=reply) if isinstance(reply, str) else reply

    async def aclose(self) -> None:
        """Nothing is open."""


class Finished:
    """A run that has ended, seen from all sides."""

    def __init__(self, handle: RunHandle, result: RunResult, projection: Projection) -> None:
        self.handle = handle
        self.result = result
        self.projection = projection

    @property
    def state(self) -> RunState:
        """The state as the history tells it; the audit compares it with the workflow's own."""
        assert self.projection.state is not None
        return self.projection.state

    @property
    def results(self) -> list[ToolResult]:
        """The results of all calls, in call order."""
        return [message.result for message in self.projection.entries if isinstance(message, ToolMessage)]

    @property
    def notes(self) -> list[str]:
        """What the runtime told the model besides."""
        users = [message for message in self.projection.entries if message.role == "user"]
        return [str(message.content) for message in users if message.source == "runtime"]

    def told(self, kind: str) -> list[Any]:
        """Return the events of that type."""
        return [event for event in self.projection.events if event.type == kind]


class Stage:
    """Serves agents on a queue of its own, starts runs, and audits every one of them when the test is over."""

    def __init__(self, client: Client, stack: AsyncExitStack) -> None:
        self.client = client
        self.queue = f"q-{uuid4().hex[:8]}"
        self.model: Any = None
        self._stack = stack
        self._worker: AsyncExitStack | None = None
        self._started: list[RunHandle] = []
        self.agents: list[Agent] = []

    def agent(self, replies: Any, tools: Sequence[Any] = (), *, name: str = "subject", **options: Any) -> Agent:
        """Return an agent whose model follows `replies`: a script, or any object that generates."""
        self.model = ScriptedModel(replies) if isinstance(replies, list) else replies
        prefix, model = f"test-{uuid4().hex[:8]}", self.model
        providers.register(prefix, lambda _name, _settings: model)
        self._stack.callback(providers.unregister, prefix)
        return Agent(name, f"{prefix}:scripted", tools=list(tools), **options)

    async def serve(self, *agents: Agent, settings: Settings | None = None) -> None:
        """Serve `agents`, in place of those served so far."""
        await self.stop()
        self.agents = list(agents)
        self._worker = AsyncExitStack()
        settings = settings or self.client.settings
        await self._worker.enter_async_context(serving(self.client.temporal, agents, self.queue, settings))

    async def stop(self) -> None:
        """Stop the worker, once it has decided what it was deciding: a decision cut off is tried again after 10 s."""
        if self._worker:
            for handle in self._started:
                with suppress(Exception):
                    await self.state(handle)
            worker, self._worker = self._worker, None
            await worker.aclose()

    async def start(self, replies: Any, tools: Sequence[Any] = (), *, task: Any = "go", **options: Any) -> RunHandle:
        """Serve an agent that follows `replies`, and start a run of it."""
        agent = self.agent(replies, tools, **options)
        await self.serve(agent)
        return await self.start_again(agent, task)

    async def start_again(self, agent: Agent, task: Any = "go") -> RunHandle:
        """Start one more run of an agent."""
        handle = await self.client.start(agent, task, task_queue=self.queue)
        self._started.append(handle)
        return handle

    def audit(self, handle: RunHandle) -> None:
        """Audit a run that the test has started itself."""
        self._started.append(handle)

    async def run(self, replies: Any, tools: Sequence[Any] = (), **options: Any) -> Finished:
        """Run an agent to its end."""
        return await self.end(await self.start(replies, tools, **options))

    async def end(self, handle: RunHandle) -> Finished:
        """Wait for a run's end, whatever it is."""
        try:
            result = await asyncio.wait_for(handle.result(), PATIENCE)
        except RunEnded as error:
            result = error.result
        return Finished(handle, result, await handle.projection())

    async def until(self, handle: RunHandle, wanted: str | Callable[[Any], bool], *, nth: int = 1) -> Any:
        """Return the `nth` event of a run that is of a type, or that fits."""
        fits = wanted if callable(wanted) else lambda event: event.type == wanted

        async def look() -> Any:
            left = nth
            async for event in handle.events():
                left -= fits(event)
                if not left:
                    return event
            pytest.fail(f"the run ended without {wanted!r}")

        return await asyncio.wait_for(look(), PATIENCE)

    async def until_status(self, handle: RunHandle, status: str) -> None:
        """Wait until a run, asked of its worker, has that status."""

        async def look() -> None:
            while True:
                step = next_step(await self.state(handle))
                if isinstance(step, Wait) and step.status == status:
                    return
                await asyncio.sleep(0.02)  # the worker can only be asked

        await asyncio.wait_for(look(), PATIENCE)

    async def state(self, handle: RunHandle) -> RunState:
        """Return the workflow's own state, asked of the worker."""
        workflow = self.client.temporal.get_workflow_handle(handle.id)
        state: RunState = await workflow.query(STATE, result_type=RunState, rpc_timeout=timedelta(seconds=PATIENCE))
        return state

    async def until_held(self, handle: RunHandle, name: str) -> None:
        """Wait until a worker has the run's activity of that type."""

        async def look() -> None:
            while True:
                described = await self.client.temporal.get_workflow_handle(handle.id).describe()
                pending = described.raw_description.pending_activities
                if any(one.activity_type.name == name and one.last_worker_identity for one in pending):
                    return
                await asyncio.sleep(0.02)  # the engine can only be asked

        await asyncio.wait_for(look(), PATIENCE)

    async def signal(self, handle: RunHandle, name: str, *arguments: Any) -> None:
        """Send a plain signal."""
        await self.client.temporal.get_workflow_handle(handle.id).signal(name, args=list(arguments))

    def elsewhere(self, *, key_argument: str | None = None, **options: Any) -> Tool:
        """Return a tool `act`, which is the activity `Act` of another worker."""
        options = {"name": "act", "description": "Act.", "parameters": {}, "effect": "read", "timeout": 5, **options}
        tool = Tool.remote(activity="Act", task_queue=f"{self.queue}-elsewhere", **options)
        assert tool.spec.remote
        remote = tool.spec.remote.model_copy(update={"key_argument": key_argument})
        return replace(tool, spec=tool.spec.model_copy(update={"remote": remote}))

    async def serve_elsewhere(
        self, body: Callable[[dict[str, Any]], Any], name: str = "Act", *, without_store: bool = False
    ) -> None:
        """Serve `body` as an activity there, up to the end of the test; it may return an awaitable."""

        @activity.defn(name=name)
        async def act(arguments: dict[str, Any]) -> Any:
            value = body(arguments)
            return await value if isawaitable(value) else value

        queue = f"{self.queue}-elsewhere"
        client = await connect(self.client.settings) if without_store else self.client.temporal
        await self._stack.enter_async_context(Worker(client, task_queue=queue, activities=[act]))

    async def enter(self, context: AbstractAsyncContextManager[T]) -> T:
        """Enter a context that lasts to the end of the test."""
        return await self._stack.enter_async_context(context)

    async def close(self) -> None:
        """Audit every run, then stop the worker."""
        try:
            if self._worker is None and self._started and self.agents:
                await self.serve(*self.agents)
            for handle in self._started:
                await self._audit(handle)
        finally:
            for handle in self._started:
                with suppress(Exception):
                    await self.client.temporal.get_workflow_handle(handle.id).terminate("the test is over")
            await self.stop()

    async def _audit(self, handle: RunHandle) -> None:
        failed = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
        fine = (
            WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW,
            WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,  # something was said at its end
        )
        faults = [
            event
            async for event in histories(self.client.temporal, handle.id)
            if event.event_type == failed and event.workflow_task_failed_event_attributes.cause not in fine
        ]
        assert not faults, f"a workflow task failed: {faults[0].workflow_task_failed_event_attributes.failure}"
        projection = await self._agreed(handle)
        assert not await earlier.complete(self.client.settings, projection)
        assert projection.state is not None
        assert_paired(whole(projection))
        for event in projection.events:
            json.loads(event.model_dump_json())

    async def _agreed(self, handle: RunHandle) -> Projection:
        """Return the projection, once the workflow's own state says the same: it may be a moment behind."""
        left = 40
        while True:
            projection = await handle.projection()
            assert projection.state is not None
            try:
                own = await self.state(handle)
            except WorkflowQueryFailedError as error:
                assert "exceeds limit" in str(error) or "too large" in str(error)  # noqa: PT017 - nothing to compare
                return projection
            if untimed(own) == untimed(projection.state) or not left:
                assert_same(own, projection.state)
                return projection
            left -= 1
            await asyncio.sleep(0.05)


def whole(projection: Projection) -> RunState:
    """Return a run's state with what it has put away."""
    assert projection.state is not None
    records = continuing.together(projection.earlier.records, projection.state.records)
    return projection.state.model_copy(update={"messages": projection.entries, "records": records})


def assert_same(own: RunState, told: RunState) -> None:
    """Fail where the workflow's state and the projection's differ, but for the moment at which each saw a thing."""
    left, right = untimed(own), untimed(told)
    assert {key: left[key] for key in left if left[key] != right[key]} == {
        key: right[key] for key in left if left[key] != right[key]
    }


TIMES = ("asked_at", "at", "believed_from", "ran")


def untimed(value: Any) -> Any:
    """Return data without times: of an event, the workflow sees when it got it, the history when it happened."""
    if isinstance(value, RunState):
        told = untimed(value.model_dump(mode="json"))
        if value.resets:  # the keys of a new epoch are known to the run alone, until it starts a call
            told = {**told, "execution": "", "calls": [{**call, "key": ""} for call in told["calls"]]}
        return told
    if isinstance(value, list):
        return [untimed(item) for item in value]
    if isinstance(value, dict):
        kept = {key: untimed(item) for key, item in value.items() if key not in TIMES}
        due = kept.get("status") == "probing"  # while a probe is put off, the history has not heard of it yet
        return {**kept, "status": "doubted"} if due else kept
    return value


def assert_paired(state: RunState) -> None:
    """Fail unless every call has exactly one result, after it and in call order; open ones have none yet."""
    asked = [call for m in state.messages if isinstance(m, AssistantMessage) for call in m.calls]
    given = [m.result for m in state.messages if isinstance(m, ToolMessage)]
    still_open = sum(not call.deferred for call in state.calls)
    closed = asked[: len(asked) - still_open]
    assert [call.id for call in closed] == [result.call_id for result in given]
    assert [call.name for call in closed] == [result.name for result in given]
    assert len({call.id for call in asked}) == len(asked)
    assert len(state.records) + len(state.parked) == len(given)


def raw(name: str, arguments: str = "{}", id: str = "c1") -> RawCall:
    """Return a call as an adapter gives it."""
    return RawCall(id, name, arguments)


@pytest.fixture(scope="session")
def stage_settings(engine: Settings) -> Settings:
    """Settings under which whatever goes wrong is noticed soon."""
    changes = {
        "heartbeat_timeout": timedelta(seconds=2),
        "grace": timedelta(seconds=0.5),
        "cancel_grace": timedelta(seconds=0.3),
    }
    return engine.model_copy(update=changes)


@pytest.fixture
async def stage(stage_settings: Settings) -> AsyncIterator[Stage]:
    """A stage; the runs that a test started are audited at its end."""
    async with AsyncExitStack() as stack:
        stage = Stage(await Client.connect(stage_settings), stack)
        yield stage
        await stage.close()


@pytest.fixture(scope="session")
def empty_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings of an engine that has never had a run: as one is that has forgotten all of them."""
    with running_engine(tmp_path_factory.mktemp("empty-engine")) as settings:
        yield settings


@pytest.fixture
async def forgetful(stage: Stage, empty_engine: Settings) -> Client:
    """A client of that engine, with the store of the stage."""
    return Client((await Client.connect(empty_engine)).temporal, stage.client.settings)


@pytest.fixture
def raw_model() -> type[RawModel]:
    """The class of models whose replies, or errors, a test makes itself."""
    return RawModel


@pytest.fixture
def raw_call() -> Callable[..., RawCall]:
    """Makes calls as an adapter gives them."""
    return raw


@pytest.fixture
def anchor() -> Iterator[Any]:
    """Something that holds tools back until they are let go; let go at the end in any case."""
    import threading

    event = threading.Event()
    yield event
    event.set()
