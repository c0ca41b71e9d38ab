"""What tools a run has of MCP servers: they are asked once, together, and the answer is the run's from then on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.heartbeats import heartbeats
from perdure.activities.mcp.connections import Lost
from perdure.activities.mcp.servers import Place, Servers
from perdure.activities.secrets import Safe
from perdure.activities.unlocked import Unlocked
from perdure.mcp import Offer, listed
from perdure.policies import McpServerSpec
from perdure.reports import ToolsReport
from perdure.results import sentence, short, words
from perdure.toolsets import UNAVAILABLE
from perdure.wire import LIST_TOOLS, ListToolsInput

_SECONDS = 60.0
"""How long a server may take to say what it offers."""

_MOST_CRASHES = 3
"""How often a server may end at its start before it is taken for broken, and not for away."""


class ToolLists:
    """Asks the MCP servers of one worker for their tools.

    Args:
        servers: Which there are.
        safe: Where the secrets of runs are.
    """

    def __init__(self, servers: Servers, safe: Safe) -> None:
        self._servers = servers
        self._safe = safe

    @activity.defn(name=LIST_TOOLS)
    async def list_tools(self, request: ListToolsInput) -> ToolsReport:
        """Return the tools of servers, as their agent's rules have them.

        Raises:
            ApplicationError: If one of them can't be asked; says whether that may pass.
        """
        async with heartbeats():
            secrets = await self._safe.unlock(request.secrets)
            asked = (self._asked(request, server, secrets) for server in request.servers)
            offers = await asyncio.gather(*asked)
        return listed_all(request.servers, offers, request.taken)

    async def _asked(self, request: ListToolsInput, server: McpServerSpec, secrets: Unlocked) -> list[Offer]:
        async with self._servers.place(request.agent, server.name, request.secrets, secrets) as place:
            if place.kind == "stopping":
                raise asyncio.CancelledError
            if place.problem:
                raise _failed(place, place.problem)
            try:
                async with asyncio.timeout(_SECONDS):
                    return await self._servers.offers(place)
            except TimeoutError:
                raise _failed(place, _tells(server, f"it did not say so within {_SECONDS:g} s.")) from None
            except Lost as error:
                raise _failed(place, _tells(server, str(error))) from None
            except Exception as error:  # noqa: BLE001 - whatever ails a server, or the package
                raise _failed(place, _tells(server, words(error))) from None


def _tells(server: McpServerSpec, why: str) -> str:
    return f"MCP server {server.name!r} does not tell of its tools: {why}"


def _failed(place: Place, why: str) -> ApplicationError:
    said = sentence(short(place.secrets.scrubbed(why)))
    crashes = min(place.crashes, activity.info().attempt)
    return ApplicationError(said, type=UNAVAILABLE, non_retryable=place.lasting or crashes >= _MOST_CRASHES)


def listed_all(
    servers: Sequence[McpServerSpec], offers: Sequence[Sequence[Offer]], taken: Sequence[str]
) -> ToolsReport:
    """Return what a run has of what its servers offer; where two of them offer one name, the later one's is changed."""
    names, found = list(taken), ToolsReport()
    for server, offered in zip(servers, offers, strict=True):
        one = listed(server, offered, names)
        names += [tool.name for tool in one.tools]
        found = ToolsReport(servers=[*found.servers, one])
        for note in one.notes:
            activity.logger.warning("MCP server %s: %s", server.name, note)
    return found
