"""Graphs that can't be are refused when they are declared, in one sentence that says what to do."""

from __future__ import annotations

from datetime import date
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from perdure.agents import Agent
from perdure.errors import AgentError
from perdure.strategies.graph import END, START, ApprovalNode, Branch, Edge, Graph, Join, Node
from perdure.strategies.plan import Plan
from perdure.strategies.team import Member, Team
from perdure.tools import tool


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class State(BaseModel):
    topic: str = ""
    count: int = 0
    day: date | None = None
    notes: list[str] = []
    fine: bool = False
    route: Literal["refund", "help"] = "help"
    size: Size = Size.SMALL


def look(topic: str) -> list[str]:
    return [topic]


def size_up(notes: list[str]) -> int:
    return len(notes)


def judge(count: int) -> bool:
    return count > 1


def begins(*more: Any) -> list[Any]:
    return [Edge(START, "look"), *more]


LOOK = Node("look", look, writes="notes")
UP = Node("size_up", size_up, writes="count")

WRONG: dict[str, tuple[list[Any], list[Any], str]] = {
    "never_reached": ([LOOK, UP], begins(Edge("look", END), Edge("size_up", END)), "no line leads to 'size_up'"),
    "two_names": ([LOOK, LOOK], begins(Edge("look", END)), "two nodes are named 'look'"),
    "bad_name": ([Node("a b", look)], [], "'a b' is not"),
    "unknown_target": ([LOOK], begins(Edge("look", "elsewhere")), "'elsewhere', which is no node"),
    "unknown_source": ([LOOK], begins(Edge("look", END), Edge("who", END)), "begins at 'who'"),
    "no_start": ([LOOK], [Edge("look", END)], "START leads nowhere"),
    "dead_end": ([LOOK, UP], begins(Edge("look", "size_up")), "'size_up' leads nowhere"),
    "twice": ([LOOK], begins(Edge("look", END), Edge("look", END)), "is there twice"),
    "endless": (
        [LOOK, UP],
        begins(Edge("look", "size_up"), Branch("size_up", "fine", {True: END, False: "look"})),
        "look → size_up → look goes round without a bound",
    ),
    "no_way_to_the_end": (
        [Node("look", look, at_most=2, instead="size_up"), Node("size_up", size_up, at_most=2, instead="look")],
        begins(Edge("look", "size_up"), Edge("size_up", "look")),
        "no way to the end",
    ),
    "sent_round": (
        [Node("look", look, at_most=2, instead="size_up"), Node("size_up", size_up, at_most=2, instead="look")],
        begins(Edge("look", "size_up"), Branch("size_up", "fine", {True: END, False: "look"})),
        "is sent on to the next one when it is spent",
    ),
    "bound_without_more": ([Node("look", look, at_most=2)], begins(Edge("look", END)), "say instead="),
    "more_without_bound": ([Node("look", look, instead=END)], begins(Edge("look", END)), "not at_most="),
    "no_else": ([LOOK], begins(Branch("look", "count", {0: END})), "say otherwise="),
    "missing_case": ([LOOK], begins(Branch("look", "route", {"refund": END})), "when route is 'help'"),
    "missing_member": ([LOOK], begins(Branch("look", "size", {Size.SMALL: END})), "when size is 'large'"),
    "impossible_case": (
        [LOOK],
        begins(Branch("look", "fine", {True: END, False: END, "perhaps": END})),
        "'perhaps', which fine never is",
    ),
    "branch_and_edge": (
        [LOOK],
        begins(Edge("look", END), Branch("look", "fine", {True: END, False: END})),
        "a branch and other lines",
    ),
    "unknown_field": (
        [Node("look", look, writes="nothing")],
        begins(Edge("look", END)),
        "'nothing', which is no field",
    ),
    "unmet_argument": ([Node("judge", lambda x: x)], [], "needs a type"),
    "argument_of_no_field": (
        [Node("n", judge, inputs={"count": "total"})],
        [Edge(START, "n"), Edge("n", END)],
        "'total'",
    ),
    "wrong_input": (
        [Node("look", look, inputs={"topic": "count"})],
        begins(Edge("look", END)),
        "takes 'topic' as string, and State.count is integer",
    ),
    "wrong_output": (
        [Node("look", look, writes="count")],
        begins(Edge("look", END)),
        "gives array of string, and State.count is integer",
    ),
    "lone_join": ([LOOK, UP], begins(Join(["look"], "size_up"), Edge("size_up", END)), "less than two sources"),
    "both_write": (
        [LOOK, Node("more", look, writes="notes")],
        [Edge(START, "look", "more"), Edge("look", END), Edge("more", END)],
        "both write 'notes'",
    ),
    "unknown_in_text": ([ApprovalNode("ask", "Pay {price}?")], [Edge(START, "ask"), Edge("ask", END)], "'price'"),
    "no_such_node": ([5], [], "nodes has to be made of Node and ApprovalNode, not 5"),
    "no_such_edge": ([LOOK], [("look", END)], "edges has to be made of Edge, Branch and Join"),
    "no_node": ([Node("n", 5)], [], "has to be a tool, a function or an agent"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", WRONG)
def test_what_can_not_be_is_refused_in_one_sentence(name: str):
    nodes, edges, told = WRONG[name]
    with pytest.raises(AgentError) as refused:
        Graph(State, nodes=nodes, edges=edges, answer="done")
    assert told in str(refused.value), str(refused.value)
    assert "\n" not in str(refused.value)


def test_both_may_write_what_has_a_reducer_or_where_they_are_joined_before():
    nodes = [LOOK, Node("more", look, writes="notes")]
    edges = [Edge(START, "look", "more"), Edge("look", END), Edge("more", END)]
    Graph(State, nodes=nodes, edges=edges, answer="x", reducers={"notes": lambda old, new: [*old, *new]})
    Graph(State, nodes=nodes, edges=[Edge(START, "look"), Edge("look", "more"), Edge("more", END)], answer="x")


def test_a_loop_with_a_bound_is_fine():
    nodes = [Node("look", look, writes="notes", at_most=3, instead=END), UP]
    edges = begins(Edge("look", "size_up"), Branch("size_up", lambda state: state.count, {0: END}, otherwise="look"))
    Graph(State, nodes=nodes, edges=edges, answer="{count}")


def test_an_agent_calls_nothing_but_its_nodes():
    graph = Graph(State, nodes=[LOOK], edges=begins(Edge("look", END)), answer="{notes}")
    assert [one.name for one in Agent("a", "openai:x", variables=State, strategy=graph).spec.tools] == ["look"]
    with pytest.raises(AgentError, match="would never be called"):
        Agent("a", "openai:x", variables=State, strategy=graph, tools=[tool(description="x")(judge)])
    with pytest.raises(AgentError, match="say variables=State"):
        Agent("a", "openai:x", strategy=graph)


def test_a_tool_in_a_node_keeps_its_rules_under_the_name_of_the_node():
    @tool(approval=lambda topic: topic == "war", timeout=3)
    def fetch(topic: str) -> str:
        """Fetch."""
        return topic

    graph = Graph(State, nodes=[Node("get", fetch)], edges=[Edge(START, "get"), Edge("get", END)], answer="done")
    agent = Agent("a", "openai:x", variables=State, strategy=graph)
    spec = agent.spec.tools[0]
    assert (spec.name, spec.effect, spec.approval) == ("get", "unsafe", "predicate:get")
    ask = agent.predicate("get", "get")
    assert ask is not None
    assert ask(topic="war")


def test_a_way_round_is_told_with_the_lines_that_it_goes_along():
    draft = Node("draft", look, writes="notes", at_most=3, instead="confirm")
    confirm = ApprovalNode("confirm", "Fine?", on_denied="draft")
    lines = [Edge(START, "draft"), Edge("draft", "confirm"), Edge("confirm", END)]
    with pytest.raises(AgentError) as refused:
        Graph(State, nodes=[draft, confirm], edges=lines, takes="topic")
    way = "confirm → (denied) draft → (instead) confirm goes round without a bound"
    assert f"{way}; choose another instead= for 'draft', or give another of its nodes" in str(refused.value)


@pytest.mark.parametrize("strategy", ["graph", "plan", "team"])
def test_an_agent_whose_strategy_never_hands_over_is_given_no_handoffs(strategy: str):
    other = Agent("b", "openai:x")
    made: dict[str, Any] = {
        "graph": Graph(State, nodes=[LOOK], edges=begins(Edge("look", END)), takes="topic"),
        "plan": Plan(),
        "team": Team({}, [Member(other, ["request"])]),
    }
    with pytest.raises(AgentError, match=f"handoffs= would never be offered in the runs of a {strategy}; leave"):
        Agent("a", "openai:x", variables=State, strategy=made[strategy], handoffs=[other])
