"""What is too large for a history goes into the store, and comes from there: whoever needs it waits for the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from temporalio import activity

from perdure.activities.stores import Blobs, run_owner
from perdure.errors import ConnectionFailed
from perdure.messages import ToolResult
from perdure.results import KEEPING, noted, words

T = TypeVar("T")

NOT_KEPT = "The rest could not be kept, and can't be read: the store was away."

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
"""Seconds between two tries: the first pause, which doubles, and the longest one."""
_LAST_SECONDS = 2.0
"""How long it may take yet where the run is cancelled, or the worker stops."""


class Spilling:
    """Puts the whole of large results into the store, and reads them there.

    Args:
        blobs: Where to.
        patience: How long the store may be away.
    """

    def __init__(self, blobs: Blobs, patience: timedelta = KEEPING) -> None:
        self._blobs = blobs
        self._patience = patience.total_seconds()

    async def keep(self, result: ToolResult, whole: bytes | None) -> ToolResult:
        """Return `result` with the reference of its `whole`, or, where the store stays away, a note that there is none.

        Never fails: what was done is reported in any case.
        """
        if whole is None:
            return result
        info, data = activity.info(), whole
        owner = run_owner(info.workflow_namespace or "", info.workflow_id or "")
        try:
            ref = await self._patiently(lambda: self._blobs.put(data, owner))
        except Exception as error:  # noqa: BLE001 - whatever ails the store: the tool has done its work
            activity.logger.warning("a result of %s bytes was not kept: %s", len(data), error)
            return noted(result, NOT_KEPT)
        return result.model_copy(update={"ref": ref})

    async def read(self, ref: str) -> bytes:
        """Return what was kept.

        Raises:
            LookupError: If it is not there any more.
            ConnectionFailed: If the store stays away.
        """
        return await self._patiently(lambda: self._blobs.get(ref))

    async def _patiently(self, act: Callable[[], Awaitable[T]]) -> T:
        """Return what `act` does as soon as it succeeds. A cancellation leaves it a moment, and is not passed on."""
        failures: list[str] = []
        work = asyncio.create_task(_again_and_again(act, failures))
        try:
            await asyncio.wait({work}, timeout=_LAST_SECONDS if activity.is_cancelled() else self._patience)
        except asyncio.CancelledError:
            await asyncio.wait({work}, timeout=_LAST_SECONDS)
        if not work.done():
            work.cancel()
            await asyncio.wait({work}, timeout=_LAST_SECONDS)
            raise ConnectionFailed(failures[-1] if failures else "The store does not answer.")
        return work.result()


async def _again_and_again(act: Callable[[], Awaitable[T]], failures: list[str]) -> T:
    """Return what `act` does, once it does not fail for reasons that may pass; `failures` collects those."""
    pause = _FIRST_PAUSE
    while True:
        try:
            return await act()
        except LookupError:
            raise
        except Exception as error:  # noqa: BLE001 - a full disk, a network, a server that is restarted
            if not failures:
                activity.logger.warning("the store is away, and is waited for: %s", error)
            failures.append(words(error))
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
