"""Agents out of YAML files: the same as those that Python makes, to the hash."""

from __future__ import annotations

import builtins
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from perdure import extensions, loading
from perdure.agents import Agent
from perdure.complaints import complaint
from perdure.declarations import (
    AgentDeclaration,
    AgentTool,
    ApprovalEntry,
    ContextEntry,
    FunctionTool,
    HandoffEntry,
    McpTools,
    MemoryEntry,
    RemoteTool,
    StrategyEntry,
    ToolOptions,
)
from perdure.errors import AgentError, AgentNotFound
from perdure.handoffs import Handoff
from perdure.marks import Document, Place, read
from perdure.mcp import ALL, MCPServer
from perdure.memory import Memory
from perdure.policies import Approval, ContextPolicy, Limits, ModelSettings
from perdure.schemas import sentence
from perdure.tools import Tool, tool_from_function

T = TypeVar("T")
Entry = str | FunctionTool | AgentTool | RemoteTool | McpTools

_made: dict[tuple[Path, str, str], list[Agent]] = {}
"""What a file gave, by its contents: as with modules, the same file gives the same objects."""
_under_way: list[Path] = []


def declared_agents(path: Path, shown: str) -> list[Agent]:
    """Return the agents that a YAML file declares, in order.

    Args:
        shown: How errors call the file.

    Raises:
        AgentNotFound: If there is no such file, or nothing in it.
        AgentError: If something in it can't be; the text names line and column, and says what to do.
    """
    path = path.expanduser().resolve()
    documents = read(path, shown)
    if not documents:
        raise AgentNotFound(f"{shown} declares no agent: it is empty.")
    declarations = [_declaration(document) for document in documents]
    known = (path, shown, hashlib.sha256(repr(declarations).encode()).hexdigest())  # with what the environment gave
    if known not in _made:
        if path in _under_way:
            raise AgentError(f"{shown} and another file take agents of each other; put those into a third one")
        _under_way.append(path)
        try:
            _made[known] = _File(path, documents, declarations).agents()
        finally:
            _under_way.remove(path)
    return _made[known]


def _declaration(document: Document) -> AgentDeclaration:
    try:
        return AgentDeclaration.model_validate(document.value)
    except ValidationError as error:
        raise complaint(error, document) from error


class _File:
    """The declarations of one file, on their way to agents."""

    def __init__(self, path: Path, documents: Sequence[Document], declarations: Sequence[AgentDeclaration]) -> None:
        self._path = path
        self._parts = dict[str, tuple[Document, AgentDeclaration]]()
        self._made = dict[str, Agent]()
        self._under_way = list[str]()
        for document, declaration in zip(documents, declarations, strict=True):
            if declaration.name in self._parts:
                words = f"two agents of this file are named {declaration.name!r}; rename one."
                raise document.fault(["name"], words)
            self._parts[declaration.name] = document, declaration

    def agents(self) -> list[Agent]:
        return [self._agent(name) for name in self._parts]

    def _agent(self, name: str) -> Agent:
        if name not in self._made:
            document, declaration = self._parts[name]
            self._under_way.append(name)
            self._made[name] = _Making(self._path, document, declaration, self._neighbour, self._under_way).agent()
            self._under_way.pop()
        return self._made[name]

    def _neighbour(self, name: str) -> Agent:
        """Return another agent of the file; AgentError if there is none, or each is a tool of the other."""
        if name in self._under_way:
            ring = " → ".join([*self._under_way[self._under_way.index(name) :], name])
            raise AgentError(f"agents can't be tools of each other ({ring}); take one of them out")
        if name not in self._parts:
            raise AgentError(f"this file has no agent {name!r}{_meant(name, self._parts)}")
        return self._agent(name)


