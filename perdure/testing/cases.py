"""Cases: runs as they went, without what is private, to be played again. `perdure record` writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError

from perdure.client import Client
from perdure.errors import RecordingError
from perdure.messages import (
    JSON,
    AssistantMessage,
    Compaction,
    Content,
    Data,
    Entry,
    OpenStatus,
    RunStatus,
    TextPart,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from perdure.policies import AgentSpec, ToolSpec
from perdure.steps import Wait, next_step
from perdure.testing.standins import StandIns

if TYPE_CHECKING:
    from perdure.telemetry.projection import Projection


class Decided(Data):
    """What a person said about a call.

    Attributes:
        arguments: As they were executed, where the person has edited them.
    """

    approve: bool
    by: str = ""
    reason: str = ""
    arguments: dict[str, JSON] | None = None


class Case(Data):
    """A run as it went: what the model said, what tools gave, what people decided.

    Attributes:
        format: Of the file.
        agent: The agent's name.
        source: The file that declared it, as it was seen from where it was recorded; "" where that is not known.
        model: That was asked first.
        listed: The tools of MCP servers, as they were listed in the run.
        entries: The transcript, oldest first.
        asked: Positions of the calls about which a person was asked.
        decided: What people decided, by the call's position.
        text: The answer.
    """

    format: Literal["perdure.case/1"] = "perdure.case/1"
    run_id: str
    agent: str
    source: str = ""
    model: str = ""
    task: Content
    listed: list[ToolSpec] = Field(default_factory=list[ToolSpec])
    entries: list[Entry]
    asked: list[str] = Field(default_factory=list[str])
    decided: dict[str, Decided] = Field(default_factory=dict[str, Decided])
    status: RunStatus | OpenStatus
    text: str = ""


def load_case(path: str | Path) -> Case:
    """Return the case in a file.

    Raises:
        RecordingError: If there is no such file, or it is no case.
    """
    try:
        return Case.model_validate_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordingError(f"The case {str(path)!r} can't be read: {error.strerror or error}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "it"
        raise RecordingError(f"The file {str(path)!r} is no case: {where}: {first['msg']}.") from None


def save_case(case: Case, path: str | Path) -> None:
    """Write a case into a file. Raises `RecordingError` if that can't be."""
    try:
        data = {"format": case.format, **case.model_dump(mode="json", exclude_defaults=True)}
        Path(path).write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise RecordingError(f"The case can't be written to {str(path)!r}: {error.strerror or error}.") from None


async def record(client: Client, run_id: str) -> Case:
    """Return a run as a case: of an open one what there is so far; the archive has those that the engine forgot.

    Raises:
        RunNotFound: If there is no such run.
        RecordingError: If a part of it is missing, or a case can't be made of it.
        ConnectionFailed: If the server does not answer.
    """
    from perdure.earlier import complete

    projection = await client.handle(run_id).projection()
    if missing := await complete(client.settings, projection):
        raise RecordingError(missing)
    return case_of(projection)


# -- of a run ----------------------------------------------------------------------------------------------


def case_of(projection: Projection) -> Case:
    """Return what a history tells as a case, private values replaced. Raises `RecordingError` as `record` does."""
    state = projection.state
    assert state is not None  # noqa: S101 - a history begins with the start
    if state.spec.strategy is not None:
        name = state.spec.strategy.name
        text = f"Run {state.run_id} is led by the strategy {name!r}: record the runs of its members or steps instead"
        raise RecordingError(f"{text} (`perdure ls` lists them).")
    entries = [entry for entry in projection.entries if not isinstance(entry, Compaction)]
    result = projection.result()
    hidden = _Hiding(state.spec, entries, state.variables)
    return Case(
        run_id=hidden.text(state.run_id),
        agent=state.spec.name,
        model=state.spec.model,
        task=hidden.content(_task(entries)),
        listed=[tool for tool in state.spec.tools if tool.mcp],
        entries=[hidden.entry(entry) for entry in entries],
        asked=[event.call for event in projection.events if event.type == "approval_requested"],
        decided=_decided(projection, hidden),
        status=_status(projection),
        text=hidden.text(result.text),
    )


