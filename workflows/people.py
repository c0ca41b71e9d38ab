"""What people say to a run: every update and signal. A mixin of the workflow; what a thing means is in `control`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError

from perdure import approvals, control
from perdure.decisions import Answer, Cancellation, Decision, Pause, Receipt, Saying, Settlement
from perdure.failures import explain
from perdure.state import RunState
from perdure.wire import ANSWER, CANCEL, DECIDE, PAUSE, RESUME, SAY, SETTLE, JudgeInput, RunRequest, edit_id
from perdure.workflows import calls

NOT_KEPT = "a resumption is not kept"
"""The patch since which a resumption that comes before a pause is refused at once; before, it was kept for a moment."""


class People:
    """The part of a run that people reach: each handler answers whether it took."""

    request: RunRequest
    state: RunState
    _changes: int
    _generation: asyncio.Task[None] | None
    _spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    _pass_on: Callable[[Pause | control.Resumption], None]

    def __init__(self) -> None:
        self._edits = 0

    def _check_update(self, wanted: control.Wanted) -> None:
        receipt = control.check(self.state, wanted)
        if not receipt.accepted and not approvals.premature(receipt):
            raise ApplicationError(receipt.message, type=receipt.reason, non_retryable=True)

    @workflow.update(name=DECIDE, description="Approve or deny a call")
    async def decide(self, decision: Decision) -> Receipt:
        """Return whether the decision took."""
        return await self._take(decision, "update")

    @decide.validator
    def _check_decide(self, decision: Decision) -> None:
        self._check_update(decision)

    @workflow.update(name=SETTLE, description="Say what became of a call in doubt")
    async def settle(self, settlement: Settlement) -> Receipt:
        """Return whether the settlement took."""
        return await self._take(settlement, "update")

    @settle.validator
    def _check_settle(self, settlement: Settlement) -> None:
        self._check_update(settlement)

    @workflow.update(name=ANSWER, description="Answer a question that the model has put")
    async def answer(self, answer: Answer) -> Receipt:
        """Return whether the answer took."""
        return await self._take(answer, "update")

    @answer.validator
    def _check_answer(self, answer: Answer) -> None:
        self._check_update(answer)

    @workflow.update(name=SAY, description="Tell the agent something; with now, break off its model call")
    async def say(self, saying: Saying) -> Receipt:
        """Return whether the model will be told."""
        return await self._take(saying, "update")

    @say.validator
    def _check_say(self, saying: Saying) -> None:
        self._check_update(saying)

    @workflow.update(name=PAUSE, description="Let what runs finish, and start nothing new")
    async def pause(self, pause: Pause) -> Receipt:
        """Return whether it took."""
        return await self._take(pause, "update")

    @pause.validator
    def _check_pause(self, pause: Pause) -> None:
        self._check_update(pause)

    @workflow.update(name=RESUME, description="Go on, with higher limits if some are added")
    async def resume(self, resumption: control.Resumption) -> Receipt:
        """Return whether it took."""
        return await self._take(resumption, "update")

    @resume.validator
    def _check_resume(self, resumption: control.Resumption) -> None:
        self._check_update(resumption)

    @workflow.update(name=CANCEL, description="End the run, and keep what it did")
    async def cancel(self, cancellation: Cancellation) -> Receipt:
        """Return whether it took."""
        return await self._take(cancellation, "update")

    @cancel.validator
    def _check_cancel(self, cancellation: Cancellation) -> None:
        self._check_update(cancellation)

    @workflow.signal(dynamic=True, description="approve, deny, settle, answer, say, pause … with a JSON object")
    async def on_signal(self, name: str, arguments: Sequence[RawValue]) -> None:
        """Take a plain signal; one that can't be understood is left to the projection to show."""
        wanted = control.read_signal(name, [argument.payload.data for argument in arguments])
        if isinstance(wanted, str):
            workflow.logger.warning("signal rejected: %s", wanted)
        else:
            await self._take(wanted, "signal")

    async def _take(self, wanted: control.Wanted, via: control.Via) -> Receipt:
        receipt = await self._check(wanted)
        wanted = control.about(wanted, receipt.call)
        if (
            approvals.takes(receipt)
            and isinstance(wanted, Decision)
            and wanted.approve
            and wanted.arguments is not None
        ):
            receipt = await self._judge(wanted)
        if approvals.takes(receipt):
            control.apply(self.state, wanted, via, workflow.now())
            self._act_on(wanted)
            self._changes += 1
        return receipt

    def _act_on(self, wanted: control.Wanted) -> None:
        """Do at once what does not wait for the loop."""
        generating = self.state.generating
        if isinstance(wanted, Saying) and generating and generating.interrupted and self._generation:
            self._generation.cancel()
            self._generation = None  # once: a second time could hit what waits for the outcome
        if isinstance(wanted, Pause | control.Resumption):
            self._pass_on(wanted)
        if isinstance(wanted, Cancellation):
            self._spawn(calls.cancel_run(wanted.reason or f"cancelled by {wanted.by}"))

    async def _check(self, wanted: control.Wanted) -> Receipt:
        receipt = control.check(self.state, wanted)
        if approvals.premature(receipt) or (receipt.reason == "not_paused" and not workflow.patched(NOT_KEPT)):
            with contextlib.suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda: control.check(self.state, wanted).accepted,
                    timeout=approvals.EARLY,
                    timeout_summary=approvals.EARLY_SUMMARY,
                )
            receipt = control.check(self.state, wanted)
        return receipt

    async def _judge(self, decision: Decision) -> Receipt:
        """Return the receipt of a decision with edited arguments: they may not fit, or it came too late."""
        call = self.state.find(decision.call)
        assert call is not None  # noqa: S101 - `check` found it
        rules = self.state.rules_of(call)
        tools = [tool for tool in rules.offered if tool.name == call.call.name]
        spec = rules.model_copy(update={"tools": tools, "instructions": "", "handoffs": [], "peers": {}})
        agent, arguments = rules.name, approvals.edited(self.state, call, decision) or {}
        request = JudgeInput(agent=agent, spec=spec, tool=call.call.name, arguments=arguments)
        try:
            judgement = await calls.judge(request, self._edit_id(call.position), self.request.heartbeat)
        except ActivityError as error:
            return Receipt(accepted=False, call=decision.call, reason="invalid_edit", message=explain(error))
        if judgement.problem:
            text = judgement.problem.message
            return Receipt(accepted=False, call=decision.call, reason="invalid_edit", message=text)
        return approvals.check(self.state, decision)

    def _edit_id(self, position: str) -> str:
        """Return an activity id of its own for each edit: two people may edit the same call at once."""
        if update := workflow.current_update_info():
            return edit_id(position, f"update {update.id}")
        self._edits += 1
        return edit_id(position, f"signal {self._edits}")
