"""Histories written by hand, as the engine would, each event fed to a projection at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import EventType, TimeoutType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.converter import DataConverter, PayloadCodec

from perdure import approvals, control
from perdure.decisions import Receipt
from perdure.engine.converter import data_converter
from perdure.messages import AssistantMessage, ToolCall, ToolResult
from perdure.policies import AgentSpec, Approval, Remote, ToolSpec
from perdure.reports import CompactReport, ModelTurn, ToolReport
from perdure.state import RunState
from perdure.telemetry.projection import Projection
from perdure.tools import ask_user
from perdure.wire import COMPACT, MODEL, CompactInput, ModelInput, RunRequest, ToolInput

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TOOLS = [
    ToolSpec(name="look", description="Look.", parameters={}, effect="read"),
    ToolSpec(name="peek", description="Peek.", parameters={}, effect="read", local=True),
    ToolSpec(name="pay", description="Pay.", parameters={}, approval="always"),
    ToolSpec(name="mail", description="Mail.", parameters={}),
    ToolSpec(name="send", description="Send.", parameters={}, probe=True),
    ask_user.spec,
    ToolSpec(name="far", description="Far.", parameters={}, remote=Remote(activity="Far", task_queue="q")),
]


class Rot(PayloadCodec):
    """A codec: what it writes can't be read without it."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload(metadata={"encoding": b"rot"}, data=payload.SerializeToString()[::-1]) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload.FromString(payload.data[::-1]) for payload in payloads]


