"""A team: agents that tell each other what has happened, as typed events on topics.

What the user says is an event on the topic `request`. Each member is told the events of the topics that it hears, one
at a time, each in a run of its own; what it publishes there goes on to those who hear that. When nothing is left to be
told, the team is done. Where everything stands follows from the transcript alone: see `perdure.strategies.post`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ValidationError

from perdure.concealing import deciding_tool
from perdure.errors import AgentError
from perdure.messages import JSON, canonical_json
from perdure.policies import AgentSpec, StrategySpec, ToolSpec
from perdure.schemas import sentence, type_schema
from perdure.strategies import Answer, Ask, Directed, Do, Fail, Move, Situation, refuse_handoffs
from perdure.strategies.post import REQUEST, Event, Post, Rules, Standing, sorted_out

if TYPE_CHECKING:
    from perdure.agents import Agent
    from perdure.tools import Tool

NO_ANSWER = "no_answer"
"""The type of a run's failure whose team has become quiet without an answer."""

_TOPIC = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,40}")
_NOTES = 10
_LONGEST_NOTE = 500
"""Characters of what a member has answered before that it is told again, of so many events."""


TEAM = "team"


def standing_of(spec: AgentSpec, progress: Mapping[str, JSON]) -> Standing | None:
    """Return where the team stands that leads a run; None where none does."""
    if spec.strategy is None or spec.strategy.name != TEAM:
        return None
    return Standing.model_validate(dict(progress))


@dataclass(frozen=True)
class Member:
    """An agent of a team.

    Args:
        agent: Its rules hold for what it does: approvals, limits, model.
        hears: Topics; `request` is what the user says.
        publishes: Topics on which it may publish: its model gets a tool `publish_TOPIC` for each.
        approval: `"always"`: a person is asked before it is told an event, and may change what it is told.
    """

    agent: Agent
    hears: Sequence[str]
    publishes: Sequence[str] = ()
    approval: Literal["never", "always"] = "never"

    @property
    def name(self) -> str:
        """The agent's."""
        return self.agent.name


