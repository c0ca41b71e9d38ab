"""A name is redacted in free text once a field has said that it is one, whichever process saw that field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import pytest

from perdure import Agent, Sensitive, tool
from perdure.messages import AssistantMessage, ToolCall, ToolMessage, ToolResult
from perdure.telemetry import redaction
from perdure.telemetry.acquaintance import declares, meet, meet_value
from perdure.telemetry.redaction import Redactor


@tool(effect="read")
def find(who: Annotated[str, Sensitive("name")]) -> Annotated[list[str], Sensitive("name")]:
    """Find."""
    return [who]


@tool(effect="read")
def count(what: str) -> int:
    """Count."""
    return len(what)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    before = redaction.current()
    redaction.use(Redactor())
    yield
    redaction.use(before)


def text(words: str) -> str:
    return redaction.current().text(words)


def test_names_of_a_transcript_are_known_from_arguments_and_results() -> None:
    spec = Agent("a", "scripted:x", tools=[find]).spec
    call = ToolCall(id="1", name="find", arguments={"who": "Wilhelmina Quist"})
    result = ToolResult(call_id="1", name="find", status="ok", content='["欧阳震华"]')
    words = "Wilhelmina Quist and 欧阳震华 came."
    assert text(words) == words
    meet([AssistantMessage(role="assistant", calls=[call]), ToolMessage(role="tool", result=result)], spec, "k")
    assert text(words) == "W.Q. and O.Y.Z.H. came."


def test_a_value_is_known_as_soon_as_a_tool_has_returned_it() -> None:
    meet_value({"who": "Wilhelmina Quist"}, find.spec.parameters)
    assert text("no Wilhelmina Quist here") == "no W.Q. here"


def test_tools_that_declare_nothing_cost_nothing() -> None:
    assert declares(Agent("a", "scripted:x", tools=[find]).spec)
    assert not declares(Agent("a", "scripted:x", tools=[count]).spec)
