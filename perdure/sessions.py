"""Sessions from Python: a conversation with an agent that goes on over many runs, and over any time between them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Literal, Self

from temporalio.service import RPCError

from perdure.activities.sessions import Opening, Sessions, Standing, check_name, opening, turn_id
from perdure.activities.stores import Session, Store, Turn, segments, store_of
from perdure.agents import Task
from perdure.auditing import note
from perdure.control import NEXT_TURN
from perdure.decisions import Saying
from perdure.errors import (
    ConnectionFailed,
    DecisionRejected,
    PerdureError,
    RunEnded,
    RunNotFound,
    SessionError,
    SessionNotFound,
)
from perdure.identity import whoami
from perdure.messages import JSON, Compaction, Content, Entry, Message, RunResult, ToolMessage
from perdure.policies import AgentSpec
from perdure.speaking import new_id, unreachable
from perdure.transcripts import put_away

if TYPE_CHECKING:
    from perdure.client import Client, RunHandle

WhenBusy = Literal["say", "queue"]
"""What becomes of a message while a turn is under way: it reaches that one at its next step, or begins the next."""

_MOMENT = 0.05
"""Seconds until a run is looked at again that has just ended."""


class Sent:
    """A message that was taken.

    Attributes:
        how: It has `started` a turn, was `said` to the one under way, or was `queued` behind it.
        turn: That turn's number.
    """

    def __init__(self, session: SessionHandle, how: Literal["started", "said", "queued"], turn: int, id: str) -> None:
        self._session = session
        self._id = id
        self.how = how
        self.turn = turn

    async def run(self) -> RunHandle:
        """Return the run that answers it; of one that was queued, once its turn has come.

        Raises:
            SessionError: If the session was deleted meanwhile.
        """
        if self.how == "queued":
            self.turn = await self._session.turn_of(self._id, self.turn)
            self.how = "started"
        return self._session.handle(self.turn)

    async def result(self) -> RunResult:
        """Wait for that run's end and return its result. Raises as `RunHandle.result` does."""
        return await (await self.run()).result()


