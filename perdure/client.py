"""Starting runs and taking hold of them."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any

from temporalio.api.common.v1 import WorkflowExecution as WorkflowExecutionId
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import (
    Client as TemporalClient,
)
from temporalio.common import (
    Priority,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure import archive
from perdure.admission import Admission
from perdure.agents import Agent, Task
from perdure.asking import Kind
from perdure.deposits import deposited, without_values
from perdure.engine.connection import connect, target
from perdure.engine.external_storage import Driver, attached
from perdure.errors import ConnectionFailed, PerdureError
from perdure.handing import handed
from perdure.handles import RunHandle
from perdure.identity import whoami
from perdure.listing import Filter, RunInfo, list_runs
from perdure.loading import task_queue as queue_of
from perdure.messages import JSON, Content, RunResult, content_hash
from perdure.policies import AgentSpec
from perdure.recurring import Recurring
from perdure.settings import Settings
from perdure.speaking import unreachable
from perdure.starting import begin
from perdure.state import SHAPE
from perdure.telemetry import hooks, logs
from perdure.variables import starting
from perdure.wire import RunRequest

if TYPE_CHECKING:
    from datetime import datetime

    from perdure.activities.sessions import Opening
    from perdure.activities.stores import Store
    from perdure.audit import Action, AuditEntry, AuditState
    from perdure.costs import By, CostReport
    from perdure.notebook import Notebook
    from perdure.schedules import ScheduleHandle, ScheduleInfo
    from perdure.sessions import SessionHandle, WhenBusy
    from perdure.times import Rules, When


__all__ = ["Client", "RunHandle", "run"]


class Client:
    """A connection to the engine, from which runs are started and found.

    Args:
        temporal: A connected Temporal client whose data converter is `perdure.engine.converter.data_converter`.
        settings: Of this process. What is too large for a history goes into their store.
    """

    def __init__(self, temporal: TemporalClient, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.temporal = attached(temporal, Driver(self.store, _owner))
        self._admission = Admission()

    def store(self) -> AbstractAsyncContextManager[Store]:
        """Return the store of the settings, open while a block runs; it connects when it is first used."""
        from perdure.activities.stores import opened

        return opened(self.settings)

    async def admitted(self) -> None:
        """Return if something may be started here: whoever lacks the key would leave in plain text what others encrypt.

        Raises:
            KeyMissing: If the namespace is encrypted with another key than those of the settings.
        """
        await self._admission.check(self)

    @classmethod
    async def connect(cls, settings: Settings | None = None) -> Client:
        """Return a client of the server that the environment, or the dev server of this folder, gives.

        Raises:
            ConnectionFailed: If none answers.
        """
        settings = settings or Settings()
        logs.protect()
        hooks.use_settings(settings)
        return cls(await connect(settings), settings)

    async def start(
        self, agent: Agent | AgentSpec, task: Content | Task, *, id: str | None = None, task_queue: str | None = None
    ) -> RunHandle:
        """Start a run and return its handle; the same id twice gives one run.

        `handle.existing` tells whether it was there before, `handle.same_task` whether for the same task. One that the
        engine has forgotten is found in the archive, up to its pruning.

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
            KeyMissing: If the namespace is encrypted with another key than those of the settings.
            ConnectionFailed: If the server does not answer.
        """
        task = task if isinstance(task, Task) else Task(input=task)
        spec, task_queue = self._served(agent, task_queue)
        if task.session:
            return await self._said(spec, task, task_queue, id or task.id)
        given = id or task.id
        run_id = given or f"{spec.name}-{secrets.token_hex(4)}"
        request = self._request(spec, task, starting(spec, task.variables))
        there = bool(given) and await archive.has_alone(self, run_id)
        if not there and await self._started(run_id, request, task_queue, task):
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
        request = self._request(spec, task, variables, **more)
        if kept and kept.active:
            request = handed(request, kept.active)
        return await self._started(next.run_id, request, task_queue, task, memo)

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
            notify=self.settings.notify,
            variables=variables,
            **more,
        )

    async def _started(
        self, run_id: str, request: RunRequest, task_queue: str, task: Task, memo: Mapping[str, Any] | None = None
    ) -> bool:
        """Start a run; return False if one of that id is there, or was."""
        await self.admitted()
        told, priority = self._told(request, task)
        told |= memo or {}
        reuse = WorkflowIDReusePolicy.REJECT_DUPLICATE
        values = {name: value.get_secret_value() for name, value in task.secrets.items()}
        try:
            async with deposited(self, run_id, values) as vaulted:
                request = without_values(request, values, vaulted)
                await begin(self.temporal, run_id, request, task_queue, reuse, told, priority)
        except WorkflowAlreadyStartedError:
            return False
        return True

    def _told(self, request: RunRequest, task: Task) -> tuple[dict[str, Any], Priority]:
        """Return what is noted of a run at its start, and how urgent it is."""
        told = {"agent": request.spec.name, "labels": _shown(task.labels), "task": _task_hash(task)}
        weight = self.settings.tenant_weights.get(task.tenant)
        return told, Priority(priority_key=task.priority, fairness_key=task.tenant or None, fairness_weight=weight)

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

    async def schedule(
        self,
        agent: Agent | AgentSpec,
        task: Content | Task,
        when: When,
        *,
        id: str | None = None,
        rules: Rules | None = None,
        keep_variables: bool = False,
        paused: bool = False,
        task_queue: str | None = None,
        by: str | None = None,
    ) -> ScheduleHandle:
        """Have runs of an agent begin by themselves, and return the handle of the schedule.

        Each is an ordinary run, whose id is that of the schedule and the time for which it was scheduled. All keep the
        agent as it is now, whatever is deployed later: `ScheduleHandle.update` gives them another.

        Args:
            agent: The agent, or its spec as the catalogue has it (then `task_queue` is needed).
            task: What each run is to do, with `{{last.text}}`, `{{last.output.…}}`, `{{last.variables.…}}` and the like
                for what the last run that completed gave, and `{{scheduled_at}}`; or a whole `Task`.
            id: The schedule's. Default: the task's, else the agent's name and 8 random hex digits.
            keep_variables: A run begins with the variables as the last one left them.
            paused: No run begins until it is unpaused.
            by: Who creates it. Default: user and host.

        Raises:
            ScheduleError: If its id is taken, or something of it can't be.
            VariableError: If the task's variables do not fit the agent's.
            ConnectionFailed: If the server or the store does not answer.
        """
        from perdure import schedules
        from perdure.times import Rules

        task = task if isinstance(task, Task) else Task(input=task)
        spec, queue = self._served(agent, task_queue)
        name = id or task.id or f"{spec.name}-{secrets.token_hex(4)}"
        schedules.check_task(task)
        await self.admitted()
        own = Recurring(schedule=name, by=by or whoami(), keep_variables=keep_variables)
        request = self._request(spec, task, starting(spec, task.variables), recurring=own)
        told, priority = self._told(request, task)
        chosen = rules or Rules()
        plan = schedules.Plan(when, chosen, paused=paused, memo={**told, "schedule": name}, priority=priority)
        return await schedules.create(self, name, request, queue, plan)

    async def schedules(self) -> list[ScheduleInfo]:
        """Return all schedules of agents. Raises `ConnectionFailed`."""
        from perdure import schedules

        return await schedules.listed(self)

    def schedule_handle(self, id: str) -> ScheduleHandle:
        """Return the handle of a schedule, whether it exists or not.

        Raises:
            ScheduleError: If none can have that id.
        """
        from perdure.schedules import ScheduleHandle

        return ScheduleHandle(self, id)

    def _served(self, agent: Agent | AgentSpec, task_queue: str | None) -> tuple[AgentSpec, str]:
        """Return an agent as data, and where its workers listen."""
        if isinstance(agent, Agent):
            return agent.spec, task_queue or queue_of(agent.source, self.settings)
        if task_queue is None:
            raise PerdureError("To start a run from a spec, say on which task queue its workers listen.")
        return agent, task_queue

    async def forget(self, run_id: str) -> None:
        """Have the engine delete a run and its history; one that it does not have is none the less gone.

        What the archive has of it stays: see `perdure prune`. The audit tells who did it.

        Raises:
            ConnectionFailed: If the server does not answer, or the store, in which that is noted before.
        """
        from perdure import auditing

        async with self.store() as store:
            await auditing.note(store, self.temporal.namespace, "run_deleted", run_id=run_id)
        await self.delete(run_id)

    async def delete(self, run_id: str) -> None:
        """Delete a run as `forget` does, without a word of it in the audit: whoever calls this has noted it."""
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

    async def audit(
        self,
        run_id: str | None = None,
        *,
        by: str | None = None,
        actions: Collection[Action] = (),
        since: datetime | None = None,
        limit: int = 1000,
    ) -> list[AuditEntry]:
        """Return who did what to runs and to what is kept of them, the newest entries, oldest first.

        Of open runs, what was done up to now; of others, what was noted at their end, which takes a moment.

        Args:
            run_id: Only what was done to this run.
            by: Only what somebody did whose name has this in it.
            actions: Only these; none of them: all.
            since: Only from then on.

        Raises:
            ConnectionFailed: If the server or the store can't be used.
        """
        from perdure import auditing

        return await auditing.read(self, run_id, by=by, actions=actions, since=since, limit=limit)

    async def verify_audit(self) -> AuditState:
        """Return whether all that was noted is as it was written: each entry has the hash of the one before it.

        Raises:
            ConnectionFailed: If the store can't be used.
        """
        from perdure import auditing

        return await auditing.verify(self)

    def handle(self, run_id: str) -> RunHandle:
        """Return the handle of a run, whether it exists or not."""
        return RunHandle(self, run_id)

    async def list_runs(
        self,
        *,
        status: str | None = None,
        agent: str | None = None,
        session: str | None = None,
        tenant: str | None = None,
        waiting_for: Kind | None = None,
        schedule: str | None = None,
        limit: int = 100,
    ) -> list[RunInfo]:
        """Return runs, newest first; of those that are given, only runs of which all are true.

        Those that the engine has forgotten come from the archive; without them, and with a warning in the log, where
        the store can't be used.

        Args:
            waiting_for: What an open run waits for, whether it goes on with something else meanwhile or not.

        Raises:
            PerdureError: If the server does not index `session`, `tenant` or `waiting_for`.
            ConnectionFailed: If the server does not answer.
        """
        wanted = Filter(status, agent, session, tenant, waiting_for, schedule)
        try:
            runs = await list_runs(self.temporal, wanted, limit)
            return await archive.complete(self, runs, wanted, limit)
        except RPCError as error:
            raise unreachable(self.temporal, error) from error

    async def cost(
        self,
        *,
        by: By = "agent",
        since: datetime | None = None,
        until: datetime | None = None,
        agent: str | None = None,
        run: str | None = None,
        tenant: str | None = None,
        session: str | None = None,
    ) -> CostReport:
        """Return what runs have used and cost: those that ended from the store, those that go on from their histories.

        A request counts once it has ended. What was lost with a worker is estimated, and counted as such; a price that
        is not known is None, never zero.

        Args:
            by: What is told apart: `run`, `agent`, `model`, `tool` (what its results took in prompts), `tenant`,
                `session`, `user`, `day`, `kind` (turns, summaries, memory) or `step`.
            since: Only requests that were made from then on, and before `until`; both with time zone.
            agent: Only those of this agent; so for `tenant` and `session`.
            run: Only those of this run, and of the runs that it has called.

        Raises:
            RunNotFound: If there is no such run.
            ConnectionFailed: If the server or the store does not answer.
        """
        from perdure.costing import cost

        wanted = {"agent": agent, "run": run, "tenant": tenant, "session": session}
        return await cost(self, by=by, since=since, until=until, **wanted)


def _owner(namespace: str, run_id: str) -> Any:
    from perdure.activities.stores import run_owner

    return run_owner(namespace, run_id)


def _shown(labels: dict[str, str]) -> Any:
    """Return labels as they may be shown to whoever runs the system."""
    if not labels:
        return labels
    from perdure.telemetry import redaction

    return redaction.current().json(labels)


def _task_hash(task: Task) -> str:
    return content_hash([task.input, task.variables] if task.variables else [task.input])


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
