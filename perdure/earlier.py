"""What runs have put away in the store, for whoever reads them as a whole."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING

from perdure import continuing, transcripts
from perdure.errors import ConnectionFailed
from perdure.messages import CallRecord, Entry, Segment
from perdure.settings import Settings
from perdure.state import RunState
from perdure.telemetry.projection import Projection
from perdure.telemetry.upkeep import Earlier

if TYPE_CHECKING:
    from perdure.activities.stores import Store


async def complete(settings: Settings, projection: Projection) -> str | None:
    """Read what a run has put away before the histories began from which `projection` was made, and add it there.

    Returns:
        What is missing and why, as a sentence; None where it is complete.
    """
    state, known = projection.state, projection.earlier
    before = known.before
    if state is None or before is None or before.length <= state.start:
        return None
    try:
        entries = await _entries(settings, before, state.start)
        found = await records(settings, before)
    except (ConnectionFailed, LookupError) as error:
        return f"The first {before.length - state.start} messages of run {state.run_id} are missing: {error}"
    together = continuing.together(found, known.records)
    projection.earlier = Earlier(entries=[*entries, *known.entries], records=together)
    return None


async def _entries(settings: Settings, segment: Segment, start: int) -> list[Entry]:
    async with _store(settings) as store:
        from perdure.activities.stores import segments

        return await transcripts.put_away(segment, partial(segments.read, store), start)


async def records(settings: Settings, segment: Segment) -> list[CallRecord]:
    """Return a run's records up to the end of `segment`.

    Raises:
        LookupError: If the store does not have them (any more).
        ConnectionFailed: If the store can't be used.
    """
    async with _store(settings) as store:
        from perdure.activities.stores import segments

        return await transcripts.records_put_away(segment, partial(segments.read, store))


async def put_away(settings: Settings, namespace: str, state: RunState) -> None:
    """Put all of a state in the store that is not needed at hand, as a run does that continues as new.

    Raises:
        ConnectionFailed: If the store can't be used.
    """
    async with _store(settings) as store:
        from perdure.activities.stores import run_owner, segments

        await segments.put_away(store, run_owner(namespace, state.run_id), state)


def _store(settings: Settings) -> AbstractAsyncContextManager[Store]:
    from perdure.activities.stores import opened

    return opened(settings)