class History:
    """A run's history, written as the engine would, and its projection."""

    def __init__(self, converter: DataConverter = data_converter, **rules: Any) -> None:
        self.converter = converter
        self.spec = AgentSpec(name="a", model="m:m", tools=TOOLS, approval=Approval(**rules))
        self.projection = Projection("run", converter)
        self.events: list[HistoryEvent] = []
        self.time = NOW
        self._turns = 0

    async def add(self, kind: str, attributes: dict[str, Any] | None = None, *, summary: str = "") -> int:
        """Add an event, feed it, and return its id."""
        name = "EVENT_TYPE_" + kind.upper()
        event = HistoryEvent(event_id=len(self.events) + 1, event_type=EventType.Value(name))
        event.event_time.FromDatetime(self.time)
        getattr(event, f"{kind}_event_attributes").SetInParent()
        for key, value in (attributes or {}).items():
            target = getattr(event, f"{kind}_event_attributes")
            if hasattr(value, "CopyFrom") or hasattr(value, "SerializeToString"):
                getattr(target, key).CopyFrom(value)
            elif key == "activity_type":
                target.activity_type.name = value
            else:
                setattr(target, key, value)
        if summary:
            event.user_metadata.summary.CopyFrom((await self.payloads(summary)).payloads[0])
        self.events.append(event)
        await self.projection.feed(event)
        self.time += timedelta(seconds=1)
        return event.event_id

    async def payloads(self, *values: Any) -> Payloads:
        return Payloads(payloads=await self.converter.encode(values))

    # -- what a run does --------------------------------------------------------------------------------------

    async def start(self, **request: Any) -> None:
        asked = RunRequest.model_validate({"spec": self.spec, "input": "go", **request})
        given = await self.payloads(asked)
        await self.add("workflow_execution_started", {"input": given, "original_execution_run_id": "e" * 36})

    async def activity(self, kind: str, id: str, request: Any) -> int:
        """Schedule an activity and start its first attempt."""
        given = {"activity_type": kind, "activity_id": id, "input": await self.payloads(request)}
        scheduled = await self.add("activity_task_scheduled", given)
        await self.add("activity_task_started", {"scheduled_event_id": scheduled, "attempt": 1})
        return scheduled

    async def complete(self, scheduled: int, *result: Any) -> None:
        given = {"scheduled_event_id": scheduled, "result": await self.payloads(*result)}
        await self.add("activity_task_completed", given)

    async def ask_model(self, *, last: bool = False) -> int:
        self._turns += 1
        request = ModelInput(agent="a", spec="s", step=self._turns, length=1, head="h", answer_only=last)
        return await self.activity(MODEL, str(self._turns), request)

    async def turn(self, *calls: ToolCall | str, text: str = "") -> None:
        """Ask the model, which makes these calls."""
        made = [call if isinstance(call, ToolCall) else a_call(call, f"id{i}") for i, call in enumerate(calls, 1)]
        message = AssistantMessage(role="assistant", text=text, calls=made)
        await self.complete(await self.ask_model(), ModelTurn(message=message))

    async def compact(self, report: CompactReport | None = None, why: str = "full") -> int:
        """Compact the context; without a report, only begin to."""
        asked = {"agent": "a", "spec": "s", "step": 2, "length": 1, "head": "h", "why": why}
        scheduled = await self.activity(COMPACT, "2 compact 1", CompactInput.model_validate(asked))
        if report:
            await self.complete(scheduled, report)
        return scheduled

    async def call_tool(self, position: str, name: str, order: int | None = None) -> int:
        request = ToolInput(agent="a", call_id="id1", position=position, key="k", order=order)
        return await self.activity(name, position, request)

    async def report(self, scheduled: int, status: str = "ok", **fields: Any) -> None:
        result = ToolResult.model_validate({"call_id": "id1", "name": "x", "status": status, **fields})
        await self.complete(scheduled, ToolReport(result=result))

    async def signal(self, name: str, *values: Any) -> None:
        given = {"signal_name": name, "input": await self.payloads(*values)}
        await self.add("workflow_execution_signaled", given)

    async def update(self, id: str, wanted: control.Wanted) -> None:
        accepted = HistoryEvent().workflow_execution_update_accepted_event_attributes
        accepted.accepted_request.meta.update_id = id
        name = next(name for name, kind in control.KINDS.items() if isinstance(wanted, kind))
        accepted.accepted_request.input.name = name
        accepted.accepted_request.input.args.CopyFrom(await self.payloads(wanted))
        given = {"accepted_request": accepted.accepted_request}
        await self.add("workflow_execution_update_accepted", given)

    async def answer(self, id: str, receipt: Receipt | None) -> None:
        completed = HistoryEvent().workflow_execution_update_completed_event_attributes
        completed.meta.update_id = id
        if receipt:
            completed.outcome.success.CopyFrom(await self.payloads(receipt))
        else:
            completed.outcome.failure.message = "boom"
        await self.add("workflow_execution_update_completed", {"meta": completed.meta, "outcome": completed.outcome})

    async def ring(self, summary: str) -> None:
        started = await self.add("timer_started", {"timer_id": "t"}, summary=summary)
        await self.add("timer_fired", {"started_event_id": started})

    async def short(self, limit: str) -> None:
        modified = HistoryEvent().workflow_properties_modified_event_attributes
        modified.upserted_memo.fields[control.SHORT].CopyFrom((await self.payloads(limit)).payloads[0])
        await self.add("workflow_properties_modified", {"upserted_memo": modified.upserted_memo})

    async def expired(self, *positions: str) -> None:
        modified = HistoryEvent().workflow_properties_modified_event_attributes
        payload = (await self.payloads(list(positions))).payloads[0]
        modified.upserted_memo.fields[approvals.EXPIRED].CopyFrom(payload)
        await self.add("workflow_properties_modified", {"upserted_memo": modified.upserted_memo})

    # -- what is told -----------------------------------------------------------------------------------------

    @property
    def state(self) -> RunState:
        assert self.projection.state
        return self.projection.state

    def told(self, *kinds: str) -> list[Any]:
        """Return the events, of these types only where some are named."""
        return [event for event in self.projection.events if not kinds or event.type in kinds]

    def story(self) -> list[str]:
        return [event.type for event in self.told()]


def a_call(name: str, id: str = "id1", **fields: Any) -> ToolCall:
    return ToolCall(id=id, name=name, ask="why" if name == "pay" else None, **fields)


async def asking(**rules: Any) -> History:
    """Return a run that waits for a decision about one call."""
    history = History(**rules)
    await history.start()
    await history.turn("pay")
    return history


async def in_doubt(name: str = "send") -> History:
    history = History()
    await history.start()
    await history.turn(name)
    await history.report(await history.call_tool("1.1", name), "in_doubt", message="Who knows.")
    return history


def lost_worker() -> Failure:
    failure = Failure(message="activity heartbeat timeout")
    failure.timeout_failure_info.timeout_type = TimeoutType.TIMEOUT_TYPE_HEARTBEAT
    return failure


def own_failure(message: str, kind: str) -> Failure:
    failure = Failure(message=message)
    failure.application_failure_info.type = kind
    return failure
