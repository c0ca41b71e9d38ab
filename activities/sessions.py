"""Sessions: conversations over many runs, one run a turn. What the last turn left is in the store.

Whoever begins a turn first sees to it that the one before is recorded there, so that nothing depends on one writer.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.ends import soon
from perdure.activities.heartbeats import heartbeats
from perdure.activities.stores import Session, Store, Turn, segments, session_owner
from perdure.context import refs_of
from perdure.decisions import Saying
from perdure.endings import closing
from perdure.errors import SessionError, SessionNameError, VariableError
from perdure.messages import Content, Entry, Segment
from perdure.state import SessionTurn
from perdure.telemetry.projection import Projection, project
from perdure.transcripts import pieces
from perdure.variables import current
from perdure.wire import END_TURN, AfterRun

_NAME = re.compile(r"[\w.@:+-]{1,100}")


def check_name(name: str) -> str:
    """Return `name`, if a session can be called so.

    Raises:
        SessionNameError: If it is empty, too long, or has other characters than letters, digits and `-_.@:+`.
    """
    if not _NAME.fullmatch(name):
        allowed = "a session's name is made of 1 to 100 letters, digits and any of - _ . @ : +"
        raise SessionNameError(f"{name[:120]!r} can't be a session: {allowed}.")
    return name


def turn_id(name: str, number: int) -> str:
    """Return the id of the run that is a session's turn."""
    return SessionTurn(name=name, number=number).run_id


@dataclass(frozen=True)
class Standing:
    """Where a session stands.

    Attributes:
        session: As its last turn left it; None where none has ended yet, or it was deleted.
        turns: How many have ended, those of a deleted session of the same name included.
        open: The turn that is under way: the next one, or the last one where its run was resumed; None if none is.
    """

    session: Session | None
    turns: int
    open: int | None = None

    @property
    def queued(self) -> list[Saying]:
        """What waits for the next turn, where none is under way."""
        return self.session.queued if self.session and not self.open else []


@dataclass(frozen=True)
class Opening:
    """A turn to be begun.

    Attributes:
        said: What it begins with.
        queued: What waits for the turns after it.
    """

    turn: SessionTurn
    said: Saying
    session: Session | None
    queued: list[Saying]

    @property
    def run_id(self) -> str:
        """The id of its run."""
        return self.turn.run_id


Begin = Callable[[Opening], Awaitable[bool]]
"""Begins a turn; returns False where it was begun already."""


