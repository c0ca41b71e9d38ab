"""MCP servers of a worker: spoken to by the `mcp` package, which is loaded when there is one to speak to."""

from __future__ import annotations

from importlib.util import find_spec

LACKING = "MCP servers need the package mcp; install it with `pip install 'perdure[mcp]'`."


def installed() -> bool:
    """Return whether the package is there."""
    return find_spec("mcp") is not None
