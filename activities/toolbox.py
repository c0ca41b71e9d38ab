"""Where tools run: their own event loop and their own threads, apart from the worker's.

A tool that blocks its loop holds up other async tools, never a heartbeat. What a worker's tools share is opened
here by each agent's lifespan function, and what a run opened is closed here when that run has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.held import Held, as_exception
from perdure.agents import Agent
from perdure.errors import AgentError
from perdure.telemetry.broadcast import Broadcast

T = TypeVar("T")
_CLOSING_SECONDS = 10.0
_UNWINDING_SECONDS = 1.0
_AWAY_SECONDS = 5.0
"""How long to wait before a server that is away is asked again whether a run has ended."""


@dataclass(frozen=True)
class Job(Generic[T]):
    """Work under way elsewhere. `give_up` asks it to stop, if it can, and lets others take its place."""

    future: Future[T]
    give_up: Callable[[], None]


class Toolbox:
    """The loop, threads and shared resources of one worker's tools. An async context manager.

    Args:
        agents: By name; the lifespan function of each is entered before anything is served.
        client: To learn when a run that opened something has ended.
        threads: Sync tools at once.
        broadcast: Where those who watch are told how far calls are; None: nowhere.
    """

    def __init__(
        self, agents: Mapping[str, Agent], client: Client, threads: int, broadcast: Broadcast | None = None
    ) -> None:
        self.broadcast = broadcast
        self._agents = agents
        self._client = client
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="perdure-tools", daemon=True)
        self.threads = _Threads(threads)
        self._lifespans: list[Held[Any]] = []
        self._shared: dict[str, Any] = {}
        self._runs: dict[str, _RunResources] = {}
        self._watchers: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Start the loop and enter the lifespan functions.

        Raises:
            AgentError: If one of them fails.
        """
        self._main = asyncio.get_running_loop()
        self._thread.start()
        try:
            await asyncio.wrap_future(self.submit(self._open_lifespans()))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close what is open, bounded in time; a tool that never ends does not hold the worker."""
        for watcher in self._watchers:
            watcher.cancel()
        closing = asyncio.wrap_future(self.submit(self._close()))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(closing, _CLOSING_SECONDS + 2 * _UNWINDING_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, _CLOSING_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    @property
    def namespace(self) -> str:
        """Where its runs are."""
        return self._client.namespace

    def shared(self, agent: str) -> Any:
        """Return what that agent's lifespan function yielded, or None."""
        return self._shared.get(agent)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `work` on the tools' loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def job(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Job[T]:
        """Run `work` on the tools' loop, so that it can be cancelled and still say how it ended."""
        future: Future[T] = Future()
        tasks: list[asyncio.Task[None]] = []

        async def carry() -> None:
            future.set_result(await work())

        self._loop.call_soon_threadsafe(lambda: tasks.append(self._loop.create_task(carry())))
        return Job(future, lambda: self._quietly(lambda: tasks[0].cancel()))  # noqa: PLW0108 - it is made later

    async def run(self, function: Callable[..., Any], keywords: Mapping[str, Any], seconds: float) -> Any:
        """Run a small piece of application code, async or sync, where tools run.

        Raises:
            TimeoutError: If it takes longer; it is left behind then.
            RuntimeError: If it raises what is meant for the process or the loop, such as SystemExit.
        """
        job: Job[Any]
        if inspect.iscoroutinefunction(function):
            job = self.job(lambda: _outcome(function(**keywords)))
        else:
            job = self.threads.job(lambda: _sync_outcome(function, keywords))
        waiting = asyncio.wrap_future(job.future)
        await asyncio.wait({waiting}, timeout=seconds)
        if not waiting.done():
            job.give_up()
            raise TimeoutError(f"not within {seconds:g} s")
        value, error = waiting.result()
        if error is not None:
            raise as_exception(error)
        return value

    def _quietly(self, act: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the worker is gone
            self._loop.call_soon_threadsafe(act)

    async def _open_lifespans(self) -> None:
        for agent in self._agents.values():
            if agent.lifespan is None:
                continue
            held = Held(agent.lifespan)
            try:
                self._shared[agent.name] = await held.entered()
            except Exception as error:
                text = f"The lifespan function of agent {agent.name!r} failed: {type(error).__name__}: {error}"
                raise AgentError(text) from error
            self._lifespans.append(held)

    async def _close(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING_SECONDS):
                for held in [*self._runs.values(), *reversed(self._lifespans)]:
                    await held.aclose()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_UNWINDING_SECONDS)

    # -- what a run opened ---------------------------------------------------------------------------------

    async def open(self, run_id: str, key: str, factory: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Return what `factory` opens, once per run and key; called from a tool, async or in a thread."""
        if asyncio.get_running_loop() is not self._loop:
            return await asyncio.wrap_future(self.submit(self.open(run_id, key, factory)))
        if run_id not in self._runs:
            self._runs[run_id] = _RunResources()
            self._main.call_soon_threadsafe(self._watch, run_id)
        opened: T = await self._runs[run_id].open(key, factory)
        return opened

    def _watch(self, run_id: str) -> None:
        watcher = asyncio.create_task(self._release(run_id))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)

    async def _release(self, run_id: str) -> None:
        """Close a run's resources as soon as it has ended, however it ended."""
        while not await self._ended(run_id):  # noqa: ASYNC110 - the server tells no other way
            await asyncio.sleep(_AWAY_SECONDS)
        resources = self._runs.pop(run_id, None)
        if resources:
            await asyncio.wrap_future(self.submit(resources.aclose()))

    async def _ended(self, run_id: str) -> bool:
        """Wait for a run's end; False if the server is away meanwhile."""
        try:
            await self._client.get_workflow_handle(run_id).result(follow_runs=True)
        except RPCError as error:
            return error.status is RPCStatusCode.NOT_FOUND
        except Exception:  # noqa: BLE001 - it failed, or what it returned can't be read: it has ended
            return True
        return True


async def _outcome(work: Awaitable[T]) -> tuple[T | None, BaseException | None]:
    try:
        return await work, None
    except BaseException as error:  # noqa: BLE001 - application code may raise anything
        return None, error


def _sync_outcome(function: Callable[..., T], keywords: Mapping[str, Any]) -> tuple[T | None, BaseException | None]:
    try:
        value: Any = function(**keywords)
        return (asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value), None
    except BaseException as error:  # noqa: BLE001 - application code may raise anything
        return None, error


async def _awaited(value: Awaitable[T]) -> T:
    return await value


class _RunResources:
    def __init__(self) -> None:
        self._held: dict[str, Held[Any]] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def open(self, key: str, factory: Callable[[], AbstractAsyncContextManager[Any]]) -> Any:
        async with self._locks[key]:
            if key not in self._held:
                held = Held(factory)
                await held.entered()
                self._held[key] = held
            return self._held[key].value

    async def aclose(self) -> None:
        for held in reversed(self._held.values()):
            await held.aclose()


class _Threads:
    """Threads for sync tools, a bounded number at once, none of which keeps the process from ending.

    A tool that ignores its deadline keeps its thread; its place is given to others.
    """

    def __init__(self, limit: int) -> None:
        self._places = threading.Semaphore(limit)
        self._lock = threading.Lock()
        self._holding: set[Future[Any]] = set()

    def job(self, work: Callable[[], T]) -> Job[T]:
        """Run `work` in a thread as soon as there is a place."""
        future: Future[T] = Future()
        threading.Thread(target=self._run, args=(work, future), name="perdure-tool", daemon=True).start()
        return Job(future, lambda: self._leave(future))

    def _leave(self, future: Future[Any]) -> None:
        """Give the place of `future` to others, whether it has ended or not."""
        with self._lock:
            held = future in self._holding
            self._holding.discard(future)
        if held:
            self._places.release()

    def _run(self, work: Callable[[], T], future: Future[T]) -> None:
        self._places.acquire()
        with self._lock:
            self._holding.add(future)
        try:
            future.set_result(work())
        finally:
            self._leave(future)
