"""Commands of `perdure` as processes forked from one that has loaded it: a test waits for what each does alone.

`Commands` is the side of the tests. The other one is this module as a script: it takes commands over a socket, forks
for each, and tells by a socket of its own which process it is and with what code it has ended.
"""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

LOADED = (
    "perdure.starter",
    "perdure.client",
    "perdure.activities.afterwards",
    "perdure.activities.stores.sql",
    "perdure.cli.live",
    "perdure.cli.report",
    "perdure.loading",
    "perdure.telemetry.redaction",
    "aiosqlite",
    "jsonschema",
    "rich.table",
)
"""What nearly every command loads."""

_LARGEST = 200_000
"""Bytes of a message: words and environment."""


class Commands:
    """Runs commands, each in a process of its own."""

    def __init__(self) -> None:
        self._own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            command = [sys.executable, __file__, str(other.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[other.fileno()])

    def run(
        self, words: Sequence[str], cwd: Path, env: Mapping[str, str], stdin: str, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run `perdure WORDS` to its end, and return with what code it has ended and what it has printed.

        Raises:
            TimeoutExpired: If it does not end in time; it is killed then.
        """
        told = json.dumps({"words": list(words), "cwd": str(cwd), "env": dict(env)}).encode()
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with own, ExitStack() as stack:
            given, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            given.write(stdin.encode())
            given.seek(0)
            with other:
                socket.send_fds(self._own, [told], [one.fileno() for one in (given, out, err, other)])
            pid = json.loads(own.recv(_LARGEST))
            own.settimeout(timeout)
            try:
                code = json.loads(own.recv(_LARGEST))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(words), timeout) from None
            texts = [_text(file) for file in (out, err)]
        return subprocess.CompletedProcess(list(words), code, *texts)

    def close(self) -> None:
        """End what has it loaded."""
        self._own.close()
        self._process.wait()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


def _serve(server: socket.socket) -> None:
    for name in LOADED:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    while True:
        told, files, _, _ = socket.recv_fds(server, _LARGEST, 4)
        if not told:
            return
        if os.fork() == 0:
            server.close()
            _watched(json.loads(told), files)
        for file in files:
            os.close(file)


def _watched(told: Mapping[str, Any], files: Sequence[int]) -> None:
    """Fork for a command, and tell how it ends; does not return."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with socket.socket(fileno=files[-1]) as asking:
        pid = os.fork()
        if pid == 0:
            asking.close()
            _command(told, files[:-1])
        asking.send(json.dumps(pid).encode())
        asking.send(json.dumps(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
    os._exit(0)


def _command(told: Mapping[str, Any], files: Sequence[int]) -> None:
    """Be the command; does not return."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(told["cwd"])
    os.environ.clear()
    os.environ.update(told["env"])
    sys.path[0] = ""
    code: Any = 1
    try:
        sys.modules["perdure.starter"].main(told["words"])
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as served:
        _serve(served)
