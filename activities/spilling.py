"""What is too large for a history goes into the store, and comes from there: whoever needs it waits for the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from temporalio import activity

from perdure.activities.stores import Blobs, run_owner
from perdure.activities.stores.patience import patiently
from perdure.errors import ConnectionFailed
from perdure.reports import ToolReport, Unshaped
from perdure.results import KEEPING, RESULT_LIMIT, Output, noted, preview, words

T = TypeVar("T")

NOT_KEPT = "The rest could not be kept, and can't be read: the store was away."
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

    async def keep(self, output: Output) -> ToolReport:
        """Return the report of `output`, what is larger than it put away before.

        Where the store stays away, a note says so. Never fails: what was done is reported in any case.
        """
        small = output.returned is not None and len(output.returned) <= RESULT_LIMIT
        large = None if small else output.returned
        refs: list[str] = []
        report, blobs = output.report, [data for data in (output.whole, large) if data is not None]
        if blobs:
            try:
                refs = await self._put(blobs)
            except Exception as error:  # noqa: BLE001 - whatever ails the store: the tool has done its work
                activity.logger.warning("a result of %s bytes was not kept: %s", len(blobs[0]), error)
                report = report.having(noted(report.result, NOT_KEPT))
        if output.whole is not None and refs:
            report = report.having(report.result.model_copy(update={"ref": refs[0]}))
        if output.returned is not None:
            content, _ = preview(output.returned.decode(), RESULT_LIMIT)
            returned = Unshaped(content=content, ref=refs[-1] if large is not None and refs else None)
            report = report.model_copy(update={"returned": returned})
        return report

    async def _put(self, blobs: Sequence[bytes]) -> list[str]:
        info = activity.info()
        owner = run_owner(info.workflow_namespace or "", info.workflow_id or "")

        async def put_all() -> list[str]:
            return [await self._blobs.put(data, owner) for data in blobs]

        return await self._patiently(put_all)

    async def read(self, ref: str) -> bytes:
        """Return what was kept.

        Raises:
            LookupError: If it is not there any more.
            ConnectionFailed: If the store stays away.
        """
        return await self._patiently(lambda: self._blobs.get(ref))

    async def _patiently(self, act: Callable[[], Awaitable[T]]) -> T:
        """Return what `act` does as soon as it succeeds. A cancellation leaves it a moment, and is not passed on."""
        work = asyncio.create_task(patiently(lambda: _asked(act), meanwhile="a tool's result waits for the store"))
        try:
            await asyncio.wait({work}, timeout=_LAST_SECONDS if activity.is_cancelled() else self._patience)
        except asyncio.CancelledError:
            await asyncio.wait({work}, timeout=_LAST_SECONDS)
        if work.done():
            return work.result()
        work.cancel()
        await asyncio.wait({work}, timeout=_LAST_SECONDS)
        raise ConnectionFailed("The store does not answer.")


async def _asked(act: Callable[[], Awaitable[T]]) -> T:
    """Return what `act` does; whatever else ails a store is taken for its absence."""
    try:
        return await act()
    except (LookupError, ConnectionFailed):
        raise
    except Exception as error:
        raise ConnectionFailed(words(error)) from error
