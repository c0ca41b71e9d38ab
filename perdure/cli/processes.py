"""Commands that stay: the embedded engine, and workers."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure import identity
from perdure.cli import session
from perdure.cli.output import DONE, AsJSON, Misuse, emit, one_line, paint, safe, say
from perdure.errors import ConnectionFailed, PerdureError

if TYPE_CHECKING:
    from perdure.agents import Agent
    from perdure.client import Client
    from perdure.engine.connection import Target
    from perdure.settings import Settings
    from perdure.telemetry.endpoint import Page

TaskQueue = Annotated[
    str | None, typer.Option("--task-queue", help="Serve all of them there. Default: one queue per file.")
]


def dev(
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE", help="Agent files to serve as well.")] = None,
    ui_port: Annotated[int | None, typer.Option(help="Port of the Web UI. Default: a free one.", max=65535)] = None,
    as_json: AsJSON = False,
) -> int:
    """Run the embedded engine with its Web UI, and a worker for the agent files given, until Ctrl-C.

    Where TEMPORAL_ADDRESS or a Temporal profile names a server, that one is used and none is started.
    """
    identity.use_way("worker")
    return session.finish(_dev(files or [], session.settings(), ui_port, as_json), logs=True)


def worker(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="FILE.py, FILE.yaml, FILE.py:agent or module.")],
    task_queue: TaskQueue = None,
    model_rate: Annotated[
        list[str] | None, typer.Option(metavar="PROVIDER=N", help="Model calls a second, of all workers of the queue.")
    ] = None,
    model_slots: Annotated[
        int | None, typer.Option(min=1, help="Model calls at once here, of each provider. Default: 100.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Answer there to /metrics, /healthz and /readyz.")
    ] = None,
    as_json: AsJSON = False,
) -> int:
    """Serve the agents of these files until SIGTERM or Ctrl-C; calls under way may finish first."""
    rates = dict(_rate(text) for text in model_rate or []) or None
    chosen = {"model_rate": rates, "model_slots": model_slots, "metrics_port": metrics_port}
    settings = session.settings(task_queue=task_queue, **chosen)
    identity.use_way("worker")
    return session.finish(_worker(files, settings, as_json), logs=True)


def _rate(text: str) -> tuple[str, float]:
    provider, _, number = text.partition("=")
    try:
        return provider.strip(), float(number)
    except ValueError:
        raise Misuse(f"--model-rate is PROVIDER=N, such as openai=5; {text!r} is not.") from None


async def _dev(files: Sequence[str], settings: Settings, ui_port: int | None, as_json: bool) -> int:
    from perdure.engine.connection import target
    from perdure.engine.server import DevServer

    queues = _by_queue(files, settings)
    async with AsyncExitStack() as stack:
        lost, owned = None, False
        if not target(settings).options.get("target_host"):
            server = await stack.enter_async_context(await DevServer.start(settings, ui_port=ui_port))
            owned = server.owned
            lost = asyncio.ensure_future(server.wait())
            stack.callback(lost.cancel)
        stop = _listen()
        async with _serving(queues, settings) as page:
            _tell_page(page)
            _tell_engine(target(settings), started=owned, as_json=as_json, queues=queues)
            return await _until(stop, lost)


async def _worker(files: Sequence[str], settings: Settings, as_json: bool) -> int:
    queues = _by_queue(files, settings)
    stop = _listen()
    async with _serving(queues, settings) as page:
        _tell_page(page)
        _tell_served(queues)
        if as_json:
            emit({"event": "ready", **_served(queues), **({"metrics": page.address} if page.address else {})})
        return await _until(stop, None)


def _by_queue(files: Sequence[str], settings: Settings) -> dict[str, list[Agent]]:
    """Return the agents that the files declare, by the queue on which runs of them wait; each once."""
    from perdure.loading import load_agents, task_queue

    queues: dict[str, list[Agent]] = {}
    for file in files:
        for agent in load_agents(file):
            served = queues.setdefault(task_queue(agent.source, settings), [])
            if agent not in served:
                served.append(agent)
    return queues


@asynccontextmanager
async def _serving(queues: dict[str, list[Agent]], settings: Settings) -> AsyncGenerator[Page]:
    """Serve while the block runs; yields where it can be asked how it fares.

    Raises:
        PerdureError: If a worker can't go on; one sentence.
    """
    from perdure.engine import runtime
    from perdure.telemetry import dumps
    from perdure.telemetry.endpoint import Page
    from perdure.worker import serving

    dumps.forbid()
    _log_to_stderr()
    try:
        async with AsyncExitStack() as stack:
            page = await stack.enter_async_context(Page().open(settings))
            runtime.prepare(metrics=page.core)
            client = await session.connect(settings)
            served = [serving(client.temporal, agents, queue, settings) for queue, agents in queues.items()]
            stops = [await stack.enter_async_context(one) for one in served]
            page.ready = partial(_answers, client)
            yield page
            page.ready = _stopping
            await _hand_over([stop() for stop in stops], settings)
        say("Stopped; runs under way are kept, and go on with the next worker.")
    except PerdureError:
        raise
    except Exception as error:
        text = str(error.__cause__ or error)
        told = re.search(r'message: "((?:[^"\\]|\\.)+)"', text)  # the engine's own words within Rust's
        reason = (told[1] if told else text.partition("\n")[0]).rstrip(".")
        raise ConnectionFailed(f"The worker can't go on: {reason}.") from error


_MARGIN = 2
"""Seconds in which calls that were stopped report to the engine."""


async def _hand_over(stops: Sequence[Awaitable[None]], settings: Settings) -> None:
    """Stop all queues at the same time. Calls that can't be stopped end with this process; others take them up."""
    stopping = asyncio.gather(*stops)
    limit = settings.grace + settings.cancel_grace
    await asyncio.wait({stopping}, timeout=limit.total_seconds() + _MARGIN)
    if not stopping.done():
        say("A call does not end: it is handed over.")
        os._exit(DONE)


