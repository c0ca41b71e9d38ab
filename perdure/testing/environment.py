"""Whole runs in a test that is an ordinary function: real engine, real worker, scripted models, fake tools."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, TypeVar
from uuid import uuid4

from perdure.agents import Agent, Task
from perdure.client import RunHandle
from perdure.decisions import Receipt
from perdure.errors import RunEnded
from perdure.events import ApprovalRequested, Asked, Event
from perdure.messages import Content, RunResult
from perdure.testing.engines import Engine, engine
from perdure.testing.fakes import rewired
from perdure.testing.scripted_model import Reply, ReplyFor, ScriptedModel
from perdure.worker import serving

T = TypeVar("T")
Script = ScriptedModel | Sequence[Reply | ReplyFor] | str
"""What an agent's model says: a scripted model, its replies, or the name of a real one."""

PATIENCE = 60
"""Seconds after which something that a test waits for is taken for lost."""


class Run:
    """A run of a test.

    Attributes:
        handle: All there is of it, to be used with `call`.
    """

    def __init__(self, environment: Environment, handle: RunHandle) -> None:
        self._environment = environment
        self.handle = handle

    @property
    def id(self) -> str:
        """Its id."""
        return self.handle.id

    def call(self, work: Coroutine[Any, Any, T], *, seconds: float = PATIENCE) -> T:
        """Return what a coroutine of the handle returns: `run.call(run.handle.pause())`. Raises `TimeoutError`."""
        return self._environment.call(work, seconds=seconds)

    def until(self, wanted: str | Callable[[Event], bool], nth: int = 1) -> Any:
        """Wait for the `nth` event of a type, or one that fits, and return it.

        Raises:
            AssertionError: If the run has ended without it.
        """

        async def look() -> Event:
            left = nth
            async for event in self.handle.events():
                left -= bool(wanted(event)) if callable(wanted) else event.type == wanted
                if not left:
                    return event
            raise AssertionError(f"Run {self.id} has ended, and there was no {wanted}.")

        return self.call(look())

    def until_asked(self, nth: int = 1) -> ApprovalRequested:
        """Wait for its `nth` request for approval, and return that."""
        asked: ApprovalRequested = self.until("approval_requested", nth)
        return asked

    def until_question(self, nth: int = 1) -> Asked:
        """Wait for its `nth` question, and return that."""
        asked: Asked = self.until("asked", nth)
        return asked

    def approve(self, call: str = "", **options: Any) -> Receipt:
        """Approve what waits, as soon as it does. Options as for `RunHandle.approve`."""
        self._until_open(call)
        return self.call(self.handle.approve(call, **options))

    def deny(self, call: str = "", **options: Any) -> Receipt:
        """Deny what waits, as soon as it does. Options as for `RunHandle.deny`."""
        self._until_open(call)
        return self.call(self.handle.deny(call, **options))

    def answer(self, text: str, call: str = "") -> Receipt:
        """Answer a question of the model's, as soon as it is put."""
        self.until_question()
        return self.call(self.handle.answer(text, call))

    def _until_open(self, call: str) -> None:
        async def look() -> None:
            async for event in self.handle.events():
                if event.type == "approval_requested" and call in ("", event.call) and await self._waits(event.call):
                    return
            raise AssertionError(f"Run {self.id} has ended, and nothing waits for approval.")

        self.call(look())

    async def _waits(self, call: str) -> bool:
        state = (await self.handle.projection()).state
        found = state.find(call) if state else None
        return found is not None and found.status == "asking"

    def skip(self, time: timedelta) -> bool:
        """Move the run's clock on, as `Engine.skip` does."""
        return self.call(self._environment.engine.skip(self.handle, time))

    def result(self) -> RunResult:
        """Wait for its end, whatever that is, and return the result; `result.status` says how it ended."""

        async def ended() -> RunResult:
            try:
                return await self.handle.result()
            except RunEnded as error:
                return error.result

        return self.call(ended())

    def events(self) -> list[Event]:
        """Return what has happened so far."""

        async def told() -> list[Event]:
            return list((await self.handle.projection()).events)

        return self.call(told())


class Environment:
    """An engine and its workers in a thread beside the test, as a context manager; the fixture `perdure_env` is one.

    Args:
        home: Folder of the store. Default: one that is deleted at the end.
        settings: That are not to be as usual; neither the environment nor a `.env` file has a say.

    Attributes:
        engine: What runs go on; `engine.client` is its client, to be used with `call`.
    """

    engine: Engine

    def __init__(self, home: Path | None = None, **settings: Any) -> None:
        self._home, self._settings = home, settings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="perdure-test", daemon=True)
        self._stack = AsyncExitStack()

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.engine = self.call(self._stack.enter_async_context(engine(self._home, **self._settings)))
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.call(self._stack.aclose())
        finally:
            self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, T], *, seconds: float = PATIENCE) -> T:
        """Return what a coroutine returns that is run where the engine's client is.

        Raises:
            TimeoutError: If it takes longer than `seconds`.
        """
        return asyncio.run_coroutine_threadsafe(_within(work, seconds), self._loop).result()

    @contextmanager
    def start(
        self,
        agent: Agent,
        task: Content | Task,
        *,
        model: Script | None = None,
        tools: Mapping[str, Any] | None = None,
        models: Mapping[str, Script] | None = None,
    ) -> Generator[Run]:
        """Serve an agent and start a run of it; both end with the block.

        Args:
            agent: As it is served in production.
            task: What the user says, or a whole `Task`.
            model: What the agent's model says, in place of its own.
            tools: Fakes by the tool's name, of agents below it as well: a `Fake`, or what its calls give.
            models: What the models of agents below it say, by the agent's name.

        Raises:
            AgentError: If no agent has a tool of such a name.
        """
        scripts = {**(models or {}), **({} if model is None else {agent.name: model})}
        stack = AsyncExitStack()
        try:
            names = {name: _named(stack, script) for name, script in scripts.items()}
            run = self.call(self._started(stack, rewired(agent, tools, names), task))
            yield run
        finally:
            self.call(stack.aclose())

    async def _started(self, stack: AsyncExitStack, agent: Agent, task: Content | Task) -> Run:
        client, queue = self.engine.client, f"test-{uuid4().hex[:8]}"
        await stack.enter_async_context(serving(client.temporal, [agent], queue, client.settings))
        handle = await client.start(agent, task, task_queue=queue)
        stack.push_async_callback(self._end, handle)
        return Run(self, handle)

    async def _end(self, handle: RunHandle) -> None:
        with suppress(Exception):  # it has ended
            await self.engine.client.temporal.get_workflow_handle(handle.id).terminate("the test is over")

    def run(self, agent: Agent, task: Content | Task, **options: Any) -> RunResult:
        """Run an agent to its end, whatever that is, and return the result. Options as for `start`.

        Raises:
            TimeoutError: If that takes longer than a minute, as where it waits for a person: see `start`.
        """
        with self.start(agent, task, **options) as run:
            return run.result()


def _named(stack: AsyncExitStack, script: Script) -> str:
    if isinstance(script, str):
        return script
    model = script if isinstance(script, ScriptedModel) else ScriptedModel(script)
    return stack.enter_context(model.named())


async def _within(work: Awaitable[T], seconds: float) -> T:
    try:
        return await asyncio.wait_for(work, seconds)
    except TimeoutError:
        raise TimeoutError(f"It has not come to that within {seconds:g} s; does the run wait for a person?") from None
