"""An MCP server of a small library, for `mcp_library.py`; any other MCP client can use it as well."""

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

SHELVES = {"Moby-Dick": 2, "Emma": 0, "Walden": 1}
server = MCPServer("library")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def find(words: str) -> dict[str, int]:
    """Look for books by their titles; tells how many copies are on the shelf."""
    return {title: copies for title, copies in SHELVES.items() if words.lower() in title.lower()}


@server.tool()
def borrow(title: str, reader: str) -> str:
    """Lend a book to a reader."""
    if not SHELVES.get(title):
        raise ValueError(f"No copy of {title} is on the shelf.")
    SHELVES[title] -= 1
    return f"{reader} has {title} for four weeks."


if __name__ == "__main__":
    server.run()
