"""Agents declared as data: what may be in an agent's YAML file, as pydantic models. Pure but for the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    Discriminator,
    Field,
    Tag,
    model_validator,
)
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticCustomError, core_schema

from perdure.agents import Agent
from perdure.declared import Declared, FromEnvironment, ImportPath, ModelName, Named, Rule, RuleOrPath, one_of
from perdure.handoffs import Handoff
from perdure.mcp import MCPServer
from perdure.memory import Memory
from perdure.messages import JSON
from perdure.policies import Approval, ContextPolicy, Effect, End, Limits, ModelSettings, Price, Scope
from perdure.schemas import docstring_arguments, docstring_summary
from perdure.tools import tool

# -- what has keys -------------------------------------------------------------------------------------------


class PriceEntry(Price, Declared):
    """What a model costs, in USD per million tokens."""


class SettingsEntry(ModelSettings, Declared):
    """What is sent with every model call."""

    base_url: FromEnvironment | None = None
    price: PriceEntry | None = None  # pyright: ignore[reportIncompatibleVariableOverride] # both are frozen


class LimitsEntry(Limits, Declared):
    """How far one run may go."""


class ApprovalEntry(Approval, Declared):
    """Who has to be asked before which tool."""

    default: Rule = "never"
    tools: dict[str, Rule] = Field(default_factory=dict)


class MemoryEntry(Declared):
    """What it remembers across runs and sessions."""

    described_by = (Memory,)

    scopes: list[Scope] = Field(default=["user"], min_length=1)
    recall: int = Field(default=10, ge=0, le=100)
    search: bool = True
    remember: bool = True
    model: ModelName | None = None
    index: Named | None = None


class ContextEntry(Declared):
    """How much of a conversation the models are shown."""

    described_by = (ContextPolicy,)

    window: int | None = Field(default=None, ge=256)
    compact_at: float = Field(default=0.75, gt=0, le=1)
    compact_to: float = Field(default=0.4, gt=0, le=1)
    keep_turns: int = Field(default=6, ge=1)
    long_result: int = Field(default=2_000, ge=200)
    summary_model: ModelName | None = None


class StrategyEntry(Declared):
    """How runs are led: a class, and what it is made with.

    Attributes:
        use: The import path of the class, or the name of an extension.
        options: What it is made with.
    """

    use: Named
    options: dict[str, JSON] = Field(default_factory=dict)


# -- tools ---------------------------------------------------------------------------------------------------


class ToolOptions(Declared):
    """The options of `@tool`; functions and exceptions are named by import path."""

    described_by = (tool,)

    name: str | None = None
    description: str | None = None
    effect: Effect = "unsafe"
    timeout: timedelta = Field(default=timedelta(seconds=10), gt=timedelta())
    attempts: int = Field(default=3, ge=1)
    approval: RuleOrPath | None = None
    parallel: bool = False
    local: bool = False
    probe: ImportPath | None = None
    not_done: list[ImportPath] = Field(default_factory=list[str])
    in_doubt: Literal["ask", "tell_model"] = "ask"
    fallback: ImportPath | None = None
    defer: bool = False
    compensate: ImportPath | None = None
    undo_attempts: int = Field(default=10, ge=1)
    result_limit: int = Field(default=65_536, ge=1, le=200_000)
    fields: list[str] = Field(default_factory=list[str])
    limit: int | None = Field(default=None, ge=1)
    max_chars: int | None = Field(default=None, ge=1)
    shape: ImportPath | None = None
    polling: bool = False


class FunctionTool(ToolOptions):
    """A tool made of a plain function, as `@tool` makes it. What `@tool` has made is named by its import path alone.

    Attributes:
        function: The import path of the function.
    """

    function: ImportPath


class Activity(Declared):
    """An activity of another worker, in any language.

    Attributes:
        activity: Its activity type.
        task_queue: Where its worker listens.
    """

    activity: str
    task_queue: str


class RemoteTool(ToolOptions):
    """A tool that is an activity of another worker, in any language.

    Attributes:
        remote: Where it is.
        parameters: JSON Schema of the arguments object.
    """

    remote: Activity
    parameters: dict[str, JSON]

    @model_validator(mode="after")
    def _described(self) -> RemoteTool:
        if not self.description:
            raise PydanticCustomError("no_description", "needs the key description: the model has only that to go by")
        return self


class AgentTool(Declared):
    """A tool that is another agent: a call of it is a run of that agent.

    Attributes:
        agent: The name of another agent of this file, or FILE.yaml:name, FILE.py:name, module:name.
    """

    described_by = (Agent.as_tool,)

    agent: str
    description: str
    name: str | None = None
    approval: RuleOrPath | None = None
    parallel: bool = False
    share: float = Field(default=0.5, gt=0, le=1)


class McpTools(Declared):
    """The tools of an MCP server.

    Attributes:
        mcp: What the server is called.
        approval: `never`, `always`, or by tool: one of these, or module:name of a function of the arguments; `*` is for
            those that are not named.
    """

    described_by = (MCPServer,)

    mcp: str
    command: (
        Annotated[
            Annotated[str, Tag("=text")] | Annotated[list[str], Tag("=list")],
            one_of("a program, or a list of a program and its arguments"),
        ]
        | None
    ) = None
    args: list[str] = Field(default_factory=list)
    url: FromEnvironment | None = None
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    allowed_tools: list[str] | None = None
    blocked_tools: list[str] = Field(default_factory=list)
    tool_prefix: str = ""
    effects: dict[str, Effect] = Field(default_factory=dict)
    approval: Annotated[
        Annotated[RuleOrPath, Tag("=text")] | Annotated[dict[str, RuleOrPath], Tag("=mapping")],
        one_of("never, always, or a mapping of tools to one of these or to module:name of a function"),
    ] = Field(default_factory=dict)
    timeout: timedelta = Field(default=timedelta(seconds=30), gt=timedelta())
    start_timeout: timedelta = Field(default=timedelta(seconds=60), gt=timedelta())
    concurrency: int = Field(default=8, ge=1)
    in_doubt: Literal["ask", "tell_model"] = "ask"
    result_limit: int = Field(default=65_536, ge=1, le=200_000)
    images: bool = True
    list_attempts: int = Field(default=8, ge=1)


class HandoffEntry(Declared):
    """An agent to which this one may pass the conversation.

    Attributes:
        agent: As for a tool that is an agent.
    """

    described_by = (Handoff,)

    agent: str
    description: str = ""
    name: str = ""


def _tool_kind(value: Any) -> str | None:
    kinds: dict[str, type[Declared]] = {
        "function": FunctionTool,
        "agent": AgentTool,
        "remote": RemoteTool,
        "mcp": McpTools,
    }
    if isinstance(value, str):
        return "=path"
    if isinstance(value, Mapping):
        return next((f"={name}" for name in kinds if name in value), None)
    return next((f"={name}" for name, kind in kinds.items() if isinstance(value, kind)), None)


ToolEntry = Annotated[
    Annotated[Named, Tag("=path")]
    | Annotated[FunctionTool, Tag("=function")]
    | Annotated[AgentTool, Tag("=agent")]
    | Annotated[RemoteTool, Tag("=remote")]
    | Annotated[McpTools, Tag("=mcp")],
    Discriminator(
        _tool_kind,
        custom_error_type="kind",
        custom_error_message="has to be module:name, or a mapping with the key function, agent, remote or mcp",
    ),
]


# -- the agent -----------------------------------------------------------------------------------------------


class AgentDeclaration(Declared):
    """An agent of Perdure: the same as `Agent(…)` in Python. Several agents of one file are divided by `---`."""

    described_by = (Agent,)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
    model: Annotated[
        Annotated[ModelName, Tag("=text")] | Annotated[list[ModelName], Field(min_length=1), Tag("=list")],
        one_of("PROVIDER:NAME, such as openai:gpt-5-mini, or a list of them"),
    ]
    instructions: str = ""
    tools: list[ToolEntry] = Field(default_factory=list[Any])
    settings: SettingsEntry = SettingsEntry()
    limits: LimitsEntry = LimitsEntry()
    approval: Annotated[
        Annotated[RuleOrPath, Tag("=text")] | Annotated[ApprovalEntry, Tag("=mapping")],
        one_of("never, always, module:name of a function, or a mapping"),
    ] = "never"
    lifespan: ImportPath | None = None
    compensate_on: list[End] = Field(default_factory=list[End])
    variables: ImportPath | None = None
    show_variables: Annotated[
        Annotated[bool, Tag("=switch")] | Annotated[list[str], Tag("=list")],
        one_of("true, false or a list of names"),
    ] = True
    memory: Annotated[
        Annotated[bool, Tag("=switch")] | Annotated[MemoryEntry, Tag("=mapping")],
        one_of("true, false or a mapping"),
    ] = False
    context: Annotated[
        Annotated[ContextEntry, Tag("=mapping")] | Annotated[Named, Tag("=text")],
        one_of("a mapping, or module:name of a context strategy"),
    ] = ContextEntry()
    conceal: bool = False
    strategy: (
        Annotated[
            Annotated[StrategyEntry, Tag("=mapping")] | Annotated[Named, Tag("=text")],
            one_of("module:name of a strategy, or a mapping with the keys use and options"),
        ]
        | None
    ) = None
    output_type: ImportPath | None = None
    hooks: list[Named] = Field(default_factory=list[str])
    handoffs: list[
        Annotated[
            Annotated[str, Tag("=text")] | Annotated[HandoffEntry, Tag("=mapping")],
            one_of("an agent, or a mapping with the keys agent, description and name"),
        ]
    ] = Field(default_factory=list[Any])


UNDECLARED = {"source"}
"""What of an `Agent` is not declared: the file is where it is."""


def undeclared() -> set[str]:
    """Return the arguments of `Agent` that a file can't declare; a test holds it to be empty."""
    return {field.name for field in fields(Agent)} - set(AgentDeclaration.model_fields) - UNDECLARED


