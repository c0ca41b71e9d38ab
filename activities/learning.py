"""Remembering: a model picks out of a run what is worth it, and the store keeps that. Off every run's critical path."""

from __future__ import annotations

from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure import learning
from perdure.activities.edge import Answer, Edge
from perdure.activities.ends import until_ended
from perdure.activities.heartbeats import Pulse, Tried, heartbeats
from perdure.activities.ledger import requests_of
from perdure.activities.stores import Memories
from perdure.activities.stores.copied import Ledger
from perdure.budgets import Allowance
from perdure.concealing import book_of
from perdure.learning import MOST_NOTES, Grounds, Picked, Said
from perdure.memory import Circle, Fact, circle_of
from perdure.messages import AssistantMessage, Message, UserMessage
from perdure.models import ModelRequest
from perdure.policies import AgentSpec
from perdure.reports import LearnReport
from perdure.state import RunState
from perdure.telemetry import otel
from perdure.telemetry.projection import projected
from perdure.transcripts import Load, put_away
from perdure.wire import LEARN, REMEMBER, AfterRun, RememberInput

_ALLOWANCE = Allowance(output_tokens=8_000)
"""Of one answer: a few facts, and what a model may reason before."""

_LONGEST_QUERY = 4_000


class Learning:
    """What one worker remembers of runs.

    Args:
        client: To read what was said in a run.
        memories: Where facts are kept.
        ledger: Where it is noted what that has used.
        edge: By which models are asked.
        load: Reads what was put away.
    """

    def __init__(self, client: Client, memories: Memories, ledger: Ledger, edge: Edge, load: Load) -> None:
        self._client = client
        self._memories = memories
        self._ledger = ledger
        self._edge = edge
        self._load = load

    @activity.defn(name=LEARN)
    async def learn(self, request: AfterRun) -> LearnReport:
        """Return what a model finds worth remembering of a run that has ended, as far as that is believed.

        Raises:
            ApplicationError: As a model call does.
            ConnectionFailed: If the store is down.
        """
        async with heartbeats() as pulse:
            state = await self._state(request)
            circle = circle_of(state.spec, state.user, state.tenant) if state and learning.writer(state) else None
            if state is None or circle is None:
                return LearnReport()
            here = circle.model_copy(update={"namespace": activity.info().namespace})
            try:
                report = await self._learn(state, here, pulse)
            finally:
                await self._note(state, here, pulse.tried)
            if otel.current() is not None:
                from perdure.activities.tracing import tell_of_memory

                tell_of_memory(state, here.namespace, pulse.tried.spent)
            return report

    async def _note(self, state: RunState, circle: Circle, tried: Tried) -> None:
        """Note what was used so far; a store that is down has the activity tried again."""
        at = activity.info().scheduled_time
        common = {"namespace": circle.namespace, "run_id": state.run_id, "position": "memory", "at": at}
        await self._ledger.keep_usage(requests_of(state, "memory", tried.spent, common))

    @activity.defn(name=REMEMBER)
    async def remember(self, request: RememberInput) -> list[str]:
        """Keep facts, each in place of those that it supersedes; return their ids. Safe to repeat.

        Raises:
            ConnectionFailed: If the store is down.
        """
        facts = [learning.fact_of(one, request.circle, request.run_id, request.at) for one in request.facts]
        for fact, learnt in zip(facts, request.facts, strict=True):
            await self._memories.remember([fact], learnt.supersedes)
        return [fact.id for fact in facts]

    async def _state(self, request: AfterRun) -> RunState | None:
        """Return how a run ended; None where the engine has forgotten it."""
        try:
            recorded = await until_ended(self._client, request.run_id, request.execution)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise
        return (await projected(request.run_id, recorded.events, self._client.data_converter)).state

    async def _learn(self, state: RunState, circle: Circle, pulse: Pulse) -> LearnReport:
        try:
            earlier = await put_away(state.before, self._load, state.start)
        except LookupError as error:
            return LearnReport(problem=str(error))
        book = book_of(state.spec)
        entries = book.read([*earlier, *state.messages])
        said = learning.talk(entries, state.spec)
        kept, acted = await self._notes(circle, said), learning.acted(state)
        notes = [fact.model_copy(update={"text": book.text(fact.text)}) for fact in kept]
        talk: list[Message] = [UserMessage(role="user", content=learning.prompt(said, notes, acted=acted))]
        answer = await self._ask(state.spec, circle, talk, pulse)
        found = learning.picked(answer.reply.text)
        if not isinstance(found, Picked):
            again = UserMessage(role="user", content=learning.ask_again(found))
            talk += [AssistantMessage(role="assistant", text=answer.reply.text), again]
            answer = await self._ask(state.spec, circle, talk, pulse)
            found = learning.picked(answer.reply.text)
        usage = answer.wasted + answer.reply.usage  # what was paid before counts as wasted
        report = LearnReport(circle=circle, usage=usage, cost_usd=answer.cost_usd, model=answer.model)
        if not isinstance(found, Picked):
            return report.model_copy(update={"problem": f"The model gave nothing that can be used: {found}."})
        grounds = Grounds(said, learning.foreign(entries, state.spec), acted)
        facts, dropped = learning.believed(found.facts, grounds, notes, circle)
        return report.model_copy(update={"facts": facts, "dropped": dropped})

    async def _ask(self, spec: AgentSpec, circle: Circle, talk: list[Message], pulse: Pulse) -> Answer:
        asked = ModelRequest(
            instructions=learning.instructions(circle),
            messages=talk,
            tools=[],
            settings=learning.plainly(spec.settings),
        )
        return await self._edge.answer(spec.writers, asked, _ALLOWANCE, pulse)

    async def _notes(self, circle: Circle, said: list[Said]) -> list[Fact]:
        """Return what is remembered already: what fits what was said, then the newest."""
        query = " ".join(one.text for one in reversed(said))[:_LONGEST_QUERY]
        fitting = await self._memories.recall(circle, query, MOST_NOTES // 2) if query else []
        newest = await self._memories.recall(circle, "", MOST_NOTES)
        return list({fact.id: fact for fact in [*fitting, *newest]}.values())[:MOST_NOTES]
