"""Tools that a run learns of at its beginning, from MCP servers. Pure; shared by workflow and projection."""

from __future__ import annotations

from perdure.policies import READ_RESULT, McpServerSpec
from perdure.reports import ToolsReport
from perdure.state import Outcome, RunState
from perdure.wire import ListToolsInput

UNAVAILABLE = "mcp_unavailable"
"""The failure of a run that could not learn of its tools."""


def due(state: RunState) -> list[McpServerSpec]:
    """Return the servers that are yet to be asked for their tools: each is asked once in a run, however often resumed.

    Runs of before there were such servers have none.
    """
    return [server for server in state.spec.mcp if _key(state, server.name) not in state.listed]


def _key(state: RunState, server: str) -> str:
    """Return under what a server counts as asked: each agent that has the run asks for itself."""
    return f"{state.spec.name}/{server}" if state.spec.entry else server


def request(state: RunState) -> ListToolsInput:
    """Return what is asked of them."""
    taken = [tool.name for tool in [*state.spec.offered, READ_RESULT]]
    return ListToolsInput(agent=state.spec.name, servers=due(state), taken=taken, secrets=state.secrets)


def begin(state: RunState) -> None:
    """Take in that they are being asked."""
    state.listing = True


def fold(state: RunState, report: ToolsReport) -> None:
    """Take their tools into the run's rules: from now on they are tools like any others, whatever becomes of the list.

    They stand behind the agent's own, server by server.
    """
    state.listing = False
    state.listed = [*state.listed, *(_key(state, one.server) for one in report.servers)]
    tools = [*state.spec.tools, *(tool for one in report.servers for tool in one.tools)]
    state.spec = state.spec.model_copy(update={"tools": tools})


def fail(state: RunState, why: str, *, cancelled: bool = False) -> None:
    """Take in that the tools could not be listed: the run ends so, to be resumed once they can be."""
    state.listing = False
    if not cancelled:
        state.outcome = Outcome(status="failed", reason=f"{why} {RESUME}", failure=UNAVAILABLE)


RESUME = "Nothing was done yet; resume the run once it works."
