"""The side channel in files: one a run, appended to by any number of workers, and followed as it grows."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from perdure.telemetry.live import STALE

SMALL, MOST = 64 * 1024, 1024 * 1024
"""Bytes from which on a file begins anew with a new reply, and from which on in any case."""

_SOON, _LATER, _QUIET = 0.02, 0.05, 2.0
"""Seconds between two looks; between them where nothing has come for so long."""


class Files:
    """See `perdure.telemetry.live.Outlet`.

    Args:
        folder: Made when it is first needed; nobody but its owner can look into it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, name: str, lines: Sequence[bytes], *, begins: bool) -> None:
        """Append `lines` at once, so that those of other workers stay whole."""
        path = self._folder / f"{name}.jsonl"
        try:
            file = _opened(path)
        except FileNotFoundError:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = _opened(path)
        try:
            size = os.fstat(file).st_size
            if size > (SMALL if begins else MOST):
                os.ftruncate(file, 0)
                size = 0
            cut = size > 0 and os.pread(file, 1, size - 1) != b"\n"  # a worker was killed in the middle of a line
            os.write(file, b"\n" * cut + b"\n".join(lines) + b"\n")
        finally:
            os.close(file)

    def close(self) -> None:
        """Nothing is open."""


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)


async def tail(folder: Path, name: str) -> AsyncGenerator[bytes]:
    """Yield the lines that are there, and those that come. Never ends; a file that begins anew is read anew."""
    path, at, rest, heard = folder / f"{name}.jsonl", 0, b"", time.monotonic()
    while True:
        size, chunk = _read(path, at)
        if size < at:
            at, rest = 0, b""
            continue
        if chunk:
            at, heard = at + len(chunk), time.monotonic()
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line
        await asyncio.sleep(_SOON if time.monotonic() - heard < _QUIET else _LATER)


def _read(path: Path, at: int) -> tuple[int, bytes]:
    """Return the size of a file, and what it holds from a place on; nothing where there is none."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            return size, os.pread(file.fileno(), size - at, at) if size > at else b""
    except OSError:
        return 0, b""


def remove(folder: Path, name: str) -> None:
    """Delete the file of a run that has ended."""
    with suppress(OSError):
        (folder / f"{name}.jsonl").unlink()


def sweep(folder: Path, older_than: timedelta = STALE) -> int:
    """Delete the files that nobody has written into for so long; return how many there were."""
    before, count = time.time() - older_than.total_seconds(), 0
    for path in folder.glob("*.jsonl"):
        with suppress(OSError):
            if path.stat().st_mtime < before:
                path.unlink()
                count += 1
    return count
