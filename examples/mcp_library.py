"""An agent with the tools of an MCP server: it finds a book by itself, and borrows one at most once.

`python examples/mcp_library.py` runs it by itself, with a scripted model; LIBRARIAN_MODEL names another one.
"""

import asyncio
import os
import sys
from pathlib import Path

from perdure import Agent, MCPServer, run

HERE = Path(__file__).parent

librarian = Agent(
    "librarian",
    os.environ.get("LIBRARIAN_MODEL", f"scripted:{HERE / 'mcp_library.json'}"),
    "Find the book that the user wants, and borrow it for them.",
    tools=[MCPServer("library", command=[sys.executable, str(HERE / "mcp_library_server.py")])],
)

if __name__ == "__main__":
    print(asyncio.run(run(librarian, "I am Ishmael, and want that book about a whale.")).text)
