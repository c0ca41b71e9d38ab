"""Where the bytes of blobs can be beside the database: files, or a bucket."""

from __future__ import annotations

import asyncio
import os
import re
import uuid
from collections.abc import Collection
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Protocol

from perdure.errors import ConnectionFailed


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

    async def tidy(self, older_than: datetime) -> None:
        """Delete what writes that broke off before `older_than` have left."""
        ...


def place_of(name: str, database: Path | None) -> Place:
    """Return the place of that name: `files`, or `s3://BUCKET/PREFIX`.

    Args:
        database: The file of the database, beside which the folder of files is.

    Raises:
        ConnectionFailed: If there is no such place here.
    """
    if name == Files.name and database:
        return Files(database.with_name("blobs" if database.stem == "store" else f"{database.stem}.blobs"))
    if re.fullmatch("s3://[a-zA-Z0-9][^/?#]*(/[^?#]*)?", name):
        from perdure.activities.stores.s3 import Bucket

        return Bucket(name)
    raise ConnectionFailed(f"Blobs can't be in {name!r}: PERDURE_BLOBS is s3://BUCKET or s3://BUCKET/PREFIX.")


_DRAFT = ".draft-"


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

    async def tidy(self, older_than: datetime) -> None:
        """See `Place.tidy`."""
        await asyncio.to_thread(self._tidy, older_than.timestamp())

    def _path(self, ref: str) -> Path:
        return self._folder / ref[:2] / ref[2:]

    def _has(self, ref: str, size: int) -> bool:
        with suppress(FileNotFoundError):
            return self._path(ref).stat().st_size == size
        return False

    def _write(self, ref: str, data: bytes) -> None:
        path = self._path(ref)
        draft = path.with_name(f"{_DRAFT}{uuid.uuid4().hex}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
            _sync(path.parent)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(self._folder)) from error  # writing itself names no file

    def _read(self, ref: str) -> bytes | None:
        with suppress(FileNotFoundError):
            return self._path(ref).read_bytes()
        return None

    def _remove(self, refs: Collection[str]) -> None:
        for ref in refs:
            self._path(ref).unlink(missing_ok=True)

    def _tidy(self, older_than: float) -> None:
        for draft in self._folder.glob(f"*/{_DRAFT}*"):
            with suppress(FileNotFoundError):
                if draft.stat().st_mtime < older_than:
                    draft.unlink()


def _sync(folder: Path) -> None:
    """Have a file's new name outlive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
