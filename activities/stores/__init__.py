"""The store: what outlives processes, beside Temporal. One interface; SQLite embedded, PostgreSQL in production.

So far it holds the catalogue: which agents are served where.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from perdure.messages import Data
from perdure.policies import AgentSpec
from perdure.settings import Settings


class CatalogueEntry(Data):
    """An agent as a worker announced it. There is one entry per namespace, agent and task queue.

    Attributes:
        agent: The agent's name.
        hash: Hash of `spec`.
        source: The file that declares it.
        seen_at: When it was last announced, with time zone.
    """

    namespace: str
    agent: str
    task_queue: str
    hash: str
    spec: AgentSpec
    source: str
    seen_at: datetime


class Store(Protocol):
    """What every store does. Each method raises `ConnectionFailed` within seconds if the store is down."""

    async def announce(self, entry: CatalogueEntry) -> None:
        """Keep `entry` in place of the one that its queue announced before."""
        ...

    async def announce_all(self, namespace: str, task_queue: str, entries: Sequence[CatalogueEntry]) -> None:
        """Keep `entries` in place of everything that this queue announced before.

        Raises:
            ValueError: If an entry is of another namespace or queue.
        """
        ...

    async def agents(self, namespace: str | None = None) -> list[CatalogueEntry]:
        """Return all entries, or those of one namespace, by agent, the last seen of each first."""
        ...

    async def find(self, agent: str, namespace: str | None = None) -> list[CatalogueEntry]:
        """Return where that agent is served, the last seen first; `[]` if no worker announced it."""
        ...

    async def aclose(self) -> None:
        """Release connections; afterwards the store can't be used."""
        ...


def store_url(settings: Settings) -> str:
    """Return the address of the store: the one set, else a SQLite file in the home folder."""
    return settings.store or f"sqlite:///{settings.folder / 'store.db'}"


def open_store(url: str) -> Store:
    """Return the store at a SQLAlchemy address; it connects when first used, and makes its tables if missing.

    Args:
        url: `sqlite:///PATH` or `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`; the drivers are ours.

    Raises:
        ConnectionFailed: If it is not such an address, or the driver is not installed.
    """
    from perdure.activities.stores.sql import SQLStore  # SQLAlchemy takes 0.3 s to import

    return SQLStore(url)
