"""Histories of executions that have ended, compressed: what the archive reads runs from."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from temporalio.api.history.v1 import History, HistoryEvent

from perdure.activities.stores import Blobs, Owner


@dataclass(frozen=True)
class Recorded:
    """One execution of a run, as Temporal recorded it; an encrypted payload stays encrypted.

    Attributes:
        execution: Its Temporal run id.
        events: From its start on; to its end, where it has ended.
    """

    execution: str
    events: Sequence[HistoryEvent]

    @property
    def continues(self) -> str:
        """The Temporal run id of the execution that it goes on from, "" where it is the first."""
        return self.events[0].workflow_execution_started_event_attributes.continued_execution_run_id


async def write(blobs: Blobs, owner: Owner, recorded: Recorded) -> str:
    """Keep an execution for `owner` and return its reference; the same one gives the same."""
    return await blobs.put(await asyncio.to_thread(_packed, recorded), owner)


async def read(blobs: Blobs, refs: Iterable[str]) -> list[Recorded]:
    """Return the executions kept under those references.

    Raises:
        LookupError: If one is not there any more.
    """
    return [await asyncio.to_thread(_unpacked, await blobs.get(ref)) for ref in refs]


def _packed(recorded: Recorded) -> bytes:
    history = History(events=recorded.events).SerializeToString(deterministic=True)
    return zlib.compress(f"{recorded.execution}\n".encode() + history)


def _unpacked(data: bytes) -> Recorded:
    execution, _, history = zlib.decompress(data).partition(b"\n")
    return Recorded(execution.decode(), History.FromString(history).events)
