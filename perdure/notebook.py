"""What is remembered, in the hands of people: listed, searched, entered, corrected, deleted."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

from perdure.auditing import note
from perdure.errors import FactNotFound, PerdureError
from perdure.identity import whoami
from perdure.memory import LONGEST_FACT, Fact, one_line
from perdure.messages import JSON
from perdure.policies import Scope

if TYPE_CHECKING:
    from perdure.activities.stores import Store
    from perdure.audit import Action
    from perdure.settings import Settings


class Notebook:
    """The facts that the agents of a namespace remember; needs the store alone, and no engine.

    Args:
        settings: Lead to the store.
        namespace: Of the engine whose runs are meant.
    """

    def __init__(self, settings: Settings, namespace: str) -> None:
        self._settings = settings
        self._namespace = namespace

    async def facts(
        self,
        *,
        agent: str | None = None,
        user: str | None = None,
        tenant: str | None = None,
        query: str = "",
        all: bool = False,
        limit: int = 1000,
    ) -> list[Fact]:
        """Return facts, the newest first; with `query` those that fit, best first.

        Args:
            agent: Only what this agent remembers.
            user: Only what is about this user.
            tenant: Only what was learnt on this tenant's behalf; "" is what was learnt on nobody's.
            all: Also those that were replaced or deleted.

        Raises:
            ConnectionFailed: If the store can't be used.
        """
        scope: Scope | None = None if user is None else "user"
        wanted = {"agent": agent, "tenant": tenant, "subject": user}
        async with self._store() as store:
            return await store.facts(self._namespace, **wanted, scope=scope, query=query, all=all, limit=limit)

    async def fact(self, id: str) -> Fact:
        """Return the fact of that id, whether it holds or not.

        Raises:
            FactNotFound: If there is none.
            ConnectionFailed: If the store can't be used.
        """
        async with self._store() as store:
            return await self._fact(store, id)

    async def add(self, text: str, *, agent: str, user: str = "", tenant: str = "", by: str | None = None) -> Fact:
        """Have an agent remember something, and return it.

        It is about `user`; without one, about `tenant`; without either, about the agent.

        Raises:
            PerdureError: If it is empty, or longer than 500 characters.
            ConnectionFailed: If the store can't be used.
        """
        scope, subject = _about(agent, user, tenant)
        fact = Fact(
            id=_new_id(),
            namespace=self._namespace,
            agent=agent,
            tenant=tenant,
            scope=scope,
            subject=subject,
            text=_checked(text),
            source=_source(by),
            at=datetime.now(UTC),
        )
        async with self._store() as store:
            await self._note(store, "memory_added", fact, by)
            await store.remember([fact])
        return fact

    async def correct(self, id: str, text: str, *, by: str | None = None) -> Fact:
        """Put another text in the place of a fact, which is kept as history; return the new fact.

        Raises:
            FactNotFound: If there is none of that id.
            PerdureError: If it holds no more, or the text is empty or longer than 500 characters.
            ConnectionFailed: If the store can't be used.
        """
        async with self._store() as store:
            before = await self._fact(store, id)
            _check_holds(before)
            now = {"id": _new_id(), "text": _checked(text), "source": _source(by), "at": datetime.now(UTC)}
            fact = before.model_copy(update=now)
            await self._note(store, "memory_corrected", before, by, replaced_by=fact.id)
            await store.remember([fact], [id])
            replaced = await self._fact(store, id)
            if replaced.superseded_by != fact.id:  # somebody else was quicker
                await store.forget(self._namespace, fact.id, datetime.now(UTC))
                _check_holds(replaced)
            return fact

    async def forget(self, id: str, *, by: str | None = None) -> str:
        """Delete a fact: its text, and the texts of all that it replaced.

        Returns:
            The id of what had replaced it itself, which stays; "" where it held.

        Raises:
            FactNotFound: If there is none of that id, or it was deleted before.
            ConnectionFailed: If the store can't be used.
        """
        async with self._store() as store:
            fact = await self._fact(store, id)
            if not fact.forgotten_at:
                await self._note(store, "memory_deleted", fact, by)
            if not await store.forget(self._namespace, id, datetime.now(UTC)):
                raise FactNotFound(f"Nothing is remembered under {id!r}.")
            return (await self._fact(store, id)).superseded_by

    async def _note(self, store: Store, action: Action, fact: Fact, by: str | None, **details: JSON) -> None:
        about = {"subject": fact.id, "agent": fact.agent, "tenant": fact.tenant, "details": details}
        await note(store, self._namespace, action, by=by, **about)

    async def _fact(self, store: Store, id: str) -> Fact:
        fact = await store.fact(self._namespace, id)
        if fact is None:
            raise FactNotFound(f"Nothing is remembered under {id!r}.")
        return fact

    def _store(self) -> AbstractAsyncContextManager[Store]:
        from perdure.activities.stores import opened

        return opened(self._settings)


def _about(agent: str, user: str, tenant: str) -> tuple[Scope, str]:
    if user:
        return "user", user
    return ("tenant", tenant) if tenant else ("agent", agent)


def _new_id() -> str:
    return uuid4().hex[:16]


def _source(by: str | None) -> str:
    return f"person:{by or whoami()}"


def _checked(text: str) -> str:
    line = one_line(text)
    if not line:
        raise PerdureError("There is nothing to remember in an empty text.")
    if len(line) > LONGEST_FACT:
        raise PerdureError(f"A fact has at most {LONGEST_FACT} characters; this one has {len(line)}.")
    return line


def _check_holds(fact: Fact) -> None:
    if fact.forgotten_at:
        raise FactNotFound(f"What was remembered under {fact.id!r} was deleted.")
    if fact.superseded_by:
        raise PerdureError(f"Fact {fact.id} was replaced by {fact.superseded_by}; correct that one.")
