"""The agent's run: one loop over `next_step`. Decides; acts only through `calls`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any, assert_never

from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

from perdure import approvals, budgets, control, outcomes, recalling, turns, undoing, variables
from perdure import state as states
from perdure.failures import explain, fold_failure, fold_model_failure
from perdure.messages import Entry, OpenStatus, RunResult, content_hash
from perdure.phases import phase_of
from perdure.policies import READ_RESULT
from perdure.recurring import SCHEDULED_AT, rendered
from perdure.reports import RecallReport, UndoReport
from perdure.state import CallStatus, Outcome, Phase, RunState
from perdure.steps import (
    AskForMore,
    Borrow,
    CallModel,
    CallTools,
    Compact,
    ContinueAsNew,
    Finish,
    ListTools,
    Probe,
    Recall,
    Step,
    Undo,
    Wait,
    next_step,
)
from perdure.transcripts import Chain
from perdure.wire import STATE, TRANSCRIPT, WORKFLOW, Led, ModelInput, Page, RunRequest, opening_state
from perdure.workflows import calls
from perdure.workflows.afterwards import Follower
from perdure.workflows.compacting import Compacting
from perdure.workflows.continuing import Continuing
from perdure.workflows.delegating import Delegating
from perdure.workflows.leases import Leases
from perdure.workflows.listing import Listing
from perdure.workflows.noticing import Noticing
from perdure.workflows.people import People
from perdure.workflows.showing import Showing

_UNTOUCHED = 3
"""Events of history when a run is decided about for the first time, if nothing went wrong before."""

_LARGEST_PAGE = 200_000
"""Bytes: a query's answer that is much larger goes through the store."""


def _as_it_begins(request: RunRequest) -> RunRequest:
    """Return the request, with what it says of the last run where a schedule has begun this one."""
    if request.recurring is None:
        return request
    last = workflow.get_last_completion_result(RunResult)
    at = workflow.info().typed_search_attributes.get(SearchAttributeKey.for_datetime(SCHEDULED_AT))
    return rendered(request, last, at)