# -- its JSON Schema -----------------------------------------------------------------------------------------


class _Schema(GenerateJsonSchema):
    def timedelta_schema(self, schema: core_schema.TimedeltaSchema) -> JsonSchemaValue:  # noqa: ARG002 - pydantic's
        return {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^(P.+|\d+(\.\d+)?\s*(ms|s|m|h|d))$"}]}

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        bounds = {"exclusiveMinimum": schema.get("gt"), "minimum": schema.get("ge")}
        return {"type": "number", **{name: float(bound) for name, bound in bounds.items() if bound is not None}}


def agent_schema() -> dict[str, Any]:
    """Return the JSON Schema of an agent's YAML file, for editors."""
    schema = AgentDeclaration.model_json_schema(schema_generator=_Schema)
    defined = {AgentDeclaration.__name__: schema, **schema.get("$defs", {})}
    for kind in _kinds(Declared):
        if kind.__name__ in defined:
            _describe(defined[kind.__name__], kind)
    title = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "An agent of Perdure"}
    return {**title, **{key: value for key, value in schema.items() if key != "title"}}


def _kinds(kind: type[Declared]) -> list[type[Declared]]:
    return [one for below in kind.__subclasses__() for one in (below, *_kinds(below))]


def _describe(schema: dict[str, Any], kind: type[Declared]) -> None:
    """Say of each key what the docstrings say of it."""
    own = [one for one in reversed(kind.__mro__) if issubclass(one, BaseModel) and one is not BaseModel]
    texts = [str(one.__doc__ or "") for one in (*kind.described_by, *own)]
    said: dict[str, str] = {}
    for text in texts:
        said |= docstring_arguments(text.replace("Attributes:", "Args:"))
    schema["description"] = " ".join(docstring_summary(str(kind.__doc__).partition("Attributes:")[0]).split())
    for name, of in schema["properties"].items():
        of.pop("title", None)
        if name in said:
            of["description"] = said[name]
