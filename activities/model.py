"""The model call, and the judging of what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping
from datetime import timedelta

from temporalio import activity
from temporalio.client import Client, WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure.activities.conversations import Conversations, Fetch
from perdure.activities.heartbeats import count_failure, heartbeats
from perdure.activities.judging import Run, judge_edit, judge_reply
from perdure.activities.providers import open_model
from perdure.agents import Agent
from perdure.errors import ModelError
from perdure.messages import AssistantMessage
from perdure.models import Model, ModelReply, ModelRequest
from perdure.policies import AgentSpec
from perdure.reports import Judgement, ModelTurn
from perdure.results import short, words
from perdure.wire import JUDGE, MODEL, TRANSCRIPT, JudgeInput, ModelInput, Page

_LARGEST_REPLY = 1_500_000
"""Bytes: the engine refuses payloads over 2 MiB."""

_PASSED_ON = (
    asyncio.CancelledError,
    ApplicationError,  # judged already
    RPCError,  # the engine is away for a moment: as often as it takes
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)

_DEFECT_TRIES = 3

_GRACE = timedelta(seconds=1)
"""An adapter that keeps to the timeout by itself knows what the call had used; any other is stopped here."""

_QUERY_PATIENCE = timedelta(seconds=10)
"""A frozen worker may be asked first; the next try goes elsewhere."""


class ModelActivities:
    """Model calls of one worker.

    Args:
        client: To ask a workflow for messages that are not in memory.
        agents: The agents served, by name.
        conversations: What is in memory.
        run: Runs approval predicates.
    """

    def __init__(self, client: Client, agents: Mapping[str, Agent], conversations: Conversations, run: Run) -> None:
        self._client = client
        self._agents = agents
        self._conversations = conversations
        self._run = run
        self._models: dict[str, Model] = {}

    @activity.defn(name=MODEL)
    async def model(self, request: ModelInput) -> ModelTurn:
        """Return the model's reply, judged.

        Raises:
            ApplicationError: Of the `ModelError`'s kind; retried by the engine only where that may help.
        """
        async with heartbeats():
            try:
                turn = _recordable(await self._turn(request))
            except _PASSED_ON:
                raise
            except BaseException as error:  # noqa: BLE001 - SystemExit too: a provider's library does not end the worker
                activity.logger.warning("a model call failed by a defect", exc_info=error)
                raise _defect(error) from None  # its own words may be endless, or none: they are no cause to record
            self._conversations.remember(turn.message)
            return turn

    async def _turn(self, request: ModelInput) -> ModelTurn:
        agent, fetch = self._agents.get(request.agent), self._fetch()
        spec = await self._conversations.spec(request, agent.spec if agent else None, fetch)
        asked = ModelRequest(
            instructions=spec.instructions,
            messages=await self._conversations.messages(activity.info().workflow_id or "", request, fetch),
            tools=spec.tools,
            settings=spec.settings,
            answer_only=request.answer_only,
            first=request.step == 1,
        )
        try:
            reply = await self._generate(spec, asked)
        except ModelError as error:
            raise _failure(error, spec.settings.attempts) from None
        return await judge_reply(reply, spec, agent, self._run)

    async def _generate(self, spec: AgentSpec, asked: ModelRequest) -> ModelReply:
        key = f"{spec.model} {spec.settings.model_dump_json()}"
        if key not in self._models:
            self._models[key] = open_model(spec.model, spec.settings)
        limit = spec.settings.timeout
        try:
            async with asyncio.timeout((limit + min(limit / 2, _GRACE)).total_seconds()):
                return await self._models[key].generate(asked)
        except TimeoutError as error:
            text = f"{spec.model} did not answer within {limit.total_seconds():g} s."
            raise ModelError("timeout", text) from error

    def _fetch(self) -> Fetch:
        info = activity.info()
        handle = self._client.get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)

        async def fetch(start: int, length: int) -> Page:
            page: Page = await handle.query(
                TRANSCRIPT, args=[start, length], result_type=Page, rpc_timeout=_QUERY_PATIENCE
            )
            return page

        return fetch

    @activity.defn(name=JUDGE)
    async def judge(self, request: JudgeInput) -> Judgement:
        """Return whether edited arguments may be executed."""
        async with heartbeats():
            agent = self._agents.get(request.agent)
            return await judge_edit(request.arguments, request.tool, request.spec, agent, self._run)

    async def aclose(self) -> None:
        """Release the models' connections."""
        for model in self._models.values():
            with contextlib.suppress(Exception):
                await model.aclose()


def _recordable(turn: ModelTurn) -> ModelTurn:
    """Return `turn` exactly as the history will give it back; one that is too large counts as cut off."""
    converter = activity.payload_converter()
    payload = converter.to_payload(turn)
    if len(payload.data) > _LARGEST_REPLY:
        return ModelTurn(message=AssistantMessage(role="assistant"), finish="length", usage=turn.usage)
    recorded: ModelTurn = converter.from_payload(payload, ModelTurn)
    return recorded


def _failure(error: ModelError, attempts: int) -> ApplicationError:
    """Return what the engine is told: the provider's words, whether to try again, and when."""
    waits = error.kind == "rate_limited"  # a rate limit uses up no try, and neither does a lost worker
    failed = activity.info().attempt if waits else count_failure()
    again = error.transient and (waits or failed < attempts)
    delay = error.retry_after or _delay(failed)
    return ApplicationError(short(error.message), type=error.kind, non_retryable=not again, next_retry_delay=delay)


def _delay(failed: int) -> timedelta:
    """Return the time between two tries: 0.5 s, doubling up to 30 s, with jitter."""
    return timedelta(seconds=min(0.5 * 2 ** min(failed - 1, 10), 30) * random.uniform(0.8, 1.2))  # noqa: S311


def _defect(error: BaseException) -> ApplicationError:
    """Return what the engine is told of an error that nobody foresaw: three tries, then the run ends by name."""
    final = count_failure() >= _DEFECT_TRIES
    return ApplicationError(words(error), type="internal_error", non_retryable=final)
