"""Starting runs and taking hold of them."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

from temporalio.api.common.v1 import WorkflowExecution as WorkflowExecutionId
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import (
    Client as TemporalClient,
)
from temporalio.client import (
    WorkflowContinuedAsNewError,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.common import (
    Priority,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import ApplicationError, CancelledError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure import archive, continuing, earlier
from perdure.agents import Agent, Task
from perdure.budgets import Additions, exhausted, still_scarce
from perdure.control import Resumption
from perdure.deposits import deposited, without_values
from perdure.engine.connection import Absence, connect, target
from perdure.engine.external_storage import THRESHOLD, Driver, attached
from perdure.errors import ConnectionFailed, DecisionRejected, PerdureError, RunCancelled, RunFailed, RunNotFound
from perdure.listing import RunInfo, list_runs
from perdure.loading import task_queue as queue_of
from perdure.messages import JSON, Content, RunResult, content_hash
from perdure.policies import AgentSpec
from perdure.resuming import carried_on
from perdure.settings import Settings
from perdure.speaking import Speaking, new_id, size_of, unreachable, whoami
from perdure.starting import begin, priority_of
from perdure.state import SHAPE, RunState, SessionTurn
from perdure.variables import starting
from perdure.wire import BEGAN, RESUME, RunRequest, packed_state

if TYPE_CHECKING:
    from perdure.activities.sessions import Opening
    from perdure.activities.stores import Store
    from perdure.events import Event
    from perdure.notebook import Notebook
    from perdure.sessions import SessionHandle, WhenBusy
    from perdure.telemetry.executions import Recorded
    from perdure.telemetry.projection import Projection


_log = logging.getLogger("perdure.client")


class Client:
    """A connection to the engine, from which runs are started and found.

    Args:
        temporal: A connected Temporal client whose data converter is `perdure.engine.converter.data_converter`.
        settings: Of this process. What is too large for a history goes into their store.
    """

    def __init__(self, temporal: TemporalClient, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.temporal = attached(temporal, Driver(self.store, _owner))

    @asynccontextmanager
    async def store(self) -> AsyncGenerator[Store]:
        """Yield the store of the settings, open while the block runs; it connects when it is first used."""
        from perdure.activities.stores import store_of

        async with aclosing(store_of(self.settings)) as store:
            yield store

    @classmethod
    async def connect(cls, settings: Settings | None = None) -> Client:
        """Return a client of the server that the environment, or the dev server of this folder, gives.

        Raises:
            ConnectionFailed: If none answers.
        """
        settings = settings or Settings()
        return cls(await connect(settings), settings)

    async def start(
        self, agent: Agent | AgentSpec, task: Content | Task, *, id: str | None = None, task_queue: str | None = None
    ) -> RunHandle:
        """Start a run and return its handle; the same id twice gives one run.

        `handle.existing` tells whether it was there before, `handle.same_task` whether for the same task.

        Args:
            agent: The agent, or its spec as the catalogue has it (then `task_queue` is needed).
            task: What the user says, or a whole `Task`.
            id: The run's id; beats the task's. Default: the agent's name and 8 random hex digits.
            task_queue: Where its workers listen. Default: the queue of the file that declares the agent.

        Raises:
            PerdureError: If the input is too large to be recorded, a secret can't be kept, or the task has an id and a
                session.
            SessionError: If the task's session is another agent's or user's.
            VariableError: If the task's variables do not fit the agent's.
            ConnectionFailed: If the server does not answer.
        """
        task = task if isinstance(task, Task) else Task(input=task)
        spec, task_queue = self._served(agent, task_queue)
        if task.session:
            return await self._said(spec, task, task_queue, id or task.id)
        run_id = id or task.id or f"{spec.name}-{secrets.token_hex(4)}"
        request = self._request(spec, task, starting(spec, task.variables))
        if await self._started(run_id, request, task_queue, task):
            return self.handle(run_id)
        handle = RunHandle(self, run_id, existing=True)
        handle.same_task = (await handle.memo()).get("task") == _task_hash(task)
        return handle

    async def _said(self, spec: AgentSpec, task: Task, task_queue: str, id: str | None) -> RunHandle:
        """Say it in the task's session, and return the run that takes it."""
        if id is not None:
            raise PerdureError("A turn of a session has the id that it has there: give a task an id or a session.")
        sent = await self.session(task.session, spec, task_queue=task_queue, user=task.user).send(task)
        run = await sent.run()
        return RunHandle(self, run.id, existing=sent.how == "said")

    async def begin_turn(self, next: Opening, spec: AgentSpec, task_queue: str, task: Task) -> bool:
        """Begin a turn of a session; return False if somebody else has begun it. `task` says all but what is said.

        Raises:
            PerdureError, VariableError, ConnectionFailed: As for `start`.
        """
        task = task.model_copy(update={"input": next.said.content})
        kept = next.session
        more = {"session": next.turn, "before": kept.before if kept else None, "queued": next.queued}
        variables = starting(spec, task.variables, kept.variables if kept else None)
        memo = {"session": next.turn.name, "turn": next.turn.number, "message": next.said.id, "user": task.user}
        return await self._started(next.run_id, self._request(spec, task, variables, **more), task_queue, task, memo)

    def _request(self, spec: AgentSpec, task: Task, variables: dict[str, JSON], **more: Any) -> RunRequest:
        return RunRequest(
            spec=spec,
            spec_hash=content_hash(spec),
            input=task.input,
            limits=task.limits,
            heartbeat=self.settings.heartbeat_timeout,
            shape=SHAPE,
            user=task.user,
            tenant=task.tenant,
            max_history_events=self.settings.max_history_events or 0,
            variables=variables,
            **more,
        )

    async def _started(
        self, run_id: str, request: RunRequest, task_queue: str, task: Task, memo: Mapping[str, Any] | None = None
    ) -> bool:
        """Start a run; return False if one of that id is there, or was."""
        told = {"agent": request.spec.name, "labels": task.labels, "task": _task_hash(task), **(memo or {})}
        weight = self.settings.tenant_weights.get(task.tenant)
        priority = Priority(priority_key=task.priority, fairness_key=task.tenant or None, fairness_weight=weight)
        reuse = WorkflowIDReusePolicy.REJECT_DUPLICATE
        values = {name: value.get_secret_value() for name, value in task.secrets.items()}
        try:
            async with deposited(self, run_id, values) as vaulted:
                request = without_values(request, values, vaulted)
                await begin(self.temporal, run_id, request, task_queue, reuse, told, priority)
        except WorkflowAlreadyStartedError:
            return False
        return True

    def session(
        self,
        name: str,
        agent: Agent | AgentSpec | None = None,
        *,
        task_queue: str | None = None,
        user: str = "",
        tenant: str = "",
        when_busy: WhenBusy = "say",
    ) -> SessionHandle:
        """Return the handle of a session, a conversation over many runs, whether it exists or not.

        Args:
            name: 1 to 100 letters, digits and any of `-_.@:+`.
            agent: With whom; None is enough to look at it.
            task_queue: As for `start`.
            user: For whom; None but this user's sessions can be used then.
            tenant: On whose behalf.
            when_busy: See `SessionHandle.send`.

        Raises:
            SessionNameError: If no session can be called so.
        """
        from perdure.sessions import SessionHandle

        spec, queue = (None, "") if agent is None else self._served(agent, task_queue)
        return SessionHandle(self, name, spec, queue, user=user, tenant=tenant, when_busy=when_busy)

    def _served(self, agent: Agent | AgentSpec, task_queue: str | None) -> tuple[AgentSpec, str]:
        """Return an agent as data, and where its workers listen."""
        if isinstance(agent, Agent):
            return agent.spec, task_queue or queue_of(agent.source, self.settings)
        if task_queue is None:
            raise PerdureError("To start a run from a spec, say on which task queue its workers listen.")
        return agent, task_queue

    async def forget(self, run_id: str) -> None:
        """Have the engine delete a run and its history; one that it does not have is none the less gone.

        Raises:
            ConnectionFailed: If the server does not answer.
        """
        wanted = WorkflowExecutionId(workflow_id=run_id)
        request = DeleteWorkflowExecutionRequest(namespace=self.temporal.namespace, workflow_execution=wanted)
        try:
            await self.temporal.workflow_service.delete_workflow_execution(request)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise unreachable(self.temporal, error) from error

    @property
    def memory(self) -> Notebook:
        """What agents remember: listed, searched, entered, corrected, deleted."""
        from perdure.notebook import Notebook

        return Notebook(self.settings, self.temporal.namespace)

    def handle(self, run_id: str) -> RunHandle:
        """Return the handle of a run, whether it exists or not."""
        return RunHandle(self, run_id)

    async def list_runs(
        self, *, status: str | None = None, agent: str | None = None, limit: int = 100
    ) -> list[RunInfo]:
        """Return runs, newest first; `status` and `agent` keep only those.

        Those that the engine has forgotten come from the archive; without them, and with a warning in the log, where
        the store can't be used.

        Raises:
            ConnectionFailed: If the server does not answer.
        """
        try:
            runs = await list_runs(self.temporal, status, agent, limit)
            return await archive.complete(self, runs, status, agent, limit)
        except RPCError as error:
            raise unreachable(self.temporal, error) from error


