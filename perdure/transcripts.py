"""Conversations by hash: what lets a model call name a transcript without sending it."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence

from perdure.messages import CallRecord, Entry, Segment, SegmentBody, content_hash

Load = Callable[[Segment], Awaitable[SegmentBody]]
"""Reads a segment from the store."""

ROOT = ""
"""The chained hash of an empty conversation."""


def link(parent: str, content: str) -> str:
    """Return the chained hash of a conversation that ends with a message whose content hash is `content`."""
    return hashlib.sha256(f"{parent}/{content}".encode()).hexdigest()[:32]


def linked(head: str, contents: Iterable[str]) -> str:
    """Return the chained hash of a conversation that goes on from `head` with messages of those content hashes."""
    for content in contents:
        head = link(head, content)
    return head


class Chain:
    """The hashes of a growing conversation.

    Args:
        before: The part of it that was put away: its hashes are known to end in `before.head`.
    """

    def __init__(self, before: Segment | None = None) -> None:
        self.offset = before.length if before else 0
        self._root = before.head if before else ROOT
        self._contents: list[str] = []
        self._heads: list[str] = []

    @property
    def length(self) -> int:
        """Entries so far, those put away included."""
        return self.offset + len(self._heads)

    def extend(self, entries: Sequence[Entry]) -> None:
        """Add those of `entries`, which begin where the part put away ends, that are not there yet."""
        for entry in entries[len(self._contents) :]:
            head = self._heads[-1] if self._heads else self._root
            self._contents.append(content_hash(entry))
            self._heads.append(link(head, self._contents[-1]))

    def head(self, length: int) -> str:
        """Return the chained hash of the first `length` entries, which have to reach the part that was not put away."""
        return self._heads[length - self.offset - 1] if length > self.offset else self._root

    def contents(self, start: int) -> list[str]:
        """Return the content hashes from entry `start` on."""
        return self._contents[start - self.offset :]

    def forget(self, length: int) -> None:
        """Forget the first `length` entries, but for the hash in which they end: they are put away."""
        root, count = self.head(length), length - self.offset
        self.offset, self._root = length, root
        del self._contents[:count], self._heads[:count]

    def cut(self, length: int) -> None:
        """Forget what comes after the first `length` entries."""
        del self._contents[length - self.offset :], self._heads[length - self.offset :]


async def pieces(
    segment: Segment | None, load: Load, wanted: Callable[[Segment], bool] = lambda _: True
) -> AsyncGenerator[tuple[Segment, SegmentBody]]:
    """Yield `segment` and those before it, the last one first, each with what it holds, as long as they are `wanted`.

    Raises:
        LookupError: If the store does not have one of them any more.
    """
    while segment is not None and wanted(segment):
        body = await load(segment)
        yield segment, body
        segment = body.previous


async def put_away(segment: Segment | None, load: Load, start: int = 0) -> list[Entry]:
    """Return the entries from `start` up to the end of `segment`, oldest first; those before it are not read.

    Raises:
        LookupError: If the store does not have them any more.
    """
    first, parts = (segment.length if segment else start), list[list[Entry]]()
    async for piece, body in pieces(segment, load, lambda piece: piece.length > start):
        first = piece.length - len(body.entries)
        parts.append(body.entries)
    return [entry for part in reversed(parts) for entry in part][max(start - first, 0) :]


async def records_put_away(segment: Segment | None, load: Load) -> list[CallRecord]:
    """Return the records of a run up to the end of `segment`, oldest first; those of the runs before it are not read.

    Raises:
        LookupError: If the store does not have them any more.
    """
    left, parts = (segment.records if segment else 0), list[list[CallRecord]]()
    async for _, body in pieces(segment if left else None, load):
        left -= len(body.records)
        parts.append(body.records)
        if left <= 0:
            break
    return [record for part in reversed(parts) for record in part]
