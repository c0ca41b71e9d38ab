"""The store: what outlives processes, beside Temporal. One interface; SQLite embedded, PostgreSQL in production.

Each part has a protocol of its own, so that it can be replaced alone; `Store` is all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import datetime
from typing import Any, NamedTuple, NewType, Protocol

from pydantic import Field

from perdure import extensions
from perdure.activities.stores.copied import Audit, Events, Ledger, Told
from perdure.decisions import Saying
from perdure.errors import ExtensionError
from perdure.keychecks import KeyCheck
from perdure.memory import Circle, Fact
from perdure.messages import JSON, Data, RunResult, Segment
from perdure.policies import AgentSpec, Scope
from perdure.sealing import Keyring, keyring
from perdure.settings import Settings

# -- catalogue ---------------------------------------------------------------------------------------------


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


class Catalogue(Protocol):
    """Which agents are served where."""

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


# -- blobs -------------------------------------------------------------------------------------------------


Owner = NewType("Owner", str)
"""Who needs a blob: `run_owner` or `session_owner`."""


def run_owner(namespace: str, run_id: str) -> Owner:
    """Return a run as the owner of blobs; all its executions are one."""
    return Owner(f"run:{namespace}/{run_id}")


def session_owner(namespace: str, name: str) -> Owner:
    """Return a session as the owner of blobs."""
    return Owner(f"session:{namespace}/{name}")


class Blobs(Protocol):
    """Bytes by their hash. Immutable; each is kept as long as it has an owner."""

    async def put(self, data: bytes, owner: Owner) -> str:
        """Keep `data` for `owner` and return its reference: 32 hex digits of its SHA-256. Safe to repeat."""
        ...

    async def get(self, ref: str) -> bytes:
        """Return what was kept.

        Raises:
            LookupError: If it is not there (any more), or damaged.
        """
        ...

    async def own(self, refs: Collection[str], owner: Owner) -> None:
        """Keep those blobs for `owner` as well.

        Raises:
            LookupError: If one of them is not there (any more).
        """
        ...


# -- archive -----------------------------------------------------------------------------------------------


class Freed(NamedTuple):
    """What was freed, or would be: so many blobs, of so many bytes together."""

    blobs: int
    size: int


class ArchivedRun(Data):
    """A run that has ended, or an execution of one that goes on, as it outlives the engine's retention.

    Attributes:
        histories: References of the compressed histories of its executions, oldest first: what `show`, `watch` and
            `fork` read once the engine has forgotten them.
        status: As in `RunResult`; "running" while only earlier executions of an open run are archived.
    """

    namespace: str
    run_id: str
    agent: str
    status: str
    started_at: datetime
    closed_at: datetime | None = None
    session: str = ""
    user: str = ""
    tenant: str = ""
    result: RunResult | None = None
    histories: list[str] = Field(default_factory=list)


class Archive(Protocol):
    """Runs that have ended."""

    async def archive(self, run: ArchivedRun, execution: str, history: str) -> None:
        """Keep one execution of `run`, whose history is the blob `history`; safe to repeat. `run.histories` is ignored.

        What is said of the run itself replaces what was kept before, unless that is of a later end: an execution that
        the run went on from may be archived late.
        """
        ...

    async def archived(self, namespace: str, run_id: str) -> ArchivedRun | None:
        """Return the run, or None."""
        ...

    async def archived_runs(
        self, namespace: str, *, agent: str | None = None, session: str | None = None, limit: int = 100
    ) -> list[ArchivedRun]:
        """Return runs, the one started last first."""
        ...

    async def not_archived(self, namespace: str, executions: Collection[str]) -> set[str]:
        """Return those of these executions, by their Temporal run ids, that are not there."""
        ...

    async def old_runs(self, namespace: str, before: datetime) -> list[str]:
        """Return the ids of runs that ended before then, oldest first; of those without an end, that began before."""
        ...

    async def orphans(self, namespace: str, before: datetime) -> list[str]:
        """Return the ids of runs that are not there, but own blobs, of which none was used since `before`."""
        ...

    async def drop_runs(self, namespace: str, run_ids: Collection[str], *, before: datetime | None = None) -> None:
        """Forget those runs, and that they own any blobs.

        With `before`, only runs that ended, and blobs that were last used, before then: a new run may have the id of an
        old one.
        """
        ...

    async def needed_by_none_else(self, namespace: str, run_ids: Collection[str]) -> Freed:
        """Return what a sweep would free, were those runs forgotten."""
        ...

    async def sweep(self, older_than: datetime) -> Freed:
        """Delete the blobs that have had no owner since before `older_than`; return what that freed."""
        ...


# -- sessions ----------------------------------------------------------------------------------------------


class Session(Data):
    """A conversation over many runs.

    Attributes:
        turns: How many have ended.
        before: Its whole transcript so far, by reference.
        variables: As the last turn left them.
        queued: What was said meanwhile and waits: the next turns begin with it.
        deleted_at: When a person deleted it: nothing is left but the number of its turns, so that those of a later
            session of the same name have other ids.
        begun: Its first turn has begun, and not ended yet: there is nothing but who talks with whom.
        active: The agent that `agent` has handed the conversation over to, and that has it now; "" for none.
    """

    namespace: str
    name: str
    agent: str
    turns: int = 0
    before: Segment | None = None
    variables: dict[str, JSON] = Field(default_factory=dict)
    queued: list[Saying] = Field(default_factory=list[Saying])
    user: str = ""
    tenant: str = ""
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None = None
    begun: bool = False
    active: str = ""


class Turn(Data):
    """One turn of a session that has ended: what was said to the agent, and what it answered."""

    number: int
    run_id: str
    status: str
    input: str = ""
    text: str = ""
    at: datetime


class Sessions(Protocol):
    """Conversations."""

    async def session(self, namespace: str, name: str) -> Session | None:
        """Return the session, also one that was deleted; None if there never was one."""
        ...

    async def begin_session(self, session: Session) -> None:
        """Have a session listed whose first turn has begun: as `begun`. One that is there already stays as it is."""
        ...

    async def end_turn(self, session: Session, turn: Turn) -> bool:
        """Keep the session as it is after `turn`, if that is its next one; False if one of that number is there.

        The last one is replaced where `turn.at` is later: its run was resumed, and has ended once more. `created_at` of
        a session that is there already stays.

        Raises:
            ValueError: If an earlier turn is missing.
        """
        ...

    async def turns(self, namespace: str, name: str) -> list[Turn]:
        """Return its turns, oldest first."""
        ...

    async def sessions(self, namespace: str, *, agent: str | None = None, limit: int = 100) -> list[Session]:
        """Return sessions, the one used last first, without those that were deleted."""
        ...

    async def drop_session(self, namespace: str, name: str) -> bool:
        """Forget what was said in a session, and that it owns any blobs; return whether it was there."""
        ...


# -- memory ------------------------------------------------------------------------------------------------


class Memories(Protocol):
    """Facts, found by full-text search; see `perdure.memory.MemoryIndex` for what can stand in for that."""

    async def remember(self, facts: Sequence[Fact], supersedes: Collection[str] = ()) -> None:
        """Keep `facts`; those named in `supersedes` are replaced by the first of them. Safe to repeat.

        A fact whose id is there already stays as it is, so that one which was forgotten does not come back; and so does
        what replaced a fact first. Those named have to be of the same namespace, agent and tenant; others stay.
        """
        ...

    async def recall(self, circle: Circle, query: str, limit: int) -> list[Fact]:
        """Return facts that hold and may be told in `circle`, those that fit `query` best first; "" gives the newest.

        One of the words is enough to fit.
        """
        ...

    async def facts(
        self,
        namespace: str,
        *,
        agent: str | None = None,
        tenant: str | None = None,
        scope: Scope | None = None,
        subject: str | None = None,
        query: str = "",
        all: bool = False,
        limit: int = 1000,
    ) -> list[Fact]:
        """Return facts, the newest first; with `query` those that fit, best first.

        With `all` those that were superseded or forgotten as well. What is forgotten has no text and fits nothing.
        """
        ...

    async def fact(self, namespace: str, id: str) -> Fact | None:
        """Return the fact of that id, whether it holds or not, or None."""
        ...

    async def forget(self, namespace: str, id: str, at: datetime) -> bool:
        """Delete what is remembered under that id, also the text of those it superseded; False if it is not there.

        The rows stay without text, as does what says when. One that was forgotten before counts as not there.
        """
        ...


# -- vault -------------------------------------------------------------------------------------------------


class Deposit(Data):
    """The secrets of a run, as they are listed.

    Attributes:
        id: Of the deposit; see `perdure.sensitive.Vaulted`.
        kept_at: When they were put there.
    """

    id: str
    namespace: str
    run_id: str
    names: list[str]
    kept_at: datetime


class Vault(Protocol):
    """Secrets of runs, sealed. Methods raise as those of `Store` do."""

    async def keep_secrets(self, namespace: str, run_id: str, id: str, sealed: Mapping[str, bytes]) -> None:
        """Keep secrets, by name, for a run. Safe to repeat."""
        ...

    async def secrets(self, id: str) -> dict[str, bytes]:
        """Return what was kept under that id; `{}` if it is not there any more."""
        ...

    async def deposits(self, namespace: str) -> list[Deposit]:
        """Return which there are, the oldest first."""
        ...

    async def drop_secrets(self, id: str) -> bool:
        """Delete what was kept under that id; return whether it was there."""
        ...


# -- all of it ---------------------------------------------------------------------------------------------


class Keys(Protocol):
    """By which keys namespaces are encrypted. Methods raise as those of `Store` do."""

    async def key_checks(self, namespace: str) -> list[KeyCheck]:
        """Return what tells the keys that have encrypted there, the oldest first."""
        ...

    async def keep_key_check(self, namespace: str, check: KeyCheck) -> None:
        """Note that a key encrypts there from now on, unless that is known. Safe to repeat."""
        ...


class Store(Catalogue, Blobs, Archive, Sessions, Memories, Vault, Ledger, Audit, Events, Told, Keys, Protocol):
    """What every store does. Each method raises `ConnectionFailed` within seconds if the store is down; see `patience`.

    A method goes on to its end where its caller is cancelled; each may be repeated.
    """

    async def aclose(self) -> None:
        """Release connections; afterwards the store can't be used."""
        ...


