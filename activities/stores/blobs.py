"""Blobs in SQL: which there are and who owns them. Their bytes are in a table, or in a place of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, delete, exists, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from perdure.activities.stores import Freed, Owner
from perdure.activities.stores.database import Database, batches, whole
from perdure.activities.stores.places import Files, Place, place_of
from perdure.activities.stores.tables import BLOBS, OWNERS, PARTS
from perdure.messages import blob_ref
from perdure.sealing import Keyring, is_sealed

_PART = 1024 * 1024
"""Bytes in a row: each statement stays short, however large a blob is."""
_BATCH = 500
"""Blobs that are deleted in one transaction."""


class SQLBlobs(Database):
    """See `perdure.activities.stores.Blobs`, and `sweep` of `Archive`.

    Args:
        place: Where the bytes of new blobs go; "" for files beside the database's own, or, without one, a table.
        keys: See `Database`. The same data are still one blob, until the key changes.
    """

    def __init__(self, url: str, place: str = "", keys: Keyring | None = None) -> None:
        super().__init__(url, keys)
        self._places: dict[str, Place] = {}
        name = place or (Files.name if self.file else "")
        self._place = self._at(name) if name else None

    @whole
    async def put(self, data: bytes, owner: Owner) -> str:
        """See `Blobs.put`."""
        data, ref = await asyncio.to_thread(self._named, data)  # megabytes take a while, and others a turn
        place = self._place
        with self._said():
            if place and not await place.has(ref, len(data)):
                async with self._writing() as connection:  # before its bytes, which a crash would leave to nobody
                    await self._row(connection, ref, len(data))
                await place.write(ref, data)
        async with self._writing() as connection:
            # From here on the row is locked: a sweep that deletes the blob comes before, or finds that it has an owner.
            await self._row(connection, ref, len(data))
            await connection.execute(self._insert(OWNERS).values(ref=ref, owner=owner).on_conflict_do_nothing())
            if not place:
                await self._keep_parts(connection, ref, data)
            elif not await place.has(ref, len(data)):
                await place.write(ref, data)
        return ref

    @whole
    async def get(self, ref: str) -> bytes:
        """See `Blobs.get`."""
        async with self._reading() as connection:
            place = await connection.scalar(select(BLOBS.c.place).where(BLOBS.c.ref == ref)) if connection else None
            data = b"".join([part async for part in _parts(connection, ref)]) if connection and place == "" else None
        if place:
            with self._said():
                data = await self._at(place).read(ref)
        if data is None:
            raise LookupError(f"The store does not have blob {ref} (any more).")
        return await asyncio.to_thread(self._opened, data, ref)

    @whole
    async def own(self, refs: Collection[str], owner: Owner) -> None:
        """See `Blobs.own`."""
        if not refs:
            return
        locked = select(BLOBS.c.ref, BLOBS.c.size, BLOBS.c.place).where(BLOBS.c.ref.in_(refs)).order_by(BLOBS.c.ref)
        async with self._writing() as connection:
            rows = await connection.execute(locked.with_for_update())
            found = {row.ref: (row.size, row.place) for row in rows}
            owned = set(await connection.scalars(select(OWNERS.c.ref).where(OWNERS.c.ref.in_(refs))))
            for ref in sorted(refs):
                # Of one without owner the bytes may have been written, or not, before a crash.
                there = ref in owned or (ref in found and await self._has(connection, ref, *found[ref]))
                if not there:
                    raise LookupError(f"The store does not have blob {ref} (any more).")
                await connection.execute(self._insert(OWNERS).values(ref=ref, owner=owner).on_conflict_do_nothing())
            await self._touch(connection, found)

    @whole
    async def sweep(self, older_than: datetime) -> Freed:
        """See `Archive.sweep`."""
        sizes: list[int] = []
        while True:
            some = await self._sweep(older_than)
            sizes += some
            if len(some) < _BATCH:
                break
        if self._place:
            with self._said():
                await self._place.tidy(older_than)
        return Freed(len(sizes), sum(sizes))

    def _named(self, data: bytes) -> tuple[bytes, str]:
        """Return what is kept of `data`, and under which reference."""
        sealed = self.keys.seal_alike("blob", data) if self.keys else data
        return sealed, blob_ref(sealed)

    def _opened(self, data: bytes, ref: str) -> bytes:
        if blob_ref(data) != ref:
            raise LookupError(f"Blob {ref} of the store is damaged: its bytes are not those that were kept.")
        return self.keys.open_alike("blob", data) if is_sealed(data) else data

    async def _sweep(self, older_than: datetime) -> list[int]:
        owned = exists().where(OWNERS.c.ref == BLOBS.c.ref)
        query = select(BLOBS.c.ref, BLOBS.c.size, BLOBS.c.place).where(BLOBS.c.used_at < older_than, ~owned)
        async with self._writing() as connection:
            locked = query.order_by(BLOBS.c.ref).limit(_BATCH).with_for_update(skip_locked=True)
            rows = (await connection.execute(locked)).all()
            refs = [row.ref for row in rows]
            await connection.execute(delete(PARTS).where(PARTS.c.ref.in_(refs)))
            await connection.execute(delete(BLOBS).where(BLOBS.c.ref.in_(refs)))
            # Last, and while the rows are locked: whoever puts one of them waits, and then finds it gone.
            for place in {row.place for row in rows} - {""}:
                await self._at(place).remove([row.ref for row in rows if row.place == place])
        return [row.size for row in rows]

    async def _disown(
        self, connection: AsyncConnection, owners: Sequence[Owner], before: datetime | None = None
    ) -> None:
        """Forget that `owners` own anything, but for what was used since `before`."""
        where: ColumnElement[bool] = OWNERS.c.owner.in_(owners)
        if before is not None:
            where &= OWNERS.c.ref.in_(select(BLOBS.c.ref).where(BLOBS.c.used_at < before))
        refs = set(await connection.scalars(select(OWNERS.c.ref).where(where)))
        await connection.execute(delete(OWNERS).where(where))
        await self._touch(connection, refs)

    async def _touch(self, connection: AsyncConnection, refs: Collection[str]) -> None:
        now = datetime.now(UTC)
        for some in batches(refs):
            await connection.execute(update(BLOBS).where(BLOBS.c.ref.in_(some)).values(used_at=now))

    async def _row(self, connection: AsyncConnection, ref: str, size: int) -> None:
        row = {"size": size, "used_at": datetime.now(UTC), "place": self._place.name if self._place else ""}
        statement = self._insert(BLOBS).values(ref=ref, **row)
        await connection.execute(statement.on_conflict_do_update(index_elements=["ref"], set_=row))

    async def _has(self, connection: AsyncConnection, ref: str, size: int, place: str) -> bool:
        if place:
            return await self._at(place).has(ref, size)
        return await _size(connection, ref) == size

    async def _keep_parts(self, connection: AsyncConnection, ref: str, data: bytes) -> None:
        if await _size(connection, ref) == len(data):
            return
        await connection.execute(delete(PARTS).where(PARTS.c.ref == ref))
        for number, start in enumerate(range(0, len(data), _PART)):
            part = data[start : start + _PART]
            await connection.execute(PARTS.insert().values(ref=ref, number=number, data=part))

    def _at(self, name: str) -> Place:
        """Return a place; what was kept in an earlier one is read there."""
        if name not in self._places:
            self._places[name] = place_of(name, self.file)
        return self._places[name]


async def _size(connection: AsyncConnection, ref: str) -> int:
    return await connection.scalar(select(func.sum(func.length(PARTS.c.data))).where(PARTS.c.ref == ref)) or 0


async def _parts(connection: AsyncConnection, ref: str) -> AsyncIterator[bytes]:
    numbers = await connection.scalars(select(PARTS.c.number).where(PARTS.c.ref == ref).order_by(PARTS.c.number))
    for number in numbers:
        part = await connection.scalar(select(PARTS.c.data).where(PARTS.c.ref == ref, PARTS.c.number == number))
        yield part or b""
