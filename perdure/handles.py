"""Runs, from outside: waiting for one, following it, and taking hold of it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from temporalio.client import (
    WorkflowContinuedAsNewError,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, CancelledError, WorkflowAlreadyStartedError
from temporalio.service import RPCError

from perdure import archive, continuing, earlier
from perdure.budgets import Additions, exhausted, still_scarce
from perdure.control import Resumption
from perdure.decisions import Cancellation
from perdure.deposits import deposited
from perdure.engine.connection import Absence
from perdure.engine.external_storage import THRESHOLD
from perdure.errors import ConnectionFailed, DecisionRejected, PerdureError, RunCancelled, RunFailed, RunNotFound
from perdure.identity import whoami
from perdure.messages import Content, RunResult, content_hash
from perdure.resuming import carried_on
from perdure.speaking import Speaking, new_id, size_of
from perdure.starting import begin, priority_of
from perdure.state import SHAPE, RunState, SessionTurn
from perdure.wire import BEGAN, CANCEL, RESUME, RunRequest, packed_state

if TYPE_CHECKING:
    from perdure.client import Client
    from perdure.events import Event
    from perdure.telemetry.executions import Recorded
    from perdure.telemetry.projection import Projection
    from perdure.tracing import Trace

_log = logging.getLogger("perdure.client")


_MORE = {
    "steps": "--add-steps 5",
    "input_tokens": "--add-input-tokens 100000",
    "output_tokens": "--add-output-tokens 10000",
    "usd": "--add-usd 0.50",
    "wall_time": "--add-minutes 10",
}
"""How each limit is raised, on the command line."""


def _options(lacking: Sequence[str]) -> str:
    return " ".join(_MORE[name] for name in lacking)


def options_to_resume(state: RunState) -> str:
    """Return the options of `perdure resume` that a closed run needs, such as `--add-steps 5`; "" for none."""
    return _options(still_scarce(state, carried_on(state, Additions())))


class RunHandle(Speaking):
    """One run, from outside.

    Attributes:
        id: The run's id.
        existing: Whether `start` found the run there already.
        same_task: Whether it was started for the same task then.
    """

    def __init__(self, client: Client, run_id: str, *, existing: bool = False) -> None:
        self._client = client
        self.id = run_id
        self.existing = existing
        self.same_task = True

    async def result(self) -> RunResult:
        """Wait for the run's end and return its result.

        Those of a long run have `calls` that are partly in the store: see `whole`.

        Raises:
            RunFailed: If it ended `failed`; `error.result` is the partial result.
            RunCancelled: If it was cancelled; likewise.
            RunNotFound: If there is no such run.
        """
        absence = Absence()
        while True:
            try:
                result: RunResult = await self._workflow(RunResult).result(follow_runs=False)
            except WorkflowContinuedAsNewError:
                continue
            except WorkflowFailureError as error:
                raise await self._ended(error) from error
            except RPCError as error:
                if isinstance(self._rpc(error), RunNotFound):
                    return await self._kept_result()
                if not await absence.passed(error):
                    raise self._rpc(error) from error
            else:
                return await self.whole(result)

    async def whole(self, result: RunResult) -> RunResult:
        """Return `result` with the records of all its calls; those of a long run that were put away are read.

        They are in the store and, as long as the engine keeps them, in its histories. Where neither can be read,
        `result` stays as it is: its `before` names what is missing.
        """
        if result.before is None:
            return result
        try:
            found = await earlier.records(self._client.settings, result.before)
            return continuing.with_records(result, None, found)
        except (ConnectionFailed, LookupError) as error:
            projection = await self.projection()
            complete = continuing.with_records(result, projection.earlier.before, projection.earlier.records)
            if complete.before:
                _log.warning("run %s: the records of its earlier calls are missing: %s", self.id, error)
            return complete

    async def _kept_result(self) -> RunResult:
        """Return the result of a run that the engine has forgotten."""
        result = (await self.projection()).result()
        if result.status == "cancelled":
            raise RunCancelled(f"Run {self.id} was cancelled.", result)
        if result.status == "failed":
            raise RunFailed(result.reason or "failed", result)
        return result

    def _shelf(self, run_id: str) -> Awaitable[Sequence[Recorded]]:
        return archive.executions(self._client, run_id)

    async def _ended(self, error: WorkflowFailureError) -> PerdureError:
        if isinstance(error.cause, ApplicationError) and error.cause.details:
            partial = await self.whole(RunResult.model_validate(error.cause.details[0]))
            return RunFailed(partial.reason or error.cause.message, partial)
        partial = await self.whole((await self.projection(last=True)).result())
        if isinstance(error.cause, CancelledError):
            return RunCancelled(f"Run {self.id} was cancelled.", partial)
        return RunFailed(f"Run {self.id} was ended from outside: {error.cause}", partial)

    async def cancel(self, reason: str = "") -> None:
        """Ask the run to end `cancelled`: what is under way is cancelled, and what it did is kept.

        Raises:
            DecisionRejected: If it has ended.
            RunNotFound: If there is no such run.
        """
        if (await self._describe()).status is not WorkflowExecutionStatus.RUNNING:
            raise DecisionRejected(f"Run {self.id} has ended.", "closed")  # the server would accept it
        try:
            await self._cancel(reason)
        except RPCError as error:
            raise await self._refused(error) from error

    async def _cancel(self, reason: str) -> None:
        """Tell the engine, which keeps a reason as plain text; or, where everything is encrypted, the run itself."""
        if reason and self._client.temporal.data_converter.payload_codec:
            wanted = Cancellation(by=whoami(), reason=reason, id=new_id())
            await self._workflow().signal(CANCEL, wanted)
            return
        from perdure.telemetry import redaction

        told = redaction.current().text(reason or f"cancelled by {whoami()}")
        await self._workflow().cancel(reason=told)

    async def projection(self, *, last: bool = False) -> Projection:
        """Return the run as its history tells it; needs no worker.

        Args:
            last: Of a long run, read the last execution alone: enough to know where it stands.

        Raises:
            RunNotFound: If there is no such run.
        """
        from perdure.telemetry.projection import project

        try:
            return await project(self._client.temporal, self.id, last=last, shelf=self._shelf)
        except RPCError as error:
            raise self._rpc(error) from error

    async def trace(self, *, redacted: bool = False) -> Trace:
        """Return what the run has done with its time and its money so far, as a tree of spans; needs no worker.

        The runs that it has called are part of it.

        Args:
            redacted: All that was said, written or returned passes the redactor.

        Raises:
            RunNotFound: If there is no such run.
        """
        from perdure.traces import trace

        return await trace(self._client, self.id, redacted=redacted)

    async def events(self, after: str = "", *, live: bool = False) -> AsyncIterator[Event]:
        """Yield each durable event once and in order, as it happens, up to the run's end.

        Args:
            after: Position of the last event already seen; "" begins at the start.
            live: And between them what comes beside them: `TextDelta` and `ToolProgress`, whose position is "". Of a
                reply, a piece of another attempt than the pieces before it replaces all of those.

        Raises:
            RunNotFound: If there is no such run.
        """
        if not live:
            async for event in self._events(after):
                yield event
            return
        from perdure.sealing import keyring
        from perdure.telemetry.live import listen
        from perdure.telemetry.watching import Attention, together

        settings, attention = self._client.settings, Attention()
        asides = listen(settings, keyring(settings), self._client.temporal.namespace, self.id)
        events = self._events(after, lambda event: [*attention.happened(event)])
        async with contextlib.aclosing(together(events, asides, attention)) as both:
            async for event in both:
                yield event

    async def _events(self, after: str, seen: Callable[[Event], object] | None = None) -> AsyncIterator[Event]:
        from perdure.telemetry.projection import follow

        absence = Absence()
        while True:
            try:
                async for event in follow(self._client.temporal, self.id, after, shelf=self._shelf, seen=seen):
                    after, absence = event.position, Absence()
                    yield event
            except RPCError as error:
                if not await absence.passed(error):
                    raise self._rpc(error) from error
            else:
                return

    async def resume(
        self,
        more: Additions | None = None,
        *,
        add_steps: int = 0,
        reason: str = "",
        by: str | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> RunHandle:
        """Go on: lift the pause of an open run, or start a closed one again under its id from where it stopped.

        Nothing done is done again. An open run that is not paused is given more. One that paused itself at a limit
        (`Limits.on_exhausted="ask"`) takes its last turn if it is given nothing.

        Args:
            more: Raises its limits: a closed run that has used up one of them needs more of it.
            add_steps: Short for `Additions(steps=…)`.
            reason: Why, for the record of an open run.
            by: Who resumes an open run. Default: user and host.
            secrets: For a closed run: those that its tools need. The ones that it had were deleted when it ended.

        Raises:
            DecisionRejected: If the run is open and neither paused nor given anything.
            PerdureError: If the run is `completed`, or needs more of something.
            RunNotFound: If there is no such run.
        """
        add = more or Additions(steps=add_steps)
        described = await self._describe()
        if described.status == WorkflowExecutionStatus.RUNNING:
            await self._update(RESUME, Resumption(add=add, reason=reason, by=by or whoami(), id=new_id()))
        else:
            await self._client.admitted()
            await self._start_again(described, add, secrets or {})
        return self

    async def fork(
        self,
        at: int,
        *,
        say: Content | None = None,
        model: str | None = None,
        instructions: str | None = None,
        id: str | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> RunHandle:
        """Start a new run that goes on from what this one was after `at` steps, and return its handle.

        Nothing that was done up to there is done again. What has an effect after that is asked about first, whatever
        the agent's policy: this run may have done it already. The new run's limits hold for what it does itself. The
        engine may have forgotten this run; the archive has it.

        Args:
            at: So many turns of the model are kept, with what came of their calls; 0: none, only the task.
            say: What the user says next.
            model: Asked instead of the agent's first one.
            instructions: In place of the agent's.
            id: The new run's id; the same one twice gives one run. Default: the agent's name and 8 random hex digits.
            secrets: Those that its tools need: it has none of this run's.

        Raises:
            ForkError: If the run has no such step, a call of it has no result yet, or nothing is left to do.
            RunNotFound: If there is no such run.
            ConnectionFailed: If the server or, where it is needed, the store can't be used.
        """
        from perdure import forks

        try:
            return await forks.fork(
                self._client, self.id, at, say=say, model=model, instructions=instructions, id=id, values=secrets
            )
        except RPCError as error:
            raise self._rpc(error) from error

    async def _start_again(
        self, described: WorkflowExecutionDescription, add: Additions, values: Mapping[str, str]
    ) -> None:
        state = (await self.projection(last=True)).state  # the history has it all: no worker has to be there
        assert state is not None  # noqa: S101 - a history begins with the start
        if state.outcome and state.outcome.status == "completed":
            raise PerdureError(f"Run {self.id} is completed; there is nothing to resume.")
        if state.session and await self._has_gone_on(state.session):
            which = f"turn {state.session.number} of session {state.session.name!r}"
            raise PerdureError(f"Run {self.id} is {which}, which has gone on since: say it in a new turn.")
        carried = carried_on(state, add)
        carried.shape = SHAPE
        if lacking := still_scarce(state, carried):
            hint = _options(lacking)
            raise PerdureError(f"Run {self.id}: {exhausted(carried).reason} Resume it with more, such as {hint}.")
        request = RunRequest(
            spec=state.spec,
            spec_hash=content_hash(state.spec),
            heartbeat=self._client.settings.heartbeat_timeout,
            carried=carried,
            session=carried.session,
            tenant=carried.tenant,
            max_history_events=self._client.settings.max_history_events or 0,
            notify=self._client.settings.notify,
        )
        memo = {name: value for name, value in (await described.memo()).items() if name != BEGAN}
        try:
            async with deposited(self._client, self.id, values) as vaulted:
                carried.secrets = vaulted or carried.secrets
                request = await self._recordable(request, carried)
                await self._begin_again(described, request, memo)
        except WorkflowAlreadyStartedError as error:
            raise PerdureError(f"Run {self.id} was resumed by somebody else meanwhile.") from error

    async def _begin_again(
        self, described: WorkflowExecutionDescription, request: RunRequest, memo: Mapping[str, Any]
    ) -> None:
        if (await self._describe()).run_id != described.run_id:
            raise PerdureError(f"Run {self.id} was resumed by somebody else meanwhile.")
        reuse, priority = WorkflowIDReusePolicy.ALLOW_DUPLICATE, priority_of(described)
        await begin(self._client.temporal, self.id, request, described.task_queue, reuse, memo, priority)

    async def _has_gone_on(self, turn: SessionTurn) -> bool:
        """Return whether the turn after `turn` was begun, as far as the engine knows."""
        following = self._client.handle(turn.model_copy(update={"number": turn.number + 1}).run_id)
        try:
            await following.memo()
        except RunNotFound:
            return False
        return True

    async def _recordable(self, request: RunRequest, carried: RunState) -> RunRequest:
        """Return `request` with the earlier part of what it carries in the store, where it is too large for a history.

        Where the store is down, all of it is compressed: with that, it may fit.
        """
        if size_of(self._client.temporal, request) <= THRESHOLD:
            return request
        try:
            await earlier.put_away(self._client.settings, self._client.temporal.namespace, carried)
        except ConnectionFailed:
            return request.model_copy(update={"carried": None, "packed": packed_state(carried)})
        return request.model_copy(update={"carried": carried})

    async def _describe(self) -> WorkflowExecutionDescription:
        try:
            return await self._workflow().describe()
        except RPCError as error:
            raise await self._refused(error) from error

    async def memo(self) -> Mapping[str, Any]:
        """Return what was noted at the start: `agent`, `labels`, and the `task`'s hash."""
        try:
            return await (await self._describe()).memo()
        except DecisionRejected:  # the archive alone has it
            return await archive.memo(self._client, self.id)
