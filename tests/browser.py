"""A real browser, driven through a pipe by the DevTools protocol: no library and no port is needed."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATH = shutil.which("chromium") or shutil.which("google-chrome") or ""
"""Where there is one, "" where there is none."""
_FREE = 20
"""Above the two file descriptors by which the browser talks."""


class Page:
    """A page of it."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write, self._left, self._number = read, write, b"", 0
        self._session = ""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def open(self, address: str) -> None:
        """Go there."""
        self._call("Page.navigate", url=address)

    def run(self, script: str) -> Any:
        """Return what a script gives."""
        return self._call("Runtime.evaluate", expression=script)["result"].get("value")

    @property
    def text(self) -> str:
        """What there is to read."""
        return self.run("document.body ? document.body.innerText : ''") or ""

    def until(self, wanted: str, patience: float = 60) -> str:
        """Return what there is to read once `wanted` is."""
        end = time.monotonic() + patience
        while wanted not in (text := self.text):
            assert time.monotonic() < end, text
            time.sleep(0.1)  # the page can only be asked
        return text

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        about = {"sessionId": self._session} if self._session else {}
        message = {"id": self._number, "method": method, "params": parameters, **about}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            pass
        return answer["result"]

    def _next(self) -> Any:
        while b"\0" not in self._left:
            more = os.read(self._read, 65_536)
            assert more, "the browser has ended"
            self._left += more
        message, _, self._left = self._left.partition(b"\0")
        return json.loads(message)


@contextmanager
def opened(folder: Path) -> Generator[Page]:
    """Have one while the block runs; its profile is in `folder`."""
    (its, ours), (mine, theirs) = ([fcntl.fcntl(fd, fcntl.F_DUPFD, _FREE) for fd in os.pipe()] for _ in range(2))

    def talk() -> None:
        os.dup2(its, 3)
        os.dup2(theirs, 4)

    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"]
    command = [PATH, *options, f"--user-data-dir={folder}"]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, preexec_fn=talk, close_fds=False, stdout=quiet, stderr=quiet)  # noqa: PLW1509
    try:
        yield Page(mine, ours)
    finally:
        process.kill()
        process.wait()
        for fd in (its, ours, mine, theirs):
            os.close(fd)
