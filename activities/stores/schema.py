"""The store's tables, made by whoever uses them first."""

from __future__ import annotations

from sqlalchemy import Connection, text
from sqlalchemy.schema import CreateIndex, CreateTable

from perdure.activities.stores.tables import METADATA


def upgrade(connection: Connection) -> None:
    """Make what is missing."""
    for table in METADATA.sorted_tables:
        connection.execute(CreateTable(table, if_not_exists=True))
        for index in table.indexes:
            connection.execute(CreateIndex(index, if_not_exists=True))
    if connection.dialect.name == "sqlite":
        connection.execute(text("CREATE VIRTUAL TABLE IF NOT EXISTS perdure_fact_terms USING fts5(terms)"))
    else:
        connection.execute(
            text("CREATE TABLE IF NOT EXISTS perdure_fact_terms (number integer PRIMARY KEY, terms tsvector NOT NULL)")
        )
        connection.execute(
            text("CREATE INDEX IF NOT EXISTS perdure_fact_terms_terms ON perdure_fact_terms USING gin (terms)")
        )
