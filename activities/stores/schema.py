"""Which version a store's tables are of, and how they become the newest."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

from sqlalchemy import Connection, inspect, text

HEAD = "8"
"""The newest version; each is a step in `migrations`."""
VERSIONS = "perdure_version"
"""The table that says which one a store has; alembic writes it."""
_FIRST = "perdure_catalogue"


def version(connection: Connection) -> str | None:
    """Return the version of a store's tables: "" of before there were versions, None if there are no tables."""
    tables = inspect(connection)
    if tables.has_table(VERSIONS):
        return str(connection.scalar(text(f"SELECT version_num FROM {VERSIONS}")))  # noqa: S608
    return "" if tables.has_table(_FIRST) else None


def is_older(found: str | None) -> bool:
    """Return whether `upgrade` has something to do for a store of that version."""
    return not found or found in {str(number) for number in range(1, int(HEAD))}


def upgrade(connection: Connection) -> str | None:
    """Take the steps that are missing, within the transaction: all of them or none; return the version it is of now.

    Nobody else may be at it meanwhile; who was before left nothing to do, or what is_older does not know.
    """
    found = version(connection)
    if not is_older(found):
        return found
    from alembic.migration import MigrationContext  # seldom needed, and 0.2 s to import
    from alembic.operations import Operations
    from alembic.script import ScriptDirectory

    folder = str(Path(__file__).with_name("migrations"))
    script = ScriptDirectory(folder, version_locations=[folder])
    context = MigrationContext.configure(connection, opts={"version_table": VERSIONS})
    missing = list(takewhile(lambda step: step.revision != found, script.walk_revisions()))  # the newest first
    with Operations.context(context):
        for step in reversed(missing):
            step.module.upgrade()
    context.stamp(script, HEAD)
    return HEAD
