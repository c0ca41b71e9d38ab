"""From one execution of a run to the next: what is put away of its state, and what goes along. Pure.

A history can't grow for ever. Before it is full the run continues as new: the earlier part of its transcript and of its
records goes into the store, once, as a segment; all the rest is the input of the next execution.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from perdure.messages import AssistantMessage, CallRecord, Content, Entry, RunResult, Segment
from perdure.policies import AgentSpec
from perdure.state import RunState
from perdure.wire import PutAway, RunRequest

TURNS = 2
"""So many turns of the model stay with the run: whether it goes round in circles is seen by them."""

_LARGEST_TAIL = 256_000
"""Bytes of them; where they have more, only the last one stays."""

_LONGEST_INPUT = 10_000
"""Characters of what the user said that go along, to be read in the Web UI: the transcript has it all."""


@dataclass(frozen=True)
class Part:
    """What is put away: the first entries and records of those that the state holds."""

    entries: list[Entry]
    records: list[CallRecord]


def due(state: RunState) -> Part | None:
    """Return what can be put away now: all but the last turns; None where that is nothing."""
    start = _tail(state.messages, TURNS)
    if sum(len(entry.model_dump_json()) for entry in state.messages[start:]) > _LARGEST_TAIL:
        start = _tail(state.messages, 1)
    return Part(state.messages[:start], list(state.records)) if start else None


def _tail(entries: list[Entry], turns: int) -> int:
    """Return where the last `turns` turns begin; 0 where there are fewer."""
    replies = [at for at, entry in enumerate(entries) if isinstance(entry, AssistantMessage)]
    return replies[-turns] if len(replies) >= turns else 0


def named(state: RunState, request: PutAway) -> Part:
    """Return what `request` names."""
    offset = state.before.length if state.before else 0
    return Part(state.messages[: request.length - offset], state.records[: request.records])


def put_away(state: RunState, part: Part, segment: Segment) -> None:
    """Take into the state that `part` is in the store now. Records of staged actions stay as well: they change yet."""
    staged = {record.position for record in part.records if record.status == "staged"}
    stay = [record for record in state.records[: len(part.records)] if record.position in staged]
    state.before = segment
    state.messages = state.messages[len(part.entries) :]
    state.records = stay + state.records[len(part.records) :]


def together(earlier: list[CallRecord], later: list[CallRecord]) -> list[CallRecord]:
    """Return all records of a run, in the order in which one execution alone would have them."""
    return list({record.position: record for record in [*earlier, *later]}.values())


def with_records(result: RunResult, before: Segment | None, records: list[CallRecord]) -> RunResult:
    """Return `result` with the records of earlier calls, which are those that follow `before`."""
    calls = together(records, result.calls)
    return result.model_copy(update={"calls": calls, "before": before if before and before.records else None})


def continued(request: RunRequest, state: RunState, began: datetime) -> RunRequest:
    """Return the input of the next execution, in which the spec stands once. `began`: when the first one started."""
    spec = AgentSpec(name=request.spec.name, model=request.spec.model)
    carried = state.model_copy(update={"began": began, "spec": spec})
    changed: dict[str, Any] = {
        "input": _briefly(request.input),
        "limits": None,
        "carried": carried,
        "packed": "",
        "before": None,
        "variables": {},
        "queued": [],
        "executions": request.executions + 1,
    }
    if state.handed or state.listed:  # of the agent that has the run now, with the tools that it has learnt of
        changed |= {"spec": state.spec, "spec_hash": ""}
    return request.model_copy(update=changed)


def _briefly(said: Content) -> Content:
    if isinstance(said, str):
        return said[:_LONGEST_INPUT]
    return "".join(part.text for part in said if part.kind == "text")[:_LONGEST_INPUT]
