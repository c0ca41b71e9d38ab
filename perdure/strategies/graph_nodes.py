"""What a graph is declared of: nodes, and the lines between them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pydantic import BaseModel, TypeAdapter

from perdure.agents import Agent
from perdure.errors import AgentError, ToolDefinitionError
from perdure.messages import JSON
from perdure.policies import ToolSpec
from perdure.schemas import inline_refs, sentence, type_schema
from perdure.strategies.graph_shape import WHOLE, NodeKind, NodeSpec
from perdure.strategies.graph_text import fields_of
from perdure.strategies.graph_types import is_text
from perdure.tools import Tool, tool_from_function

Schema = Mapping[str, Any]


class AnyNode:
    """A node of a graph."""


class AnyLine:
    """Where a graph goes from a node."""


@dataclass(frozen=True)
class Node(AnyNode):
    """A node of a graph: a tool, a function of fields of the state, or an agent, which may be led by a graph itself.

    Args:
        name: Under which it is called, approved and shown.
        what: A tool; a function with types, sync or async, that only reads and takes a moment; or an agent.
        inputs: Which field of the state an argument is, where they are not named alike. An argument whose type is the
            state's class is the whole state.
        given: Arguments that are always the same.
        task: What an agent is told, with `{field}` for values of the state and `{input}` for what the user asks for.
            Default: what the user asks for. What the user says meanwhile is told as well.
        writes: The field of the state that its result is; a list takes fields of that name out of its result.
        at_most: Visits of it; in place of a further one, the graph goes to `instead`.
        instead: A node, or `END`.
        on_error: The node to go to where it fails. Default: the run fails.
        on_denied: The node to go to where a person denies it. Default: the run ends with that reason.
        share: The most that an agent is lent of what the run may still spend. Default a half.
    """

    name: str
    what: Tool | Agent | Callable[..., Any]
    inputs: Mapping[str, str] = field(default_factory=dict[str, str])
    given: Mapping[str, JSON] = field(default_factory=dict[str, JSON])
    task: str = ""
    writes: str | Sequence[str] = ""
    at_most: int | None = None
    instead: str = ""
    on_error: str = ""
    on_denied: str = ""
    share: float = 0.5


@dataclass(frozen=True)
class ApprovalNode(AnyNode):
    """A node at which a person is asked; approved, the graph goes on.

    Args:
        question: With `{field}` for values of the state.
        shows: Fields that the person is shown, and may change by approving with other arguments: with those alone that
            they change. The question stays as it is.
        at_most: As of other nodes, like what follows.
    """

    name: str
    question: str
    shows: Sequence[str] = ()
    at_most: int | None = None
    instead: str = ""
    on_denied: str = ""


@dataclass(frozen=True, init=False)
class Edge(AnyLine):
    """From a node to another; to several at once, they run beside each other."""

    source: str
    targets: tuple[str, ...]

    def __init__(self, source: str, *targets: str) -> None:
        """Take the targets one by one."""
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "targets", targets)


@dataclass(frozen=True)
class Branch(AnyLine):
    """From a node to one of others, by a value.

    Args:
        by: The name of a field of the state, or a function of the whole state; it has 5 s, and may be asked again.
        cases: Where the graph goes for each value. All values of a bool, a Literal or an Enum have to be there.
        otherwise: Where it goes for all others.
    """

    source: str
    by: str | Callable[[Any], Any]
    cases: Mapping[Any, str]
    otherwise: str = ""


@dataclass(frozen=True)
class Join(AnyLine):
    """To a node once all of the sources have ended. One that the run does not come to is not waited for."""

    sources: Sequence[str]
    target: str


@dataclass(frozen=True)
class Made:
    """A node as a run has it.

    Attributes:
        spec: As data.
        tool: What its visits call.
        result: JSON Schema of its result, where it is known.
    """

    spec: NodeSpec
    tool: Tool
    result: Schema | None = None


def made(node: AnyNode, state: type[BaseModel]) -> Made:
    """Return a node of a graph over `state` as a run has it.

    Raises:
        AgentError: If it can't be.
    """
    if not isinstance(node, Node | ApprovalNode):
        raise AgentError(f"nodes has to be made of Node and ApprovalNode, not {node!r}.")
    try:
        if isinstance(node, ApprovalNode):
            return _approval(node, state)
        if isinstance(node.what, Agent):
            return _agent(node, node.what, state)
        if isinstance(node.what, Tool):
            return _tool(node, node.what, "tool", state)
        return _tool(node, _function(node, node.what), "function", state)
    except ToolDefinitionError as error:
        raise AgentError(f"Node {node.name!r}: {error}") from error


def _spec(node: Node | ApprovalNode, kind: NodeKind, **rest: Any) -> NodeSpec:
    on_error = node.on_error if isinstance(node, Node) else ""
    try:
        return NodeSpec(
            name=node.name,
            kind=kind,
            at_most=node.at_most,
            instead=node.instead,
            on_denied=node.on_denied,
            on_error=on_error,
            **rest,
        )
    except ValueError as error:
        raise AgentError(f"Node {node.name!r}: {sentence(error)}") from error


def _written(node: Node) -> dict[str, Any]:
    return {"writes": node.writes} if isinstance(node.writes, str) else {"spreads": list(node.writes)}


# -- tools and functions -----------------------------------------------------------------------------------


def _function(node: Node, what: Any) -> Tool:
    if not inspect.isroutine(what):
        raise AgentError(f"Node {node.name!r} has to be a tool, a function or an agent, not {what!r}.")
    described = inspect.getdoc(what) or f"Function {what.__name__} of the graph."
    options = {"name": node.name, "description": described, "effect": "read", "local": True, "approval": "never"}
    return tool_from_function(what, options)


def _tool(node: Node, what: Tool, kind: NodeKind, state: type[BaseModel]) -> Made:
    if node.task:
        raise AgentError(f"Node {node.name!r} is no agent, and can't be given a task.")
    parameters = what.spec.parameters
    known: dict[str, Any] = parameters.get("properties", {})
    if strangers := [name for name in (*node.inputs, *node.given) if name not in known]:
        raise AgentError(f"Node {node.name!r}: {what.name} takes no {strangers[0]!r}; it takes {_listed(known)}.")
    takes = {name: given for name in known if name not in node.given and (given := _taken(node, what, name, state))}
    required = [name for name in parameters.get("required", ()) if name not in takes and name not in node.given]
    if required:
        text = f"{what.name} needs {required[0]!r}, which is no field of {state.__name__}"
        raise AgentError(f"Node {node.name!r}: {text}; say in inputs= which one it is.")
    result = returned(what.function)
    texty = result.get("type") == "string" if result else is_text(_wanted(node, state))
    spec = _spec(node, kind, takes=takes, given=dict(node.given), is_text=texty, **_written(node))
    return Made(spec, renamed(what, node.name), result)


def _taken(node: Node, what: Tool, parameter: str, state: type[BaseModel]) -> str:
    if parameter in node.inputs:
        return node.inputs[parameter]
    hint = what.arguments.model_fields[parameter].annotation if what.arguments else None
    return WHOLE if hint is state else parameter if parameter in state.model_fields else ""


def _listed(names: Any) -> str:
    return ", ".join(names) or "nothing"


def renamed(tool: Tool, name: str) -> Tool:
    """Return a tool under another name, with all that it can do."""
    if tool.name == name:
        return tool
    update: dict[str, Any] = {"name": name}
    if tool.ask is not None:
        update["approval"] = f"predicate:{name}"
    return replace(tool, spec=tool.spec.model_copy(update=update))


def returned(function: Callable[..., Any] | None) -> Schema | None:
    """Return the JSON Schema of what a function returns; None where it does not say."""
    try:
        hint = typing.get_type_hints(function, include_extras=True).get("return") if function else None
    except Exception:  # noqa: BLE001 - whoever makes the tool says what is wrong with its types
        return None
    return None if hint is None else schema_of(hint, writes=True)


def schema_of(hint: Any, *, writes: bool) -> Schema | None:
    """Return the JSON Schema of a type: as it is written, or as it is read; None where there is none."""
    try:
        found = TypeAdapter(hint).json_schema(mode="serialization" if writes else "validation")
        return inline_refs(found)
    except Exception:  # noqa: BLE001 - a type that pydantic does not know, such as one of a library
        return None


# -- agents and people -------------------------------------------------------------------------------------


def _agent(node: Node, agent: Agent, state: type[BaseModel]) -> Made:
    if node.inputs or node.given:
        raise AgentError(f"Node {node.name!r} is an agent: what it is told is its task, not inputs or given.")
    kind: NodeKind = "graph" if agent.strategy is not None and agent.strategy.name == "graph" else "agent"
    described = f"Agent {agent.name}, a node of the graph."
    tool = agent.as_tool(described, name=node.name, parallel=True, share=node.share)
    if agent.output_type is not None:  # it is held to that by itself
        result = type_schema(agent.output_type)
        text = result.get("type") == "string"
        return Made(_spec(node, kind, text=node.task, is_text=text, **_written(node)), tool, result)
    wanted = _wanted(node, state)
    shape = {} if is_text(wanted) else dict(wanted)
    return Made(_spec(node, kind, text=node.task, is_text=not shape, schema_of=shape, **_written(node)), tool)


def _wanted(node: Node, state: type[BaseModel]) -> Schema:
    """Return what a node's result has to be for the fields that it writes."""
    schemas = inline_refs(state.model_json_schema(by_alias=False)).get("properties", {})
    if isinstance(node.writes, str):
        return cast("Schema", schemas.get(node.writes, {"type": "string"}))
    parts = {name: schemas[name] for name in node.writes if name in schemas}
    return {"type": "object", "properties": parts, "required": list(parts)}


