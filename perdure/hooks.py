"""Hooks: what an application has done before and after the phases of a run. `Agent(hooks=[…])`.

They are called where the runtime acts anyway, in activities, never in a workflow: whatever they do, a run can be
replayed. What one says no to, or adds, is part of what that activity reports, and so of the history. An agent without
hooks pays nothing; one with them has no step more.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from perdure.errors import AgentError
from perdure.messages import JSON, AssistantMessage, Compaction, Message, RunResult, ToolResult

Edge = Literal[
    "on_run_start",
    "before_model",
    "after_model",
    "before_tool",
    "after_tool",
    "before_compaction",
    "after_compaction",
    "before_undo",
    "after_undo",
    "on_waiting",
    "on_run_end",
]
"""Where a hook is called: before or after a phase of `perdure.state.Phase`."""
EDGES: tuple[Edge, ...] = get_args(Edge)

LONGEST_NOTE = 8_000
"""Characters of what all hooks add to one request."""

DENIED = "denied_by_hook"
"""The error type of a call that a hook said no to."""

STOPPED, FAILED = "stopped_by_hook", "hook_failed"
"""The types of the failure of a run that a hook has stopped, or whose hook could not decide."""


@dataclass(frozen=True)
class Add:
    """Tell the model something at the end of this request; it is not kept in the transcript. From `before_model`."""

    text: str


@dataclass(frozen=True)
class Stop:
    """End the run as failed, with what it has done; it can be resumed. From `before_model` and `after_model`."""

    reason: str


@dataclass(frozen=True)
class Deny:
    """Do not make a call; the model is told why. From `before_tool`, and from `after_model` for any kind of tool.

    Attributes:
        tools: From `after_model`: the names of the tools whose calls are meant. Default: all calls of the reply.
    """

    reason: str
    tools: Sequence[str] | None = None


@dataclass(frozen=True)
class Note:
    """Tell the model something with a call's result. From `after_tool`."""

    text: str


@dataclass(frozen=True)
class At:
    """Where in a run a hook is called.

    Attributes:
        step: The number of the turn, from 1; 0 where there is none.
        attempt: Of the activity, from 1: a hook may be called again after a failure or a crash.
        shared: What the agent's lifespan function yielded, or None.
    """

    run_id: str
    agent: str
    step: int = 0
    attempt: int = 1
    shared: Any = field(default=None, compare=False)


@dataclass(frozen=True)
class Call:
    """A call of a tool.

    Attributes:
        position: Such as `2.1`.
        key: The idempotency key.
    """

    tool: str
    arguments: dict[str, JSON]
    position: str
    key: str
    effect: str


class Hook:
    """Override what you need. Each method may be sync, and runs in a thread then, or async; all get 5 s together.

    Those that decide (`before_model`, `after_model`, `before_tool`) hold the run: where one fails, the answer is no.
    The others are told: where one fails, the log has it, and the run goes on. Each may be called again after a crash.
    """

    @property
    def name(self) -> str:
        """Under which it is in the agent's rules, in errors and in logs. Default: the name of its class."""
        return type(self).__name__

    def on_run_start(self, at: At) -> Any:
        """Is called before the first turn."""

    def before_model(self, at: At, messages: Sequence[Message]) -> Any:
        """Is called before the model is asked. May return `Add(text)` or `Stop(reason)`."""

    def after_model(self, at: At, message: AssistantMessage) -> Any:
        """Is called with the reply, or what a strategy does instead. May return `Deny(reason)` or `Stop(reason)`."""

    def before_tool(self, at: At, call: Call) -> Any:
        """Is called before each attempt of a tool that runs in this worker. May return `Deny(reason)`."""

    def after_tool(self, at: At, call: Call, result: ToolResult) -> Any:
        """Is called with a call's result. May return `Note(text)`."""

    def before_compaction(self, at: At, why: str) -> Any:
        """Is called before the context is made shorter: it is `full`, `refused`, or little is left of the `budget`."""

    def after_compaction(self, at: At, compaction: Compaction | None) -> Any:
        """Is called with what came of it; None: nothing."""

    def before_undo(self, at: At, call: Call) -> Any:
        """Is called before each attempt to undo what a call did."""

    def after_undo(self, at: At, call: Call, undone: bool) -> Any:
        """Is called once it is undone, or can't be."""

    def on_waiting(self, at: At, told: dict[str, JSON]) -> Any:
        """Is called when the run begins to wait for a person, with what a webhook would be sent, redacted."""

    def on_run_end(self, at: At, result: RunResult) -> Any:
        """Is called after the run's end, however it ended, once it has been archived."""


def edges(hook: Hook) -> list[str]:
    """Return where a hook wants to be called: the methods that it has of its own."""
    return [edge for edge in EDGES if getattr(type(hook), edge) is not getattr(Hook, edge)]


def declared(agent: str, hooks: Any) -> dict[str, list[str]]:
    """Return the hooks of an agent as data: where each is called, by name.

    Raises:
        AgentError: If one is no hook, or two have one name.
    """
    if not isinstance(hooks, Sequence) or isinstance(hooks, str):
        raise AgentError(f"Agent {agent!r}: hooks has to be a list, not {hooks!r}.")
    found = dict[str, list[str]]()
    for hook in cast("Sequence[Any]", hooks):
        if not isinstance(hook, Hook):
            raise AgentError(f"Agent {agent!r}: a hook is an instance of a class derived from Hook; {hook!r} is none.")
        if hook.name in found:
            raise AgentError(f"Agent {agent!r} has two hooks named {hook.name!r}; give one a name of its own.")
        if strange := [name for name in _methods(hook) if name.startswith(("on_", "before_", "after_"))]:
            raise AgentError(f"Agent {agent!r}: hook {hook.name!r} has {strange[0]!r}; known are {', '.join(EDGES)}.")
        found[hook.name] = edges(hook)
    return found


def _methods(hook: Hook) -> list[str]:
    """Return the public methods that `Hook` does not know."""
    members = inspect.getmembers_static(type(hook), inspect.isfunction)
    return [name for name, _ in members if not hasattr(Hook, name)]