class Sessions:
    """The sessions of a store and an engine.

    Args:
        temporal: Where their turns run.
        store: Where what they left is kept.
    """

    def __init__(self, temporal: Client, store: Store) -> None:
        self._temporal = temporal
        self._store = store

    async def standing(self, name: str) -> Standing:
        """Return where a session stands, once every turn that has ended is recorded.

        Raises:
            ConnectionFailed: If the store is down.
            SessionError: If a run that is none of its turns has the id of one.
        """
        while True:
            session = await self._store.session(self._temporal.namespace, name)
            turns = session.turns if session else 0
            kept = session if session and not session.deleted_at and not session.begun else None
            following = await self._described(name, turns + 1)
            if following and following.status is WorkflowExecutionStatus.RUNNING:
                return Standing(kept, turns, turns + 1)
            if following:
                await self.record(name, turns + 1)
                continue
            last = await self._described(name, turns) if kept else None
            if last and last.status is WorkflowExecutionStatus.RUNNING:
                return Standing(kept, turns, turns)
            again = last and kept and last.close_time and last.close_time > kept.updated_at
            if not again or not await self.record(name, turns):  # else it was resumed, and has ended once more
                return Standing(kept, turns)

    async def advance(self, name: str, begin: Begin) -> Standing:
        """Return where a session stands, once what waits for its next turn has begun it.

        Raises:
            ConnectionFailed: If the store is down.
            SessionError: As for `standing`.
        """
        while True:
            standing = await self.standing(name)
            if not (queued := standing.queued):
                return standing
            await begin(opening(name, standing, queued[0], queued[1:]))

    async def record(self, name: str, number: int) -> bool:
        """Take what a turn that has ended left into its session; return False if that was done before.

        Raises:
            ConnectionFailed: If the store is down.
        """
        namespace = self._temporal.namespace
        projection = await project(self._temporal, turn_id(name, number), last=True)
        state = projection.state
        assert state is not None  # noqa: S101 - a history begins with the start
        known = await self._store.session(namespace, name)
        entries = [*state.messages, *closing(state)]
        await self._own(name, state.before, known.before if known else None, entries)
        before = await segments.append(self._store, session_owner(namespace, name), state.before, entries)
        ended_at = projection.events[-1].time
        session = Session(
            namespace=namespace,
            name=name,
            agent=state.spec.entry or state.spec.name,
            active=state.spec.name if state.spec.entry else "",
            before=before,
            variables=current(state),
            queued=state.queued,
            user=state.user,
            tenant=state.tenant,
            created_at=projection.started_at or ended_at,
            updated_at=ended_at,
        )
        return await self._store.end_turn(session, _turn(projection, number))

    async def _own(self, name: str, before: Segment | None, until: Segment | None, entries: Sequence[Entry]) -> None:
        """Keep for the session what its run has put away, back to `until`, and the results that were cut."""
        refs = set(refs_of(entries))

        def unknown(piece: Segment) -> bool:
            return until is None or piece.ref != until.ref

        async for segment, body in pieces(before, partial(segments.read, self._store), unknown):
            refs |= {segment.ref, *refs_of(body.entries)}
        await segments.own_there(self._store, refs, session_owner(self._temporal.namespace, name))

    async def _described(self, name: str, number: int) -> WorkflowExecutionDescription | None:
        """Return what the engine says of a turn, None if it does not know of it."""
        run_id = turn_id(name, number)
        try:
            described = await self._temporal.get_workflow_handle(run_id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise
        if (await described.memo()).get("session") != name:
            raise SessionError(f"Run {run_id!r} is no turn of session {name!r}: choose another name for the session.")
        return described


def opening(name: str, standing: Standing, said: Saying, queued: list[Saying]) -> Opening:
    """Return the next turn of a session, to be begun with what was said."""
    return Opening(SessionTurn(name=name, number=standing.turns + 1), said, standing.session, queued)


def _turn(projection: Projection, number: int) -> Turn:
    result = projection.result()
    return Turn(
        number=number,
        run_id=projection.run_id,
        status=result.status,
        input=text_of(projection.task),
        text=result.text,
        at=projection.events[-1].time,
    )


def text_of(content: Content) -> str:
    """Return what of it is text."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content if part.kind == "text")


class SessionActivities:
    """What follows the turns of sessions.

    Args:
        temporal: To wait for their ends.
        sessions: Where they go.
        begin: Begins the turns that wait for them.
    """

    def __init__(self, temporal: Client, sessions: Sessions, begin: Begin) -> None:
        self._temporal = temporal
        self._sessions = sessions
        self._begin = begin

    @activity.defn(name=END_TURN)
    async def end_turn(self, request: AfterRun) -> None:
        """Take a turn that has ended into its session, and begin the next one where something waits for it.

        Raises:
            ApplicationError: If the run goes on: somebody has said something before it ended.
            ConnectionFailed: If the store is down.
        """
        assert request.session is not None  # noqa: S101 - the workflow looked
        async with heartbeats():
            await self._until_ended(request)
            try:
                await self._sessions.advance(request.session.name, self._begin)
            except (SessionError, VariableError) as error:
                activity.logger.warning("the next turn of session %s waits: %s", request.session.name, error)

    async def _until_ended(self, request: AfterRun) -> None:
        handle = self._temporal.get_workflow_handle(request.run_id, run_id=request.execution)
        with contextlib.suppress(WorkflowFailureError):
            await soon(handle.result(follow_runs=False), request.run_id)
