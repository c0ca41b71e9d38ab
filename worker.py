"""A worker: settings → dependencies → register → serve. The one place where everything is wired."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from perdure.activities import copies, providers
from perdure.activities.acquaintance import Acquaintance
from perdure.activities.afterwards import Afterwards
from perdure.activities.compacting import CompactActivities
from perdure.activities.control import cancel_run
from perdure.activities.conversations import Conversations
from perdure.activities.edge import Edge
from perdure.activities.hooking import Hooks
from perdure.activities.keychecks import admit
from perdure.activities.learning import Learning
from perdure.activities.mcp import (
    LACKING,
    installed,
)
from perdure.activities.mcp.lists import (
    ToolLists,
)
from perdure.activities.mcp.servers import (
    Servers,
)
from perdure.activities.meanwhile import (
    Meanwhile,
    Noting,
)
from perdure.activities.memory import Recollection
from perdure.activities.model import ModelActivities
from perdure.activities.notices import Notices
from perdure.activities.put_away import Archivist
from perdure.activities.secrets import Safe, sweep
from perdure.activities.sessions import Begin, Opening, SessionActivities, Sessions
from perdure.activities.spilling import Spilling
from perdure.activities.stores import Catalogue, CatalogueEntry, opened, run_owner, segments
from perdure.activities.stores.patience import patiently
from perdure.activities.toolbox import Toolbox
from perdure.activities.tools import ToolActivities
from perdure.agents import Agent, Task
from perdure.client import Client as Starter
from perdure.engine import search_attributes
from perdure.engine.external_storage import Driver, attached
from perdure.errors import AgentError, SessionError
from perdure.handoffs import unknown
from perdure.listing import going_on
from perdure.retention import keep_up
from perdure.sealing import keyring
from perdure.settings import Settings
from perdure.telemetry import event_log, hooks, live, logs, otel
from perdure.telemetry.broadcast import Broadcast
from perdure.wire import model_queue
from perdure.workflows.afterwards import AfterwardsWorkflow
from perdure.workflows.agent import AgentWorkflow
from perdure.workflows.noticing import NotifyWorkflow

_log = logging.getLogger("perdure.worker")

_STICKY = timedelta(seconds=2)
"""How long a run waits for the worker that had it in memory; the engine's default of 10 s delays every recovery."""

_THROTTLE = timedelta(milliseconds=500)
"""How often heartbeats are sent at most; also how late a cancellation is seen."""


_OF_RATE = 0.95
"""The engine's bucket holds a second's worth: without a margin, ten seconds would see 12 % more than is set."""

_HOUR = 3600.0

Stop = Callable[[], Awaitable[None]]
"""Stops what is served: calls under way get `settings.grace` to finish. Returns when none is left."""


