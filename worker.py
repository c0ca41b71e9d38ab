"""A worker: settings → dependencies → register → serve. The one place where everything is wired."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from perdure.activities.conversations import Conversations
from perdure.activities.edge import Edge
from perdure.activities.model import ModelActivities
from perdure.activities.stores import CatalogueEntry, open_store, store_url
from perdure.activities.toolbox import Toolbox
from perdure.activities.tools import ToolActivities
from perdure.agents import Agent
from perdure.engine import search_attributes
from perdure.errors import AgentError, ConnectionFailed
from perdure.settings import Settings
from perdure.workflows.agent import AgentWorkflow

_log = logging.getLogger("perdure.worker")

_STICKY = timedelta(seconds=2)
"""How long a run waits for the worker that had it in memory; the engine's default of 10 s delays every recovery."""

_THROTTLE = timedelta(milliseconds=500)
"""How often heartbeats are sent at most; also how late a cancellation is seen."""


@asynccontextmanager
async def serving(client: Client, agents: Sequence[Agent], task_queue: str, settings: Settings) -> AsyncGenerator[None]:
    """Serve `agents` on `task_queue` while the block runs; then let calls finish for `settings.grace`.

    Raises:
        AgentError: If two agents have one name, or a lifespan function fails.
        ConnectionFailed: If the server lacks the search attributes and they can't be registered.
    """
    by_name = _by_name(agents)
    await search_attributes.ensure(client)
    conversations = Conversations(settings.cache_bytes)
    async with Toolbox(by_name, client, settings.threads) as toolbox:
        edge = Edge(settings)
        models = ModelActivities(client, by_name, conversations, toolbox.run, edge)
        tools = ToolActivities(by_name, toolbox, conversations, settings.cancel_grace)
        async with contextlib.aclosing(edge), _worker(client, task_queue, models, tools, settings):
            announcing = asyncio.create_task(_announce(client.namespace, by_name, task_queue, settings))
            try:
                yield
            finally:
                await asyncio.wait({announcing}, timeout=1)  # one that is cut off leaves its connection open
                announcing.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await announcing


def _by_name(agents: Sequence[Agent]) -> dict[str, Agent]:
    by_name: dict[str, Agent] = {}
    for agent in agents:
        if by_name.setdefault(agent.name, agent) is not agent:
            raise AgentError(f"Two agents of one file are named {agent.name!r}; rename one.")
    return by_name


def _worker(
    client: Client, task_queue: str, models: ModelActivities, tools: ToolActivities, settings: Settings
) -> Worker:
    return Worker(
        client,
        task_queue=task_queue,
        workflows=[AgentWorkflow],
        activities=[models.model, models.judge, tools.probe, tools.tool],
        # Only our own workflow code runs here; the linter and the replay tests keep it deterministic. See ADR 2.
        workflow_runner=UnsandboxedWorkflowRunner(),
        identity=f"perdure {os.getpid()}@{socket.gethostname()}",
        sticky_queue_schedule_to_start_timeout=_STICKY,
        max_heartbeat_throttle_interval=_THROTTLE,
        default_heartbeat_throttle_interval=_THROTTLE,
        graceful_shutdown_timeout=settings.grace,
        max_concurrent_activities=settings.max_activities,
        max_cached_workflows=settings.max_runs,
    )


async def _announce(namespace: str, agents: Mapping[str, Agent], task_queue: str, settings: Settings) -> None:
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
    while True:
        try:
            store = open_store(store_url(settings))
            try:
                await store.announce_all(namespace, task_queue, entries)
            finally:
                await store.aclose()
        except ConnectionFailed as error:
            _log.warning("agents are served, but not listed yet: %s", error)
            await asyncio.sleep(5)
        else:
            return
