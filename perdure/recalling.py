"""What is remembered enters a run before its first model call. Pure; shared by workflow and projection."""

from __future__ import annotations

from typing import Any, cast

from perdure.context import visible
from perdure.memory import Circle, circle_of, told
from perdure.messages import Content, TextPart, UserMessage
from perdure.policies import SEARCH_MEMORY, ToolSpec
from perdure.reports import RecallReport
from perdure.state import RunState
from perdure.wire import RecallInput

_LONGEST_QUERY = 2_000
"""Characters of the input that facts are searched by."""


def due(state: RunState) -> bool:
    """Return whether the model is to be told what is remembered before it is asked: once in a run."""
    policy = state.spec.memory
    if state.shape < 1 or policy is None or not policy.recall or state.recall or state.steps:
        return False
    return circle_of(state.spec, state.user, state.tenant) is not None


def circle(state: RunState, tool: ToolSpec) -> Circle | None:
    """Return within which circle a call of `tool` searches; None for all but `search_memory`."""
    if tool != SEARCH_MEMORY or state.spec.memory is None:
        return None
    found = circle_of(state.spec, state.user, state.tenant)
    return found or Circle(agent=state.spec.name, tenant=state.tenant, scopes=[])


def request(state: RunState) -> RecallInput:
    """Return what is asked of the memory."""
    within, policy, said = circle_of(state.spec, state.user, state.tenant), state.spec.memory, _input(state)
    assert within is not None and policy is not None  # noqa: S101, PT018 - it is due
    return RecallInput(
        circle=within,
        query=text_of(said.content)[:_LONGEST_QUERY] if said else "",
        before=state.before,
        told=sorted(told(visible(state.messages))),
        limit=policy.recall,
    )


def begin(state: RunState) -> None:
    """Take in that the memory is being asked."""
    state.recall = "asked"


def fold(state: RunState, report: RecallReport) -> None:
    """Take in what is remembered: it comes before what the user says in this run, which stays the last word."""
    state.recall = "done"
    if report.message is None:
        return
    said = _input(state)
    place = next((at for at, entry in enumerate(state.messages) if entry is said), len(state.messages))
    state.messages.insert(place, report.message)


def text_of(content: Content) -> str:
    """Return the text of what somebody said."""
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content if isinstance(part, TextPart))


def _input(state: RunState) -> UserMessage | None:
    """Return what the user says in this run."""
    found: Any = (entry for entry in reversed(state.messages) if entry.role == "user" and entry.source == "user")
    return cast("UserMessage | None", next(found, None))
