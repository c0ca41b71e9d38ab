"""What is remembered, looked up: before a run, and by a tool. Nobody waits for it for long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import TypeVar

from temporalio import activity

from perdure.activities.conversations import Conversations
from perdure.activities.stores import Memories
from perdure.agents import Agent
from perdure.context import visible
from perdure.errors import ConnectionFailed
from perdure.memory import Circle, Fact, choose, found_notes, notes_message, told
from perdure.messages import ToolResult
from perdure.reports import RecallReport, ToolReport
from perdure.results import report_of_value, short, words
from perdure.transcripts import Load, put_away
from perdure.wire import RECALL, RecallInput, ToolInput

T = TypeVar("T")

PATIENCE = 3.0
"""Seconds that a look-up gets."""

MOST_FACTS = 2_000
"""Facts among which an index searches, the newest."""

MOST_FOUND = 10
"""Facts that a model is given at once when it searches."""


class Unavailable(Exception):
    """What is remembered can't be looked up now; the text says why."""


class Recollection:
    """The look-ups of one worker.

    Args:
        memories: Where facts are.
        agents: The agents served, by name: some have an index of their own.
        conversations: Told of the message that says what is remembered.
        load: Reads what was put away.
    """

    def __init__(
        self, memories: Memories, agents: Mapping[str, Agent], conversations: Conversations, load: Load
    ) -> None:
        self._memories = memories
        self._agents = agents
        self._conversations = conversations
        self._load = load

    @activity.defn(name=RECALL)
    async def recall(self, request: RecallInput) -> RecallReport:
        """Return what the model is told before it is asked for the first time, or why nothing could be looked up."""
        try:
            facts = await _quickly(self._fitting(request))
        except Unavailable as error:
            activity.logger.warning("a run goes on without what is remembered: %s", error)
            return RecallReport(problem=str(error))
        if not facts:
            return RecallReport()
        message = notes_message(facts)
        self._conversations.remember(message)
        return RecallReport(message=message)

    async def search(self, call: ToolInput, name: str) -> ToolReport:
        """Return the result of a call of `search_memory`."""
        assert call.circle is not None  # noqa: S101 - the workflow names it
        query = str(call.arguments.get("query", ""))
        try:
            facts = await _quickly(self._found(_here(call.circle), query, MOST_FOUND))
        except Unavailable as error:
            result = ToolResult(
                call_id=call.call_id,
                name=name,
                status="error",
                error_type="unavailable",
                message=str(error),
                suggestion="Go on without the notes.",
                execution_order=call.order,
            )
            return ToolReport(result=result)
        return report_of_value(found_notes(facts), call.call_id, name, call.result_limit, call.order)

    async def _fitting(self, request: RecallInput) -> list[Fact]:
        circle, known = _here(request.circle), set(request.told)
        if request.before:
            known |= told(visible(await put_away(request.before, self._load)))
        most = request.limit + len(known)
        fitting = await self._found(circle, request.query, most) if request.query else []
        newest = await self._memories.recall(circle, "", most)
        return choose(fitting, newest, known, request.limit)

    async def _found(self, circle: Circle, query: str, limit: int) -> list[Fact]:
        """Return facts of the circle that fit: by the agent's index where it has one, and that works."""
        live = self._agents.get(circle.agent)
        if live is None or live.index is None or not query:
            return await self._memories.recall(circle, query, limit)
        facts = await self._memories.recall(circle, "", MOST_FACTS)
        try:
            found = await live.index.search(query, facts, limit)
        except Exception as error:  # noqa: BLE001 - application code
            activity.logger.warning("the index of %s's memory failed: %s", circle.agent, words(error))
            return await self._memories.recall(circle, query, limit)
        known = {fact.id: fact for fact in facts}  # whatever an index makes up is told to nobody
        return [known[fact.id] for fact in found if fact.id in known][:limit]


async def _quickly(work: Awaitable[T]) -> T:
    """Return what `work` returns.

    Raises:
        Unavailable: If that takes too long, or the store is down.
    """
    try:
        async with asyncio.timeout(PATIENCE):
            return await work
    except TimeoutError:
        raise Unavailable(f"What is remembered could not be looked up within {PATIENCE:g} s.") from None
    except (ConnectionFailed, LookupError) as error:
        raise Unavailable(short(error)) from error


def _here(circle: Circle) -> Circle:
    return circle.model_copy(update={"namespace": activity.info().namespace})
