"""Secrets in SQL: sealed before they come here, each for one run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from sqlalchemy import delete, select

from perdure.activities.stores import Deposit
from perdure.activities.stores.database import Database, whole
from perdure.activities.stores.tables import SECRETS


class SQLVault(Database):
    """See `Vault`."""

    @whole
    async def keep_secrets(self, namespace: str, run_id: str, id: str, sealed: Mapping[str, bytes]) -> None:
        """See `Vault.keep_secrets`."""
        common = {"id": id, "namespace": namespace, "run_id": run_id, "kept_at": datetime.now(UTC)}
        rows = [{**common, "name": name, "sealed": data} for name, data in sealed.items()]
        async with self._writing() as connection:
            await connection.execute(self._insert(SECRETS).values(rows).on_conflict_do_nothing())

    @whole
    async def secrets(self, id: str) -> dict[str, bytes]:
        """See `Vault.secrets`."""
        query = select(SECRETS.c.name, SECRETS.c.sealed).where(SECRETS.c.id == id)
        async with self._reading() as connection:
            return {row.name: row.sealed for row in await connection.execute(query)} if connection else {}

    @whole
    async def deposits(self, namespace: str) -> list[Deposit]:
        """See `Vault.deposits`."""
        query = select(SECRETS).where(SECRETS.c.namespace == namespace).order_by(SECRETS.c.kept_at, SECRETS.c.name)
        found: dict[str, Deposit] = {}
        async with self._reading() as connection:
            for row in await connection.execute(query) if connection else ():
                names = [*(found[row.id].names if row.id in found else ()), row.name]
                told = {"id": row.id, "namespace": namespace, "run_id": row.run_id, "kept_at": row.kept_at}
                found[row.id] = Deposit.model_validate({**told, "names": names})
        return list(found.values())

    @whole
    async def drop_secrets(self, id: str) -> bool:
        """See `Vault.drop_secrets`."""
        async with self._writing() as connection:
            return (await connection.execute(delete(SECRETS).where(SECRETS.c.id == id))).rowcount > 0
