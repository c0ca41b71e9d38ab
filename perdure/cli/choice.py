"""What `perdure run` is told: which agent, where it is served, and what it is to do."""

from __future__ import annotations

import asyncio
import base64
import mimetypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.cli.output import Misuse
from perdure.errors import AgentNotFound

if TYPE_CHECKING:
    from perdure.activities.stores import CatalogueEntry
    from perdure.agents import Agent
    from perdure.client import Client
    from perdure.messages import Content, ImagePart
    from perdure.policies import AgentSpec


@dataclass(frozen=True)
class Choice:
    """An agent, the queue on which its workers listen, and the file that declares it."""

    agent: Agent | AgentSpec
    task_queue: str
    file: str


async def choose(reference: str, client: Client) -> Choice:
    """Return the agent that `FILE.py[:name]`, `module[:name]` or the name of a served agent means.

    A queue set in the settings beats both the file's own and the catalogue's.

    Raises:
        AgentNotFound: If there is none; the text lists those known.
        Misuse: If several are meant; the text says how to choose.
        ConnectionFailed: If the catalogue has to be read and can't be.
    """
    from perdure.loading import load_agents, looks_like_file, task_queue

    if looks_like_file(reference) or "." in reference:
        agents = load_agents(reference)
        if len(agents) > 1:
            names = ", ".join(f"{reference}:{agent.name}" for agent in agents)
            raise Misuse(f"{reference} declares {len(agents)} agents; say which: {names}.")
        return Choice(agents[0], task_queue(agents[0].source, client.settings), agents[0].source)
    entry = await _announced(reference, client)
    return Choice(entry.spec, entry.task_queue, entry.source)


async def _announced(name: str, client: Client) -> CatalogueEntry:
    from perdure.activities.stores import open_store, store_url

    store = open_store(store_url(client.settings))
    try:
        entries = await store.agents(client.temporal.namespace)
    finally:
        await store.aclose()
    found = [entry for entry in entries if entry.agent == name]
    if client.settings.task_queue:
        found = [entry for entry in found if entry.task_queue == client.settings.task_queue]
    if not found:
        raise AgentNotFound(_unknown(name, sorted({entry.agent for entry in entries}), client.settings.task_queue))
    if len(found) > 1:
        found = await _served_now(found, client)
    if len(found) > 1:
        places = ", ".join(f"{entry.task_queue} ({entry.source})" for entry in found)
        raise Misuse(f"Agent {name!r} is served on several queues; choose one with --task-queue: {places}.")
    return found[0]


def _unknown(name: str, known: Sequence[str], task_queue: str | None) -> str:
    where = f" on queue {task_queue!r}" if task_queue else ""
    if not known:
        return f"No worker has announced an agent yet: start one with `perdure worker FILE`, or run FILE.py:{name}."
    return f"No worker has announced an agent {name!r}{where}; known are {', '.join(known)}."


_FRESH = 70
"""Seconds: a worker polls again after 60 at the latest."""


async def _served_now(entries: list[CatalogueEntry], client: Client) -> list[CatalogueEntry]:
    """Return the entries whose queue is polled, as far as that can be told; all of them if none is."""
    polled = await asyncio.gather(*(pollers(client, entry.task_queue) for entry in entries))
    return [
        entry for entry, seen in zip(entries, polled, strict=True) if any(ago < _FRESH for _, ago in seen)
    ] or entries


async def pollers(client: Client, task_queue: str) -> list[tuple[str, float]]:
    """Return the workers seen on a queue of late, and how many seconds ago; one just killed is still among them."""
    from datetime import UTC, datetime

    from temporalio.api.enums.v1 import TaskQueueType
    from temporalio.api.taskqueue.v1 import TaskQueue
    from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

    described = await client.temporal.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.temporal.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
    )
    now = datetime.now(UTC)
    return [(one.identity, (now - one.last_access_time.ToDatetime(UTC)).total_seconds()) for one in described.pollers]


def read_input(text: str | None, file: Path | None, images: Sequence[str]) -> Content:
    """Return what the user says, from the command line, stdin (`-`) or a file, images after it.

    Raises:
        Misuse: If there is nothing, or two texts, or something can't be read.
    """
    from perdure.messages import TextPart

    if text is not None and file is not None:
        raise Misuse("Give the input as an argument or with --input-file, not both.")
    if file is not None:
        text = _read(file).decode("utf-8", "replace")
    elif text == "-":
        text = sys.stdin.read()
    if not (text or "").strip() and not images:
        raise Misuse("Say what the agent is to do: as INPUT, with --input-file, or `-` to read it from stdin.")
    if not images:
        return text or ""
    said = [TextPart(kind="text", text=text)] if text else []
    return [*said, *(_image(image) for image in images)]


def _image(reference: str) -> ImagePart:
    from perdure.messages import ImagePart

    if reference.startswith(("http://", "https://", "data:")):
        return ImagePart(kind="image", url=reference)
    kind = mimetypes.guess_type(reference)[0] or ""
    if not kind.startswith("image/"):
        raise Misuse(f"{reference} is no image, as far as its name tells; known are .png, .jpg, .gif, .webp.")
    return ImagePart(kind="image", url=f"data:{kind};base64,{base64.b64encode(_read(Path(reference))).decode()}")


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise Misuse(f"{file} can't be read: {error.strerror}.") from error
