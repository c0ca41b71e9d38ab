"""An MCP server made with the `mcp` package, over stdio or, with `--port`, over streamable HTTP."""

import argparse
import asyncio
import os
from pathlib import Path

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import ToolAnnotations

reader = argparse.ArgumentParser()
reader.add_argument("folder", type=Path)
reader.add_argument("--port", type=int)
given = reader.parse_args()
server = MCPServer("library")
READS = ToolAnnotations(read_only_hint=True)


@server.tool(annotations=READS)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=READS)
def header(name: str, ctx: Context) -> str:
    """Tell a header of the request."""
    request = ctx.request_context.request
    return str(request.headers.get(name)) if request else "none"


@server.tool(annotations=READS)
def picture() -> Image:
    """Draw something."""
    return Image(data=b"not really", format="png")


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("no such shelf")


@server.tool()
async def hold(ctx: Context) -> str:
    """Wait until FOLDER/go is there."""
    await ctx.report_progress(1, 2, "half way")
    with (given.folder / "journal").open("a") as journal:
        journal.write(f"{os.getpid()} holds\n")
    while not (given.folder / "go").exists():
        await asyncio.sleep(0.02)
    return "held"


if given.port:
    server.run("streamable-http", port=given.port)
else:
    server.run()
