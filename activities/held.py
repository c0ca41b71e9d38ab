"""Context managers of application code, held open for others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

from perdure.results import words

T = TypeVar("T")
_log = logging.getLogger("perdure.worker")


class Held(Generic[T]):
    """A context manager, entered and left in one task of its own: those built on task groups demand it.

    Args:
        factory: Makes it.
    """

    def __init__(self, factory: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._factory = factory
        self._opened: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._hold())

    @property
    def value(self) -> T:
        """What it gave when it was entered."""
        return self._opened.result()

    @property
    def is_open(self) -> bool:
        """Whether it is entered, and not left yet."""
        entered = self._opened.done() and not self._opened.cancelled() and self._opened.exception() is None
        return entered and not self._task.done()

    async def entered(self) -> T:
        """Wait until it is entered, and return what it gave; raises what it raised."""
        try:
            return await self._opened
        except asyncio.CancelledError:
            self._task.cancel()
            raise

    async def aclose(self) -> None:
        """Leave it, whatever it raises then."""
        self._closing.set()
        await asyncio.wait([self._task])

    async def abort(self) -> None:
        """Leave it at once, whether it was entered yet or not."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _hold(self) -> None:
        try:
            async with self._factory() as value:
                self._opened.set_result(value)
                await self._closing.wait()
        except asyncio.CancelledError:
            self._opened.cancel()
        except BaseException as error:  # noqa: BLE001 - application code may raise anything
            if self._opened.done():
                _log.warning("a resource failed when it was closed: %s", words(error))
            else:
                self._opened.set_exception(as_exception(error))


def as_exception(error: BaseException) -> Exception:
    """Return `error` as one that ends no event loop and cancels no task: application code may raise anything."""
    return error if isinstance(error, Exception) else RuntimeError(words(error))