OURS = ("sqlite", "postgresql", "postgres")
"""Schemes of stores that no extension can take over."""


def store_of(settings: Settings) -> Store:
    """Return the store that `settings` lead to: an extension's where one has the address's scheme; see `open_store`.

    Raises:
        ExtensionError: If that can't be loaded, or is no store.
    """
    url = store_url(settings)
    scheme = url.partition(":")[0]
    if scheme in OURS or scheme not in extensions.names("stores"):
        return open_store(url, settings.blobs or "", keyring(settings))
    made: Any = extensions.load("stores", scheme)(settings)
    if lacks := sorted(name for name in dir(Store) if not name.startswith("_") and not hasattr(made, name)):
        raise ExtensionError(
            f"The extension that makes {scheme!r} stores gave {type(made).__name__}, without {lacks[0]}."
        )
    store: Store = made
    return store


def opened(settings: Settings) -> AbstractAsyncContextManager[Store]:
    """Return that store, open while a block runs; it connects when it is first used."""
    return aclosing(store_of(settings))


def store_url(settings: Settings) -> str:
    """Return the address of the store: the one set, else a SQLite file in the home folder."""
    return settings.store or f"sqlite:///{settings.folder / 'store.db'}"


def open_store(url: str, blobs: str = "", keys: Keyring | None = None) -> Store:
    """Return the store at a SQLAlchemy address; it connects when first used, and makes its tables if missing.

    Args:
        url: `sqlite:///PATH` or `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`; the drivers are ours.
        blobs: Where the bytes of new blobs go: `s3://BUCKET/PREFIX`; "" for files beside SQLite's, PostgreSQL itself.
        keys: Encrypt what is kept; what is not encrypted is read as it is. Each method that reads raises `KeyMissing`
            where one is not among them.

    Raises:
        ConnectionFailed: If it is not such an address, or the driver is not installed.
    """
    from perdure.activities.stores.sql import SQLStore  # SQLAlchemy takes 0.3 s to import

    return SQLStore(url, blobs, keys)
