"""By which keys a namespace is encrypted, in SQL."""

from __future__ import annotations

from sqlalchemy import select

from perdure.activities.stores.database import Database, whole
from perdure.activities.stores.tables import KEYS
from perdure.keychecks import KeyCheck


class SQLKeys(Database):
    """See `perdure.activities.stores.Keys`."""

    @whole
    async def key_checks(self, namespace: str) -> list[KeyCheck]:
        """See `Keys.key_checks`."""
        query = select(KEYS).where(KEYS.c.namespace == namespace).order_by(KEYS.c.since, KEYS.c.id)
        async with self._reading() as connection:
            found = await connection.execute(query) if connection else ()
            return [KeyCheck(id=row.id, since=row.since, sealed=row.sealed) for row in found]

    @whole
    async def keep_key_check(self, namespace: str, check: KeyCheck) -> None:
        """See `Keys.keep_key_check`."""
        values = {"namespace": namespace, "id": check.id, "since": check.since, "sealed": check.sealed}
        async with self._writing() as connection:
            await connection.execute(self._insert(KEYS).values(**values).on_conflict_do_nothing())
