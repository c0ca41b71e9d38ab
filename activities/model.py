"""The model call, and the judging of what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from temporalio import activity
from temporalio.client import Client, WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure import turns, variables
from perdure.activities import leading, windows
from perdure.activities.acquaintance import Acquaintance
from perdure.activities.attempts import costs_of
from perdure.activities.conversations import Conversations, asking
from perdure.activities.edge import Edge
from perdure.activities.heartbeats import Pulse, Tried, heartbeats
from perdure.activities.hooking import Hooks
from perdure.activities.judging import Run, judge_edit, judge_reply
from perdure.activities.live import Voice
from perdure.agents import Agent
from perdure.concealing import HINT, Book, offered, offered_output
from perdure.context import ContextStrategy, handles, offered_tools
from perdure.messages import AssistantMessage, ContextHealth, Entry, Message
from perdure.models import ModelRequest
from perdure.policies import AgentSpec
from perdure.reports import Judgement, ModelTurn
from perdure.results import words
from perdure.strategies import Answer, Ask, Do, Fail
from perdure.telemetry.broadcast import Broadcast
from perdure.wire import JUDGE, MODEL, JudgeInput, ModelInput

T = TypeVar("T")

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
        acquaintance: Learns what is private.
        broadcast: Where those who watch are told what a model writes; None: nowhere.
        hooks: Called before and after.
    """

    def __init__(
        self,
        client: Client,
        agents: Mapping[str, Agent],
        conversations: Conversations,
        run: Run,
        edge: Edge,
        acquaintance: Acquaintance,
        *,
        broadcast: Broadcast | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self._hooks = hooks
        self._client = client
        self._agents = agents
        self._conversations = conversations
        self._run = run
        self._edge = edge
        self._broadcast = broadcast
        self._acquaintance = acquaintance

    @activity.defn(name=MODEL)
    async def model(self, request: ModelInput) -> ModelTurn:
        """Return the model's reply, judged.

        Raises:
            ApplicationError: Of the `ModelError`'s kind; retried by the engine only where that may help. Or
                `budget` or `price_unknown`: the run can't afford the call.
        """
        async with heartbeats() as pulse:
            turn = await guarded(pulse, lambda: self._hooked(request, pulse), _broken_off)
            self.remember(turn.message)
            return turn

    async def _hooked(self, request: ModelInput, pulse: Pulse) -> ModelTurn:
        if self._hooks and request.step == 1:
            await self._hooks.starting(request.agent)
        turn = await self._turn(request, pulse)
        if not self._hooks or not self._hooks.at("after_model", request.agent) or turn.finish == "full":
            return turn
        return _recordable(await self._hooks.after_model(request.agent, request.step, turn))

    async def _turn(self, request: ModelInput, pulse: Pulse) -> ModelTurn:
        """Return the next turn: what the strategy that leads the run decides, or what the model replies."""
        talk, agent = await self.conversation(request), self._agents.get(request.agent)
        made = await leading.move(talk.spec, agent, talk.said, request, self._run)
        match made:
            case Do() | Answer() | Fail():
                given = (talk.spec, agent, self._run, talk.book)
                return _recordable(await leading.directed(made, request.step, *given))
            case Ask():
                talk = replace(talk, spec=leading.narrowed(talk.spec, made))
                turn = await self._reply(talk, request, pulse, made)
                return turn.model_copy(update={"progress": made.progress, "wrote": made.variables})
            case _:
                return await self._reply(talk, request, pulse, Ask())

    async def _reply(self, talk: Talk, request: ModelInput, pulse: Pulse, wanted: Ask) -> ModelTurn:
        spec, entries = talk.spec, talk.entries
        messages = windows.shown(talk.strategy, entries)
        asked = leading.request_with(wanted, request_of(talk, request, messages))
        if self._hooks and (added := await self._hooks.before_model(request.agent, request.step, asked.messages)):
            asked = leading.request_with(Ask(note=talk.book.text(added)), asked)
        health = ContextHealth(
            tokens=self._edge.tokens(spec.model, asked), window=windows.window_of(spec, request.window)
        )
        untried = pulse.tried == Tried()  # what is being tried fitted when it was tried first
        if request.compacts and untried and health.tokens > windows.room_of(spec, health.window):
            return ModelTurn(message=AssistantMessage(role="assistant"), finish="full", context=health)
        voice = Voice(self._broadcast, request.step) if self._broadcast else None
        answer = await self._edge.answer(spec.models, asked, request.allowance, pulse, voice)
        if voice:
            voice.end()
        agent = self._agents.get(request.agent)
        turn = await judge_reply(answer.reply, answer.model, spec, agent, self._run, handles(messages), talk.book)
        counted = answer.reply.usage.input_tokens or health.tokens
        spent = {
            "wasted": answer.wasted,
            "cost_usd": answer.cost_usd,
            "model": answer.model if answer.model != spec.model else "",
            "fallback": answer.fallback,
            "spent": answer.spent,
            "context": health.model_copy(update={"tokens": counted}),
        }
        return _recordable(turn.model_copy(update=spent))

    async def conversation(self, request: ModelInput) -> Talk:
        """Return the conversation that `request` names, as the model is shown it."""
        agent, fetch = self._agents.get(request.agent), asking(self._client)
        spec = await self._conversations.spec(request, agent.spec if agent else None, fetch)
        entries = await self._conversations.messages(activity.info().workflow_id or "", request, fetch)
        self._acquaintance.with_talk(entries, spec, request.spec)
        book = Book(spec, request.spec)
        return Talk(spec, entries, book.read(entries), windows.strategy_of(spec, agent), book)

    def remember(self, entry: Entry) -> None:
        """Keep an entry that an activity has just made: the next call will want it."""
        self._conversations.remember(entry)

    @activity.defn(name=JUDGE)
    async def judge(self, request: JudgeInput) -> Judgement:
        """Return whether edited arguments may be executed."""
        async with heartbeats():
            agent = self._agents.get(request.agent)
            return await judge_edit(request.arguments, request.tool, request.spec, agent, self._run)


@dataclass(frozen=True)
class Talk:
    """A conversation.

    Attributes:
        said: As it is.
        entries: As its model is shown it: what is private in it by handles, which the book knows.
    """

    spec: AgentSpec
    said: list[Entry]
    entries: list[Entry]
    strategy: ContextStrategy
    book: Book


def request_of(talk: Talk, request: ModelInput, messages: Sequence[Message]) -> ModelRequest:
    """Return the request that shows `messages` of a conversation."""
    spec, book = talk.spec, talk.book
    tools = offered_tools(spec, messages)
    return ModelRequest(
        instructions=f"{spec.instructions}\n\n{HINT}".lstrip() if book.is_open else spec.instructions,
        messages=[*messages, *variables.note(book.note(request.variables))],
        tools=[offered(tool) for tool in tools] if book.is_open else tools,
        settings=spec.settings,
        answer_only=request.answer_only,
        first=request.step == 1,
        hidden=windows.hidden(talk.entries),
        mending=turns.is_mending(messages),
        output=offered_output(spec.output) if book.is_open and spec.output else spec.output,
    )


async def guarded(pulse: Pulse, work: Callable[[], Awaitable[T]], broken_off: Callable[[Tried], T]) -> T:
    """Return what `work` gives, or what `broken_off` makes of what it has cost where the run has broken it off.

    Raises:
        ApplicationError: For whatever nobody foresaw, too; see `_defect`.
    """
    try:
        return await work()
    except asyncio.CancelledError:
        if not _is_wanted_back():
            pulse.leave(pulse.tried)
            raise
        return broken_off(pulse.tried)
    except _PASSED_ON as error:
        if not getattr(error, "non_retryable", False):
            pulse.note_failure()
        raise
    except BaseException as error:  # noqa: BLE001 - SystemExit too: a provider's library does not end the worker
        activity.logger.warning("a model call failed by a defect", exc_info=error)
        raise _defect(error, pulse) from None  # its own words may be endless, or none: no cause to record


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
    used = {"usage": tried.wasted, "cost_usd": tried.cost_usd, "spent": tried.spent}
    return ModelTurn.model_validate({"message": message, "finish": "interrupted", **used})


def _defect(error: BaseException, pulse: Pulse) -> ApplicationError:
    """Return what the engine is told of an error that nobody foresaw: three tries, then the run ends by name."""
    tried = pulse.tried
    pulse.leave(tried.model_copy(update={"failed": tried.failed + 1, "sent": 0}))
    final = tried.failed + 1 >= _DEFECT_TRIES
    return ApplicationError(words(error), *costs_of(tried), type="internal_error", non_retryable=final)
