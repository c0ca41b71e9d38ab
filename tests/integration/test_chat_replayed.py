"""Recorded conversations of a real model, as long chats: one run a turn, in a small window, with variables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from perdure.messages import AssistantMessage, Compaction, Message, ToolMessage, Usage
from perdure.models import ModelReply
from perdure.models.dialect import Names, level_calls, request_tokens
from perdure.policies import ContextPolicy, Limits
from perdure.summaries import INSTRUCTIONS
from perdure.testing import load_recordings
from perdure.testing.recording import RecordedCall, Turn, comparable, recorded_tools
from perdure.testing.script import ScriptedReply
from perdure.tools import Tool, ToolContext
from perdure.variables import NOTE

DATA = Path(__file__).parents[3] / "shared/data/airline-gpt4o"
WINDOW = 16_000
END = ScriptedReply(text="(the recording ends here)")
"""Said after a last reply that called a tool: some recordings stop at its result."""

pytestmark = pytest.mark.skipif(not DATA.exists(), reason=f"the recordings are not at {DATA}")


class Desk(BaseModel):
    """What an airline's clerk must not forget."""

    customer: str | None = None
    reservations: list[str] = []
    calls: int = 0


def noted(desk: Desk, call: RecordedCall) -> Desk:
    """Return the variables after a call: written here as the tool writes them there."""
    desk = desk.model_copy(deep=True)
    _note(desk, call.arguments)
    return desk


def _note(desk: Desk, arguments: dict[str, Any]) -> None:
    desk.calls += 1
    desk.customer = arguments.get("user_id", desk.customer)
    if (found := arguments.get("reservation_id")) and found not in desk.reservations:
        desk.reservations = [*desk.reservations, found]


def noting(tool: Tool) -> Tool:
    """Return a recorded tool that keeps in the variables what it is asked about."""

    async def play(ctx: ToolContext, **arguments: Any) -> str:
        _note(ctx.vars, arguments)
        assert tool.function
        return str(await tool.function(**arguments))

    spec = tool.spec
    return Tool.from_schema(play, spec.parameters, name=spec.name, description=spec.description, effect="read")


class Recorded:
    """A model that says what was said then, however much of the conversation it is shown, and sums up."""

    provider = "recorded"

    def __init__(self, replies: Sequence[ScriptedReply]) -> None:
        self._replies = replies
        self.requests: list[Any] = []
        self.summaries = 0

    async def generate(self, request: Any) -> ModelReply:
        """Return the reply that is due."""
        usage = Usage(input_tokens=request_tokens(request), output_tokens=10)
        if request.instructions.startswith(INSTRUCTIONS[:40]):
            self.summaries += 1
            return ModelReply(text="The customer was helped so far.", usage=usage)
        self.requests.append(request)
        reply = self._replies[request.hidden + sum(isinstance(one, AssistantMessage) for one in request.messages)]
        written = [(call.id, call.name, call.arguments) for call in reply.calls]
        calls = level_calls(written, request, Names(tool.name for tool in request.tools))
        return ModelReply(text=reply.text, calls=calls, finish="calls" if calls else "stop", usage=usage)

    async def aclose(self) -> None:
        """Nothing is open."""


def turns_of(*names: str) -> list[Turn]:
    """Return the turns of those recordings, one after the other."""
    recordings = {recording.name: recording for recording in load_recordings(DATA / "conversations.jsonl")}
    return [turn for name in names for turn in recordings[name].turns]


def told(messages: Sequence[Message]) -> list[Message]:
    return [one for one in messages if not (isinstance(one, AssistantMessage) and one.text == END.text)]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "names",
    [("9.3",), pytest.param(("3.0", "10.0", "13.0"), marks=pytest.mark.long)],
    ids=["one of thirty turns", "three in a row"],
)
async def test_a_chat_of_thirty_turns_keeps_its_variables_and_stays_under_a_window_of_16k(
    stage: Any, names: tuple[str, ...]
) -> None:
    turns, instructions = turns_of(*names), load_recordings(DATA / "conversations.jsonl")[0].instructions
    assert len(turns) >= 29
    script = [[*turn.replies, *([END] if isinstance(turn.messages[-1], ToolMessage) else [])] for turn in turns]
    model = Recorded([reply for replies in script for reply in replies])
    calls = [call for turn in turns for call in turn.calls]
    tools = [noting(tool) for tool in recorded_tools(DATA / "tools.json", calls)]
    rules: dict[str, Any] = {"variables": Desk, "context": ContextPolicy(window=WINDOW), "limits": Limits(steps=40)}
    agent = stage.agent(model, tools, name="clerk", instructions=instructions, **rules)
    await stage.serve(agent)
    desk = Desk()
    async with stage.client.session(f"replayed-{'-'.join(names)}", agent, task_queue=stage.queue) as session:
        for number, turn in enumerate(turns, 1):
            result = await session.ask(turn.input)
            for call in turn.calls:
                desk = noted(desk, call)
            assert (result.run_id, result.status) == (f"{session.name}.{number}", "completed")
            assert result.variables == desk.model_dump()
        entries, history = await session.entries(), await session.history()
        assert await session.variables() == desk.model_dump()
        assert [(one.number, one.input) for one in await session.turns()] == [
            (number, turn.input) for number, turn in enumerate(turns, 1)
        ]
    assert list(comparable(told(history))) == list(comparable([one for turn in turns for one in turn.messages]))
    assert max(map(request_tokens, model.requests)) < WINDOW
    assert all(str(request.messages[-1].content).startswith(NOTE) for request in model.requests)
    if len(calls) > len(turns):  # else all of it fits
        assert model.summaries == sum(isinstance(one, Compaction) for one in entries) > 0
        assert desk.reservations[0] in str(model.requests[-1].messages[-1])  # which the summary does not mention