def _approval(node: ApprovalNode, state: type[BaseModel]) -> Made:
    if not node.question.strip():
        raise AgentError(f"Node {node.name!r} asks a person, and has no question.")
    schemas = inline_refs(state.model_json_schema(by_alias=False)).get("properties", {})
    shown: dict[str, Any] = {name: schemas[name] for name in node.shows if name in schemas}
    question = {"type": "string", "description": "What the person is asked."}
    parameters = {
        "type": "object",
        "properties": {"question": question, **shown},
        "required": ["question", *shown],
        "additionalProperties": False,
    }
    described = f"Ask a person: {node.question}"
    spec = _spec(
        node, "approval", text=node.question, shows=list(node.shows), takes={name: name for name in node.shows}
    )
    made_spec = ToolSpec(
        name=node.name,
        description=described,
        parameters=parameters,
        effect="read",
        local=True,
        approval="always",
        fixed=["question"],
    )
    return Made(spec, Tool(made_spec, _approved))


def _approved(question: str, **shown: JSON) -> dict[str, JSON]:  # noqa: ARG001 - it is for the person
    """Return what the person has approved."""
    return shown


def fields_named(node: NodeSpec) -> list[str]:
    """Return the fields of the state that a node reads or writes."""
    return [*(name for name in node.takes.values() if name != WHOLE), *node.written, *fields_of(node.text)]
