"""The model call, and the judging of what comes back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from datetime import timedelta

from temporalio import activity
from temporalio.client import Client, WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure.activities.conversations import Conversations, Fetch
from perdure.activities.heartbeats import heartbeats
from perdure.activities.judging import Run, judge_edit, judge_reply
from perdure.activities.providers import open_model
from perdure.agents import Agent
from perdure.errors import ModelError
from perdure.messages import AssistantMessage
from perdure.models import Model, ModelReply, ModelRequest
from perdure.policies import AgentSpec
from perdure.state import Judgement, ModelTurn
from perdure.wire import JUDGE, MODEL, TRANSCRIPT, JudgeInput, ModelInput, Page

_LARGEST_REPLY = 1_500_000
"""Bytes: the engine refuses payloads over 2 MiB."""

_DEFECT_TRIES = 3
_LONGEST_MESSAGE = 2_000


class ModelActivities:
    """Model calls of one worker.

    Args:
        client: To ask a workflow for messages that are not in memory.
        agents: The agents served, by name.
        conversations: What is in memory.
        run: Runs approval predicates.
    """

    def __init__(
        self, client: Client, agents: Mapping[str, Agent], conversations: Conversations, run: Run
    ) -> None:
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
                turn = await self._turn(request)
            except (ApplicationError, RPCError, WorkflowQueryFailedError, WorkflowQueryRejectedError):
                raise  # judged already, or the engine is away for a moment: as often as it takes
            except Exception as error:
                raise _defect(error) from error
            if len(turn.model_dump_json()) > _LARGEST_REPLY:
                turn = ModelTurn(message=AssistantMessage(role="assistant"), finish="length", usage=turn.usage)
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
            raise _failure(error, spec.settings.attempts) from error
        return await judge_reply(reply, spec, agent, self._run)

    async def _generate(self, spec: AgentSpec, asked: ModelRequest) -> ModelReply:
        key = f"{spec.model} {spec.settings.model_dump_json()}"
        if key not in self._models:
            self._models[key] = open_model(spec.model, spec.settings)
        try:
            async with asyncio.timeout(spec.settings.timeout.total_seconds()):
                return await self._models[key].generate(asked)
        except TimeoutError as error:
            text = f"{spec.model} did not answer within {spec.settings.timeout.total_seconds():g} s."
            raise ModelError("timeout", text) from error

    def _fetch(self) -> Fetch:
        info = activity.info()
        handle = self._client.get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)

        async def fetch(start: int, length: int) -> Page:
            page: Page = await handle.query(
                TRANSCRIPT, args=[start, length], result_type=Page, rpc_timeout=timedelta(seconds=30)
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


def _failure(error: ModelError, attempts: int) -> ApplicationError:
    """Return what the engine is told: the provider's words, whether to try again, and when."""
    waits = error.kind == "rate_limited"  # a rate limit uses up no try
    again = error.transient and (waits or activity.info().attempt < attempts)
    words = error.message[:_LONGEST_MESSAGE]
    return ApplicationError(words, type=error.kind, non_retryable=not again, next_retry_delay=error.retry_after)


def _defect(error: Exception) -> ApplicationError:
    """Return what the engine is told of an error that nobody foresaw: three tries, then the run ends by name."""
    text = f"{type(error).__name__}: {error}"[:_LONGEST_MESSAGE]
    return ApplicationError(text, type="internal_error", non_retryable=activity.info().attempt >= _DEFECT_TRIES)