class _Making:
    """One agent in the making."""

    def __init__(
        self,
        path: Path,
        document: Document,
        declaration: AgentDeclaration,
        neighbour: Callable[[str], Agent],
        under_way: Sequence[str],
    ) -> None:
        self._under_way = under_way
        self._path, self._document, self._declaration, self._neighbour = path, document, declaration, neighbour

    def agent(self) -> Agent:
        said = self._declaration
        options: dict[str, Any] = {
            "tools": [tool for at, entry in enumerate(said.tools) for tool in self._tools(["tools", at], entry)],
            "settings": ModelSettings(**said.settings.given()),
            "limits": Limits(**said.limits.given()),
            "approval": self._approval(["approval"], said.approval),
            "lifespan": self._function(["lifespan"], said.lifespan),
            "variables": self._found(["variables"], said.variables),
            "memory": self._memory(said.memory),
            "context": self._context(said.context),
            "strategy": self._strategy(said.strategy),
            "output_type": self._found(["output_type"], said.output_type),
            "handoffs": [self._handoff(["handoffs", at], one) for at, one in enumerate(said.handoffs)],
            "hooks": [self._hook(["hooks", at], one) for at, one in enumerate(said.hooks)],
            "source": str(self._path),
        }
        plain = said.model_dump(exclude=set(options), exclude_unset=True)
        try:
            return Agent(**plain, **options)
        except AgentError as error:
            raise self._placed(error) from error

    def _placed(self, error: AgentError) -> AgentError:
        """Return what the agent as a whole says, at the key that it is about."""
        words = str(error).removeprefix(f"Agent {self._declaration.name!r}: ")
        key = next((word for word in words.replace(":", " ").split() if word in AgentDeclaration.model_fields), "name")
        return self._document.fault([key], words)

    # -- tools -----------------------------------------------------------------------------------------------

    def _tools(self, at: Place, entry: Entry) -> Iterator[Tool | MCPServer]:
        match entry:
            case str():
                yield from self._named_tools(at, entry)
            case FunctionTool():
                yield self._tool_of_function(at, entry)
            case RemoteTool(remote=where, parameters=parameters):
                options = {**self._options(at, entry), **where.model_dump()}
                yield self._making(at, partial(Tool.remote, parameters=parameters, **options))
            case AgentTool():
                yield self._agent_tool(at, entry)
            case McpTools():
                yield self._server(at, entry)

    def _named_tools(self, at: Place, path: str) -> Iterator[Tool]:
        found = self._named(at, "tools", path)
        for one in cast("list[Any]", found) if isinstance(found, list | tuple) else [found]:
            if isinstance(one, Tool):
                yield one
            elif callable(one) and not isinstance(one, type | Agent):
                yield self._making(at, partial(tool_from_function, one, {}))
            else:
                hint = "; an agent is a tool with the keys agent and description" if isinstance(one, Agent) else ""
                raise self._document.fault(
                    at, f"{path} is no tool, function or list of tools, but {_brief(one)}{hint}."
                )

    def _tool_of_function(self, at: Place, entry: FunctionTool) -> Tool:
        function = self._found([*at, "function"], entry.function)
        if isinstance(function, Tool):
            words = f"{entry.function} is a tool already, and its options are set where @tool is; write it alone"
            raise self._document.fault([*at, "function"], f"{words}, or drop @tool there.")
        return self._making(at, partial(tool_from_function, function, self._options(at, entry)))

    def _agent_tool(self, at: Place, entry: AgentTool) -> Tool:
        agent = self._agent(entry.agent, [*at, "agent"])
        options = entry.model_dump(exclude_unset=True, exclude={"agent", "approval"})
        approval = self._approval([*at, "approval"], entry.approval)
        return self._making(at, partial(agent.as_tool, **options, approval=approval))

    def _handoff(self, at: Place, entry: str | HandoffEntry) -> Agent | Handoff | str:
        if isinstance(entry, HandoffEntry):
            agent = self._successor(entry.agent, [*at, "agent"])
            return Handoff(agent, description=entry.description, name=entry.name)
        return self._successor(entry, at)

    def _successor(self, reference: str, at: Place) -> Agent | str:
        """Return an agent to hand over to; its name, where it hands over to this one itself."""
        return reference if reference in self._under_way else self._agent(reference, at)

    def _server(self, at: Place, entry: McpTools) -> MCPServer:
        said = entry.model_dump(exclude_unset=True, exclude={"mcp", "approval"})
        rules = entry.approval
        if isinstance(rules, dict):
            said["approval"] = {name: self._approval([*at, "approval", name], rule) for name, rule in rules.items()}
        elif rules in ("never", "always"):
            said["approval"] = rules
        else:
            said["approval"] = {ALL: self._function([*at, "approval"], rules)}
        return self._making(at, partial(MCPServer, entry.mcp, **said))

    def _agent(self, reference: str, at: Place) -> Agent:
        try:
            if not loading.looks_like_file(reference) and "." not in reference:
                return self._neighbour(reference)
            agents = loading.load_agents(self._near(reference))
        except AgentError as error:
            raise self._document.fault(at, f"{str(error).rstrip('.')}.") from error
        if len(agents) > 1:
            names = ", ".join(f"{reference}:{agent.name}" for agent in agents)
            raise self._document.fault(at, f"{reference} declares {len(agents)} agents; say which: {names}.")
        return agents[0]

    def _near(self, reference: str) -> str:
        where, colon, name = reference.partition(":")
        return f"{self._path.parent / where}{colon}{name}" if loading.is_file(where) else reference

    def _options(self, at: Place, entry: ToolOptions) -> dict[str, Any]:
        """Return the options of `@tool`, with what is named by import path."""
        given = entry.model_dump(exclude_unset=True, include=set(ToolOptions.model_fields))
        for name in ("probe", "compensate", "shape"):
            if name in given:
                given[name] = self._function([*at, name], given[name])
        if "fallback" in given:
            given["fallback"] = self._found([*at, "fallback"], given["fallback"])
        if "not_done" in given:
            given["not_done"] = [self._found([*at, "not_done", n], one) for n, one in enumerate(given["not_done"])]
        if "approval" in given:
            given["approval"] = self._approval([*at, "approval"], given["approval"])
        return given

    def _making(self, at: Place, make: Callable[[], T]) -> T:
        try:
            return make()
        except AgentError as error:
            raise self._document.fault(at, str(error)) from error

    # -- the rest --------------------------------------------------------------------------------------------

    def _approval(self, at: Place, said: str | ApprovalEntry | None) -> Any:
        if isinstance(said, ApprovalEntry):
            return Approval(**said.given())
        return said if said in (None, "never", "always") else self._function(at, said)

    def _memory(self, said: bool | MemoryEntry) -> Memory | bool:
        if isinstance(said, bool):
            return said
        index = self._named(["memory", "index"], "memory", said.index)
        return Memory(**{**said.given(), "index": index() if isinstance(index, type) else index})

    def _context(self, said: str | ContextEntry) -> Any:
        if isinstance(said, ContextEntry):
            return ContextPolicy(**said.given())
        found = self._named(["context"], "context", said)
        return found() if isinstance(found, type) else found

    def _hook(self, at: Place, said: str) -> Any:
        found = self._named(at, "hooks", said)
        return found() if isinstance(found, type) else found

    def _strategy(self, said: str | StrategyEntry | None) -> Any:
        if not isinstance(said, StrategyEntry):
            found = self._named(["strategy"], "strategies", said)
            return found() if isinstance(found, type) else found
        make = self._named(["strategy", "use"], "strategies", said.use)
        try:
            return make(**said.options)
        except (AgentError, TypeError, ValueError) as error:
            raise self._document.fault(["strategy"], f"{said.use} can't be made: {sentence(error)}") from error

    def _function(self, at: Place, path: str | None) -> Any:
        found = self._found(at, path)
        if found is not None and not callable(found):
            raise self._document.fault(at, f"{path} has to be a function, and is {_brief(found)}.")
        return found

    def _named(self, at: Place, kind: extensions.Kind, name: str | None) -> Any:
        """Return what an import path names, or an extension of that kind."""
        if name is None or ":" in name:
            return self._found(at, name)
        try:
            return extensions.load(kind, name)
        except AgentError as error:
            raise self._document.fault(at, str(error)) from error

    def _found(self, at: Place, path: str | None) -> Any:
        """Return what an import path names; None for none."""
        if path is None:
            return None
        try:
            return resolve(path, self._path.parent)
        except AgentError as error:
            raise self._document.fault(at, str(error)) from error


def resolve(path: str, folder: Path) -> Any:
    """Return what `module:name` or `file.py:name` names; both are looked for in `folder` first.

    Raises:
        AgentError: If there is none; one sentence.
    """
    where, _, name = path.partition(":")
    found: Any = builtins if where == "builtins" else loading.load_module(where, folder)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            names = [one for one in dir(found) if not one.startswith("__")]
            raise AgentError(f"{where} has no {part!r}{_meant(part, names)}.") from None
    return found


def _meant(name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    near = get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(list(known)[:10]) or 'nothing'}"


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 100 else f"a {type(value).__name__}"  # noqa: PLR2004