class SessionHandle:
    """A session, from outside. An async context manager, which keeps the store open meanwhile.

    Attributes:
        name: The session's.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        spec: AgentSpec | None = None,
        task_queue: str = "",
        *,
        user: str = "",
        tenant: str = "",
        when_busy: WhenBusy = "say",
    ) -> None:
        self.name = check_name(name)
        self._client = client
        self._spec = spec
        self._queue = task_queue
        self._user = user
        self._tenant = tenant
        self._when_busy: WhenBusy = when_busy
        self._kept: Store | None = None

    async def __aenter__(self) -> Self:
        """Open the store once for all that follows."""
        self._kept = store_of(self._client.settings)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        store, self._kept = self._kept, None
        if store:
            await store.aclose()

    def handle(self, turn: int) -> RunHandle:
        """Return the run that is that turn."""
        return self._client.handle(turn_id(self.name, turn))

    # -- talking -------------------------------------------------------------------------------------------

    async def send(self, task: Content | Task, *, when_busy: WhenBusy | None = None) -> Sent:
        """Say something to the agent: begin the next turn with it, or say it to the one under way.

        Two who send at once begin one turn, and the second one's message goes on as `when_busy` says. What one sender
        says arrives in the order in which it was said.

        Args:
            task: What is said, or a whole `Task`; of that, what is not said counts only where it begins a turn.
            when_busy: Where a turn is under way, `say` it to it, or `queue` it for the next. Default: the handle's.

        Raises:
            SessionError: If the session is another agent's or user's.
            PerdureError: If the message is empty, or too large.
            VariableError: If the task's variables do not fit the agent's.
            KeyMissing: If the namespace is encrypted with another key than those of the client's settings.
            ConnectionFailed: If the server or the store does not answer.
        """
        task = task if isinstance(task, Task) else Task(input=task)
        if not task.input or (isinstance(task.input, str) and not task.input.strip()):
            raise PerdureError("The message is empty: there is nothing to say to the agent.")
        await self._client.admitted()
        said = Saying(content=task.input, by=whoami(), id=new_id(), next=(when_busy or self._when_busy) == "queue")
        async with self._sessions() as sessions:
            while True:
                standing = await self._standing(sessions)
                if standing.open:
                    if sent := await self._say(standing.open, said):
                        return sent
                elif queued := standing.queued:
                    of_other = Task(input="", variables=task.variables)
                    await self._begin(opening(self.name, standing, queued[0], queued[1:]), of_other)
                elif await self._begin(opening(self.name, standing, said, []), task):
                    if standing.session is None:
                        await self._listed(task)
                    return Sent(self, "started", standing.turns + 1, said.id)

    async def ask(self, task: Content | Task, *, when_busy: WhenBusy | None = None) -> RunResult:
        """Say something and return the result of the run that answers it. Raises as `send` and `Sent.result` do."""
        return await (await self.send(task, when_busy=when_busy)).result()

    async def _say(self, turn: int, said: Saying) -> Sent | None:
        """Say it to a turn under way; return None if that has ended meanwhile."""
        try:
            receipt = await self.handle(turn).say(said.content, next=said.next, by=said.by, id=said.id)
        except DecisionRejected as error:
            if error.reason != "closed":
                raise
            await asyncio.sleep(_MOMENT)
            return None
        queued = said.next or receipt.reason == NEXT_TURN
        return Sent(self, "queued" if queued else "said", turn, said.id)

    async def _begin(self, next: Opening, task: Task) -> bool:
        """Begin a turn, with what `task` says of it."""
        if self._spec is None:
            raise SessionError(f"Session {self.name!r}: to begin a turn, its agent has to be given.")
        return await self._client.begin_turn(next, self._spec, self._queue, self._of_session(next.session, task))

    async def _listed(self, task: Task) -> None:
        """Have the session listed from its first turn on; where the store has gone away, its end will do."""
        assert self._spec is not None  # noqa: S101 - a turn was begun with it
        now, of = datetime.now(UTC), self._of_session(None, task)
        session = Session(
            namespace=self._client.temporal.namespace,
            name=self.name,
            agent=self._spec.name,
            user=of.user,
            tenant=of.tenant,
            created_at=now,
            updated_at=now,
        )
        with contextlib.suppress(ConnectionFailed):
            async with self._store() as store:
                await store.begin_session(session)

    def _of_session(self, session: Session | None, task: Task) -> Task:
        user = self._user or task.user or (session.user if session else "")
        tenant = self._tenant or task.tenant or (session.tenant if session else "")
        return task.model_copy(update={"user": user, "tenant": tenant})

    async def _check(self, standing: Standing) -> None:
        """Raise unless the session is this agent's and user's."""
        agent, user = await self._whose(standing)
        if self._spec and agent not in ("", self._spec.name):
            raise SessionError(f"Session {self.name!r} is with agent {agent!r}, not with {self._spec.name!r}.")
        if self._user and user is not None and user != self._user:
            whose = f"user {user!r}" if user else "nobody in particular"
            raise SessionError(f"Session {self.name!r} is for {whose}, not for {self._user!r}.")

    async def _whose(self, standing: Standing) -> tuple[str, str | None]:
        if standing.session:
            return standing.session.agent, standing.session.user
        if standing.open:
            memo = await self.handle(standing.open).memo()
            return str(memo.get("agent", "")), str(memo.get("user", ""))
        return "", None

    # -- looking -------------------------------------------------------------------------------------------

    async def turn_of(self, message: str, after: int) -> int:
        """Return the turn that begins with the message of that id, which waits behind turn `after`, once it has begun.

        Raises:
            SessionError: If there is none: the session was deleted meanwhile.
        """
        while True:
            with contextlib.suppress(RunEnded):
                await self.handle(after).result()
            async with self._sessions() as sessions:
                await sessions.advance(self.name, lambda due: self._begin(due, Task(input="")))
            after += 1
            try:
                memo = await self.handle(after).memo()
            except RunNotFound:
                raise SessionError(f"The message is not in session {self.name!r} any more: it was deleted.") from None
            if memo.get("message") == message:
                return after

    async def standing(self) -> Standing:
        """Return where the session stands: how many turns have ended, and which one is under way.

        Raises:
            SessionError: If it is another agent's or user's.
            ConnectionFailed: If the server or the store does not answer.
        """
        async with self._sessions() as sessions:
            return await self._standing(sessions)

    async def session(self) -> Session:
        """Return what the store has of the session: its variables, and what waits for its next turn.

        Raises:
            SessionNotFound: If none of its turns has ended yet, or it was deleted.
        """
        session = (await self.standing()).session
        if session is None:
            raise SessionNotFound(f"There is no session {self.name!r} yet: none of its turns has ended.")
        return session

    async def variables(self) -> dict[str, JSON]:
        """Return the variables as the last turn that has ended left them. Raises as `session` does."""
        return (await self.session()).variables

    async def turns(self) -> list[Turn]:
        """Return the turns that have ended, oldest first. Raises as `session` does."""
        await self.session()
        async with self._store() as store:
            return await store.turns(self._client.temporal.namespace, self.name)

    async def entries(self) -> list[Entry]:
        """Return the whole transcript of the turns that have ended, with what says where it is shown in short.

        Raises:
            SessionNotFound: As for `session`.
            SessionError: If the store does not have all of it any more.
        """
        before = (await self.session()).before
        async with self._store() as store:
            try:
                return await put_away(before, partial(segments.read, store))
            except LookupError as error:
                raise SessionError(f"Session {self.name!r} can't be read: {error}") from error

    async def history(self, *, whole: bool = False) -> list[Message]:
        """Return every message of the turns that have ended. Raises as `entries` does.

        Args:
            whole: Large results as they were, where the store still has them, in place of the part in the transcript.
        """
        messages = [entry for entry in await self.entries() if not isinstance(entry, Compaction)]
        if not whole:
            return messages
        async with self._store() as store:
            return [await _whole(store, message) for message in messages]

    async def deletable(self) -> Session:
        """Return the session, if it can be deleted now. Raises as `delete` does."""
        standing = await self.standing()
        if standing.open:
            run = turn_id(self.name, standing.open)
            raise SessionError(f"Turn {standing.open} of session {self.name!r} is under way: end run {run!r} first.")
        return await self.session()

    async def delete(self) -> None:
        """Delete the session: what was said in it, and its runs, in the store and the engine.

        Raises:
            SessionNotFound: If it is not there.
            SessionError: If a turn is under way.
        """
        session = await self.deletable()
        runs = [turn_id(self.name, number) for number in range(1, session.turns + 1)]
        told = {"session": self.name, "agent": session.agent, "tenant": session.tenant}
        async with self._store() as store:
            await note(store, session.namespace, "session_deleted", details={"turns": session.turns}, **told)
            await store.drop_session(session.namespace, self.name)
            await store.drop_runs(session.namespace, runs)
        for run in runs:
            await self._client.delete(run)

    async def _standing(self, sessions: Sessions) -> Standing:
        try:
            standing = await sessions.standing(self.name)
        except RPCError as error:
            raise unreachable(self._client.temporal, error) from error
        await self._check(standing)
        return standing

    @asynccontextmanager
    async def _sessions(self) -> AsyncGenerator[Sessions]:
        async with self._store() as store:
            yield Sessions(self._client.temporal, store)

    @asynccontextmanager
    async def _store(self) -> AsyncGenerator[Store]:
        async with nullcontext(self._kept) if self._kept else self._client.store() as store:
            yield store


async def _whole(store: Store, message: Message) -> Message:
    """Return `message` with the whole of its result, where that was cut and is still there."""
    result = message.result if isinstance(message, ToolMessage) else None
    if result is None or result.ref is None:
        return message
    with contextlib.suppress(LookupError):
        text = (await store.get(result.ref)).decode("utf-8", "replace")
        changed = {"content": text, "size": None, "ref": None}
        return ToolMessage(role="tool", result=result.model_copy(update=changed))
    return message