def _status(projection: Projection) -> RunStatus | OpenStatus:
    if projection.ended:
        return projection.ended.status
    step = next_step(projection.state) if projection.state else None
    return step.status if isinstance(step, Wait) else "running"


def _task(entries: Sequence[Entry]) -> Content:
    return next((entry.content for entry in entries if isinstance(entry, UserMessage)), "")


def _decided(projection: Projection, hidden: _Hiding) -> dict[str, Decided]:
    executed = {record.position: record for record in projection.records}
    found: dict[str, Decided] = {}
    for event in projection.events:
        if event.type == "approval_decided":
            record = executed.get(event.call)
            edited = hidden.arguments(record.name, record.arguments) if event.edited and record else None
            by, reason = hidden.text(event.by), hidden.text(event.reason)
            found[event.call] = Decided(approve=event.approve, by=by, reason=reason, arguments=edited)
    return found


class _Hiding:
    """Hides what is private in the parts of one run."""

    def __init__(self, spec: AgentSpec, entries: Sequence[Entry], variables: Mapping[str, JSON]) -> None:
        self._tools = {
            tool.name: tool for tool in [*spec.tools, *(t for one in spec.peers.values() for t in one.tools)]
        }
        self._standins = StandIns()
        self._standins.learn(dict(variables), spec.variables.json_schema if spec.variables else None)
        for entry in entries:
            if isinstance(entry, AssistantMessage):
                for call in entry.calls:
                    self._standins.learn(call.arguments, self._parameters(call.name))
            elif isinstance(entry, ToolMessage):
                self._standins.learn(entry.result.content, self._returns(entry.result.name))

    def _tool(self, name: str) -> ToolSpec | None:
        return self._tools.get(name)

    def _parameters(self, name: str) -> dict[str, Any] | None:
        tool = self._tool(name)
        return tool.parameters if tool else None

    def _returns(self, name: str) -> dict[str, Any] | None:
        tool = self._tool(name)
        return tool.returns if tool else None

    def text(self, text: str) -> str:
        return self._standins.text(text)

    def arguments(self, name: str, arguments: dict[str, JSON]) -> dict[str, JSON]:
        shown: Any = self._standins.json(arguments, self._parameters(name))
        return dict(shown)

    def content(self, content: Content) -> Content:
        """Return what was said without what is private; images and files, which nobody can look into, are left out."""
        if isinstance(content, str):
            return self.text(content)
        texts = [one if isinstance(one, TextPart) else f"[{one.kind} left out]" for one in content]
        return [TextPart(kind="text", text=self.text(one if isinstance(one, str) else one.text)) for one in texts]

    def entry(self, entry: Entry) -> Entry:
        match entry:
            case UserMessage():
                told = self.content(entry.content)
                result = self._result(entry.result) if entry.result else None
                return UserMessage(role="user", content=told, source=entry.source, result=result)
            case AssistantMessage():
                calls = [
                    call.model_copy(update={"arguments": self.arguments(call.name, call.arguments), "private": []})
                    for call in entry.calls
                ]
                text = self.text(entry.text)
                return AssistantMessage(
                    role="assistant", text=text, calls=calls, source=entry.source, agent=entry.agent
                )
            case ToolMessage():
                return ToolMessage(role="tool", result=self._result(entry.result))
            case Compaction():
                return entry

    def _result(self, result: ToolResult) -> ToolResult:
        told: dict[str, str | None] = {name: getattr(result, name) for name in ("message", "suggestion", "note")}
        hidden: dict[str, Any] = {name: self.text(text) if text else None for name, text in told.items()}
        return ToolResult(
            call_id=result.call_id,
            name=result.name,
            status=result.status,
            content=self._standins.text(result.content),
            error_type=result.error_type,
            execution_order=result.execution_order,
            **hidden,
        )
