"""Agents: who acts, with which model, tools and rules."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, SecretStr, field_validator

from perdure import outputs
from perdure.compaction import DefaultStrategy
from perdure.concealing import deciding, deciding_tool
from perdure.context import ContextStrategy
from perdure.errors import AgentError
from perdure.handoffs import Handoff, network, with_network
from perdure.handoffs import declared as handing_over
from perdure.hooks import Hook
from perdure.hooks import declared as hooking
from perdure.mcp import MCPServer, predicate
from perdure.memory import Memory, MemoryIndex
from perdure.messages import JSON, Content, Data, content_hash
from perdure.policies import (
    DEFAULT_STRATEGY,
    AgentSpec,
    Approval,
    ContextPolicy,
    End,
    Limits,
    ModelSettings,
    OutputSpec,
    VariablesSpec,
)
from perdure.schemas import sentence
from perdure.strategies import Strategy
from perdure.tools import Tool, agent_tool
from perdure.variables import declared

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]
AskAbout = Callable[[str, dict[str, JSON]], bool | Awaitable[bool]]
"""An agent's approval predicate: called with a tool's name and the arguments; True asks a person."""


def _defining_file() -> str:
    """Return the file that makes the agent: the nearest caller outside this module."""
    frame = inspect.currentframe()
    while frame and frame.f_back and frame.f_code.co_filename in (__file__, "<string>"):
        frame = frame.f_back
    file = Path(frame.f_code.co_filename if frame else "")
    return str(file.resolve()) if file.is_file() else str(Path.cwd())


ANY_TOOL = "*"
"""Name of the predicate that is the agent's own."""


def _with_keywords(ask: AskAbout, tool: str) -> Callable[..., bool | Awaitable[bool]]:
    if inspect.iscoroutinefunction(ask):

        async def asks(**arguments: JSON) -> bool:
            return bool(await ask(tool, arguments))

        return asks

    def asks_now(**arguments: JSON) -> bool | Awaitable[bool]:
        return ask(tool, arguments)

    return asks_now


