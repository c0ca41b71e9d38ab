"""Teams as data: what is refused when one is declared, and where the events go."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator

from perdure import Agent, tool
from perdure.errors import AgentError
from perdure.messages import AssistantMessage, Entry, Published, ToolCall, ToolMessage, ToolResult, UserMessage
from perdure.policies import AgentSpec
from perdure.strategies import Answer, Ask, Do, Fail, Situation
from perdure.strategies.team import Member, Team


class Note(BaseModel):
    """Something to be told."""

    text: str

    @field_validator("text")
    @classmethod
    def _polite(cls, text: str) -> str:
        if "!" in text:
            raise ValueError("nobody shouts")
        return text


def member(name: str, hears: list[str], publishes: list[str] | None = None, **more: Any) -> Member:
    return Member(Agent(name, "scripted:x.json"), hears, publishes or [], **more)


class Played:
    """A team that is played without an engine: what members publish is given by a function."""

    def __init__(self, team: Team, said: str = "go") -> None:
        self.team = team
        self.agent = Agent("lead", "scripted:x.json", strategy=team)
        self.entries: list[Entry] = [UserMessage(role="user", content=said)]
        self.told: list[tuple[str, int]] = []
        self.progress: dict[str, Any] = {}
        self.moves = 0

    @property
    def spec(self) -> AgentSpec:
        return self.agent.spec

    def play(self, answers: Any, most: int = 500) -> Any:
        """Play to the end; `answers(member, event)` gives the events that it publishes, or a ToolResult's status."""
        while True:
            move = self.team.move(Situation("r", self.spec, self.entries, self.progress, step=self.moves + 1))
            self.progress = move.progress or self.progress
            self.moves += 1
            assert self.moves < most, "it never ends"
            if not isinstance(move, Do):
                return move
            calls = [
                ToolCall(id=f"{self.moves}.{at}", name=one.name, arguments=one.arguments)
                for at, one in enumerate(move.calls)
            ]
            self.entries.append(AssistantMessage(role="assistant", text=move.text, calls=calls, source="strategy"))
            for call in calls:
                self.told.append((call.name, call.arguments["event"]))
                given = answers(call.name, call.arguments)
                status, published = given if isinstance(given, tuple) else ("ok", given)
                result = ToolResult(
                    call_id=call.id, name=call.name, status=status, content=f"{call.name} did it", published=published
                )
                self.entries.append(ToolMessage(role="tool", result=result))

    def letters(self) -> list[str]:
        """Return the dead letters at the end."""
        move = self.team.move(Situation("r", self.spec, self.entries, self.progress, step=99))
        assert move.progress is not None
        letters: list[str] = move.progress["dead_letters"]
        return letters


def note(topic: str, text: str) -> Published:
    return Published(topic=topic, body={"text": text})


@pytest.mark.parametrize(
    ("members", "options", "words"),
    [
        ([member("a", ["x"], ["x"])], {}, "Nobody of the team hears 'request'"),
        ([member("a", ["request"], ["y"])], {}, "no topic 'y'"),
        ([member("a", ["request"]), member("a", ["request"])], {}, "two members named 'a'"),
        ([member("a", ["request", "x"])], {}, "hears 'x', and nobody publishes there"),
        ([member("a", ["request"], ["request"])], {}, "that is the user's"),
        ([member("a", ["request"])], {"answer": "b"}, "'b' is neither"),
        ([member("a", ["request"])], {"hops": 0}, "at least 1"),
        ([member("a", ["request"])], {"topics": {"a b": Note}}, "topic is made of letters"),
    ],
)
def test_a_team_that_can_not_work_is_refused_in_one_sentence(members: Any, options: Any, words: str) -> None:
    given: dict[str, Any] = {"topics": {"x": Note}, "members": members, **options}
    with pytest.raises(AgentError, match=words):
        Team(**given)


def test_tools_of_its_own_and_one_that_is_named_as_publishing_are_refused() -> None:
    @tool(effect="read")
    def publish_x() -> str:
        """Do."""
        return ""

    team = Team({"x": Note}, [Member(Agent("a", "scripted:x.json", tools=[publish_x]), ["request"], ["x"])])
    with pytest.raises(AgentError, match="a tool 'publish_x' of its own"):
        Agent("lead", "scripted:x.json", strategy=team)
    with pytest.raises(AgentError, match="its members have the tools"):
        Agent("lead", "scripted:x.json", tools=[publish_x], strategy=Team({}, [member("a", ["request"])]))


def test_a_member_gets_a_tool_for_each_topic_with_what_the_topic_says() -> None:
    agent = Agent("lead", "scripted:x.json", strategy=Team({"x": Note}, [member("a", ["request"], ["x"])]))
    [called] = agent.spec.tools
    assert called.agent
    [publish] = called.agent.spec.tools
    assert (publish.name, publish.publishes, publish.parameters["required"]) == ("publish_x", "x", ["text"])
    assert publish.description == "Tell the team on x. Something to be told."


def test_events_go_to_those_who_hear_them_and_each_member_is_told_one_at_a_time_with_its_notes() -> None:
    team = Team(
        {"x": Note}, [member("a", ["request"], ["x"]), member("b", ["x"]), member("c", ["x", "request"])], answer="b"
    )
    played = Played(team)
    move = played.play(lambda name, _: [note("x", "1"), note("x", "2"), note("x", "1")] if name == "a" else [])
    assert move == Answer("b did it", progress=move.progress)
    assert played.told == [("a", 1), ("c", 1), ("b", 2), ("c", 2), ("b", 3), ("c", 3)]
    told = [call.arguments["task"] for one in played.entries if isinstance(one, AssistantMessage) for call in one.calls]
    assert told[0] == 'Event 1 on request, from the user:\n{"text":"go"}'
    assert told[5].endswith("What you did about earlier events:\n- request 1: c did it\n- x 2: c did it")
    assert played.letters() == []


