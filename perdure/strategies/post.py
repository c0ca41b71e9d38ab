"""The events of a team: who has yet to be told of which, and which could not be told. Folded from the transcript. Pure.

An event that is published twice by one member, word for word, is one. Members hear each other's events in the order in
which they were published: those of one sender never overtake each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from perdure.messages import (
    JSON,
    AssistantMessage,
    Content,
    Data,
    Entry,
    ToolMessage,
    ToolResult,
    UserMessage,
    canonical_json,
    content_hash,
)
from perdure.results import short

REQUEST = "request"
"""The topic of what the user says."""

USER = "the user"
"""Who publishes there."""

Unfit = Callable[[str, Mapping[str, JSON]], str]
"""Says why an event does not fit its topic; "" where it does."""


class Standing(Data):
    """Where a team stands, for people.

    Attributes:
        events: So many were published.
        told: How often members were told something since the user has spoken.
        waiting: How many events a member has yet to be told of.
        dead_letters: The last ones, in words.
        since: Entries of the transcript before what the user wants of the run.
    """

    events: int = 0
    told: int = 0
    waiting: dict[str, int] = Field(default_factory=dict[str, int])
    dead_letters: list[str] = Field(default_factory=list[str])
    since: int = 0


class Hearer(Data):
    """A member, as a run's rules have it."""

    name: str
    hears: list[str] = Field(default_factory=list[str])


class Rules(Data):
    """A team, as a run's rules have it; see `perdure.strategies.team.Team`."""

    members: list[Hearer]
    answer: str = ""
    hops: int = 8
    deliveries: int = 50


@dataclass(frozen=True)
class Event:
    """Something that a member, or the user, has told.

    Attributes:
        number: From 1, in the order in which they were published.
        hop: Events between it and the user's words.
    """

    number: int
    topic: str
    body: Mapping[str, JSON]
    sender: str
    hop: int


@dataclass(frozen=True)
class DeadLetter:
    """An event that nobody could handle, or one member could not.

    Attributes:
        why: In words.
        to: The member; "" where it was for nobody.
        fresh: It has become one since the last move.
    """

    event: Event
    why: str
    to: str = ""
    fresh: bool = False

    @property
    def text(self) -> str:
        """All of it, in words."""
        whom = f" to {self.to}" if self.to else ""
        return f"{self.event.topic} {self.event.number} of {self.event.sender}{whom}: {self.why}"


