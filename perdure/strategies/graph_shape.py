"""A graph as data: what a run of it keeps, and how far it has come. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from perdure.messages import JSON, Data, canonical_json

START = "__start__"
"""Where a run begins: the source of the first edges."""

END = "__end__"
"""Where a branch of a run ends; the run is over once all have."""

WHOLE = "*"
"""Stands for all fields of the state, where a node takes them as one argument."""

NodeKind = Literal["tool", "function", "agent", "graph", "approval"]

Way = Literal["edge", "branch", "join", "error", "denied", "instead"]
"""Why a graph goes along a line: an edge, a condition, a join, how its source ended, or that its source is spent."""


class NodeSpec(Data):
    """A node as data.

    Attributes:
        takes: Its arguments, and the fields of the state that they are.
        given: Arguments that are always the same.
        text: What an agent is told, or what a person is asked, with `{field}` for values.
        shows: Fields that a person may change.
        writes: The field that its result is; "": none.
        spreads: Fields that are taken out of its result, by name.
        is_text: Whether its result is text, or else JSON.
        schema_of: What an agent's answer has to fit, where that is not any text.
        at_most: Visits; `instead` is gone to in place of a further one.
        on_error: Where the graph goes when it fails; "": the run fails.
        on_denied: Where the graph goes when a person denies it; "": the run ends.
    """

    name: str
    kind: NodeKind
    takes: dict[str, str] = Field(default_factory=dict)
    given: dict[str, JSON] = Field(default_factory=dict)
    text: str = ""
    shows: list[str] = Field(default_factory=list)
    writes: str = ""
    spreads: list[str] = Field(default_factory=list)
    is_text: bool = False
    schema_of: dict[str, Any] = Field(default_factory=dict)
    at_most: int | None = None
    instead: str = ""
    on_error: str = ""
    on_denied: str = ""

    @property
    def written(self) -> list[str]:
        """The fields that it writes."""
        return [*([self.writes] if self.writes else []), *self.spreads, *self.shows]

    @property
    def is_agent(self) -> bool:
        """Whether a visit of it is a run of its own."""
        return self.kind in ("agent", "graph")


class EdgeSpec(Data):
    """From one node to others, all of them at once."""

    source: str
    targets: list[str]


class BranchSpec(Data):
    """From one node to one of others, by a value.

    Attributes:
        by: The field that holds the value, or the name of the function that gives it.
        called: Whether it is a function.
        cases: Values, and where the graph goes for each.
        otherwise: For all other values; "": there are none.
    """

    source: str
    by: str
    called: bool = False
    cases: list[tuple[JSON, str]] = Field(default_factory=list[tuple[JSON, str]])
    otherwise: str = ""

    def target(self, value: JSON) -> str:
        """Return where the graph goes for `value`; "" where that is said nowhere."""
        wanted = canonical_json(value)
        return next((to for case, to in self.cases if canonical_json(case) == wanted), self.otherwise)


class JoinSpec(Data):
    """To one node once all of others have ended."""

    sources: list[str]
    target: str


@dataclass(frozen=True)
class Line:
    """A line of the graph, as it is drawn, checked and counted; `by` is what a branch goes by."""

    source: str
    target: str
    way: Way = "edge"
    label: str = ""
    by: str = ""

    @property
    def key(self) -> str:
        """Under which it is counted."""
        return f"{self.source}>{self.target}"


class GraphSpec(Data):
    """A graph as data; nodes in the order in which they were declared.

    Attributes:
        takes: The field that is what the user asks for; "": none.
        answer: What the run answers, with `{field}` for values; "": see `answers`.
        answers: Who gives the answer: that text, a function, or the model.
    """

    nodes: list[NodeSpec]
    edges: list[EdgeSpec] = Field(default_factory=list[EdgeSpec])
    branches: list[BranchSpec] = Field(default_factory=list[BranchSpec])
    joins: list[JoinSpec] = Field(default_factory=list[JoinSpec])
    takes: str = ""
    answer: str = ""
    answers: Literal["text", "function", "model"] = "text"

    def node(self, name: str) -> NodeSpec:
        """Return the node of that name."""
        return next(node for node in self.nodes if node.name == name)

    def branch(self, source: str) -> BranchSpec | None:
        """Return how the graph goes on by a value from `source`, if it does."""
        return next((branch for branch in self.branches if branch.source == source), None)

    def in_order(self, names: Mapping[str, Any] | set[str] | list[str]) -> list[str]:
        """Return those of the nodes that are in `names`, in declared order."""
        return [node.name for node in self.nodes if node.name in names]

    def lines(self) -> Iterator[Line]:
        """Yield all lines, in declared order."""
        for edge in self.edges:
            yield from (Line(edge.source, target) for target in edge.targets)
        for branch in self.branches:
            by = "" if branch.by.startswith("<") else branch.by  # a lambda has no name
            for value, target in branch.cases:
                yield Line(branch.source, target, "branch", _shown(value), by)
            if branch.otherwise:
                yield Line(branch.source, branch.otherwise, "branch", "otherwise", by)
        for join in self.joins:
            yield from (Line(source, join.target, "join") for source in join.sources)
        for node in self.nodes:
            if node.on_error:
                yield Line(node.name, node.on_error, "error", "error")
            if node.on_denied:
                yield Line(node.name, node.on_denied, "denied", "denied")
            if node.at_most is not None and node.instead:
                yield Line(node.name, node.instead, "instead", f"after {node.at_most}")


def _shown(value: JSON) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "nothing" if value is None else str(value)


class Progress(Data):
    """How far a run has come in its graph. Small: it is in each turn's history.

    Attributes:
        began: The run's own first entry in the transcript.
        visits: Of each node, so far.
        taken: How often each line was gone along, by `Line.key`.
        due: Nodes to be visited next, in declared order.
        active: Nodes that the last turn has called.
        arrived: Of each join, by its number: sources that have ended.
        misfits: Answers of agents in a row that did not fit, by node.
        over: The graph is at its end.
    """

    began: int = 0
    visits: dict[str, int] = Field(default_factory=dict)
    taken: dict[str, int] = Field(default_factory=dict)
    due: list[str] = Field(default_factory=list)
    active: list[str] = Field(default_factory=list)
    arrived: dict[str, list[str]] = Field(default_factory=dict)
    misfits: dict[str, int] = Field(default_factory=dict)
    over: bool = False

    def as_json(self) -> dict[str, JSON]:
        """Return it as JSON, without what is empty."""
        return self.model_dump(mode="json", exclude_defaults=True)