def _listen() -> asyncio.Event:
    """Return what SIGINT and SIGTERM set; a second one ends the process at once."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def on_signal(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        say("Stopping; calls under way may finish. Once more ends at once.")
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    return stop


async def _until(stop: asyncio.Event, lost: asyncio.Future[None] | None) -> int:
    """Wait for a signal, or for the engine's end."""
    stopped = asyncio.ensure_future(stop.wait())
    try:
        waited: list[asyncio.Future[Any]] = [stopped, *([lost] if lost else [])]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
    if lost and lost.done():
        lost.result()
    return DONE


def _served(queues: dict[str, list[Agent]]) -> dict[str, Any]:
    return {"queues": list(queues), "agents": [agent.name for agents in queues.values() for agent in agents]}


async def _answers(client: Client) -> str:
    """Return why no work comes, or "" where it does."""
    from datetime import timedelta

    from temporalio.service import RPCError

    try:
        await client.temporal.service_client.check_health(timeout=timedelta(seconds=2))
    except RPCError as error:
        return f"the Temporal server does not answer: {error.message}"
    return ""


async def _stopping() -> str:
    return "stopping"


def _tell_page(page: Page) -> None:
    if page.address:
        say(f"{paint('Metrics', 'green', sys.stderr)} at {page.address}/metrics; /healthz, /readyz")


def _tell_served(queues: dict[str, list[Agent]]) -> None:
    for queue, agents in queues.items():
        names = ", ".join(agent.name for agent in agents)
        file = session.short_path(agents[0].source)
        say(f"{paint('Serving', 'green', sys.stderr)} {safe(names)} of {safe(file)} on queue {safe(queue)}")


def _tell_engine(where: Target, *, started: bool, as_json: bool, queues: dict[str, list[Agent]]) -> None:
    if started:
        say(f"{paint('Engine', 'green', sys.stderr)} at {where.address}, Web UI at {where.ui_url}")
    else:
        page = f", Web UI at {where.ui_url}" if where.ui_url else ""
        say(f"Using the Temporal server at {safe(where.address)} ({safe(where.origin)}){page}; no other is started")
    _tell_served(queues)
    say("Ctrl-C ends it")
    if as_json:
        told = {"address": where.address, "namespace": where.namespace, "ui_url": where.ui_url, "started": started}
        emit({"event": "ready", **told, **_served(queues)})


_QUIET = 30
"""Seconds in which a server that is away is not spoken of again."""


class _Format(logging.Formatter):
    """One line for what is nothing unusual, a failed attempt or a server that is away. Tracebacks are for defects."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        activity: Mapping[str, Any] | None = getattr(record, "temporal_activity", None)
        failure = getattr(record, "failure", None) or (record.exc_info and record.exc_info[1])
        if record.name == "temporalio.activity" and activity and failure:
            what = f"{activity.get('activity_type')} of run {activity.get('workflow_id')}"
            record = _plain(record, f"{what}, attempt {activity.get('attempt')}: {failure}")
        elif record.name == "temporalio.core":
            record = _plain(record, record.getMessage())
        return super().format(record)


def _plain(record: logging.LogRecord, text: str) -> logging.LogRecord:
    return logging.LogRecord(record.name, record.levelno, "", 0, one_line(text, 300), (), None)


class _Outages(logging.Filter):
    """Lets one record in half a minute pass of those that say that somebody is away: each poll logs its own."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether it is logged."""
        words = _away(record)
        if not words:
            return True
        if record.created - self._said.get(words, float("-inf")) < _QUIET:
            return False
        self._said[words] = record.created
        record.msg, record.args, record.exc_info = words, (), None
        return True


def _away(record: logging.LogRecord) -> str:
    """Return who is away, as a record says that is one of many; "" for all others."""
    if record.name == "temporalio.core" and "code: Unavailable" in record.getMessage():
        return "The Temporal server does not answer; trying again until it does."
    if record.name.startswith("opentelemetry.exporter"):
        return "OpenTelemetry's endpoint does not take what it is sent; what can't be kept is dropped, and counted."
    return ""


def _log_to_stderr() -> None:
    from perdure.telemetry.logs import Redacted, catch_all

    handler = logging.StreamHandler()
    handler.setFormatter(Redacted(_Format()))
    handler.addFilter(_Outages())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    catch_all()
