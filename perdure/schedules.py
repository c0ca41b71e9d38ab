"""Schedules: runs of an agent that begin by themselves, on Temporal's own schedules. Created, looked at, changed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from temporalio.client import (
    Schedule,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionResult,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleBackfill,
    ScheduleDescription,
    ScheduleListDescription,
    ScheduleState,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.common import Priority
from temporalio.service import RPCError, RPCStatusCode

from perdure import recurring
from perdure.audit import Action
from perdure.auditing import note
from perdure.engine import search_attributes
from perdure.engine.external_storage import THRESHOLD
from perdure.errors import ConnectionFailed, PerdureError, ScheduleError, ScheduleNotFound
from perdure.identity import whoami
from perdure.messages import Content, content_hash
from perdure.policies import AgentSpec
from perdure.recurring import Recurring
from perdure.speaking import size_of, unreachable
from perdure.starting import TASK_TIMEOUT
from perdure.times import Overlap, Rules, When, check_id, overlap_of, rules_of, when_of
from perdure.wire import WORKFLOW, RunRequest

if TYPE_CHECKING:
    from perdure.agents import Task
    from perdure.client import Client

T = TypeVar("T")


def check_task(task: Task) -> None:
    """Raise unless each run of a schedule can have that task.

    Raises:
        ScheduleError: If it has what only one run can have: secrets, or a session.
    """
    if task.secrets:
        raise ScheduleError("Runs of a schedule can't be given secrets: those of a run are deleted when it ends.")
    if task.session:
        text = "Runs of a schedule are no turns of a session: {{last.text}} tells each what the last one answered"
        raise ScheduleError(f"{text}.")


@dataclass(frozen=True)
class Fired:
    """A run that a schedule has begun, and for when it was due."""

    run_id: str
    scheduled_at: datetime
    started_at: datetime


@dataclass(frozen=True)
class ScheduleInfo:
    """A schedule as a list has it; the list may lag behind by moments."""

    id: str
    agent: str
    paused: bool
    note: str
    next: list[datetime] = field(default_factory=list[datetime])
    last: datetime | None = None


@dataclass(frozen=True)
class ScheduleView:
    """A schedule as it is now.

    Attributes:
        spec: The agent that its runs are runs of, as it was when the schedule was created or updated.
        input: What each run is to do.
        when: Its times.
        note: Why it is paused, or what the engine says of it.
        next: The next times.
        recent: The newest runs, at most ten, oldest first.
        running: Ids of the runs that go on.
        fired: How many runs it has begun.
        skipped: Times that were left out, since the last run still went on.
        missed: Times that were missed by more than `rules.catchup`.
    """

    id: str
    spec: AgentSpec
    task_queue: str
    input: Content
    when: When
    rules: Rules
    by: str
    keep_variables: bool
    paused: bool
    note: str
    next: list[datetime]
    recent: list[Fired]
    running: list[str]
    fired: int
    skipped: int
    missed: int
    created_at: datetime
    updated_at: datetime | None
    request: RunRequest

    @property
    def spec_hash(self) -> str:
        """The hash of its agent as data."""
        return content_hash(self.spec)


class ScheduleHandle:
    """One schedule, from outside.

    Attributes:
        id: The schedule's id; its runs have that and the time for which they were scheduled.
    """

    def __init__(self, client: Client, id: str) -> None:
        self.id = check_id(id)
        self._client = client
        self._engine = client.temporal.get_schedule_handle(id)

    async def show(self) -> ScheduleView:
        """Return it as it is now.

        Raises:
            ScheduleNotFound: If there is none.
            ScheduleError: If it begins something else than runs of agents.
        """
        return await self._view(await self._asked(self._engine.describe()))

    async def pause(self, reason: str = "") -> None:
        """Begin no more runs until `unpause`; those that go on are left alone. Raises as `show` does."""
        told = reason or f"paused by {whoami()}"
        await self._change("schedule_paused", lambda: self._engine.pause(note=told), reason=reason)

    async def unpause(self, reason: str = "") -> None:
        """Begin runs again. Raises as `show` does."""
        told = reason or f"unpaused by {whoami()}"
        await self._change("schedule_unpaused", lambda: self._engine.unpause(note=told), reason=reason)

    async def trigger(self, overlap: Overlap | None = None) -> None:
        """Begin a run now. Raises as `show` does.

        Not in the same second as the last one: the engine would give both of them one id.

        Args:
            overlap: Where the last one still goes on. Default: as the schedule says.
        """
        how = overlap_of(overlap)
        if recent := (await self.show()).recent:
            since = datetime.now(UTC) - recent[-1].started_at.replace(microsecond=0)
            await asyncio.sleep(min(max(1 - since.total_seconds(), 0), 1))
        await self._change("schedule_triggered", lambda: self._engine.trigger(overlap=how))

    async def backfill(self, start: datetime, end: datetime, *, overlap: Overlap = "buffer-all") -> None:
        """Begin the runs that would have been due in a time that has passed. Raises as `show` does.

        Args:
            start: With time zone; included.
            end: Likewise, not included.
            overlap: Default: one after another, so that each sees the result of the one before.

        Raises:
            ScheduleError: If that is no time.
        """
        if start.tzinfo is None or end.tzinfo is None or start >= end:
            raise ScheduleError(
                f"From {start} to {end} is no time: both need a time zone, and the first is the earlier."
            )
        period = ScheduleBackfill(start_at=start, end_at=end, overlap=overlap_of(overlap))
        told = {"from": start.isoformat(), "to": end.isoformat(), "overlap": overlap}
        await self._change("schedule_backfilled", lambda: self._engine.backfill(period), details=told)

    async def delete(self) -> None:
        """Delete it; its runs, those that go on included, are left alone. Raises as `show` does."""
        await self._change("schedule_deleted", self._engine.delete)

    async def update(
        self,
        spec: AgentSpec | None = None,
        *,
        task_queue: str | None = None,
        input: Content | None = None,
        when: When | None = None,
        rules: Rules | None = None,
    ) -> None:
        """Change what is given, for the runs that begin from now on.

        Args:
            spec: The agent as it is now: a deploy alone changes nothing for a schedule.

        Raises:
            ScheduleError: If that can't be.
            ScheduleNotFound: If there is none.
        """
        if input is not None and (said := recurring.wrong(input)):
            raise ScheduleError(said)
        await self._client.admitted()

        async def changed(given: ScheduleUpdateInput) -> ScheduleUpdate:
            old = given.description.schedule
            view = await self._view(given.description)
            request = view.request.model_copy(
                update={
                    "spec": spec or view.spec,
                    "spec_hash": content_hash(spec or view.spec),
                    "input": view.input if input is None else input,
                }
            )
            assert isinstance(old.action, ScheduleActionStartWorkflow)  # noqa: S101 - `_view` looked
            queue, memo = task_queue or view.task_queue, {**(old.action.memo or {}), "task": task_hash(request)}
            action = await _action(self._client, self.id, request, queue, old.action.priority, memo)
            times = when.spec() if when else old.spec
            return ScheduleUpdate(Schedule(action, times, rules.policy() if rules else old.policy, old.state))

        told = {"agent": spec.name, "details": {"spec": content_hash(spec)}} if spec else {}
        await self._change("schedule_updated", lambda: self._engine.update(changed), when, **told)

    async def _change(
        self, action: Action, work: Callable[[], Awaitable[None]], when: When | None = None, **about: Any
    ) -> None:
        """Do something to it, noted before: what was deleted could not tell any more."""
        view = await self.show()
        noted = {"agent": view.spec.name, "tenant": view.request.tenant, **about}
        async with self._client.store() as store:
            await note(store, self._client.temporal.namespace, action, subject=f"schedule {self.id}", **noted)
        await self._asked(work(), when)

    async def _asked(self, work: Awaitable[T], when: When | None = None) -> T:
        try:
            return await work
        except RPCError as error:
            raise refused(self._client, self.id, error, when) from error

    async def _view(self, described: ScheduleDescription) -> ScheduleView:
        action = described.schedule.action
        if not isinstance(action, ScheduleActionStartWorkflow) or action.workflow != WORKFLOW:
            raise ScheduleError(f"Schedule {self.id!r} begins something else than runs of agents: it is not ours.")
        [request] = await self._client.temporal.data_converter.decode(list(action.args), [RunRequest])
        own: Recurring = request.recurring or Recurring(schedule=self.id)
        info, state = described.info, described.schedule.state
        return ScheduleView(
            id=self.id,
            spec=request.spec,
            task_queue=action.task_queue,
            input=request.input,
            when=when_of(described.schedule.spec),
            rules=rules_of(described.schedule.policy),
            by=own.by,
            keep_variables=own.keep_variables,
            paused=state.paused,
            note=state.note or "",
            next=list(info.next_action_times),
            recent=[_fired(one) for one in info.recent_actions],
            running=[one.workflow_id for one in info.running_actions if _is_run(one)],
            fired=info.num_actions,
            skipped=info.num_actions_skipped_overlap,
            missed=info.num_actions_missed_catchup_window,
            created_at=info.created_at,
            updated_at=info.last_updated_at,
            request=request,
        )


@dataclass(frozen=True)
class Plan:
    """A schedule to be created, but for what its runs do.

    Attributes:
        memo: Of each run.
        priority: Of each run.
    """

    when: When
    rules: Rules
    paused: bool
    memo: Mapping[str, Any]
    priority: Priority


async def create(client: Client, id: str, request: RunRequest, task_queue: str, plan: Plan) -> ScheduleHandle:
    """Create a schedule of runs of `request`; see `Client.schedule`."""
    handle = ScheduleHandle(client, id)
    if said := recurring.wrong(request.input):
        raise ScheduleError(said)
    if (size := size_of(client.temporal, request)) > THRESHOLD:
        raise ScheduleError(f"The task and its agent have {size:,} bytes; a schedule takes at most {THRESHOLD:,}.")
    if not await search_attributes.has_more(client.temporal):
        with contextlib.suppress(ConnectionFailed):
            await search_attributes.ensure(client.temporal)  # a server that no worker has prepared yet
    action = await _action(client, id, request, task_queue, plan.priority, plan.memo)
    by = request.recurring.by if request.recurring else whoami()
    state = ScheduleState(paused=plan.paused, note=f"created by {by}")
    schedule = Schedule(action, plan.when.spec(), plan.rules.policy(), state)
    try:
        await client.temporal.create_schedule(id, schedule, memo={"agent": request.spec.name})
    except ScheduleAlreadyRunningError as error:
        hint = "choose another --id, or `perdure schedule update` it"
        raise ScheduleError(f"There is a schedule {id!r} already: {hint}.") from error
    except RPCError as error:
        raise refused(client, id, error, plan.when) from error
    about: dict[str, Any] = {"agent": request.spec.name, "tenant": request.tenant}
    about["details"] = {"spec": request.spec_hash, "when": str(plan.when)}
    async with client.store() as store:
        await note(store, client.temporal.namespace, "schedule_created", by=by, subject=f"schedule {id}", **about)
    return handle


async def _action(
    client: Client, id: str, request: RunRequest, task_queue: str, priority: Priority, memo: Mapping[str, Any]
) -> ScheduleActionStartWorkflow:
    """Return what the engine does when a run is due: what `begin` does for a run that somebody starts."""
    indexed = await search_attributes.has_more(client.temporal)
    request = request.model_copy(update={"indexed": indexed})
    tenant = search_attributes.told(request.tenant)
    return ScheduleActionStartWorkflow(
        WORKFLOW,
        request,
        id=id,
        task_queue=task_queue,
        task_timeout=TASK_TIMEOUT,
        memo=memo,
        typed_search_attributes=search_attributes.at_start(request.spec.name, more=indexed, tenant=tenant),
        static_summary=f"agent {request.spec.name}",
        priority=priority,
    )


async def listed(client: Client) -> list[ScheduleInfo]:
    """Return all schedules of agents, by their ids.

    Raises:
        ConnectionFailed: If the server does not answer.
    """
    try:
        found = [await _info(one) async for one in await client.temporal.list_schedules()]
    except RPCError as error:
        raise unreachable(client.temporal, error) from error
    return sorted((info for info in found if info), key=lambda info: info.id)


async def last_runs(client: Client) -> set[str]:
    """Return the newest runs of every schedule: the next one may begin with what the last that completed gave.

    Raises:
        ConnectionFailed: If the server does not answer.
    """
    found: set[str] = set()
    for one in await listed(client):
        with contextlib.suppress(ScheduleError):  # it was deleted meanwhile
            found |= {run.run_id for run in (await ScheduleHandle(client, one.id).show()).recent}
    return found


async def _info(one: ScheduleListDescription) -> ScheduleInfo | None:
    action = one.schedule.action if one.schedule else None
    if one.schedule is None or one.info is None or getattr(action, "workflow", "") != WORKFLOW:
        return None
    state, recent = one.schedule.state, one.info.recent_actions
    memo = await one.memo()
    return ScheduleInfo(
        id=one.id,
        agent=str(memo.get("agent", "")),
        paused=state.paused,
        note=state.note or "",
        next=list(one.info.next_action_times),
        last=recent[-1].started_at if recent else None,
    )


def refused(client: Client, id: str, error: RPCError, when: When | None = None) -> PerdureError:
    """Return the error that says what the engine answered about a schedule, whose times are to be `when`."""
    if error.status is RPCStatusCode.NOT_FOUND:
        return ScheduleNotFound(f"There is no schedule {id!r}; `perdure schedule list` shows those there are.")
    if error.status is RPCStatusCode.INVALID_ARGUMENT:
        said = " ".join(error.message.split()).rstrip(".").removeprefix("Invalid schedule spec: ")
        return ScheduleError(when.complaint(said) if when else f"Schedule {id!r} can't be so: {said}.")
    return unreachable(client.temporal, error)


def task_hash(request: RunRequest) -> str:
    """Return what tells tasks apart; see `RunHandle.same_task`."""
    return content_hash([request.input, request.variables] if request.variables else [request.input])


def _is_run(one: Any) -> TypeGuard[ScheduleActionExecutionStartWorkflow]:
    return isinstance(one, ScheduleActionExecutionStartWorkflow)


def _fired(one: ScheduleActionResult) -> Fired:
    run_id = one.action.workflow_id if _is_run(one.action) else ""
    return Fired(run_id, one.scheduled_at, one.started_at)
