"""What `perdure run` is told: which agent, where it is served, and what it is to do."""

from __future__ import annotations

import asyncio
import base64
import difflib
import mimetypes
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.cli import session
from perdure.cli.output import Misuse
from perdure.errors import AgentNotFound

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from perdure.activities.stores import CatalogueEntry
    from perdure.agents import Agent, Task
    from perdure.client import Client
    from perdure.messages import JSON, Content, ImagePart
    from perdure.policies import AgentSpec


@dataclass(frozen=True)
class Choice:
    """An agent, the queue on which its workers listen, and the file that declares it."""

    agent: Agent | AgentSpec
    task_queue: str
    file: str

    @property
    def spec(self) -> AgentSpec:
        """The agent as data."""
        from perdure.agents import Agent

        return self.agent.spec if isinstance(self.agent, Agent) else self.agent


async def choose(reference: str, client: Client) -> Choice:
    """Return the agent that `FILE.py[:name]`, `FILE.yaml[:name]`, `module[:name]` or the name of a served agent means.

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
    entries = await session.catalogue(client)
    found = [entry for entry in entries if entry.agent == name]
    if client.settings.task_queue:
        found = [entry for entry in found if entry.task_queue == client.settings.task_queue]
    if not found:
        raise AgentNotFound(unknown(name, {entry.agent for entry in entries}, client.settings.task_queue))
    if len(found) > 1:
        found = await _served_now(found, client)
    if len(found) > 1:
        places = ", ".join(f"{entry.task_queue} ({entry.source})" for entry in found)
        raise Misuse(f"Agent {name!r} is served on several queues; choose one with --task-queue: {places}.")
    return found[0]


def unknown(name: str, announced: Collection[str], task_queue: str | None) -> str:
    """Return that no such agent has been announced, and which ones have, but for those of a plan's steps."""
    known = sorted(one for one in announced if not (one.endswith("-step") and one.removesuffix("-step") in announced))
    where = f" on queue {task_queue!r}" if task_queue else ""
    if not known:
        return f"No worker has announced an agent yet: start one with `perdure worker FILE`, or run FILE.py:{name}."
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"No worker has announced an agent {name!r}{where}; known are {', '.join(known)}.{hint}"


async def _served_now(entries: list[CatalogueEntry], client: Client) -> list[CatalogueEntry]:
    """Return the entries whose queue has a worker, as far as that can be told; all of them if none has."""
    seen = await asyncio.gather(*(last_seen(client, entry.task_queue) for entry in entries))
    return [entry for entry, last in zip(entries, seen, strict=True) if last and last.fresh] or entries


@dataclass(frozen=True)
class Seen:
    """A worker was last seen `ago` seconds ago; `fresh` if it need not be gone: it shows up only so often."""

    ago: float
    fresh: bool


_FRESH, _FRESH_POLL = 10, 70
"""Seconds: a worker says every 5 that it lives; where a server keeps no account of that, it polls every 60."""


async def last_seen(client: Client, task_queue: str) -> Seen | None:
    """Return when a worker of a queue was last seen, of those still there if any is; None if none was for minutes."""
    seen = {**await _polls(client, task_queue), **await _heartbeats(client, task_queue)}
    return min(seen.values(), key=lambda one: (not one.fresh, one.ago), default=None)


async def _polls(client: Client, task_queue: str) -> dict[str, Seen]:
    """Return when each worker of a queue last asked for work; one just killed is still among them."""
    from temporalio.api.enums.v1 import TaskQueueType
    from temporalio.api.taskqueue.v1 import TaskQueue
    from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

    queue, namespace = TaskQueue(name=task_queue), client.temporal.namespace
    kinds = [TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW]
    described = await asyncio.gather(
        *(
            client.temporal.workflow_service.describe_task_queue(
                DescribeTaskQueueRequest(namespace=namespace, task_queue=queue, task_queue_type=kind)
            )
            for kind in kinds
        )
    )
    polls = [one for each in described for one in each.pollers]
    polls.sort(key=lambda one: one.last_access_time.ToNanoseconds())
    return {one.identity: Seen(ago := _ago(one.last_access_time), ago < _FRESH_POLL) for one in polls}


async def _heartbeats(client: Client, task_queue: str) -> dict[str, Seen]:
    """Return when each worker of a queue last said that it lives, or that it stops; nothing on an older server."""
    from temporalio.api.enums.v1 import WorkerStatus
    from temporalio.api.workflowservice.v1 import ListWorkersRequest
    from temporalio.service import RPCError

    quoted = task_queue.replace("\\", "\\\\").replace("'", "\\'")
    request = ListWorkersRequest(namespace=client.temporal.namespace, query=f"TaskQueue = '{quoted}'")
    try:
        listed = await client.temporal.workflow_service.list_workers(request)
    except RPCError:
        return {}
    beats = [one.worker_heartbeat for one in listed.workers_info]
    runs = WorkerStatus.WORKER_STATUS_RUNNING
    return {
        one.worker_identity: Seen(ago := _ago(one.heartbeat_time), ago < _FRESH and one.status == runs) for one in beats
    }


def _ago(time: Timestamp) -> float:
    from datetime import UTC, datetime

    return (datetime.now(UTC) - time.ToDatetime(UTC)).total_seconds()


def read_input(
    text: str | None, file: Path | None, images: Sequence[str], wanted: str = "what the agent is to do: as INPUT"
) -> Content:
    """Return what the user says, from the command line, stdin (`-`) or a file, images after it.

    Args:
        wanted: What is missing where there is nothing, and its argument.

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
        raise Misuse(f"Say {wanted}, with --input-file, or `-` to read it from stdin.")
    if not images:
        return text or ""
    said = [TextPart(kind="text", text=text)] if text else []
    return [*said, *(_image(image) for image in images)]


def read_task(
    content: Content, *, user: str, tenant: str, var: Sequence[str] | None, secret: Sequence[str] | None = None
) -> Task:
    """Return the task of which the options tell.

    Raises:
        Misuse: If the tenant's name is too long, or a variable or secret is not understood.
    """
    from pydantic import SecretStr

    from perdure.agents import TENANT_BYTES, Task
    from perdure.cli.secrets import read_secrets

    if len(tenant.encode()) > TENANT_BYTES:
        raise Misuse(f"A tenant's name has at most {TENANT_BYTES} bytes; this one has {len(tenant.encode())}.")
    values = {name: SecretStr(value) for name, value in read_secrets(secret or []).items()}
    return Task(input=content, user=user, tenant=tenant, variables=read_variables(var or []), secrets=values)


def read_variables(given: Sequence[str]) -> dict[str, JSON]:
    """Return what `--var NAME=JSON` says; a value that is no JSON is taken as text.

    Raises:
        Misuse: If there is no `=`, or a name comes twice.
    """
    from perdure.parsing import parse_json

    values: dict[str, JSON] = {}
    for one in given:
        name, equals, text = one.partition("=")
        if not equals or not name:
            raise Misuse(f"--var takes NAME=VALUE, such as --var seats=2; {one!r} is none.")
        if name in values:
            raise Misuse(f"Variable {name!r} is given twice.")
        try:
            values[name] = parse_json(text)
        except ValueError:
            values[name] = text
    return values


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
