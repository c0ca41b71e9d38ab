"""The store in SQL: one implementation for SQLite and PostgreSQL."""

from __future__ import annotations

from perdure.activities.stores.archive import SQLArchive
from perdure.activities.stores.catalogue import SQLCatalogue
from perdure.activities.stores.memories import SQLMemories
from perdure.activities.stores.sessions import SQLSessions


class SQLStore(SQLCatalogue, SQLArchive, SQLSessions, SQLMemories):
    """See `perdure.activities.stores.Store`."""
