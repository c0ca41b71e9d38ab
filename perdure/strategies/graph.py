"""Graphs: runs that go along declared lines, from node to node, over typed state.

What is declared is checked at once; what a run does is data: it goes on in the graph with which it began.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import BaseModel, RootModel
from pydantic_core import to_jsonable_python

from perdure.errors import AgentError
from perdure.messages import canonical_json
from perdure.policies import StrategySpec
from perdure.schemas import inline_refs, sentence
from perdure.strategies import refuse_handoffs
from perdure.strategies.graph_checks import check, clashes
from perdure.strategies.graph_nodes import (
    AnyLine,
    AnyNode,
    ApprovalNode,
    Branch,
    Edge,
    Join,
    Made,
    Node,
    fields_named,
    made,
    schema_of,
)
from perdure.strategies.graph_shape import END, START, BranchSpec, EdgeSpec, GraphSpec, JoinSpec, Progress
from perdure.strategies.graph_state import Reducer
from perdure.strategies.graph_text import fields_of
from perdure.strategies.graph_types import Schema, fits, listed
from perdure.strategies.graph_walk import Walk

if TYPE_CHECKING:
    from perdure.agents import Agent
    from perdure.strategies import Move, Situation
    from perdure.tools import Tool

__all__ = ["END", "START", "ApprovalNode", "Branch", "Edge", "Graph", "Join", "Node"]


class Graph:
    """A strategy: nodes and the lines between them, over a state that is the run's variables.

    Args:
        state: The agent's `variables`: a pydantic model class. Nodes read its fields and write them.
        nodes: In the order in which results of a wave are joined. All nodes that are due run beside each other, those
            with effects one after another.
        edges: `Edge`, `Branch` and `Join`.
        takes: The field that is what the user asks for.
        answer: What the run answers at the end: a text with `{field}` for values, or a function of the state. Default:
            the agent's model sums up.
        reducers: For fields that several nodes write beside each other: a function of what the field holds and what a
            node gives.

    Raises:
        AgentError: If a run could not get through; the text says why, and what to do.
    """

    name = "graph"

    def __init__(
        self,
        state: type[BaseModel],
        *,
        nodes: Sequence[AnyNode],
        edges: Sequence[AnyLine],
        takes: str = "",
        answer: str | Callable[[Any], Any] = "",
        reducers: Mapping[str, Reducer] | None = None,
    ) -> None:
        """Check all that can be told before a run."""
        wanted: Any = state  # whatever a user has put there
        if not (isinstance(wanted, type) and issubclass(wanted, BaseModel)) or issubclass(wanted, RootModel):
            raise AgentError(f"A graph's state has to be a pydantic model class, not {wanted!r}.")
        _fields(state, "validation")
        self.state = state
        self.reducers: Mapping[str, Reducer] = dict(reducers or {})
        self.conditions: Mapping[str, Callable[[Any], Any]] = {
            line.source: line.by for line in edges if isinstance(line, Branch) and callable(line.by)
        }
        self.answered = answer if callable(answer) else None
        self._made = [made(node, state) for node in nodes]
        self._spec = _graph_spec(self._made, edges, takes, answer)
        check(self._spec)
        _check_types(self)

    @property
    def shape(self) -> GraphSpec:
        """The graph as data."""
        return self._spec

    @property
    def nodes(self) -> Sequence[Made]:
        """The nodes as runs have them."""
        return self._made

    def spec(self) -> StrategySpec:
        """Return what a run keeps of it."""
        options = self._spec.model_dump(mode="json", exclude_defaults=True)
        return StrategySpec(name=self.name, options=options, asks=self._spec.answers == "model")

    def tools(self, agent: Agent) -> Sequence[Tool]:
        """Return what the nodes call; a run calls nothing else.

        Raises:
            AgentError: If the agent has tools outside of the graph, hand-offs, or other variables.
        """
        if agent.tools:
            text = f"tools={agent.tools[0].name} would never be called: a graph's run goes along its lines alone"
            raise AgentError(f"Agent {agent.name!r}: {text}; put it into a Node.")
        if agent.variables is not self.state:
            text = f"its graph is over {self.state.__name__}; say variables={self.state.__name__}"
            raise AgentError(f"Agent {agent.name!r}: {text}.")
        refuse_handoffs(agent, self.name, "make the other agent a Node")
        return [node.tool for node in self._made]

    async def move(self, seen: Situation) -> Move:
        """Return what the run does next."""
        graph, at = GraphSpec.model_validate(seen.options), Progress.model_validate(seen.progress)
        return await Walk(self, graph, seen, at).move()


def _graph_spec(nodes: Sequence[Made], lines: Sequence[AnyLine], takes: str, answer: Any) -> GraphSpec:
    edges: dict[str, list[str]] = {}
    branches: list[BranchSpec] = []
    joins: list[JoinSpec] = []
    for line in lines:
        match line:
            case Edge(source, targets):
                edges.setdefault(source, []).extend(targets)
            case Branch():
                branches.append(_branch_spec(line))
            case Join(sources, target):
                joins.append(JoinSpec(sources=list(sources), target=target))
            case _:
                raise AgentError(f"edges has to be made of Edge, Branch and Join, not {line!r}.")
    return GraphSpec(
        nodes=[node.spec for node in nodes],
        edges=[EdgeSpec(source=source, targets=targets) for source, targets in edges.items()],
        branches=branches,
        joins=joins,
        takes=takes,
        answer=_name(answer) if callable(answer) else answer,
        answers="function" if callable(answer) else "text" if answer else "model",
    )


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _branch_spec(branch: Branch) -> BranchSpec:
    called = not isinstance(branch.by, str)
    return BranchSpec(
        source=branch.source,
        by=branch.by if isinstance(branch.by, str) else _name(branch.by),
        called=called,
        cases=[(to_jsonable_python(value), target) for value, target in branch.cases.items()],
        otherwise=branch.otherwise,
    )


# -- types -------------------------------------------------------------------------------------------------


def _check_types(graph: Graph) -> None:
    """Refuse what is written or read as what it is not.

    Raises:
        AgentError: With one sentence about the first thing that is wrong.
    """
    state, spec = graph.state, graph.shape
    written, read = (_fields(state, mode) for mode in ("serialization", "validation"))
    _check_fields(graph)
    for node in graph.nodes:
        _check_inputs(node, written, state.__name__)
        _check_outputs(node, read, state.__name__)
    for branch in spec.branches:
        _check_branch(branch, _value_schema(graph, branch, written))
    for one, other, name in clashes(spec, graph.reducers):
        text = f"nodes {one!r} and {other!r} may run beside each other, and both write {name!r}"
        raise AgentError(f"The graph can't be: {text}; say in reducers= what becomes of both, or join them before.")


def _fields(state: type[BaseModel], mode: Literal["serialization", "validation"]) -> Mapping[str, Schema]:
    """Return the JSON Schemas of the state's fields, as they are written or read."""
    try:
        return cast(
            "Mapping[str, Schema]", inline_refs(state.model_json_schema(by_alias=False, mode=mode))["properties"]
        )
    except KeyError:
        return {}
    except Exception as error:
        raise AgentError(f"{state.__name__} can't be kept as JSON: {sentence(error)}") from error