@workflow.defn(name=WORKFLOW)
class AgentWorkflow(People, Continuing, Compacting, Delegating, Listing):
    """One run of one agent."""

    @workflow.init
    def __init__(self, request: RunRequest) -> None:
        People.__init__(self)
        Continuing.__init__(self)
        Delegating.__init__(self)
        info = workflow.info()
        self.request = request = _as_it_begins(request)
        self.state = opening_state(request, info.workflow_id, info.original_execution_run_id)
        self._opening = (self.state.resets, self.state.steps)
        self.phase = Phase.INITIALIZING
        self._named = (self.state.spec, request.spec_hash or content_hash(self.state.spec))
        self._chain = Chain(self.state.before)
        self._sent = self._chain.offset
        self._showing = Showing(more=request.indexed)
        self._noticing = Noticing(request, self.state)
        self._changes = 0
        self._lookups = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._generation: asyncio.Task[None] | None = None
        self._defect: Exception | None = None
        self._now = workflow.now()
        self._clock = budgets.Clock(self.state.ran, self._now)
        self._leases = Leases(self.state, self._touch)
        self._follower = Follower()
        workflow.register_random_seed_callback(self._on_reset)
        if info.run_id != info.original_execution_run_id and info.get_current_history_length() > _UNTOUCHED:
            self._on_reset(workflow.random_seed())  # to its very beginning: the seed may have come before this object

    @workflow.run
    async def run(self, request: RunRequest) -> RunResult:
        """Return the run's result, or end as the status table of the README says."""
        try:
            if earlier := workflow.info().continued_run_id:
                await Follower().begin(request, self.state, earlier)
            outcome = await self._loop()
        except (asyncio.CancelledError, Exception) as error:  # noqa: BLE001 - a defect ends the run by name
            outcome = await self._cut_off(error)
        return await self._end(outcome)

    async def _loop(self) -> Outcome:  # noqa: C901, PLR0912 - once per member of the union
        while True:
            step = self._next()
            match step:
                case CallModel(answer_only):
                    self._generate(answer_only=answer_only)
                case ListTools():
                    self._list_tools()
                case Recall():
                    recalling.begin(self.state)
                    self._spawn(self._recall())
                case CallTools(positions):
                    self._start(positions)
                case Probe(position, after):
                    self._probe(position, after)
                case Undo(position):
                    self._undo(position)
                case Compact(free):
                    self._compact(free=free)
                case Borrow() | AskForMore():
                    await self._ask_for_more(step)
                case ContinueAsNew():
                    await self._continue()
                case Wait():
                    await self._wait()
                case Finish(outcome):
                    if await self._is_heard_out() and await self._is_followed():
                        return outcome
                case _:
                    assert_never(step)

    async def _is_heard_out(self) -> bool:
        """Return whether nobody is about to say something by which the run goes on; else wait until it is said."""
        if workflow.all_handlers_finished() or undoing.wanted(self.state):
            return True
        await workflow.wait_condition(workflow.all_handlers_finished)
        return False

    async def _is_followed(self) -> bool:
        """Return whether what follows the run was begun; else begin it. Meanwhile, something may be said to the run."""
        if self._follower.begun or self.state.shape < 1:
            return True
        await self._follower.begin(self.request, self.state)
        return False

    def _next(self) -> Step:
        if workflow.cancellation_reason() is not None and not undoing.wanted(self.state):
            raise asyncio.CancelledError
        if self._defect:
            raise self._defect
        self.state.ran = self._clock.tick(workflow.now())
        step = next_step(self.state, full=self._is_full())
        self._show(step)
        return step

    async def _ask_for_more(self, step: Borrow | AskForMore) -> None:
        if isinstance(step, Borrow):
            await self._leases.ask(step.wanted)
            return
        workflow.upsert_memo({control.SHORT: step.reason})
        control.run_short(self.state, step.reason)

    # -- acting --------------------------------------------------------------------------------------------

    def _generate(self, *, answer_only: bool) -> None:
        turns.open_turn(self.state, answer_only=answer_only)
        request = self._request().model_copy(update={"answer_only": answer_only})
        self._generation = self._spawn(self._ask_model(request))

    def _request(self) -> ModelInput:
        """Return what names the conversation as it is now, and what may be spent on it."""
        self._chain.extend(self.state.messages)
        length = self.state.length
        return ModelInput(
            agent=self.state.spec.name,
            spec=self._spec_hash(),
            step=self.state.steps + 1,
            length=length,
            head=self._chain.head(length),
            new=self._chain.contents(self._sent),
            allowance=budgets.allowance(self.state),
            ran=self.state.ran,
            variables=variables.shown(self.state),
            compacts=self.state.shape > 0 and not self.state.pressure.over,
            window=self.state.pressure.window,
            led=self._led(),
        )

    def _led(self) -> Led | None:
        if self.state.spec.strategy is None:
            return None
        return Led(progress=self.state.progress, variables=variables.current(self.state) or {})

    def _spec_hash(self) -> str:
        """Return the hash of the rules of the agent that has the run now."""
        if self._named[0] is not self.state.spec:
            self._named = (self.state.spec, content_hash(self.state.spec))
        return self._named[1]

    async def _ask_model(self, request: ModelInput) -> None:
        try:
            turn = await calls.model(request, self.state.spec, self.request.heartbeat)
        except ActivityError as error:
            fold_model_failure(self.state, error)
            return
        self._sent = request.length
        turns.fold_turn(self.state, turn, workflow.now())

    async def _recall(self) -> None:
        try:
            report = await calls.recall(recalling.request(self.state))
        except ActivityError as error:
            report = RecallReport(problem=explain(error))
        recalling.fold(self.state, report)

    def _start(self, positions: Sequence[str]) -> None:
        for call in [self._call(position) for position in positions]:
            outcomes.start(self.state, call)
            self._spawn(self._execute(call))

    async def _execute(self, call: states.CallState) -> None:
        spec = self.state.tool_of(call)
        assert spec is not None  # noqa: S101 - unknown tools were refused
        if spec.agent:
            await self._delegate(call, spec.agent)
            return
        try:
            known, circle = variables.current(self.state), recalling.circle(self.state, spec)
            window = self.state.pressure.window if spec is READ_RESULT else None
            given = (self.request.heartbeat, known, circle, self.state.secrets)
            agent = self.state.rules_of(call).name
            report = await calls.tool(call, spec, agent, *given, window=window)
        except FailureError as error:  # of a local tool, not wrapped
            fold_failure(self.state, call, spec, error, workflow.now())
            return
        outcomes.fold_report(self.state, call, report)

    def _probe(self, position: str, after: datetime | None) -> None:
        call = self._call(position)
        call.status = CallStatus.PROBING
        self._spawn(self._look_up(call, after))

    async def _look_up(self, call: states.CallState, after: datetime | None) -> None:
        spec = self.state.tool_of(call)
        assert spec is not None  # noqa: S101 - only known tools were executed
        if after and (delay := after - workflow.now()).total_seconds() > 0:
            await workflow.sleep(delay, summary=f"hard deadline of call {call.position}")
        if call.status is CallStatus.PROBING:
            self._lookups += 1
            given = (self.request.heartbeat, variables.current(self.state), self.state.secrets)
            report = await calls.probe(call, spec, self.state.rules_of(call).name, self._lookups, *given)
            outcomes.fold_probe(self.state, call, report)

    def _undo(self, position: str) -> None:
        effect = undoing.find(self.state, position)
        assert effect is not None  # noqa: S101 - steps name effects of the state
        effect.status = "undoing"
        self._spawn(self._take_back(effect))

    async def _take_back(self, effect: states.DoneEffect) -> None:
        rules = self.state.rules_of(effect)
        spec = rules.tool(effect.name)
        assert spec is not None  # noqa: S101 - only known tools were executed
        try:
            given = (self.request.heartbeat, variables.current(self.state), self.state.secrets)
            report = await calls.undo(effect, spec, rules.name, *given)
        except ActivityError as error:
            report = UndoReport(status="failed", message=explain(error))
        undoing.fold(self.state, effect, report)

    async def _wait(self) -> None:
        seen, full = self._changes, self._is_full()
        alarm = approvals.next_alarm(self.state, workflow.now())
        timeout = max(alarm - workflow.now(), timedelta()) if alarm else None
        try:
            await workflow.wait_condition(
                lambda: self._changes != seen or self._is_full() != full,  # also by what nobody understands
                timeout=timeout,
                timeout_summary=approvals.ALARM_SUMMARY,
            )
        except TimeoutError:
            if expired := approvals.expire(self.state, workflow.now()):
                workflow.upsert_memo({approvals.EXPIRED: expired})
            workflow.logger.warning("still waiting for a decision", extra={"run_id": self.state.run_id})
        except asyncio.CancelledError:
            if not undoing.wanted(self.state):
                raise  # else it ends already, and undoing is not cut off

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Run one call's work; a defect in it is the loop's to raise, so that it can't wedge the run."""
        try:
            await work
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001 - the loop raises it again
            self._defect = error
        finally:
            self._changes += 1

    def _touch(self) -> None:
        """Let the loop look again."""
        self._changes += 1

    def _call(self, position: str) -> states.CallState:
        call = self.state.find(position)
        assert call is not None  # noqa: S101 - steps name calls of the state
        return call

    def _on_reset(self, seed: int) -> None:
        """Take a reset of this workflow into the state. The engine tells of it by a new seed, before anything else."""
        resets, steps = self._opening
        told_at_start = (self.state.resets, self.state.steps) == (resets + 1, steps)
        if not told_at_start:
            turns.fold_reset(self.state, f"{seed:016x}"[-12:], self._now)
            self._follower = Follower()
            self._changes += 1

    # -- the end -------------------------------------------------------------------------------------------

    async def _cut_off(self, error: BaseException) -> Outcome:
        """Stop what is under way, wait until each call's fate is known, and say what the run becomes."""
        reason = workflow.cancellation_reason()
        if isinstance(error, asyncio.CancelledError) or reason is not None:
            why = control.cancelled_because(self.state, reason or "The run was cancelled.")
            outcome = Outcome(status="cancelled", reason=why)
            await self._unwind()
        else:
            workflow.logger.error("run failed by a defect of the runtime", exc_info=error)
            outcome = Outcome(status="failed", reason=f"{type(error).__name__}: {error}", failure="internal_error")
        self._defect, self.state.outcome = None, outcome
        if undoing.wanted(self.state):
            await self._unwind()
            outcomes.begin_undoing(self.state, outcome)
            workflow.upsert_memo({undoing.ENDING: outcome})
            try:
                await self._loop()
            except Exception:  # noqa: BLE001 - a second defect must not wedge it
                workflow.logger.exception("undoing was broken off by a defect of the runtime")
        return outcome

    async def _unwind(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await workflow.wait_condition(lambda: not self._tasks)

    async def _end(self, outcome: Outcome) -> RunResult:
        self.phase = Phase.POST_PROCESSING
        self.state.outcome = outcome
        await self._is_followed()
        await self._noticing.done()
        await workflow.wait_condition(workflow.all_handlers_finished)
        if outcome.status == "cancelled":
            await self._tell_used()
        duration = workflow.now() - (self.state.began or workflow.info().workflow_start_time)
        result = outcomes.result_from(self.state, outcome, duration)
        self.phase = Phase.ENDED
        self._showing.end(result)
        if outcome.status == "cancelled":
            raise asyncio.CancelledError
        if outcome.status == "failed":
            reason = outcome.reason or "failed"
            raise ApplicationError(reason, result, type=outcome.failure or "failed", non_retryable=True)
        return result

    # -- what can be seen and said from outside ------------------------------------------------------------

    def _show(self, step: Step) -> None:
        self._now = workflow.now()
        if isinstance(step, ContinueAsNew):
            return  # it is seen as it was
        status: OpenStatus = step.status if isinstance(step, Wait) else "running"
        self._clock.waits = status != "running"
        self.phase = phase_of(step, self.state, self.phase)
        if isinstance(step, Finish):
            return
        self._noticing.look(self.state)
        changed = self._showing.show(self.state, self.phase, status)
        if changed and self.request.caller:
            self._tell_parent(status)

    @workflow.query(name=TRANSCRIPT, description="Messages from a position on, a page at a time")
    def transcript(self, start: int, length: int) -> Page:
        """Return entries `start` to `length` (at most about 200 KB of them) or, if none are asked for, the spec.

        Of those that were put away, only where they are.
        """
        before, messages, size = self.state.before, list[Entry](), 0
        offset = before.length if before else 0
        for message in self.state.messages[start - offset : length - offset] if start >= offset else ():
            size += len(message.model_dump_json().encode())
            if messages and size > _LARGEST_PAGE:
                break
            messages.append(message)
        return Page(messages=messages, spec=None if length else self.state.spec, before=before)

    @workflow.query(name=STATE, description="The run's whole state")
    def whole_state(self) -> RunState:
        """Return the state: what a resumed run starts from."""
        return self.state
