"""Agents of the load tests, served by worker processes: each model call is noted, then takes a moment.

BENCH_LOG names the file with one line a call, `SECONDS INPUT`; BENCH_CALL says how many seconds a call takes.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from perdure import Agent, tool
from perdure.activities.providers import register
from perdure.messages import ToolMessage
from perdure.models import ModelReply, ModelRequest, RawCall
from perdure.policies import ModelSettings


def note(line: str) -> None:
    """Append a line to the log, in one write: several workers do."""
    with Path(os.environ["BENCH_LOG"]).open("a") as log:
        log.write(line)


class Noting:
    """A model that calls the agent's tool, if there is one, then answers."""

    provider = "noting"

    def __init__(self, name: str, settings: ModelSettings) -> None:
        del name, settings

    async def generate(self, request: ModelRequest) -> ModelReply:
        """Return the reply that is due."""
        note(f"{time.time()} {getattr(request.messages[0], 'content', '')}\n")
        await asyncio.sleep(float(os.environ["BENCH_CALL"]))
        due = request.tools and not any(isinstance(message, ToolMessage) for message in request.messages)
        return ModelReply(calls=[RawCall("c1", "act", "{}")]) if due else ModelReply(text="done")

    async def aclose(self) -> None:
        """Nothing is open."""


@tool(effect="read", approval="always")
def act() -> str:
    """Act."""
    return "acted"


register("noting", Noting)
answering = Agent("answering", "noting:one")
asking = Agent("asking", "noting:one", tools=[act])
