"""Waiting for a store that is down: it delays a run, and never fails it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from perdure.errors import ConnectionFailed

_log = logging.getLogger("perdure.store")

T = TypeVar("T")

FIRST, LONGEST = 0.2, 5.0
"""Seconds between two tries: at first, and, doubling, at most."""


async def patiently(
    call: Callable[[], Awaitable[T]], within: timedelta | None = None, meanwhile: str = "waiting for the store"
) -> T:
    """Return what `call` returns, called again and again while the store is down.

    Every method of a store may be repeated: what it did already it does not do twice.

    Args:
        call: `partial(store.put, data, owner)`, `lambda: store.get(ref)`.
        within: When to give up, None for never. A try under way is not cut off: it ends within seconds by itself.
        meanwhile: What the log says, once, before the reason.

    Raises:
        ConnectionFailed: If the store is still down after `within`; the last one.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + within.total_seconds() if within is not None else None
    pause = FIRST
    while True:
        try:
            found = await call()
        except ConnectionFailed as error:
            left = deadline - clock() if deadline is not None else pause
            if left <= 0:
                raise
            if pause == FIRST:
                _log.warning("%s: %s", meanwhile, error)
            await asyncio.sleep(min(left, pause * random.uniform(0.7, 1)))  # noqa: S311
            pause = min(2 * pause, LONGEST)
        else:
            if pause > FIRST:
                _log.warning("the store is there again")
            return found
