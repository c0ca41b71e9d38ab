"""Agents whose runs survive crashes, deploys and long waits for people.

Names are loaded when they are first used: `import perdure` itself takes milliseconds.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # type checkers take it for true; `typing` alone would double the time of the import
if TYPE_CHECKING:
    from typing import Any

    from perdure.agents import Agent, Task
    from perdure.client import Client, RunHandle, run
    from perdure.errors import (
        AgentError,
        ConnectionFailed,
        DecisionRejected,
        PerdureError,
        RunCancelled,
        RunFailed,
        RunNotFound,
        SessionError,
        SessionNotFound,
        ToolError,
        VariableError,
    )
    from perdure.handoffs import (
        Handoff,
    )
    from perdure.hooks import Hook
    from perdure.mcp import (
        MCPServer,
    )
    from perdure.memory import Memory
    from perdure.messages import FilePart, ImagePart, RunResult, TextPart, Usage
    from perdure.policies import AgentSpec, Approval, ContextPolicy, Limits, ModelSettings, Price
    from perdure.sensitive import Secret, Sensitive
    from perdure.settings import Settings
    from perdure.strategies.graph import Graph
    from perdure.strategies.plan import Plan
    from perdure.strategies.team import Member, Team
    from perdure.tools import Done, NotDone, Tool, ToolContext, Unknown, ask_user, tool

__all__ = [
    "Agent",
    "AgentError",
    "AgentSpec",
    "Approval",
    "Client",
    "ConnectionFailed",
    "ContextPolicy",
    "DecisionRejected",
    "Done",
    "FilePart",
    "Graph",
    "Handoff",
    "Hook",
    "ImagePart",
    "Limits",
    "MCPServer",
    "Member",
    "Memory",
    "ModelSettings",
    "NotDone",
    "PerdureError",
    "Plan",
    "Price",
    "RunCancelled",
    "RunFailed",
    "RunHandle",
    "RunNotFound",
    "RunResult",
    "Secret",
    "Sensitive",
    "SessionError",
    "SessionNotFound",
    "Settings",
    "Task",
    "Team",
    "TextPart",
    "Tool",
    "ToolContext",
    "ToolError",
    "Unknown",
    "Usage",
    "VariableError",
    "ask_user",
    "run",
    "tool",
]

_NAMES = {
    "agents": ("Agent", "Task"),
    "client": ("Client", "RunHandle", "run"),
    "errors": (
        "AgentError",
        "ConnectionFailed",
        "DecisionRejected",
        "PerdureError",
        "RunCancelled",
        "RunFailed",
        "RunNotFound",
        "SessionError",
        "SessionNotFound",
        "ToolError",
        "VariableError",
    ),
    "handoffs": ("Handoff",),
    "hooks": ("Hook",),
    "mcp": ("MCPServer",),
    "memory": ("Memory",),
    "messages": ("FilePart", "ImagePart", "RunResult", "TextPart", "Usage"),
    "policies": ("AgentSpec", "Approval", "ContextPolicy", "Limits", "ModelSettings", "Price"),
    "sensitive": ("Secret", "Sensitive"),
    "settings": ("Settings",),
    "strategies.graph": ("Graph",),
    "strategies.plan": ("Plan",),
    "strategies.team": ("Member", "Team"),
    "tools": ("Done", "NotDone", "Tool", "ToolContext", "Unknown", "ask_user", "tool"),
}
_HOMES = {name: f"perdure.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name from the module that defines it, once."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("perdure")
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__, "__version__"})
