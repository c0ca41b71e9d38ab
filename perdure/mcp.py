"""MCP servers whose tools an agent has: where they are, what each may be asked, and what is known of their tools."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from perdure.errors import AgentError, ToolDefinitionError
from perdure.policies import Effect, McpServerSpec, McpTool, ToolSpec
from perdure.reports import Listed
from perdure.results import clean, short
from perdure.schemas import sentence
from perdure.sensitive import Secret, unnameable
from perdure.tool_checks import check, checked_schema

Ask = Callable[..., bool | Awaitable[bool]]
"""Called with a tool's arguments; True asks a person."""
Policy = Literal["never", "always"] | Ask

ALL = "*"
"""In `effects` and `approval`: all tools that are not named."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, eq=False)
class MCPServer:
    """An MCP server, by its command or its address. Its tools are the agent's; each run lists them once.

    `MCPServer("files", command=["npx", "-y", "@modelcontextprotocol/server-filesystem", "/data"])` is started by each
    worker that needs it, and `MCPServer("weather", url="https://…/mcp")` is spoken to over streamable HTTP.

    Values of `env` and `headers` may have `${NAME}` in them, which each worker fills in from its environment, and
    `${secret:NAME}`, from the run's secrets; `Secret("NAME")` is short for the latter. Neither gets into a spec, a
    history or a log.

    Args:
        name: What it is called: in events, in errors, and before names that are taken. Letters, digits, `-` and `_`.
        command: The program and its arguments; one string is a program without any.
        args: More arguments.
        url: The address, in place of a command.
        env: Environment variables of the command, besides HOME, PATH, USER and the like: it gets no others.
        cwd: Where the command is started. Default: where the worker was.
        headers: Sent with each request.
        allowed_tools: The only ones that are offered, by the names that the server gives them. Default: all.
        blocked_tools: Those that are not.
        tool_prefix: Put before each name, with `_`. Default: only where a name is taken, and then the server's.
        effects: Effects by tool: they beat what the server says of its tools (`readOnlyHint` → `read`,
            `idempotentHint` → `idempotent`, else `unsafe`). `{"*": "unsafe"}` is for those that are not named.
        approval: `never`, `always`, or by tool: one of these, or a function of the arguments that returns True to ask
            a person; `*` as for `effects`. Default: what the agent says.
        timeout: Hard deadline of one attempt of a call, in seconds or as a timedelta. Default 30 s.
        start_timeout: Until it has to be there. Default 60 s: `npx` may have to fetch it.
        concurrency: Its calls at once, in one worker; more wait, outside of their deadlines. Default 8.
        in_doubt: As for `tool`.
        result_limit: As for `tool`.
        images: Whether the model is shown images that it returns. Default True; a model that can't see needs False.
        list_attempts: How often it is asked for its tools, with pauses of 0.5 s, doubling up to 10 s, before a run ends
            `failed` for want of them. Default 8: half a minute. One that ends at its start is started 3 times at most.

    Raises:
        AgentError: If it can't be as it is described.
    """

    name: str
    command: Sequence[str] | str | None = None
    args: Sequence[str] = ()
    url: str | None = None
    env: Mapping[str, str | Secret] = field(default_factory=dict[str, str | Secret], repr=False)
    cwd: str | Path | None = None
    headers: Mapping[str, str | Secret] = field(default_factory=dict[str, str | Secret], repr=False)
    allowed_tools: Sequence[str] | None = None
    blocked_tools: Sequence[str] = ()
    tool_prefix: str = ""
    effects: Mapping[str, Effect] = field(default_factory=dict[str, Effect])
    approval: Literal["never", "always"] | Mapping[str, Policy] = field(default_factory=dict[str, Policy])
    timeout: timedelta | float = 30
    start_timeout: timedelta | float = 60
    concurrency: int = 8
    in_doubt: Literal["ask", "tell_model"] = "ask"
    result_limit: int = 65_536
    images: bool = True
    list_attempts: int = 8

    def __post_init__(self) -> None:
        """Check what can be known before it is spoken to."""
        if problem := self._problem():
            raise AgentError(f"MCP server {self.name!r}: {problem}.")
        try:
            _ = self.spec, self.start_seconds
        except (ValueError, TypeError, OverflowError) as error:
            raise AgentError(f"MCP server {self.name!r}: {sentence(error)}") from error

    def _problem(self) -> str:
        if not _NAME.fullmatch(self.name):
            return "its name has to be 1 to 64 letters, digits, '-' and '_'"
        if bool(self.command) == bool(self.url):
            return "it needs either a command or a url"
        if self.url and not re.match(r"https?://[^/]", self.url):
            return f"its url has to begin with http:// or https://, and {self.url!r} does not"
        if self.url and (self.args or self.env or self.cwd):
            return "args, env and cwd are for a command; at a url there is none"
        if self.command and self.headers:
            return "headers are for a url; a command has env"
        if isinstance(self.allowed_tools, str) or isinstance(self.blocked_tools, str):
            return "allowed_tools and blocked_tools have to be lists of names"
        if self.concurrency < 1:
            return "concurrency has to be 1 or more"
        return next((problem for value in self.values if (problem := unfillable(value))), "")

    @property
    def values(self) -> list[str]:
        """The templates of `env` and `headers`."""
        return [template(value) for value in (*self.env.values(), *self.headers.values())]

    @property
    def secrets(self) -> list[str]:
        """Names of those of the run that it needs."""
        return [name for value in self.values for kind, name in _holes(value) if kind]

    @property
    def line(self) -> list[str]:
        """The command with its arguments."""
        first = [self.command] if isinstance(self.command, str) else list(self.command or ())
        return [*first, *self.args]

    @property
    def start_seconds(self) -> float:
        """Seconds until it has to be there."""
        seconds = _duration(self.start_timeout).total_seconds()
        if seconds <= 0:
            raise ValueError("start_timeout has to be more than 0")
        return seconds

    @property
    def policies(self) -> Mapping[str, Policy]:
        """What is said of approval, by tool."""
        return {ALL: self.approval} if isinstance(self.approval, str) else self.approval

    @property
    def spec(self) -> McpServerSpec:
        """The rules for its tools as data."""
        timeout = _duration(self.timeout)
        if timeout <= timedelta():
            raise ValueError("timeout has to be more than 0")
        return McpServerSpec(
            name=self.name,
            allowed_tools=None if self.allowed_tools is None else list(self.allowed_tools),
            blocked_tools=list(self.blocked_tools),
            tool_prefix=self.tool_prefix,
            effects=dict(self.effects),
            approval={
                tool: f"predicate:{predicate_name(self.name, tool)}" if callable(policy) else policy
                for tool, policy in self.policies.items()
            },
            timeout=timeout,
            in_doubt=self.in_doubt,
            result_limit=self.result_limit,
            list_attempts=self.list_attempts,
        )


def _duration(given: timedelta | float) -> timedelta:
    return given if isinstance(given, timedelta) else timedelta(seconds=given)


def predicate_name(server: str, tool: str) -> str:
    """Return the name of the approval predicate that a server has for one of its tools."""
    return f"{server}/{tool}"


def predicate(servers: Iterable[MCPServer], name: str) -> Ask | None:
    """Return the approval predicate of that name, or None."""
    for server in servers:
        for tool, policy in server.policies.items():
            if callable(policy) and predicate_name(server.name, tool) == name:
                return policy
    return None


# -- values that a worker fills in -------------------------------------------------------------------------

_HOLE = re.compile(r"\$\{(secret:)?([^{}]*)\}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def template(value: str | Secret) -> str:
    """Return a value of `env` or `headers` as text with `${…}` in it."""
    return f"${{secret:{value.name}}}" if isinstance(value, Secret) else str(value)


def _holes(text: str) -> list[tuple[str, str]]:
    return _HOLE.findall(text)


def unfillable(text: str) -> str:
    """Return why no worker can fill in `text`, or ""."""
    for kind, name in _holes(text):
        if kind and (problem := unnameable(name)):
            return problem.rstrip(".")
        if not kind and not _VARIABLE.fullmatch(name):
            return f"{name!r} is no name of an environment variable"
    return ""


def filled(text: str, environment: Mapping[str, str], secrets: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return `text` with what it asks for, and the values that were filled in, by name.

    Raises:
        LookupError: If one is not there: the variable of the environment, or the secret, in a sentence.
    """
    used: dict[str, str] = {}

    def fill(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if name not in (secrets if kind else environment):
            what = f"the secret {name!r}, which this run was not given" if kind else _unset(name)
            raise LookupError(f"It needs {what}.")
        used[name] = secrets[name] if kind else environment[name]
        return used[name]

    return _HOLE.sub(fill, text), used


def _unset(name: str) -> str:
    return f"the environment variable {name}, which is not set where the worker runs"


# -- what a server says of its tools -----------------------------------------------------------------------

LONGEST = 4_000
"""Characters of a description that a model is shown."""
LARGEST = 1_000_000
"""Bytes of one server's tools that a run takes."""


_MOST_NOTES = 50


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool as its server describes it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    read_only: bool = False
    idempotent: bool = False


def listed(server: McpServerSpec, offers: Sequence[Offer], taken: Iterable[str]) -> Listed:
    """Return the tools that a run has of those that a server offers.

    Args:
        taken: Names of tools that it has already. Where one is taken, the server's name is put before it.
    """
    names, tools, notes, size = set(taken), list[ToolSpec](), list(_strangers(server, offers)), 0
    for offer in offers:
        if not _wanted(server, offer.name):
            continue
        own = f"{server.tool_prefix}_{offer.name}" if server.tool_prefix else offer.name
        name = f"{server.name}_{offer.name}" if own in names else own
        try:
            tool = _tool(server, offer, clean(name))
        except (ToolDefinitionError, RecursionError) as error:
            why = "its JSON Schema is nested too deeply." if isinstance(error, RecursionError) else str(error)
            notes.append(f"Tool {offer.name!r} is left out: {why.removeprefix(f'Tool {name!r}: ')}")
            continue
        size += len(json.dumps(tool.parameters)) + len(tool.description)
        if name in names or size > LARGEST:
            why = f"the name {name!r} is taken" if name in names else "the server offers too much"
            notes.append(f"Tool {offer.name!r} is left out: {why}.")
            continue
        names.add(name)
        tools.append(tool)
    return Listed(server=server.name, tools=tools, notes=[short(note) for note in notes[:_MOST_NOTES]])


def _wanted(server: McpServerSpec, name: str) -> bool:
    allowed = server.allowed_tools is None or name in server.allowed_tools
    return allowed and name not in server.blocked_tools


def _strangers(server: McpServerSpec, offers: Sequence[Offer]) -> Iterable[str]:
    """Yield what is said of tools that the server does not offer, each in a sentence."""
    known = {offer.name for offer in offers} | {ALL}
    said = {
        "allowed_tools": server.allowed_tools or (),
        "blocked_tools": server.blocked_tools,
        "effects": server.effects,
        "approval": server.approval,
    }
    for option, names in said.items():
        if strange := sorted(set(names) - known):
            yield f"{option} names what the server does not offer: {', '.join(strange)}."


def _tool(server: McpServerSpec, offer: Offer, name: str) -> ToolSpec:
    """Return an offer as a tool. Raises `ToolDefinitionError` where it can't be one."""
    hinted: Effect = "read" if offer.read_only else "idempotent" if offer.idempotent else "unsafe"
    text = clean(offer.description).strip() or f"{offer.name} of {server.name}."
    spec = ToolSpec(
        name=name,
        description=text if len(text) <= LONGEST else f"{text[:LONGEST]}…",
        parameters=checked_schema(offer.parameters, name),
        effect=server.effects.get(offer.name) or server.effects.get(ALL) or hinted,
        timeout=server.timeout,
        approval=server.approval.get(offer.name) or server.approval.get(ALL),
        in_doubt=server.in_doubt,
        result_limit=server.result_limit,
        mcp=McpTool(server=server.name, name=offer.name),
    )
    check(spec, {})
    return spec
