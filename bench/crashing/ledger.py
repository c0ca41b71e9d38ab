"""The world outside: a ledger in a file of its own, which knows a request by its key if the service does."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

PLACE = "CRASH_LEDGER"
"""Environment variable: the file."""


def _open(path: str | Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    connection.execute("CREATE TABLE IF NOT EXISTS effects (run TEXT, effect TEXT, key TEXT)")
    return connection


def enter(run: str, effect: str, key: str, *, once: bool) -> None:
    """Have an effect; with `once`, only if there is none of that key."""
    with closing(_open(os.environ[PLACE])) as connection:
        sql = "INSERT INTO effects SELECT ?, ?, ? WHERE NOT (? AND EXISTS (SELECT 1 FROM effects WHERE key = ?))"
        connection.execute(sql, (run, effect, key, once, key))


def there(key: str) -> bool:
    """Return whether there is an effect of that key."""
    with closing(_open(os.environ[PLACE])) as connection:
        return connection.execute("SELECT 1 FROM effects WHERE key = ?", (key,)).fetchone() is not None


def of(path: Path, run: str) -> Iterable[str]:
    """Return the names of the effects of a run, oldest first."""
    with closing(_open(path)) as connection:
        return [str(name) for (name,) in connection.execute("SELECT effect FROM effects WHERE run = ?", (run,))]
