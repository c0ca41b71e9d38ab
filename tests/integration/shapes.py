"""Agents of every shape that do the same work: look at Rome, book a seat there, and say that they did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from perdure import Agent, Limits, Plan
from perdure.models import ModelRequest
from perdure.strategies.graph import END, START, Branch, Edge, Graph, Node
from perdure.strategies.team import Member, Team
from perdure.testing import ScriptedModel
from perdure.tools import Tool

LOOKING: dict[str, Any] = {"calls": [{"name": "look", "arguments": {"place": "Rome"}}]}
BOOKING: dict[str, Any] = {"calls": [{"name": "book", "arguments": {"seat": "1A"}}]}

Shape = Callable[[Any, Tool, Tool], Agent]
"""Given a stage and the tools `look(place)` and `book(seat)`: an agent that calls them in this order, then answers."""


def react(stage: Any, look: Tool, book: Tool) -> Agent:
    """The model is asked what to do, over and over."""
    agent: Agent = stage.agent([LOOKING, BOOKING, "done"], [look, book])
    return agent


def sub_agent(stage: Any, look: Tool, book: Tool) -> Agent:
    """The booking is another agent's, in a run of its own."""
    clerk = stage.agent([BOOKING, "it is booked"], [book], name="clerk")
    asking = {"calls": [{"name": "clerk", "arguments": {"task": "book 1A"}}]}
    agent: Agent = stage.agent([LOOKING, asking, "done"], [look, clerk.as_tool("Books seats.")])
    return agent


def handoff(stage: Any, look: Tool, book: Tool) -> Agent:
    """The one that looks hands the conversation over to the one that books, in the same run."""
    over = {"calls": [{"name": "transfer_to_clerk", "arguments": {"reason": "book it"}}]}
    script = ScriptedModel([LOOKING, over, BOOKING, "done"])
    clerk = stage.agent(script, [book], name="clerk")
    agent: Agent = stage.agent(script, [look], handoffs=[clerk])
    return agent


def plan(stage: Any, look: Tool, book: Tool) -> Agent:
    """Two steps are planned, each a run of its own: to look, and then to book."""

    def says(request: ModelRequest) -> Any:
        tools = {tool.name for tool in request.tools}
        if "plan" in tools:
            looks = {"id": "look", "goal": "Look at Rome.", "depends_on": [], "tools": ["look"]}
            books = {"id": "book", "goal": "Book 1A.", "depends_on": ["look"], "tools": ["book"]}
            return {"calls": [{"name": "plan", "arguments": {"steps": [looks, books]}}]}
        if "keep_plan" in tools:
            return "done" if request.answer_only else {"calls": [{"name": "keep_plan"}]}
        if any(message.role == "tool" for message in request.messages):
            return "it is done"
        return LOOKING if "look" in tools else BOOKING

    agent: Agent = stage.agent([says], [look, book], strategy=Plan(), limits=Limits(steps=40))
    return agent


class Seen(BaseModel):
    """A place is fine."""

    place: str


def team(stage: Any, look: Tool, book: Tool) -> Agent:
    """The one that looks publishes what it has seen, and the one that hears it books."""
    publish = {"calls": [{"name": "publish_seen", "arguments": {"place": "Rome"}}]}
    scout = stage.agent([LOOKING, publish, "seen"], [look], name="scout")
    clerk = stage.agent([BOOKING, "done"], [book], name="clerk")
    members = [Member(scout, ["request"], ["seen"]), Member(clerk, ["seen"])]
    agent: Agent = stage.agent(
        ["never asked"], strategy=Team({"seen": Seen}, members, answer="clerk"), limits=Limits(steps=40)
    )
    return agent


class Booking(BaseModel):
    """State of a graph."""

    fine: str = ""
    booked: str = ""


def graph(stage: Any, look: Tool, book: Tool) -> Agent:
    """A graph looks, and goes on to another one that books, in a run of its own."""
    nodes = [Node("book", book, given={"seat": "1A"}, writes="booked")]
    edges = [Edge(START, "book"), Edge("book", END)]
    clerk = stage.agent(
        ["-"], name="clerk", variables=Booking, strategy=Graph(Booking, nodes=nodes, edges=edges, answer="{booked}")
    )
    outer = Graph(
        Booking,
        nodes=[
            Node("look", look, given={"place": "Rome"}, writes="fine"),
            Node("clerk", clerk, writes="booked"),
        ],
        edges=[
            Edge(START, "look"),
            Branch("look", lambda state: "fine" in state.fine, {True: "clerk"}, otherwise=END),
            Edge("clerk", END),
        ],
        answer="{booked}",
    )
    agent: Agent = stage.agent(["never asked"], variables=Booking, strategy=outer, limits=Limits(steps=40))
    return agent


SHAPES: dict[str, Shape] = {shape.__name__: shape for shape in (react, sub_agent, handoff, plan, team, graph)}