@asynccontextmanager
async def serving(client: Client, agents: Sequence[Agent], task_queue: str, settings: Settings) -> AsyncGenerator[Stop]:
    """Serve `agents` on `task_queue` while the block runs; then stop.

    Raises:
        AgentError: If two agents have one name, a model's provider or one with a rate is not known, or a lifespan
            function fails.
        KeyMissing: If what runs hold is encrypted with a key that is not here.
        ConnectionFailed: If the server lacks the search attributes and they can't be registered.
    """
    logs.protect()
    hooks.use_settings(settings)
    by_name = _by_name(agents)
    providers.declare(settings.providers)
    _check_providers(list(by_name.values()), settings)
    _check_servers(list(by_name.values()))
    if lacking := await search_attributes.ensure(client):
        _log.warning(lacking)
    async with (
        otel.on(settings) as telemetry,
        opened(settings) as store,
        _broadcast(settings) as broadcast,
        event_log.serving(settings.event_log) as log,
        Toolbox(by_name, client, settings.threads, broadcast) as toolbox,
        Servers(by_name, toolbox) as servers,
    ):
        await admit(store, client.namespace, keyring(settings))
        client = attached(client, Driver(lambda: contextlib.nullcontext(store), run_owner))
        load = partial(segments.read, store)
        conversations = Conversations(settings.cache_bytes, load)
        recollection = Recollection(store, by_name, conversations, load)
        edge = Edge(settings)
        learning = Learning(client, store, store, edge, load)
        private = Acquaintance(client, load)
        hooked = Hooks(by_name, toolbox)
        known = (client, by_name, conversations, toolbox.run, edge, private)
        models = ModelActivities(*known, broadcast=broadcast, hooks=hooked)
        beside_it = (conversations, settings, Spilling(store), recollection)
        safe = Safe(store, settings)
        tools = ToolActivities(
            by_name, toolbox, *beside_it, safe=safe, acquaintance=private, servers=servers, hooks=hooked
        )
        notices = Notices(client, settings, hooked)
        sessions = SessionActivities(client, Sessions(client, store), _beginner(client, by_name, task_queue, settings))
        tracing = copies.tracing(telemetry, store)
        live_copies = [copies.of_events(store, log), *tracing]
        meanwhile = Meanwhile(client, live_copies, going_on(task_queue), settings.copy_every.total_seconds())
        common = {**_common(settings), "interceptors": [Noting(meanwhile)]}
        others: list[Callable[..., Any]] = [
            Afterwards(client, store, [*copies.every(store, settings, log), *tracing, hooked.copy()]).archive,
            sessions.end_turn,
            Archivist(client, conversations, store).put_away,
            *(recollection.recall, learning.remember, ToolLists(servers, safe).list_tools),
            *(notices.notify, notices.end_notice),
        ]
        calls: list[Callable[..., Any]] = [
            models.model,
            CompactActivities(models, edge, store, hooked).compact,
            learning.learn,
        ]
        workers = [
            _worker(client, task_queue, models, tools, others, settings, common),
            *_model_workers(client, task_queue, calls, by_name, settings, common),
        ]
        beside = [
            _announce(store, client.namespace, by_name, task_queue),
            sweep(client, store),
            keep_up(client, store, task_queue),
            _tidy(settings),
            meanwhile.work(),
        ]
        async with contextlib.aclosing(edge), _running(workers) as stop, _beside(*beside):
            yield stop


@asynccontextmanager
async def _broadcast(settings: Settings) -> AsyncGenerator[Broadcast | None]:
    """Yield what tells those who watch of what goes on just now; None where they are not to be told."""
    if not settings.stream:
        yield None
        return
    broadcast = Broadcast(lambda: live.outlet(settings), keyring(settings))
    try:
        yield broadcast
    finally:
        await asyncio.to_thread(broadcast.close)


async def _tidy(settings: Settings) -> None:
    """Delete now and every hour what was told beside runs that have ended long ago."""
    from perdure.telemetry import live_files

    while not live.is_postgres(settings):
        await asyncio.to_thread(live_files.sweep, live.folder_of(settings))
        await asyncio.sleep(_HOUR)