@dataclass
class Post:
    """Where a team stands.

    Attributes:
        events: All that were published, by number from 1.
        inboxes: Numbers of those that a member has yet to be told of.
        told: How often members were told something since the user has spoken.
        notes: What members have answered, oldest first.
        dead: What could not be handled.
        out: Calls that tell a member something now, by their id.
        since: Entries before what the user wants of the run; what was told before is no answer to that.
    """

    rules: Rules
    unfit: Unfit
    events: list[Event] = field(default_factory=list[Event])
    inboxes: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    told: int = 0
    notes: dict[str, list[tuple[Event, str]]] = field(default_factory=dict[str, list[tuple[Event, str]]])
    dead: list[DeadLetter] = field(default_factory=list[DeadLetter])
    out: dict[str, tuple[str, Event]] = field(default_factory=dict[str, tuple[str, Event]])
    since: int = 0
    _seen: set[str] = field(default_factory=set[str])
    _fresh: dict[str, str] = field(default_factory=dict[str, str])

    def begin(self) -> None:
        """Take in that a run begins: what earlier turns of its session have told may be told once more."""
        self._seen, self._fresh, self.dead = set(), {}, []

    # -- what happens ------------------------------------------------------------------------------------------

    def publish(self, topic: str, body: Mapping[str, JSON], sender: str, hop: int) -> None:
        """Put an event into the inbox of everybody who hears its topic, but for its sender."""
        key = content_hash([sender, topic, body, len(self.events) if sender == USER else 0])
        if key in self._seen:
            return
        self._seen.add(key)
        self.told = 0 if sender == USER else self.told
        event = Event(len(self.events) + 1, topic, body, sender, hop)
        if topic == self.rules.answer and topic not in (one.name for one in self.rules.members):
            self._fresh[topic] = canonical_json(body)
        self.events.append(event)
        hearers = [one.name for one in self.rules.members if topic in one.hears and one.name != sender]
        if why := self._undeliverable(event, hearers):
            self.dead.append(DeadLetter(event, why, fresh=True))
            return
        for name in hearers:
            self.inboxes.setdefault(name, []).append(event.number)

    def _undeliverable(self, event: Event, hearers: Sequence[str]) -> str:
        if hearers and event.hop > self.rules.hops:
            return f"it is more than {self.rules.hops} events away from what the user said"
        if why := self.unfit(event.topic, event.body):
            return f"it does not fit its topic: {short(why)}"
        return "" if hearers or event.topic == self.rules.answer else "nobody hears it"

    def tell(self, call: str, name: str, number: int) -> None:
        """Take in that a member is told of an event now."""
        if not 1 <= number <= len(self.events):
            return
        self.told += 1
        inbox = self.inboxes.get(name, [])
        if number in inbox:
            inbox.remove(number)
        self.out[call] = (name, self.events[number - 1])
        if self.told == self.rules.deliveries:
            self._give_up()

    def _give_up(self) -> None:
        """Nobody is told anything any more."""
        why = f"members were told something {self.rules.deliveries} times already"
        for name, numbers in self.inboxes.items():
            self.dead += [DeadLetter(self.events[number - 1], why, name, fresh=True) for number in numbers]
        self.inboxes = {}

    def handled(self, result: ToolResult) -> None:
        """Take in what has become of telling a member something, and what that has published meanwhile."""
        if result.status == "waiting" or result.call_id not in self.out:
            return
        name, event = self.out.pop(result.call_id)
        if result.status == "skipped" or result.error_type == "budget":  # it was not told: once the run has more, it is
            self.inboxes.setdefault(name, []).insert(0, event.number)
        elif result.status == "ok":
            self.notes.setdefault(name, []).append((event, result.content))
            self._fresh[name] = result.content
        else:
            why = short(result.message or f"it ended as {result.status}")
            self.dead.append(DeadLetter(event, why.rstrip("."), name, fresh=True))
        for one in result.published:
            self.publish(one.topic, one.body, name, event.hop + 1)
        if self.told >= self.rules.deliveries:
            self._give_up()

    # -- what is next ------------------------------------------------------------------------------------------

    def due(self, most: int) -> list[tuple[str, Event]]:
        """Return who is told of which event now: each member of its oldest one, at most so many."""
        waiting = [one.name for one in self.rules.members if self.inboxes.get(one.name)]
        most = min(most, self.rules.deliveries - self.told)
        return [(name, self.events[self.inboxes[name][0] - 1]) for name in waiting[: max(most, 0)]]

    def answer(self, rules: Rules) -> str | None:
        """Return the answer of the member, or the event on the topic, that is the run's; None where there is none."""
        return self._fresh.get(rules.answer)

    def standing(self) -> Standing:
        """Return where the team stands."""
        waiting = {name: len(numbers) for name, numbers in self.inboxes.items() if numbers}
        letters = [letter.text for letter in self.dead[-_SHOWN:]]
        return Standing(
            events=len(self.events), told=self.told, waiting=waiting, dead_letters=letters, since=self.since
        )


_SHOWN = 20


def sorted_out(rules: Rules, entries: Sequence[Entry], unfit: Unfit, since: int = 0) -> Post:
    """Return where a team stands after a transcript, of which so many entries come before what the run is to do."""
    post = Post(rules, unfit, since=since)
    for place, entry in enumerate(entries):
        if place == since:
            post.begin()
        match entry:
            case AssistantMessage(source="strategy", calls=calls):
                post.dead = [DeadLetter(one.event, one.why, one.to) for one in post.dead]
                for call in calls:
                    post.tell(call.id, call.name, _number(call.arguments.get("event")))
            case ToolMessage(result=result) | UserMessage(result=ToolResult() as result):
                post.handled(result)
            case UserMessage(source="user", content=content):
                post.publish(REQUEST, {"text": _text_of(content)}, USER, 0)
            case _:
                pass
    return post


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _text_of(content: Content) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content if part.kind == "text")