def _owner(namespace: str, run_id: str) -> Any:
    from perdure.activities.stores import run_owner

    return run_owner(namespace, run_id)


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


def _task_hash(task: Task) -> str:
    return content_hash([task.input, task.variables] if task.variables else [task.input])


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
            await self._workflow().cancel(reason=reason or f"cancelled by {whoami()}")
        except RPCError as error:
            raise await self._refused(error) from error

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

    async def events(self, after: str = "") -> AsyncIterator[Event]:
        """Yield each durable event once and in order, as it happens, up to the run's end.

        Args:
            after: Position of the last event already seen; "" begins at the start.

        Raises:
            RunNotFound: If there is no such run.
        """
        from perdure.telemetry.projection import follow

        absence = Absence()
        while True:
            try:
                async for event in follow(self._client.temporal, self.id, after, shelf=self._shelf):
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

        Raises:
            ForkError: If the run has no such step, a call of it has no result yet, or nothing is left to do.
            RunNotFound: If there is no such run.
            ConnectionFailed: If the server or, where it is needed, the store can't be used.
        """
        from perdure import forks

        try:
            return await forks.fork(self._client, self.id, at, say=say, model=model, instructions=instructions, id=id)
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
            max_history_events=self._client.settings.max_history_events or 0,
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
        except DecisionRejected:
            pass  # the archive alone has it
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
        return await (await self._describe()).memo()


async def run(
    agent: Agent, task: Content | Task, *, id: str | None = None, settings: Settings | None = None
) -> RunResult:
    """Run `agent` on a task and return the result: the shortest way, for a script or a notebook.

    Starts what is missing, in this process: the embedded engine if no server answers, and a worker. A run of the
    same id that an earlier process left behind is taken up again.

    Raises:
        RunFailed, RunCancelled: See `RunHandle.result`.
        ConnectionFailed: If no server answers and none can be started.
    """
    from perdure.engine.server import DevServer
    from perdure.worker import serving

    settings = settings or Settings()
    async with AsyncExitStack() as stack:
        try:
            client = await Client.connect(settings)
        except ConnectionFailed:
            if target(settings).configured:
                raise  # the environment names a server: another one in its place would be a surprise
            await stack.enter_async_context(await DevServer.start(settings))
            client = await Client.connect(settings)
        queue = queue_of(agent.source, settings)
        await stack.enter_async_context(serving(client.temporal, [agent], queue, settings))
        handle = await client.start(agent, task, id=id, task_queue=queue)
        return await handle.result()