@asynccontextmanager
async def _beside(*works: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Do what the worker does besides, while the block runs, and for a moment more."""
    tasks = [asyncio.create_task(work) for work in works]
    await asyncio.wait(tasks[:1], timeout=1)  # whoever is told that agents are served here finds them by their names
    try:
        yield
    finally:
        await asyncio.wait(tasks[:1], timeout=1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _by_name(agents: Sequence[Agent]) -> dict[str, Agent]:
    by_name: dict[str, Agent] = {}
    for agent in [one for given in agents for one in (given, *given.below)]:
        if by_name.setdefault(agent.name, agent) is not agent:
            raise AgentError(f"Two agents of one file are named {agent.name!r}; rename one.")
    for name, to in unknown(list(by_name.values())):
        raise AgentError(f"Agent {name!r} hands over to {to!r}, and no agent of that name is served here.")
    return by_name


def _check_providers(agents: Sequence[Agent], settings: Settings) -> None:
    for agent in agents:
        summaries = agent.spec.context.summary_model
        for model in [*agent.spec.models, *agent.spec.writers, *([summaries] if summaries else [])]:
            if problem := providers.strange([model]):
                raise AgentError(f"Agent {agent.name!r}: model {model!r}: {problem}")
    if problem := providers.strange(settings.model_rate):
        raise AgentError(f"A rate of model calls (--model-rate, PERDURE_MODEL_RATE): {problem}")


def _check_servers(agents: Sequence[Agent]) -> None:
    for agent in agents:
        if agent.servers and not installed():
            raise AgentError(f"Agent {agent.name!r}: {LACKING}")


@asynccontextmanager
async def _running(workers: Sequence[Worker]) -> AsyncGenerator[Stop]:
    """Run `workers` while the block runs; they stop all at once, not one grace after the other."""

    async def stop() -> None:
        await asyncio.gather(*(worker.shutdown() for worker in workers))

    async with AsyncExitStack() as stack:
        for worker in workers:
            await stack.enter_async_context(worker)
        try:
            yield stop
        finally:
            await stop()


def _worker(
    client: Client,
    task_queue: str,
    models: ModelActivities,
    tools: ToolActivities,
    others: Sequence[Callable[..., Any]],
    settings: Settings,
    common: Mapping[str, Any],
) -> Worker:
    """Return the worker of runs and tools. It takes model calls too: those of before they had queues of their own."""
    return Worker(
        client,
        task_queue=task_queue,
        workflows=[AgentWorkflow, AfterwardsWorkflow, NotifyWorkflow],
        activities=[
            *(models.model, models.judge, tools.probe, tools.undo, tools.tool, cancel_run),
            *others,
        ],
        # Only our own workflow code runs here; the linter and the replay tests keep it deterministic. See ADR 2.
        workflow_runner=UnsandboxedWorkflowRunner(),
        sticky_queue_schedule_to_start_timeout=_STICKY,
        max_concurrent_activities=settings.max_activities,
        max_cached_workflows=settings.max_runs,
        **common,
    )


def _beginner(client: Client, agents: Mapping[str, Agent], task_queue: str, settings: Settings) -> Begin:
    """Return what begins the turns that wait in sessions, with the agents as they are served now."""
    starter = Starter(client, settings)

    async def begin(due: Opening) -> bool:
        session = due.session
        agent = agents.get(session.agent) if session else None
        if session is None or agent is None:
            raise SessionError("its agent is not served here any more")
        task = Task(input="", user=session.user, tenant=session.tenant)
        return await starter.begin_turn(due, agent.spec, task_queue, task)

    return begin


def _model_workers(
    client: Client,
    task_queue: str,
    activities: Sequence[Callable[..., Any]],
    agents: Mapping[str, Agent],
    settings: Settings,
    common: Mapping[str, Any],
) -> list[Worker]:
    """Return a worker of model calls for each provider: a waiting run may need one that no agent names any more."""
    specs = [agent.spec for agent in agents.values()]
    named = {model_queue(task_queue, model) for spec in specs for model in (spec.model, *spec.writers[:1])}
    rates = {provider: rate * _OF_RATE for provider, rate in settings.model_rate.items()}
    queues = {model_queue(task_queue, provider): rates.get(provider) for provider in providers.known()}
    return [
        Worker(
            client,
            task_queue=queue,
            activities=activities,
            max_concurrent_activities=settings.model_slots,
            max_concurrent_activity_task_polls=None if queue in named else 1,
            max_task_queue_activities_per_second=queues.get(queue),
            **common,
        )
        for queue in sorted({*named, *queues})
    ]


def _common(settings: Settings) -> dict[str, Any]:
    return {
        "identity": f"perdure {os.getpid()}@{socket.gethostname()}",
        "max_heartbeat_throttle_interval": _THROTTLE,
        "default_heartbeat_throttle_interval": _THROTTLE,
        "graceful_shutdown_timeout": settings.grace,
    }


async def _announce(store: Catalogue, namespace: str, agents: Mapping[str, Agent], task_queue: str) -> None:
    """Say in the store's catalogue who is served here; a store that is down delays that, and nothing else."""
    now = datetime.now(UTC)
    entries = [
        CatalogueEntry(
            agent=agent.name,
            task_queue=task_queue,
            hash=agent.hash,
            spec=agent.spec,
            source=agent.source,
            seen_at=now,
            namespace=namespace,
        )
        for agent in agents.values()
    ]
    announce = partial(store.announce_all, namespace, task_queue, entries)
    await patiently(announce, meanwhile="agents are served, but not listed yet")