def _check_fields(graph: Graph) -> None:
    named = [(f"node {node.name!r}", name) for node in graph.shape.nodes for name in fields_named(node)]
    named += [("the answer", name) for name in fields_of(graph.shape.answer) if graph.shape.answers == "text"]
    named += [("reducers=", name) for name in graph.reducers]
    named += [("takes=", graph.shape.takes)] if graph.shape.takes else []
    named += [(f"the branch of {branch.source!r}", branch.by) for branch in graph.shape.branches if not branch.called]
    for where, name in named:
        if name not in graph.state.model_fields:
            known = ", ".join(graph.state.model_fields)
            text = f"{where} names {name!r}, which is no field of {graph.state.__name__}; its fields are {known}"
            raise AgentError(f"The graph can't be: {text}.")


def _check_inputs(node: Made, fields: Mapping[str, Schema], state: str) -> None:
    parameters: Mapping[str, Schema] = node.tool.spec.parameters.get("properties", {})
    for parameter, name in node.spec.takes.items():
        if node.spec.kind == "approval" or name not in fields or fits(fields[name], parameters[parameter], unset=True):
            continue
        text = f"node {node.spec.name!r} takes {parameter!r} as {_said(parameters[parameter])}"
        raise AgentError(f"The graph can't be: {text}, and {state}.{name} is {_said(fields[name])}.")


def _check_outputs(node: Made, fields: Mapping[str, Schema], state: str) -> None:
    if node.result is None:
        return
    if node.spec.writes and not fits(node.result, fields[node.spec.writes]):
        text = f"node {node.spec.name!r} gives {_said(node.result)}"
        raise AgentError(
            f"The graph can't be: {text}, and {state}.{node.spec.writes} is {_said(fields[node.spec.writes])}."
        )
    parts: Mapping[str, Schema] = node.result.get("properties", {})
    for name in node.spec.spreads:
        if node.result.get("type") not in (None, "object") or (parts and name not in parts):
            raise AgentError(
                f"The graph can't be: the result of node {node.spec.name!r} has no {name!r} to be written."
            )
        if name in parts and not fits(parts[name], fields[name]):
            text = f"node {node.spec.name!r} gives {name!r} as {_said(parts[name])}"
            raise AgentError(f"The graph can't be: {text}, and {state}.{name} is {_said(fields[name])}.")


def _said(schema: Schema) -> str:
    """Return a type in a few words."""
    if options := schema.get("anyOf"):
        return " or ".join(dict.fromkeys(_said(one) for one in options))
    if "enum" in schema or "const" in schema:
        return "one of " + ", ".join(map(repr, listed(schema) or ()))
    items = f" of {_said(schema['items'])}" if isinstance(schema.get("items"), Mapping) and schema["items"] else ""
    return f"{schema.get('format') or schema.get('type') or 'anything'}{items}"


def _value_schema(graph: Graph, branch: BranchSpec, fields: Mapping[str, Schema]) -> Schema:
    if not branch.called:
        return fields[branch.by]
    try:
        hint = typing.get_type_hints(graph.conditions[branch.source]).get("return")
    except Exception:  # noqa: BLE001 - a type that can't be resolved says nothing
        return {}
    return (schema_of(hint, writes=True) if hint is not None else None) or {}


def _check_branch(branch: BranchSpec, schema: Schema) -> None:
    where = "START" if branch.source == START else repr(branch.source)
    cases = {canonical_json(value): value for value, _ in branch.cases}
    values = listed(schema)
    if values is None:
        if not branch.otherwise:
            text = f"the branch of {where} goes by {branch.by}, which may be anything: say otherwise="
            raise AgentError(f"The graph can't be: {text}, or give it a bool, a Literal or an Enum.")
        return
    possible = {canonical_json(value): value for value in values}
    if missing := [possible[key] for key in possible if key not in cases] if not branch.otherwise else []:
        text = f"the branch of {where} does not say where the graph goes when {branch.by} is {missing[0]!r}"
        raise AgentError(f"The graph can't be: {text}; add the case, or otherwise=.")
    if stray := [cases[key] for key in cases if key not in possible]:
        raise AgentError(
            f"The graph can't be: the branch of {where} has a case for {stray[0]!r}, which {branch.by} never is."
        )