@dataclass(frozen=True)
class Agent:
    """A model with instructions and tools. Immutable.

    Args:
        name: As in `perdure run NAME`. Letters, digits, `-` and `_`.
        model: `openai:gpt-…` (any Chat Completions server), `openai-responses:…` or `scripted:FILE`. A list names
            them in order: the next one is asked where one is down.
        instructions: The system prompt.
        tools: Made by `@tool`, `Tool.from_schema`, `Tool.remote` or `Agent.as_tool`; their names differ. And
            `MCPServer`s, each of which stands for all its tools.
        settings: Temperature and so on.
        limits: Steps and calls of a run.
        approval: Who has to be asked before which tool; `"always"` is short for `Approval(default="always")`, and a
            function of a tool's name and its arguments decides about every tool that says nothing itself.
        compensate_on: `["cancelled", "failed"]`, or one of them: where a run ends so, what its tools did is undone by
            their compensations, the last first, and the result's `undone` lists what was and what could not be.
        memory: What it remembers across runs and sessions; True is short for `Memory()`. Default: nothing.
        lifespan: An async context manager function. Entered once per worker, before its first call; what it
            yields is `ctx.shared`; left when the worker stops.
        variables: A pydantic model class: typed state that tools read and write as `ctx.vars`, at most 64 KiB of JSON.
            It starts with the class's defaults and what `Task(variables=…)` gives, and is kept over the turns of a
            session.
        show_variables: Which of them the model is shown at the end of each request: all, none, or those named.
        strategy: How its runs are led, such as `Plan()`. Default: the model is asked what to do, over and over. See
            `perdure.strategies`.
        context: How much of a conversation the models are shown, and what is done where that is too much; or a
            `perdure.context.ContextStrategy` that decides about it.
        conceal: The models are shown handles such as `‹phone-1›` in place of the values of `Sensitive` fields, in
            arguments, results and variables; tools that are called with a handle get the value, and the answer has it
            again. A field that says `Sensitive(…, conceal=…)` itself is not asked. Default False.
        output_type: What its answer is: a pydantic model, a dataclass, a TypedDict or a plain type such as `list[str]`.
            `RunResult.output` is then plain data that fits, and `RunResult.output_as` an instance. Default None: text.
        handoffs: Agents to which it may pass the conversation, in the same run: its model gets a tool
            `transfer_to_NAME` for each. An agent, a `Handoff`, or the name of one among them, so that it can hand back.
        hooks: What is called before and after each phase of its runs; see `perdure.hooks.Hook`.

    Raises:
        AgentError: If the name is not usable, or two tools have one name.
    """

    name: str
    model: str | Sequence[str]
    instructions: str = ""
    tools: Sequence[Tool | MCPServer] = ()
    settings: ModelSettings = field(default_factory=ModelSettings)
    limits: Limits = field(default_factory=Limits)
    approval: Approval | AskAbout | Literal["never", "always"] = field(default_factory=Approval)
    lifespan: Lifespan | None = None
    compensate_on: Sequence[End] = ()
    variables: type[BaseModel] | None = None
    show_variables: bool | Sequence[str] = True
    memory: Memory | bool = False
    strategy: Strategy | None = None
    context: ContextPolicy | ContextStrategy = field(default_factory=ContextPolicy)
    conceal: bool = False
    output_type: Any = None
    handoffs: Sequence[Agent | Handoff | str] = ()
    hooks: Sequence[Hook] = ()
    source: str = field(default_factory=_defining_file, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Check what only the whole agent can tell."""
        if not self.name or not self.name.replace("-", "").replace("_", "").isalnum():
            raise AgentError(f"An agent's name is made of letters, digits, '-' and '_'; {self.name!r} is not.")
        for model in self._models or [self.model]:
            provider, _, rest = model.partition(":") if isinstance(model, str) else ("", "", "")
            if not provider or not rest:
                raise AgentError(f"Agent {self.name!r}: model {model!r} has to be PROVIDER:NAME, such as openai:gpt-5.")
        self._check_tools()
        if not (isinstance(self.approval, Approval) or self.approval in ("never", "always") or callable(self.approval)):
            words = "'never', 'always', an Approval or a function"
            raise AgentError(f"Agent {self.name!r}: approval has to be {words}, not {self.approval!r}.")
        if not isinstance(self.memory, Memory | bool):  # pyright: ignore[reportUnnecessaryIsInstance] # as with tools
            raise AgentError(f"Agent {self.name!r}: memory has to be True, False or a Memory, not {self.memory!r}.")
        self._check_context()
        handed = {handoff.spec.name for handoff in handing_over(self)}
        strangers = set(self.rules.tools) - {tool.name for tool in [*self.tools, *self.toolset]} - handed
        if strangers and not self.servers:  # what servers offer is known to runs
            raise AgentError(f"Agent {self.name!r}: approval names unknown tools: {', '.join(sorted(strangers))}.")
        try:
            _ = self.spec
        except ValueError as error:
            raise AgentError(f"Agent {self.name!r}: {sentence(error)}") from error

    @property
    def _models(self) -> list[Any]:
        return list(self.model) if isinstance(self.model, list | tuple) else [self.model]

    def _check_context(self) -> None:
        own: Any = self.context_strategy  # whatever a user has put there
        if own is None:
            return
        if not isinstance(own, ContextStrategy) or not isinstance(getattr(own, "policy", None), ContextPolicy):
            words = "a ContextPolicy, or an object with name, policy, view and compact"
            raise AgentError(f"Agent {self.name!r}: context has to be {words}, not {own!r}.")
        if own.name == DEFAULT_STRATEGY and not isinstance(own, DefaultStrategy):
            raise AgentError(f"Agent {self.name!r}: a context strategy of your own can't be named {own.name!r}.")

    def _check_tools(self) -> None:
        if not isinstance(self.tools, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance] # users forget the []
            raise AgentError(f"Agent {self.name!r}: tools has to be a list, not {self.tools!r}.")
        if not isinstance(self.strategy, Strategy | None):  # pyright: ignore[reportUnnecessaryIsInstance] # as with tools
            words = "an object with name, spec, tools and move, such as Plan()"
            raise AgentError(f"Agent {self.name!r}: strategy has to be {words}, not {self.strategy!r}.")
        for tool in self.tools:
            if not isinstance(tool, Tool | MCPServer):  # pyright: ignore[reportUnnecessaryIsInstance] # they forget @tool
                raise AgentError(f"Agent {self.name!r}: {tool!r} is not a tool; decorate the function with @tool.")
        seen: set[str] = set()
        for tool in self._given:
            if tool.name in seen:
                raise AgentError(f"Agent {self.name!r} has two tools named {tool.name!r}; rename one with name=.")
            seen.add(tool.name)

    @cached_property
    def _given(self) -> Sequence[Tool | MCPServer]:
        return tuple(self.strategy.tools(self)) if self.strategy else self.tools

    @cached_property
    def toolset(self) -> Sequence[Tool]:
        """What calls of its runs can be: its tools, or what its strategy makes of them; without those of servers."""
        return tuple(tool for tool in self._given if isinstance(tool, Tool))

    @cached_property
    def servers(self) -> Sequence[MCPServer]:
        """The MCP servers whose tools its runs list: its own, as far as its strategy leaves them to it."""
        return tuple(server for server in self._given if isinstance(server, MCPServer))

    @property
    def own_tools(self) -> list[Tool]:
        """Its tools, without those of servers."""
        return [tool for tool in self.tools if isinstance(tool, Tool)]

    @property
    def rules(self) -> Approval:
        """The approval rules in full."""
        if isinstance(self.approval, Approval):
            return self.approval
        return Approval(default=self.approval if isinstance(self.approval, str) else f"predicate:{ANY_TOOL}")

    def predicate(self, name: str, tool: str) -> Callable[..., bool | Awaitable[bool]] | None:
        """Return the approval predicate `name` for a call of `tool`, to be called with its arguments as keywords."""
        if name != ANY_TOOL:
            owner = self.tool(name)
            return owner.ask if owner else predicate(self.servers, name)
        if isinstance(self.approval, Approval | str):
            return None
        ask = self.approval
        return _with_keywords(ask, tool)

    @property
    def spec(self) -> AgentSpec:
        """The agent as data, with all agents that it may hand over to."""
        return with_network(self)

    @property
    def alone(self) -> AgentSpec:
        """The agent as data, as if it could not hand over to others."""
        return AgentSpec(
            name=self.name,
            model=self._models[0],
            fallbacks=list(self._models[1:]),
            settings=self.settings,
            instructions=self.instructions,
            tools=[self.under_rules(tool).spec for tool in self.toolset],
            limits=self.limits,
            approval=self.rules,
            compensate_on=list(self.compensate_on),
            variables=self._declared,
            memory=self._memory.policy if self._memory else None,
            strategy=self.strategy.spec() if self.strategy else None,
            context=self._context,
            output=self._output,
            mcp=[server.spec for server in self.servers],
            hooks=hooking(self.name, self.hooks),
        )

    @property
    def _output(self) -> OutputSpec | None:
        found = outputs.declared(self.name, self.output_type)
        if found is None or not self.conceal:
            return found
        return found.model_copy(update={"json_schema": deciding(found.json_schema)})

    @property
    def _declared(self) -> VariablesSpec | None:
        if self.variables is None:
            return None
        found = declared(self.name, self.variables, self.show_variables)
        return found.model_copy(update={"json_schema": deciding(found.json_schema)}) if self.conceal else found

    def under_rules(self, tool: Tool) -> Tool:
        """Return one of its tools as it is for this agent: with what that says where the tool says nothing."""
        if not self.conceal:
            return tool
        fallback = self.under_rules(tool.fallback) if tool.fallback else None
        return replace(tool, spec=deciding_tool(tool.spec), fallback=fallback)

    @property
    def _context(self) -> ContextPolicy:
        if isinstance(self.context, ContextPolicy):
            return self.context.model_copy(update={"strategy": DEFAULT_STRATEGY})
        return self.context.policy.model_copy(update={"strategy": self.context.name})

    @property
    def context_strategy(self) -> ContextStrategy | None:
        """What compacts its conversations, where that is not the default strategy by `context` as data."""
        return None if isinstance(self.context, ContextPolicy) else self.context

    @property
    def _memory(self) -> Memory | None:
        return self.memory if isinstance(self.memory, Memory) else Memory() if self.memory else None

    @property
    def index(self) -> MemoryIndex | None:
        """What finds remembered facts, where that is not the store's own search."""
        return self._memory.index if self._memory else None

    @property
    def hash(self) -> str:
        """Hash of the agent as data: 16 hex digits."""
        return content_hash(self.spec)

    def as_tool(
        self,
        description: str,
        *,
        name: str | None = None,
        approval: Literal["never", "always"] | Callable[..., bool | Awaitable[bool]] | None = None,
        parallel: bool = False,
        share: float = 0.5,
    ) -> Tool:
        """Return a tool of other agents: a call of it is a run of this agent, with a conversation of its own.

        What it may spend comes out of its caller's budget, and what it leaves goes back; it ends with its caller. It is
        told its task alone, and its answer is the call's result.

        Args:
            description: What it is good for: its caller's model has only that to go by.
            name: As that model sees it. Default: the agent's.
            approval: Whether a person is asked before it begins; what it does then, its own rules say. Default: what
                the caller's agent says.
            parallel: It may run beside other effects of the same turn. An agent that can only read always may.
            share: The most that it is lent of what its caller may still spend. Default a half.

        Raises:
            ToolDefinitionError: If an option can't be.
        """
        everybody = network(self).values()
        reads = all(tool.spec.effect == "read" for one in everybody for tool in one.toolset)
        reads = reads and not any(one.servers for one in everybody)
        options = {"effect": "read" if reads else "unsafe", "approval": approval, "parallel": parallel}
        return agent_tool(self, name or self.name, description, share, options)

    @property
    def below(self) -> list[Agent]:
        """The agents that are tools of it, or that it may hand over to, and those below them."""
        direct = [tool.agent for one in network(self).values() for tool in one.toolset if tool.agent]
        return [*list(network(self).values())[1:], *(one for agent in direct for one in (agent, *agent.below))]

    def tool(self, name: str) -> Tool | None:
        """Return the tool of that name, or None."""
        return next((tool for tool in self.toolset if tool.name == name), None)


TENANT_BYTES = 64
"""The engine's limit of a fairness key."""


class Task(Data):
    """One request to an agent.

    Attributes:
        input: What the user says: text, or a list of text, images and files.
        id: The run's id; starting the same id twice gives one run. Default: made up.
        limits: Beats the agent's.
        labels: For your own use; kept in the run's memo.
        priority: From 1, the most urgent, to 5; None is 3. Where runs wait for a worker or for a model's rate, the
            more urgent ones come first.
        tenant: On whose behalf, in at most 64 bytes; waiting tenants share what there is, by `Settings.tenant_weights`.
        session: The conversation that it is said in, whose next turn the run is; while one is under way, it is said to
            that. See `Client.session`.
        user: For whom it works, as far as memory goes.
        secrets: Passwords and the like for tools, by name: they go into the vault, and from there into the tool alone.
        variables: Values for the agent's variables, as JSON; they beat the defaults and those of a session.
    """

    input: Content
    id: str | None = None
    limits: Limits | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    priority: int | None = Field(default=None, ge=1, le=5)
    tenant: str = ""
    session: str = ""
    user: str = ""
    secrets: dict[str, SecretStr] = Field(default_factory=dict[str, SecretStr], exclude=True, repr=False)
    variables: dict[str, JSON] = Field(default_factory=dict)

    @field_validator("tenant")
    @classmethod
    def _short(cls, tenant: str) -> str:
        if len(tenant.encode()) > TENANT_BYTES:
            raise ValueError(f"a tenant's name has at most {TENANT_BYTES} bytes")
        return tenant
