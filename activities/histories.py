"""Histories of executions that have ended, compressed: what the archive reads runs from."""

from __future__ import annotations

import asyncio
import zlib

from temporalio.api.history.v1 import History

from perdure.activities.stores import ArchivedRun, Blobs, Owner
from perdure.telemetry.executions import Recorded


async def write(blobs: Blobs, owner: Owner, recorded: Recorded) -> str:
    """Keep an execution for `owner` and return its reference; the same one gives the same."""
    return await blobs.put(await asyncio.to_thread(_packed, recorded), owner)


async def read(blobs: Blobs, run: ArchivedRun) -> list[Recorded]:
    """Return the executions of a run that were archived.

    Raises:
        LookupError: If one is not there any more.
    """
    return [await asyncio.to_thread(_unpacked, await blobs.get(ref)) for ref in run.histories]


def _packed(recorded: Recorded) -> bytes:
    history = History(events=recorded.events).SerializeToString(deterministic=True)
    return zlib.compress(f"{recorded.execution}\n".encode() + history)


def _unpacked(data: bytes) -> Recorded:
    execution, _, history = zlib.decompress(data).partition(b"\n")
    return Recorded(execution.decode(), History.FromString(history).events)
