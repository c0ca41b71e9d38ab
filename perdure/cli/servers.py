"""A look at the MCP servers of an agent file: whether they are there, and what they offer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from perdure.mcp import MCPServer

_FEW = 8

State = tuple[Literal["ok", "note", "broken"], str, str]
"""How it stands, in words, and what to do."""


async def look(server: MCPServer) -> State:
    """Start an MCP server, or connect to it, and ask it for its tools, with the environment of this process."""
    from perdure.activities.mcp import LACKING, installed
    from perdure.activities.mcp.connections import Unreachable
    from perdure.activities.mcp.servers import Line
    from perdure.mcp import listed
    from perdure.results import words

    if not installed():
        return "broken", LACKING, ""
    if server.secrets:
        return "note", f"it needs secrets of a run ({', '.join(server.secrets)}): only a run can ask it", ""
    line = Line(server, {})
    try:
        offers = await (await line.connection()).offers()
    except Unreachable as error:
        return "broken", str(error), _UNTIL
    except Exception as error:  # noqa: BLE001 - whatever ails a server
        return "broken", f"it does not tell of its tools: {words(error)}", _UNTIL
    finally:
        await line.aclose()
    found = listed(server.spec, offers, ())
    names = ", ".join(f"{tool.name} ({tool.effect})" for tool in found.tools[:_FEW])
    more = f" and {len(found.tools) - _FEW} more" if len(found.tools) > _FEW else ""
    if found.notes or not found.tools:
        return "note", f"it answers, and offers {names or 'no tools'}{more}", " ".join(found.notes)
    return "ok", f"answers, and offers {names}{more}", ""


_UNTIL = "Runs end as `mcp_unavailable` until it works; resume them then."
