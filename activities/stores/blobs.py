"""Blobs in SQL: which there are and who owns them. Their bytes are in a table, or in a place of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from datetime import UTC, datetime

from sqlalchemy import delete, exists, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from perdure.activities.stores import Owner
from perdure.activities.stores.database import Database, whole
from perdure.activities.stores.places import Place
from perdure.activities.stores.tables import BLOBS, OWNERS, PARTS
from perdure.messages import blob_ref

_PART = 1024 * 1024
"""Bytes in a row: each statement stays short, however large a blob is."""
_BATCH = 500
"""Blobs that are deleted in one transaction."""


class SQLBlobs(Database):
    """See `perdure.activities.stores.Blobs`, and `sweep` of `Archive`.

    Args:
        place: Where the bytes of new blobs go; None for the table.
    """

    def __init__(self, url: str, place: Place | None = None) -> None:
        super().__init__(url)
        self._place = place

    @whole
    async def put(self, data: bytes, owner: Owner) -> str:
        """See `Blobs.put`."""
        ref = blob_ref(data)
        if self._place:
            await self._keep(self._place, ref, data)
        async with self._writing() as connection:
            # From here on the row is locked: a sweep that deletes the blob comes before, or finds that it has an owner.
            row = {"size": len(data), "used_at": datetime.now(UTC), "place": self._place.name if self._place else ""}
            statement = self._insert(BLOBS).values(ref=ref, **row)
            await connection.execute(statement.on_conflict_do_update(index_elements=["ref"], set_=row))
            await connection.execute(self._insert(OWNERS).values(ref=ref, owner=owner).on_conflict_do_nothing())
            if self._place:
                await self._keep(self._place, ref, data)
            else:
                await self._keep_parts(connection, ref, data)
        return ref

    @whole
    async def get(self, ref: str) -> bytes:
        """See `Blobs.get`."""
        async with self._reading() as connection:
            place = await connection.scalar(select(BLOBS.c.place).where(BLOBS.c.ref == ref)) if connection else None
            data = b"".join([part async for part in _parts(connection, ref)]) if connection and place == "" else None
        if place:
            data = await self._at(place).read(ref)
        if data is None:
            raise LookupError(f"The store does not have blob {ref} (any more).")
        if blob_ref(data) != ref:
            raise LookupError(f"Blob {ref} of the store is damaged: its bytes are not those that were kept.")
        return data

    @whole
    async def own(self, refs: Collection[str], owner: Owner) -> None:
        """See `Blobs.own`."""
        async with self._writing() as connection:
            locked = select(BLOBS.c.ref).where(BLOBS.c.ref.in_(refs)).order_by(BLOBS.c.ref).with_for_update()
            found = set(await connection.scalars(locked))
            if lost := sorted(set(refs) - found):
                raise LookupError(f"The store does not have blob {lost[0]} (any more).")
            await self._touch(connection, found)
            for ref in found:
                await connection.execute(self._insert(OWNERS).values(ref=ref, owner=owner).on_conflict_do_nothing())

    @whole
    async def sweep(self, older_than: datetime) -> int:
        """See `Archive.sweep`."""
        if self._place:
            async for ref, size, at in self._place.older(older_than):
                row = {"ref": ref, "size": size, "used_at": at, "place": self._place.name}
                async with self._writing() as connection:  # what was written, and then not owned, goes like all others
                    await connection.execute(self._insert(BLOBS).values(**row).on_conflict_do_nothing())
        freed = 0
        while True:
            some = await self._sweep(older_than)
            freed += sum(some)
            if len(some) < _BATCH:
                return freed

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

    async def _disown(self, connection: AsyncConnection, owners: Sequence[Owner]) -> None:
        """Forget that `owners` own anything."""
        where = OWNERS.c.owner.in_(owners)
        await self._touch(connection, set(await connection.scalars(select(OWNERS.c.ref).where(where))))
        await connection.execute(delete(OWNERS).where(where))

    async def _touch(self, connection: AsyncConnection, refs: Collection[str]) -> None:
        now = datetime.now(UTC)
        await connection.execute(update(BLOBS).where(BLOBS.c.ref.in_(refs)).values(used_at=now))

    async def _keep(self, place: Place, ref: str, data: bytes) -> None:
        if not await place.has(ref, len(data)):
            await place.write(ref, data)

    async def _keep_parts(self, connection: AsyncConnection, ref: str, data: bytes) -> None:
        have = await connection.scalar(select(func.sum(func.length(PARTS.c.data))).where(PARTS.c.ref == ref))
        if have == len(data):
            return
        await connection.execute(delete(PARTS).where(PARTS.c.ref == ref))
        for number, start in enumerate(range(0, len(data), _PART)):
            part = data[start : start + _PART]
            await connection.execute(PARTS.insert().values(ref=ref, number=number, data=part))

    def _at(self, name: str) -> Place:
        if self._place and self._place.name == name:
            return self._place
        raise LookupError(f"It is kept in {name}, which is not set as PERDURE_BLOBS here.")


async def _parts(connection: AsyncConnection, ref: str) -> AsyncIterator[bytes]:
    numbers = await connection.scalars(select(PARTS.c.number).where(PARTS.c.ref == ref).order_by(PARTS.c.number))
    for number in numbers:
        part = await connection.scalar(select(PARTS.c.data).where(PARTS.c.ref == ref, PARTS.c.number == number))
        yield part or b""
