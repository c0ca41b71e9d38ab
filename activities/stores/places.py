"""Where the bytes of blobs can be beside the database: files."""

from __future__ import annotations

import asyncio
import os
import re
import uuid
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

_REF = re.compile("[0-9a-f]{32}")


class Place(Protocol):
    """Bytes by reference. Every method raises `OSError` where the place can't be used."""

    name: str

    async def has(self, ref: str, size: int) -> bool:
        """Return whether it is here, whole."""
        ...

    async def write(self, ref: str, data: bytes) -> None:
        """Keep it: whoever reads it sees all of it or nothing, also after a crash."""
        ...

    async def read(self, ref: str) -> bytes | None:
        """Return it, or None if it is not here."""
        ...

    async def remove(self, refs: Collection[str]) -> None:
        """Delete those that are here."""
        ...

    def older(self, than: datetime) -> AsyncIterator[tuple[str, int, datetime]]:
        """Yield what was written before `than`: reference, size, when."""
        ...


class Files:
    """A folder: `ab/cdef…` for the reference `abcdef…`."""

    name = "files"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def has(self, ref: str, size: int) -> bool:
        """See `Place.has`."""
        return await asyncio.to_thread(self._has, ref, size)

    async def write(self, ref: str, data: bytes) -> None:
        """See `Place.write`."""
        await asyncio.to_thread(self._write, ref, data)

    async def read(self, ref: str) -> bytes | None:
        """See `Place.read`."""
        return await asyncio.to_thread(self._read, ref)

    async def remove(self, refs: Collection[str]) -> None:
        """See `Place.remove`."""
        await asyncio.to_thread(self._remove, refs)

    async def older(self, than: datetime) -> AsyncIterator[tuple[str, int, datetime]]:
        """See `Place.older`; what a crash left half-written is deleted."""
        for found in await asyncio.to_thread(self._older, than):
            yield found

    def _path(self, ref: str) -> Path:
        return self._folder / ref[:2] / ref[2:]

    def _has(self, ref: str, size: int) -> bool:
        with suppress(FileNotFoundError):
            return self._path(ref).stat().st_size == size
        return False

    def _write(self, ref: str, data: bytes) -> None:
        path = self._path(ref)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{uuid.uuid4().hex}")
        try:
            with draft.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        _sync(path.parent)

    def _read(self, ref: str) -> bytes | None:
        with suppress(FileNotFoundError):
            return self._path(ref).read_bytes()
        return None

    def _remove(self, refs: Collection[str]) -> None:
        for ref in refs:
            self._path(ref).unlink(missing_ok=True)

    def _older(self, than: datetime) -> list[tuple[str, int, datetime]]:
        found: list[tuple[str, int, datetime]] = []
        for path in self._folder.glob("*/*"):
            with suppress(FileNotFoundError):
                status = path.stat()
                at = datetime.fromtimestamp(status.st_mtime, UTC)
                ref = path.parent.name + path.name
                if at < than and _REF.fullmatch(ref):
                    found.append((ref, status.st_size, at))
                elif at < than:
                    path.unlink()
        return found


def _sync(folder: Path) -> None:
    """Have a file's new name outlive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
