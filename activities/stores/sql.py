"""The store in SQL: one implementation for SQLite and PostgreSQL."""

from __future__ import annotations

from perdure.activities.stores.archive import SQLArchive
from perdure.activities.stores.catalogue import SQLCatalogue
from perdure.activities.stores.memories import SQLMemories
from perdure.activities.stores.places import Files
from perdure.activities.stores.sessions import SQLSessions


class SQLStore(SQLCatalogue, SQLArchive, SQLSessions, SQLMemories):
    """See `perdure.activities.stores.Store`."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        if file := self.file:
            self._place = Files(file.with_name("blobs" if file.stem == "store" else f"{file.stem}.blobs"))
