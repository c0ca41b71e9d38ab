"""Facts in SQL, found by SQLite's FTS5 or PostgreSQL's text search."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, select, text, true, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from perdure.activities.stores.database import Database, whole
from perdure.activities.stores.tables import FACTS
from perdure.activities.stores.words import best, terms
from perdure.memory import Circle, Fact
from perdure.policies import Scope

_CANDIDATES = 500
"""So many of the facts that have one of the words, the newest, are compared with each other."""

_HOLDS = (FACTS.c.superseded_by == "") & FACTS.c.forgotten_at.is_(None)


class SQLMemories(Database):
    """See `perdure.activities.stores.Memories`."""

    @whole
    async def remember(self, facts: Sequence[Fact], supersedes: Collection[str] = ()) -> None:
        """See `Memories.remember`."""
        async with self._writing() as connection:
            for fact in facts:
                statement = self._insert(FACTS).values(**_row(fact)).on_conflict_do_nothing().returning(FACTS.c.number)
                if number := await connection.scalar(statement):
                    await self._index(connection, number, fact.text)
            if facts:
                first, replaced = facts[0], FACTS.c.id.in_(set(supersedes) - {facts[0].id})
                same = tuple_(FACTS.c.namespace, FACTS.c.agent, FACTS.c.tenant).in_(
                    [(first.namespace, first.agent, first.tenant)]
                )
                statement = update(FACTS).where(same, replaced, FACTS.c.superseded_by == "")
                await connection.execute(statement.values(superseded_by=first.id))

    @whole
    async def recall(self, circle: Circle, query: str, limit: int) -> list[Fact]:
        """See `Memories.recall`."""
        found = select(FACTS).where(
            FACTS.c.namespace == circle.namespace,
            FACTS.c.agent == circle.agent,
            FACTS.c.tenant == circle.tenant,
            tuple_(FACTS.c.scope, FACTS.c.subject).in_(circle.subjects),
            _HOLDS,
        )
        return await self._found(found, query, limit)

    @whole
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
        """See `Memories.facts`."""
        wanted = {"agent": agent, "tenant": tenant, "scope": scope, "subject": subject}
        where = [FACTS.c[name] == value for name, value in wanted.items() if value is not None]
        found = select(FACTS).where(FACTS.c.namespace == namespace, *where, true() if all else _HOLDS)
        return await self._found(found, query, limit)

    @whole
    async def fact(self, namespace: str, id: str) -> Fact | None:
        """See `Memories.fact`."""
        found = select(FACTS).where(FACTS.c.namespace == namespace, FACTS.c.id == id)
        async with self._reading() as connection:
            return next(iter(await _facts(connection, found)), None) if connection else None

    async def _found(self, among: Select[Any], query: str, limit: int) -> list[Fact]:
        """Return those that fit `query` best first; "" gives the newest."""
        async with self._reading() as connection:
            if not connection:
                return []
            if not query:
                return await _facts(connection, among.limit(limit))
            words = list(dict.fromkeys(terms(query)))
            if not words:
                return []
            candidates = await _facts(connection, among.where(self._having(words)).limit(_CANDIDATES))
        return [candidates[at] for at in best(query, [fact.text for fact in candidates])[:limit]]

    @whole
    async def forget(self, namespace: str, id: str, at: datetime) -> bool:
        """See `Memories.forget`."""
        async with self._writing() as connection:
            holding = select(FACTS.c.number, FACTS.c.id, FACTS.c.body).where(
                FACTS.c.namespace == namespace, FACTS.c.forgotten_at.is_(None)
            )
            rows = (await connection.execute(holding.where(FACTS.c.id == id).with_for_update())).all()
            there = bool(rows)
            while rows:
                for number, _, body in rows:
                    await connection.execute(text(_UNINDEX[self._engine.dialect.name]), {"number": number})
                    empty = {"forgotten_at": at, "body": {**body, "text": ""}}
                    await connection.execute(update(FACTS).where(FACTS.c.number == number).values(**empty))
                before = holding.where(FACTS.c.superseded_by.in_([row.id for row in rows]))
                rows = (await connection.execute(before.with_for_update())).all()
            return there

    async def _index(self, connection: AsyncConnection, number: int, content: str) -> None:
        words = [next(self.keys.marks(word)) for word in terms(content)] if self.keys else terms(content)
        value = " ".join(words) if self._is_sqlite else sorted(set(words))
        await connection.execute(text(_INDEX[self._engine.dialect.name]), {"number": number, "terms": value})

    def _having(self, words: Sequence[str]) -> ColumnElement[bool]:
        """Return the condition that a fact has one of `words`, which are letters and digits alone.

        Those that are encrypted are found by what stands for the word with each key.
        """
        words = [*words, *(mark for word in words for mark in self.keys.marks(word))]
        quote, either = ('"', " OR ") if self._is_sqlite else ("'", " | ")
        query = either.join(f"{quote}{word}{quote}" for word in words)
        return FACTS.c.number.in_(
            text(_SEARCH[self._engine.dialect.name]).bindparams(query=query).columns(FACTS.c.number)
        )


_INDEX = {
    "sqlite": "INSERT INTO perdure_fact_terms (rowid, terms) VALUES (:number, :terms)",
    "postgresql": "INSERT INTO perdure_fact_terms VALUES (:number, array_to_tsvector(CAST(:terms AS text[])))",
}
_UNINDEX = {
    "sqlite": "DELETE FROM perdure_fact_terms WHERE rowid = :number",
    "postgresql": "DELETE FROM perdure_fact_terms WHERE number = :number",
}
_SEARCH = {
    "sqlite": "SELECT rowid FROM perdure_fact_terms WHERE perdure_fact_terms MATCH :query",
    # No parser of PostgreSQL's own: what it takes for a word depends on how the database was made.
    "postgresql": "SELECT number FROM perdure_fact_terms WHERE terms @@ CAST(:query AS tsquery)",
}


def _row(fact: Fact) -> dict[str, Any]:
    named = ("namespace", "id", "agent", "tenant", "scope", "subject", "at", "superseded_by", "forgotten_at")
    return {**{name: getattr(fact, name) for name in named}, "body": {"text": fact.text, "source": fact.source}}


async def _facts(connection: AsyncConnection, query: Select[Any]) -> list[Fact]:
    rows = await connection.execute(query.order_by(FACTS.c.at.desc(), FACTS.c.number.desc()))
    return [Fact.model_validate({**row, **row["body"]}) for row in rows.mappings()]
