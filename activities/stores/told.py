"""How far executions have been told of elsewhere, in SQL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, or_, select, update

from perdure.activities.stores.database import Database, whole
from perdure.activities.stores.tables import TOLD


class SQLTold(Database):
    """See `perdure.activities.stores.copied.Told`."""

    @whole
    async def claim(self, namespace: str, run_id: str, execution: str, holder: str, patience: timedelta) -> int | None:
        """See `Told.claim`."""
        now = datetime.now(UTC)
        key = {"namespace": namespace, "run_id": run_id, "execution": execution}
        new = self._insert(TOLD).values(**key, event=0, holder="", until=now).on_conflict_do_nothing()
        free = or_(TOLD.c.holder.in_(("", holder)), TOLD.c.until < now)
        taking = update(TOLD).where(*_is(key), free).values(holder=holder, until=now + patience)
        async with self._writing() as connection:
            await connection.execute(new)
            if not (await connection.execute(taking)).rowcount:
                return None
            return int(await connection.scalar(select(TOLD.c.event).where(*_is(key))) or 0)

    @whole
    async def told(self, namespace: str, run_id: str, execution: str, holder: str, event: int) -> None:
        """See `Told.told`."""
        key = {"namespace": namespace, "run_id": run_id, "execution": execution}
        async with self._writing() as connection:
            further = update(TOLD).where(*_is(key), TOLD.c.event < event).values(event=event)
            await connection.execute(further)
            await connection.execute(update(TOLD).where(*_is(key), TOLD.c.holder == holder).values(holder=""))


def _is(key: dict[str, Any]) -> list[ColumnElement[bool]]:
    return [TOLD.c[name] == value for name, value in key.items()]
