"""Parts of transcripts that were put away: written once, read by reference."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterable, Sequence

from perdure import continuing
from perdure.activities.stores import Blobs, Owner
from perdure.messages import CallRecord, Entry, Segment, SegmentBody
from perdure.state import RunState
from perdure.transcripts import Chain


async def write(
    blobs: Blobs,
    owner: Owner,
    previous: Segment | None,
    entries: Sequence[Entry],
    records: Sequence[CallRecord] = (),
) -> Segment:
    """Put `entries` and `records` away, which follow `previous`; the same ones give the same segment."""
    body = SegmentBody(previous=previous, entries=list(entries), records=list(records))
    chain = Chain(previous)
    chain.extend(entries)
    ref = await blobs.put(zlib.compress(body.model_dump_json(exclude_defaults=True).encode()), owner)
    counted = (previous.records if previous else 0) + len(records)
    return Segment(ref=ref, length=chain.length, records=counted, head=chain.head(chain.length))


MERGED = 16
"""So many segments of a session in a row become one: a thousand turns are read in some forty pieces."""


async def append(blobs: Blobs, owner: Owner, previous: Segment | None, entries: Sequence[Entry]) -> Segment:
    """Put away the entries of a turn, which follow `previous`; small segments before it become larger ones at times.

    Those stay where they are: whoever began from one finds it.

    Raises:
        LookupError: If one that is to be put together with others is not there any more.
    """
    rank, parts, before = 0, [list(entries)], previous
    while (row := _row(before, rank)) == MERGED:
        for _ in range(MERGED - 1):
            assert before is not None  # noqa: S101 - there is a row of them
            body = await read(blobs, before)
            parts.append(body.entries)
            before = body.previous
        rank += 1
    written = await write(blobs, owner, before, [entry for part in reversed(parts) for entry in part])
    return written.model_copy(update={"records": 0, "rank": rank, "row": row})


def _row(before: Segment | None, rank: int) -> int:
    """Return how many of that rank follow each other where one more is put after `before`."""
    return before.row + 1 if before and before.rank == rank else 1


async def read(blobs: Blobs, segment: Segment) -> SegmentBody:
    """Return what a segment holds.

    Raises:
        LookupError: If it is not there any more.
    """
    return SegmentBody.model_validate_json(zlib.decompress(await blobs.get(segment.ref)))


async def put_away(blobs: Blobs, owner: Owner, state: RunState) -> None:
    """Put all of a state away that is not needed at hand, as a run does that continues as new."""
    if part := continuing.due(state):
        segment = await write(blobs, owner, state.before, part.entries, part.records)
        continuing.put_away(state, part, segment)


async def own_there(blobs: Blobs, refs: Iterable[str], owner: Owner) -> None:
    """Keep those of the blobs for `owner` that are still there: of others, a preview is all that is left."""
    for ref in refs:
        with contextlib.suppress(LookupError):
            await blobs.own([ref], owner)
