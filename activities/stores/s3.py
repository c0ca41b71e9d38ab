"""Blobs in a bucket of S3, or of what speaks like it. Credentials, region and endpoint are those of `AWS_…`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from perdure.errors import ConnectionFailed

if TYPE_CHECKING:
    from obstore.store import S3Store

T = TypeVar("T")

_PATIENCE = timedelta(seconds=5)
"""How long it may be silent: while it is connected to, and while it sends or takes bytes."""
_PART = 5 * 1024 * 1024
"""What is larger goes up in parts of that size, so that no request is a long one."""

_AT_ONCE = 8
"""Requests under way."""


class Bucket:
    """A bucket, or what is below a prefix in it: `ab/cdef…` for the reference `abcdef…`.

    Args:
        name: `s3://BUCKET/PREFIX`.

    Raises:
        ConnectionFailed: If what it takes is not installed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._store = _store(name)
        self._threads = ThreadPoolExecutor(_AT_ONCE, "perdure-s3")  # others go on where a bucket does not answer

    async def has(self, ref: str, size: int) -> bool:
        """See `Place.has`."""
        from obstore import head

        found = await self._asked(lambda: head(self._store, _key(ref)))
        return found is not None and found["size"] == size

    async def write(self, ref: str, data: bytes) -> None:
        """See `Place.write`."""
        from obstore import put

        if await self._asked(lambda: put(self._store, _key(ref), data, chunk_size=_PART)) is None:
            raise OSError(0, "there is no such bucket", self.name)

    async def read(self, ref: str) -> bytes | None:
        """See `Place.read`."""
        from obstore import get

        return await self._asked(lambda: bytes(get(self._store, _key(ref)).bytes()))

    async def remove(self, refs: Collection[str]) -> None:
        """See `Place.remove`."""
        from obstore import delete

        await self._asked(lambda: delete(self._store, [_key(ref) for ref in refs]))

    async def tidy(self, older_than: datetime) -> None:
        """See `Place.tidy`: uploads that broke off are the business of a rule of the bucket's."""

    async def _asked(self, request: Callable[[], T]) -> T | None:
        """Return what the bucket replies, None for what is not there; every error is an `OSError`, as of files.

        In a thread: a request that the library itself makes in the background may abort a process that ends.
        """
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, request)
        except FileNotFoundError:
            return None
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise OSError(0, "the credentials are refused", self.name) from error
        except BaseError as error:
            raise OSError(0, str(error).partition("\n")[0].rpartition(" - ")[2].rstrip("."), self.name) from error


def _store(name: str) -> S3Store:
    try:
        from obstore.store import S3Store
    except ImportError as error:
        raise ConnectionFailed("Blobs in S3 need the Python package obstore: install perdure[s3].") from error
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    return S3Store.from_url(
        name,
        client_options={
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": _PATIENCE,
            "read_timeout": _PATIENCE,
            "timeout": 6 * _PATIENCE,
        },
        retry_config={"max_retries": 2, "retry_timeout": 2 * _PATIENCE},
    )


def _key(ref: str) -> str:
    return f"{ref[:2]}/{ref[2:]}"