def test_what_nobody_can_handle_is_a_dead_letter_that_says_why() -> None:
    team = Team(
        {"x": Note, "lost": Note, "long": Note},
        [member("a", ["request"], ["x", "lost", "long"]), member("b", ["x", "long"], ["long"])],
        hops=1,
        answer="a",
    )

    def answers(name: str, told: dict[str, Any]) -> Any:
        if name == "a":
            return [note("lost", "one"), note("x", "Hear this!"), note("x", "two")]
        return "error", [note("long", "too far")]

    played = Played(team)
    move = played.play(answers)
    assert isinstance(move, Answer)
    lost, shouted, failed, *far = played.letters()
    assert lost == "lost 2 of a: nobody hears it"
    assert shouted.startswith("x 3 of a: it does not fit its topic")
    assert failed == "x 4 of a to b: it ended as error"
    assert far == ["long 5 of b: nobody hears it"]


def test_an_event_that_there_was_no_budget_to_tell_is_told_once_there_is() -> None:
    team = Team({}, [member("clerk", ["request"])], answer="clerk")
    played = Played(team)
    calls = [ToolCall(id="0", name="clerk", arguments={"event": 1})]
    none = ToolResult(call_id="0", name="clerk", status="error", error_type="budget")
    played.entries.append(AssistantMessage(role="assistant", calls=calls, source="strategy"))
    played.entries.append(ToolMessage(role="tool", result=none))
    assert played.play(lambda *_: []) == Answer("clerk did it", progress=played.progress)
    assert played.told == [("clerk", 1)]


def test_a_team_that_becomes_quiet_without_its_answer_fails_and_says_why() -> None:
    team = Team({"x": Note}, [member("a", ["request"], ["x"]), member("b", ["x"])], answer="b")
    move = Played(team).play(lambda name, _: [])
    assert isinstance(move, Fail)
    assert (move.kind, move.reason) == ("no_answer", "The team has become quiet without an answer of b.")


def test_the_last_event_of_a_topic_can_be_the_answer_or_the_model_sums_up() -> None:
    members = [member("a", ["request"], ["x"])]
    move = Played(Team({"x": Note}, members, answer="x")).play(lambda *_: [note("x", "1"), note("x", "2")])
    assert json.loads(move.text) == {"text": "2"}
    move = Played(Team({"x": Note}, members)).play(lambda *_: [note("x", "1")])
    assert isinstance(move, Ask)
    assert (move.tools, move.note) == ([], "The team is done. Dead letter: x 2 of a: nobody hears it.")


def test_two_who_answer_each_other_for_ever_are_stopped_by_hops_and_by_deliveries() -> None:
    members = [member("a", ["request", "pong"], ["ping"]), member("b", ["ping"], ["pong"])]
    count = iter(range(10_000))

    def answers(name: str, _: Any) -> Any:
        return [note("ping" if name == "a" else "pong", str(next(count)))]

    played = Played(Team({"ping": Note, "pong": Note}, members, hops=5, answer="a"))
    played.play(answers)
    assert len(played.told) == 6
    assert "more than 5 events away" in played.letters()[-1]
    played = Played(Team({"ping": Note, "pong": Note}, members, hops=500, deliveries=7, answer="a"))
    played.play(answers)
    assert len(played.told) == 7
    assert "told something 7 times" in played.letters()[-1]


NAMES = ["a", "b", "c", "d"]
TOPICS = ["x", "y", "z"]


@st.composite
def teams(draw: st.DrawFn) -> Team:
    """Draw any team that can be declared."""
    told = {name: draw(st.lists(st.sampled_from(TOPICS), unique=True)) for name in NAMES}
    there = sorted({topic for topics in told.values() for topic in topics})
    hears = {name: draw(st.lists(st.sampled_from(["request", *there]), unique=True)) for name in NAMES}
    hears["a"] = sorted({*hears["a"], "request"})
    members = [member(name, hears[name], told[name]) for name in NAMES]
    options: dict[str, Any] = {"hops": draw(st.integers(1, 6)), "deliveries": draw(st.integers(1, 25)), "answer": "a"}
    return Team(dict.fromkeys(TOPICS, Note), members, **options)


@settings(max_examples=150, deadline=None)
@given(teams(), st.randoms(use_true_random=False))
def test_any_team_ends_and_everybody_is_told_each_event_once_in_the_order_of_its_sender(team: Team, luck: Any) -> None:
    def answers(name: str, _: Any) -> Any:
        topics = next(one.publishes for one in team.members if one.name == name)
        if not topics or luck.random() < 0.2:
            return luck.choice(["ok", "error", "denied"]), []
        notes = [note(luck.choice(topics), f"{name} {luck.randrange(40)}") for _ in range(luck.randrange(4))]
        return luck.choice(["ok", "ok", "error"]), notes

    played = Played(team)
    played.play(answers, most=team.deliveries + 2)
    assert len(played.told) == len(set(played.told)) <= team.deliveries
    for name in NAMES:
        numbers = [number for who, number in played.told if who == name]
        assert numbers == sorted(numbers), "an event has overtaken another"
