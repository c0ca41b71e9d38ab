"""Sixty recorded conversations of a real model, through the loop: the transcript has to be the recorded one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from perdure.activities import providers
from perdure.agents import Agent
from perdure.client import Client
from perdure.context import visible
from perdure.messages import ToolMessage
from perdure.policies import Limits
from perdure.settings import Settings
from perdure.testing import ScriptedModel, load_recordings
from perdure.testing.recording import Turn, comparable, recorded_tools
from perdure.testing.script import ScriptedReply
from perdure.tools import Tool
from perdure.worker import serving

DATA = Path(__file__).parents[3] / "shared/data/airline-gpt4o"
AT_ONCE = 24
END = ScriptedReply(text="(the recording ends here)")
"""Said after a last reply that called a tool: some recordings stop at its result."""

pytestmark = pytest.mark.skipif(not DATA.exists(), reason=f"the recordings are not at {DATA}")


def quick(tool: Tool) -> Tool:
    """Return a tool as one that runs inside the worker: three of four do here, so that it takes less time."""
    return replace(tool, spec=tool.spec.model_copy(update={"effect": "read", "local": True}))


@pytest.fixture
def turns() -> list[Turn]:
    """Each message of a customer that the model did something about."""
    return [turn for recording in load_recordings(DATA / "conversations.jsonl") for turn in recording.turns]


@pytest.fixture
def agents(turns: list[Turn]) -> Iterator[list[Agent]]:
    """An agent for each turn: the model says what it said then, and the tools return what they returned."""
    prefix = f"recorded-{uuid4().hex[:8]}"
    providers.register(prefix, lambda number, _settings: ScriptedModel([*turns[int(number)].replies, END]))
    yield [
        Agent(
            f"turn-{number}",
            f"{prefix}:{number}",
            tools=[quick(tool) if number % 4 else tool for tool in recorded_tools(DATA / "tools.json", turn.calls)],
            limits=Limits(steps=40),  # one turn has 26 steps
        )
        for number, turn in enumerate(turns)
    ]
    providers.unregister(prefix)


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_recorded_conversations_give_the_recorded_transcripts(
    engine: Settings, client: Client, agents: list[Agent], turns: list[Turn]
) -> None:
    queue, places = f"recordings-{uuid4().hex[:8]}", asyncio.Semaphore(AT_ONCE)

    async def play(agent: Agent, turn: Turn) -> list[object]:
        async with places:
            handle = await client.start(agent, turn.input, task_queue=queue)
            result = await handle.result()
            assert result.status == "completed", result.reason
            state = (await handle.projection()).state
            assert state is not None
            return list(comparable(visible(state.messages)))

    async with serving(client.temporal, agents, queue, engine):
        played = await asyncio.gather(*[play(agent, turn) for agent, turn in zip(agents, turns, strict=True)])
    assert len(played) > 300
    assert max(len(turn.replies) for turn in turns) == 26
    for transcript, turn in zip(played, turns, strict=True):
        recorded = list(comparable(turn.messages))
        stops_early = isinstance(turn.messages[-1], ToolMessage)
        assert transcript[: -1 if stops_early else None] == recorded
