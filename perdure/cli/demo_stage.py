"""What the demo plays on: engine, booking service, model and worker. All of it ends with the demo."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path

from perdure.agents import Agent
from perdure.client import Client
from perdure.engine import leash
from perdure.engine.connection import target
from perdure.engine.server import DevServer
from perdure.errors import ConnectionFailed
from perdure.examples.travel import script
from perdure.examples.travel.booking_service import BookingService, Kind
from perdure.loading import load_agents
from perdure.settings import Settings
from perdure.testing.model_server import ModelServer

BOOKING_DELAY = timedelta(seconds=3)
"""Between a booking and the service's reply: time to kill the worker. A tool's own limit is 10 s."""

LEDGER = "bookings.db"

PATIENCE = 15
"""Seconds that a worker gets to end by itself; its leash kills it after ten."""

SCRIPTED = "openai:scripted"
"""The scripted model, by way of the real adapter for OpenAI's protocol."""


class WorkerProcess:
    """`perdure worker` as a process that ends with this one, however this one ends.

    Args:
        file: Of the agent.
        log: Gets what it says.

    Attributes:
        pid: The worker's own process id.
    """

    def __init__(self, file: Path, log: Path) -> None:
        worker = [sys.executable, "-m", "perdure.starter", "worker", str(file)]
        with log.open("ab") as output:
            self._leash = subprocess.Popen(
                [sys.executable, "-I", "-S", leash.__file__, str(log.with_suffix(".leash")), *worker],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,  # Ctrl-C is the demo's: it ends its worker itself
            )
        assert self._leash.stdout is not None  # noqa: S101 - a pipe was asked for
        self.pid = int(self._leash.stdout.readline())
        self._log = log

    def kill(self) -> None:
        """End it as a power cut would."""
        os.kill(self.pid, signal.SIGKILL)
        self.end()

    def end(self) -> None:
        """Let it finish what it does, and wait till it is gone."""
        for pipe in (self._leash.stdin, self._leash.stdout):
            if pipe:
                pipe.close()
        self._leash.wait(PATIENCE)

    @property
    def gone(self) -> bool:
        """Whether it has ended."""
        return self._leash.poll() is not None

    def last_words(self) -> str:
        """Return the last line that it said, and where there is more."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        return f"{last.removeprefix('Error: ').rstrip('.')} (see {self._log})"


@dataclass
class Stage:
    """Everything is up: the run can be started.

    Attributes:
        owned: Whether the engine ends with the demo.
        ui: Address of the Web UI; None where only the server's operator knows it.
        today: What the task and the script go by.
        folder: Of this demo alone: ledger and worker's log.
        script: Where the scripted model is served; None with a real one.
    """

    client: Client
    owned: bool
    ui: str | None
    today: date
    folder: Path
    agent: Agent
    bookings: BookingService
    script: ModelServer | None
    worker: WorkerProcess

    @property
    def ledger(self) -> str:
        """Path of the booking service's books."""
        return str(self.folder / LEDGER)

    def booked(self, kind: Kind) -> int:
        """Return how many the booking service has ever booked."""
        return self.bookings.ledger.counts(kind)["booked"]

    def start_worker(self) -> None:
        """Put another worker in the place of the one that is gone."""
        self.worker = _worker(self.agent, self.folder)

    def tell_script(self, denied: Collection[str], *, slow: bool) -> None:
        """Have the scripted model know what was denied; a real one reads it."""
        if self.script:
            self.script.follow(script.replies(self.today, slow=slow, denied=denied))

    async def watch_worker(self) -> None:
        """Wait until the worker ends by itself.

        Raises:
            ConnectionFailed: Then, with its last words.
        """
        while not self.worker.gone:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.2)
        raise ConnectionFailed(f"The worker ended by itself: {self.worker.last_words()}.")


@asynccontextmanager
async def open_stage(settings: Settings, run_id: str, model: str | None, *, slow: bool) -> AsyncGenerator[Stage]:
    """Start what is missing, and end it afterwards.

    Raises:
        ConnectionFailed: If the engine can't be started or reached.
    """
    today = datetime.now().astimezone().date()
    folder = settings.folder / "demo" / run_id
    async with AsyncExitStack() as stack:
        server, where = None, target(settings)
        if not where.options.get("target_host"):  # Temporal's own configuration names none
            server = await stack.enter_async_context(await DevServer.start(settings))
            where = target(settings)
        folder.mkdir(parents=True, exist_ok=True)
        bookings = stack.enter_context(BookingService(folder / LEDGER, booking_delay=BOOKING_DELAY))
        scripted = None if model else ModelServer(script.replies(today, slow=slow))
        if scripted:
            await stack.enter_async_context(scripted)
        os.environ.update(_environment(settings, model, bookings, scripted, slow=slow))
        agent = load_agents(str(Path(script.__file__).with_name("agent.py")))[0]
        stage = Stage(
            client=await Client.connect(settings),
            owned=bool(server and server.owned),
            ui=where.ui_url,
            today=today,
            folder=folder,
            agent=agent,
            bookings=bookings,
            script=scripted,
            worker=_worker(agent, folder),
        )
        stack.push_async_callback(lambda: asyncio.to_thread(stage.worker.end))
        yield stage


def _worker(agent: Agent, folder: Path) -> WorkerProcess:
    return WorkerProcess(Path(agent.source), folder / "worker.log")


def _environment(
    settings: Settings, model: str | None, bookings: BookingService, scripted: ModelServer | None, *, slow: bool
) -> Mapping[str, str]:
    """Return what agent file and worker are told: this process reads the file too, so it is told the same."""
    told = {
        "PERDURE_HOME": str(settings.folder.resolve()),
        "TRAVEL_MODEL": model or SCRIPTED,
        "TRAVEL_BOOKING_URL": bookings.address,
        "TRAVEL_SLOW_TOOL": "1" if slow else "0",
    }
    if scripted:
        past_proxies = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1"]))
        told |= {"OPENAI_BASE_URL": scripted.base_url, "OPENAI_API_KEY": "none", "NO_PROXY": past_proxies}
        told |= {"no_proxy": past_proxies}
    return told
