"""Sessions in SQL."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from perdure.activities.stores import Session, Turn, session_owner
from perdure.activities.stores.blobs import SQLBlobs
from perdure.activities.stores.database import whole
from perdure.activities.stores.tables import SESSIONS, TURNS


class SQLSessions(SQLBlobs):
    """See `perdure.activities.stores.Sessions`."""

    @whole
    async def session(self, namespace: str, name: str) -> Session | None:
        """See `Sessions.session`."""
        async with self._reading() as connection:
            return await self._session(connection, namespace, name) if connection else None

    @whole
    async def begin_session(self, session: Session) -> None:
        """See `Sessions.begin_session`."""
        key = {"namespace": session.namespace, "name": session.name}
        async with self._writing() as connection:
            locked = select(SESSIONS.c.agent, SESSIONS.c.turns).where(_key(**key)).with_for_update()
            row = (await connection.execute(locked)).one_or_none()
            if row and row.agent:
                return
            told = session.model_copy(update={"begun": True, "turns": row.turns if row else 0})
            values = {"agent": told.agent, "turns": told.turns, "updated_at": told.updated_at}
            values |= {"body": told.model_dump(mode="json")}
            if row:
                await connection.execute(update(SESSIONS).where(_key(**key)).values(**values))
            else:
                await connection.execute(self._insert(SESSIONS).values(**key, **values).on_conflict_do_nothing())

    @whole
    async def end_turn(self, session: Session, turn: Turn) -> bool:
        """See `Sessions.end_turn`."""
        async with self._writing() as connection:
            # A row to be locked is there even before the first turn: of two that race, the second one waits here.
            nothing = {"agent": session.agent, "turns": 0, "updated_at": session.updated_at, "body": None}
            key = {"namespace": session.namespace, "name": session.name}
            await connection.execute(self._insert(SESSIONS).values(**key, **nothing).on_conflict_do_nothing())
            known = await connection.scalar(select(SESSIONS.c.turns).where(_key(**key)).with_for_update()) or 0
            if turn.number > known + 1:
                raise ValueError(f"Turn {turn.number} of session {session.name!r} can't follow turn {known}.")
            if turn.number <= known and not await self._supersedes(connection, session, turn, known):
                return False
            before = await self._session(connection, **key) if known else None
            kept = session.model_copy(
                update={"created_at": before.created_at} if before and not before.deleted_at else {}
            )
            values = {"agent": kept.agent, "turns": turn.number, "updated_at": kept.updated_at}
            body = kept.model_copy(update={"turns": turn.number}).model_dump(mode="json")
            await connection.execute(update(SESSIONS).where(_key(**key)).values(**values, body=body))
            row = {"namespace": session.namespace, "session": session.name, "number": turn.number}
            told = {"body": turn.model_dump(mode="json")}
            telling = self._insert(TURNS).values(**row, **told)
            await connection.execute(telling.on_conflict_do_update(index_elements=[*row], set_=told))
            return True

    async def _supersedes(self, connection: AsyncConnection, session: Session, turn: Turn, known: int) -> bool:
        """Return whether `turn` is the last one, ended once more."""
        where = (TURNS.c.namespace == session.namespace) & (TURNS.c.session == session.name)
        body = await connection.scalar(select(TURNS.c.body).where(where, TURNS.c.number == turn.number))
        return turn.number == known and bool(body) and Turn.model_validate(body).at < turn.at

    @whole
    async def turns(self, namespace: str, name: str) -> list[Turn]:
        """See `Sessions.turns`."""
        query = select(TURNS.c.body).where(TURNS.c.namespace == namespace, TURNS.c.session == name)
        async with self._reading() as connection:
            rows = await connection.scalars(query.order_by(TURNS.c.number)) if connection else None
            return [Turn.model_validate(body) for body in rows or ()]

    @whole
    async def sessions(self, namespace: str, *, agent: str | None = None, limit: int = 100) -> list[Session]:
        """See `Sessions.sessions`."""
        query = select(SESSIONS.c.body).where(SESSIONS.c.namespace == namespace, SESSIONS.c.agent != "")
        if agent is not None:
            query = query.where(SESSIONS.c.agent == agent)
        query = query.order_by(SESSIONS.c.updated_at.desc(), SESSIONS.c.name).limit(limit)
        async with self._reading() as connection:
            rows = await connection.scalars(query) if connection else None
            return [Session.model_validate(body) for body in rows or ()]

    @whole
    async def drop_session(self, namespace: str, name: str) -> bool:
        """See `Sessions.drop_session`."""
        async with self._writing() as connection:
            locked = select(SESSIONS.c.body).where(_key(namespace, name)).with_for_update()
            body = await connection.scalar(locked)
            known = Session.model_validate(body) if body else None
            await self._disown(
                connection, [session_owner(namespace, name)]
            )  # of one whose first turn broke off as well
            if known is None or known.deleted_at:
                return False
            now = datetime.now(UTC)
            body = _deleted(known, now).model_dump(mode="json")
            await connection.execute(update(SESSIONS).where(_key(namespace, name)).values(agent="", body=body))
            await connection.execute(delete(TURNS).where(TURNS.c.namespace == namespace, TURNS.c.session == name))
            return True

    async def _session(self, connection: AsyncConnection, namespace: str, name: str) -> Session | None:
        body = await connection.scalar(select(SESSIONS.c.body).where(_key(namespace, name)))
        return Session.model_validate(body) if body else None


def _key(namespace: str, name: str) -> ColumnElement[bool]:
    return (SESSIONS.c.namespace == namespace) & (SESSIONS.c.name == name)


def _deleted(session: Session, at: datetime) -> Session:
    """Return what is left of a session that is deleted."""
    left = Session(namespace=session.namespace, name=session.name, agent="", created_at=at, updated_at=at)
    return left.model_copy(update={"turns": session.turns, "deleted_at": at})