@dataclass(frozen=True)
class Team:
    """Leads runs by events: `Agent(strategy=Team(topics, members))`.

    Args:
        topics: What is told on each: a pydantic model.
        members: In the order in which they act where several have something to do.
        answer: The member whose last answer is the run's, or the topic whose last event is. Default: the model of the
            agent itself sums up.
        hops: An event that follows from the user's words by way of more events than that is not told. Default 8.
        deliveries: So often members are told something, all together, for one thing that the user says. Default 50.

    Raises:
        AgentError: If a name is unknown, given twice or never used.
    """

    topics: Mapping[str, type[BaseModel]]
    members: Sequence[Member]
    answer: str = ""
    hops: int = 8
    deliveries: int = 50
    name: str = field(default=TEAM, init=False)

    def __post_init__(self) -> None:
        """Check what only the whole team can tell."""
        for topic in self.topics:
            if topic == REQUEST or not _TOPIC.fullmatch(topic):
                raise AgentError(f"A team's topic is made of letters, digits and '_', and not {REQUEST!r}: {topic!r}.")
        names = [member.name for member in self.members]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise AgentError(f"A team has two members named {twice!r}; rename one.")
        if self.hops < 1 or self.deliveries < 1:
            raise AgentError("A team's hops and deliveries have to be at least 1.")
        self._check_topics()

    def _check_topics(self) -> None:
        heard = {topic for member in self.members for topic in member.hears}
        told = {topic for member in self.members for topic in member.publishes}
        for member in self.members:
            strangers = {*member.hears, *member.publishes} - {REQUEST, *self.topics}
            if REQUEST in member.publishes:
                raise AgentError(f"Member {member.name!r} can't publish on {REQUEST!r}: that is the user's.")
            if strangers:
                raise AgentError(f"Member {member.name!r}: the team has no topic {min(strangers)!r}.")
        if REQUEST not in heard:
            raise AgentError(f"Nobody of the team hears {REQUEST!r}, so nothing would ever happen.")
        if silent := sorted(heard - told - {REQUEST}):
            raise AgentError(f"A member hears {silent[0]!r}, and nobody publishes there.")
        if self.answer not in ("", *self.topics, *(member.name for member in self.members)):
            raise AgentError(f"A team's answer is that of a member or a topic; {self.answer!r} is neither.")

    # -- as data -----------------------------------------------------------------------------------------------

    def spec(self) -> StrategySpec:
        """Return the team as data."""
        members = [
            {"name": one.name, "hears": list(one.hears), "publishes": list(one.publishes)} for one in self.members
        ]
        options = {"members": members, "answer": self.answer, "hops": self.hops, "deliveries": self.deliveries}
        return StrategySpec(name=self.name, options=options, asks=not self.answer)

    def tools(self, agent: Agent) -> Sequence[Tool]:
        """Return the members, as tools.

        Raises:
            AgentError: If the agent has tools or hand-offs of its own: only members act.
        """
        refuse_handoffs(agent, self.name, "make the other agent a Member")
        if agent.tools:
            raise AgentError(f"Agent {agent.name!r}: in a team its members have the tools; it has none itself.")
        return [self._as_tool(member) for member in self.members]

    def _as_tool(self, member: Member) -> Tool:
        made = member.agent.as_tool(f"Is told of {', '.join(member.hears)}.", approval=member.approval, parallel=True)
        below = made.spec.agent
        assert below is not None  # noqa: S101 - what an agent makes as a tool has it
        own = {tool.name for tool in below.spec.tools}
        publishing = [_publish(topic, self.topics[topic]) for topic in member.publishes]
        publishing = [deciding_tool(tool) for tool in publishing] if member.agent.conceal else publishing
        if same := next((tool.name for tool in publishing if tool.name in own), None):
            raise AgentError(f"Member {member.name!r} has a tool {same!r} of its own, by which it would publish.")
        told = {"instructions": f"{below.spec.instructions}\n\n{_HOW}".strip()}
        spec = below.spec.model_copy(update={**told, "tools": [*below.spec.tools, *publishing]})
        changed = {"agent": below.model_copy(update={"spec": spec}), "parameters": _DELIVERY}
        return replace(made, spec=made.spec.model_copy(update=changed))

    # -- a turn ------------------------------------------------------------------------------------------------

    def move(self, seen: Situation) -> Move:
        """Return whom is told what now; where nothing is left, how the run ends."""
        rules = Rules.model_validate(seen.options)
        since = Standing.model_validate(seen.progress).since if seen.progress else seen.asked_at
        post = sorted_out(rules, seen.entries, self._unfit, since)
        due = post.due(seen.spec.limits.calls_per_turn)
        kept = post.standing().model_dump()
        if due and not seen.answer_only:
            calls = [Directed(name=name, arguments=_delivery(post, name, event)) for name, event in due]
            told = ", ".join(f"{event.topic} {event.number} to {name}" for name, event in due)
            return Do(calls, text=f"{told}{_news(post)}", progress=kept)
        if not rules.answer:
            note = f"The team is done.{_letters(post)}"
            return Ask(instructions=_SUM_UP, tools=[], note=note, answer_only=True, progress=kept)
        answer = post.answer(rules)
        if answer is None and seen.answer_only:
            return Answer(f"The team has no answer of {rules.answer} yet.{_letters(post)}", progress=kept)
        if answer is None:
            reason = f"The team has become quiet without an answer of {rules.answer}.{_letters(post)}"
            return Fail(reason, kind=NO_ANSWER, progress=kept)
        return Answer(answer, progress=kept)

    def _unfit(self, topic: str, body: Mapping[str, JSON]) -> str:
        """Return why an event does not fit its topic; "" where it does, or the topic is not deployed any more."""
        model = self.topics.get(topic)
        try:
            if model:
                model.model_validate(dict(body))
        except ValidationError as error:
            return sentence(error)
        return ""


_HOW = (
    "You are a member of a team. You are told one event at a time. Do your part of it, and publish what the others "
    "have to know with the publish tools, if you have any. Then end with one short sentence about what you did."
)
_SUM_UP = (
    "You have a team, which has done its work: each call was one of its members, told of an event. Answer the user."
)
_DELIVERY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "event": {"type": "integer", "description": "Its number."},
        "task": {"type": "string", "minLength": 1, "description": "What the member is told."},
    },
    "required": ["event", "task"],
    "additionalProperties": False,
}


def _publish(topic: str, model: type[BaseModel]) -> ToolSpec:
    """Return the tool by which a member publishes on a topic."""
    try:
        schema = type_schema(model)
    except Exception as error:
        raise AgentError(f"A team's topic {topic!r} can't be told as JSON: {sentence(error)}") from error
    described = f"Tell the team on {topic}. {schema.pop('description', '')}".strip()
    return ToolSpec(
        name=f"publish_{topic}",
        description=described,
        parameters=schema,
        effect="read",
        approval="never",
        local=True,
        publishes=topic,
    )


def _delivery(post: Post, name: str, event: Event) -> dict[str, JSON]:
    """Return what a member is told: the event, and its own notes on what it was told before."""
    notes = post.notes.get(name, [])[-_NOTES:]
    before = [f"- {one.topic} {one.number}: {text[:_LONGEST_NOTE]}" for one, text in notes]
    head = f"Event {event.number} on {event.topic}, from {event.sender}:\n{canonical_json(event.body)}"
    kept = "\n\nWhat you did about earlier events:\n" + "\n".join(before) if before else ""
    return {"event": event.number, "task": head + kept}


def _news(post: Post) -> str:
    fresh = [letter for letter in post.dead if letter.fresh]
    return "".join(f"; dead letter: {letter.text}" for letter in fresh)


def _letters(post: Post) -> str:
    return "".join(f" Dead letter: {letter.text}." for letter in post.dead)
