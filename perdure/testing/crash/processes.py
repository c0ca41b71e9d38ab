"""Worker processes that are killed, stopped and frozen."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path


class WorkerProcess:
    """A worker in a process of its own.

    Args:
        command: Starts it; in the folder of the log.
        log: What it says goes there.
        environment: All of its environment variables.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        with log.open("wb") as file:
            # stdin is nobody's: a worker must not read the terminal of the tests.
            self._process = subprocess.Popen(
                command, cwd=log.parent, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        self.pid = self._process.pid

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Stop it with SIGSTOP: its connections stay, it says nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen one go on."""
        self._process.send_signal(signal.SIGCONT)

    def ask_to_end(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    @property
    def log(self) -> str:
        """What it has said."""
        return self._log.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    async def said(self, words: str, times: int = 1) -> None:
        """Return once it has said that on stderr, so many times."""
        while self.log.count(words) < times:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def ended(self, within: float = 30) -> int:
        """Return its exit code.

        Raises:
            TimeoutExpired: If it has not ended within so many seconds.
        """
        return await asyncio.to_thread(self._process.wait, within)


class KeptUp:
    """A worker that is started again whenever it has died; kill it with `worker.kill()`."""

    def __init__(self, command: Sequence[str], folder: Path, name: str, environment: Mapping[str, str]) -> None:
        self._command, self._folder, self._name, self._environment = command, folder, name, environment
        self.died = 0
        self.worker = self._start()
        self._keeping = asyncio.create_task(self._keep())

    def _start(self) -> WorkerProcess:
        return WorkerProcess(self._command, self._folder / f"{self._name}-{self.died}.log", self._environment)

    async def _keep(self) -> None:
        while True:
            while (code := self.worker.code) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            if code > 0:
                raise ChildProcessError(f"The worker ended with {code}:\n{self.worker.log[-2000:]}")
            self.died += 1
            self.worker = self._start()

    @property
    def trouble(self) -> str:
        """Why it is not started again; "" while it is."""
        return str(self._keeping.exception()) if self._keeping.done() and not self._keeping.cancelled() else ""

    async def aclose(self) -> None:
        """End it."""
        self._keeping.cancel()
        with suppress(asyncio.CancelledError, ChildProcessError):
            await self._keeping
        self.worker.kill()
