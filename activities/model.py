"""The model call, and the judging of what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from temporalio import activity
from temporalio.client import Client, WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure import variables
from perdure.activities.conversations import Conversations, asking
from perdure.activities.edge import Edge
from perdure.activities.heartbeats import Pulse, Tried, heartbeats
from perdure.activities.judging import Run, judge_edit, judge_reply
from perdure.agents import Agent
from perdure.context import handles, offered_tools, visible
from perdure.messages import AssistantMessage
from perdure.models import ModelRequest
from perdure.reports import Judgement, ModelTurn
from perdure.results import words
from perdure.wire import JUDGE, MODEL, JudgeInput, ModelInput

_LARGEST_REPLY = 1_500_000
"""Bytes: the engine refuses payloads over 2 MiB."""

_PASSED_ON = (
    ApplicationError,  # judged already
    RPCError,  # the engine is away for a moment: as often as it takes
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)

_DEFECT_TRIES = 3


class ModelActivities:
    """Model calls of one worker.

    Args:
        client: To ask a workflow for messages that are not in memory.
        agents: The agents served, by name.
        conversations: What is in memory.
        run: Runs approval predicates.
        edge: What all runs of the worker share.
    """

    def __init__(
        self, client: Client, agents: Mapping[str, Agent], conversations: Conversations, run: Run, edge: Edge
    ) -> None:
        self._client = client
        self._agents = agents
        self._conversations = conversations
        self._run = run
        self._edge = edge

    @activity.defn(name=MODEL)
    async def model(self, request: ModelInput) -> ModelTurn:
        """Return the model's reply, judged.

        Raises:
            ApplicationError: Of the `ModelError`'s kind; retried by the engine only where that may help. Or
                `budget` or `price_unknown`: the run can't afford the call.
        """
        async with heartbeats() as pulse:
            try:
                turn = _recordable(await self._turn(request, pulse))
            except asyncio.CancelledError:
                if not _is_wanted_back():
                    raise
                return _broken_off(pulse.tried)
            except _PASSED_ON:
                raise
            except BaseException as error:  # noqa: BLE001 - SystemExit too: a provider's library does not end the worker
                activity.logger.warning("a model call failed by a defect", exc_info=error)
                raise _defect(error, pulse) from None  # its own words may be endless, or none: no cause to record
            self._conversations.remember(turn.message)
            return turn

    async def _turn(self, request: ModelInput, pulse: Pulse) -> ModelTurn:
        agent, fetch = self._agents.get(request.agent), asking(self._client)
        spec = await self._conversations.spec(request, agent.spec if agent else None, fetch)
        messages = visible(await self._conversations.messages(activity.info().workflow_id or "", request, fetch))
        asked = ModelRequest(
            instructions=spec.instructions,
            messages=[*messages, *variables.note(request.variables)],
            tools=offered_tools(spec, messages),
            settings=spec.settings,
            answer_only=request.answer_only,
            first=request.step == 1,
        )
        answer = await self._edge.answer(spec.models, asked, request.allowance, pulse)
        turn = await judge_reply(answer.reply, answer.model, spec, agent, self._run, handles(messages))
        spent = {"wasted": answer.wasted, "cost_usd": answer.cost_usd, "fallback": answer.fallback}
        return turn.model_copy(update=spent)

    @activity.defn(name=JUDGE)
    async def judge(self, request: JudgeInput) -> Judgement:
        """Return whether edited arguments may be executed."""
        async with heartbeats():
            agent = self._agents.get(request.agent)
            return await judge_edit(request.arguments, request.tool, request.spec, agent, self._run)


def _recordable(turn: ModelTurn) -> ModelTurn:
    """Return `turn` exactly as the history will give it back; one that is too large counts as cut off."""
    converter = activity.payload_converter()
    payload = converter.to_payload(turn)
    if len(payload.data) > _LARGEST_REPLY:
        return turn.model_copy(update={"message": AssistantMessage(role="assistant"), "finish": "length"})
    recorded: ModelTurn = converter.from_payload(payload, ModelTurn)
    return recorded


def _is_wanted_back() -> bool:
    """Return whether the run has broken the call off; else the worker stops, and it is made again elsewhere."""
    details = activity.cancellation_details()
    return details is not None and details.cancel_requested


def _broken_off(tried: Tried) -> ModelTurn:
    """Return what a call has cost that was broken off."""
    message = AssistantMessage(role="assistant")
    return ModelTurn(message=message, finish="interrupted", usage=tried.wasted, cost_usd=tried.cost_usd)


def _defect(error: BaseException, pulse: Pulse) -> ApplicationError:
    """Return what the engine is told of an error that nobody foresaw: three tries, then the run ends by name."""
    tried = pulse.tried
    pulse.leave(tried.model_copy(update={"failed": tried.failed + 1, "sent": 0}))
    final = tried.failed + 1 >= _DEFECT_TRIES
    return ApplicationError(words(error), tried.wasted, type="internal_error", non_retryable=final)
