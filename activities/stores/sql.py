"""The store in SQL: one implementation for SQLite and PostgreSQL."""

from __future__ import annotations

from perdure.activities.stores.archive import SQLArchive
from perdure.activities.stores.audit import SQLAudit
from perdure.activities.stores.catalogue import SQLCatalogue
from perdure.activities.stores.events import SQLEvents
from perdure.activities.stores.keys import SQLKeys
from perdure.activities.stores.ledger import SQLLedger
from perdure.activities.stores.memories import SQLMemories
from perdure.activities.stores.sessions import SQLSessions
from perdure.activities.stores.told import SQLTold
from perdure.activities.stores.vault import SQLVault


class SQLStore(
    SQLCatalogue, SQLArchive, SQLSessions, SQLMemories, SQLVault, SQLLedger, SQLAudit, SQLEvents, SQLTold, SQLKeys
):
    """See `perdure.activities.stores.Store`."""
