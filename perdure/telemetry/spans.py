"""What an execution tells, as spans by OpenTelemetry's conventions for generative AI. Pure: nothing is sent from here.

Everything that people, models or tools have written passes the redactor, unless whole contents are asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from perdure import events as ev
from perdure.attempts import LOST
from perdure.messages import AssistantMessage, Content, RunResult, ToolCall, ToolResult, Usage
from perdure.policies import AgentSpec
from perdure.telemetry import ids, redaction
from perdure.telemetry.attempted import Attempted, History
from perdure.telemetry.ids import SpanRef

Capture = Literal["off", "redacted", "whole"]
"""Whether contents of messages, arguments and results are in spans, and whether as they are."""

Value = str | bool | int | float | Sequence[str]


@dataclass(frozen=True)
class Span:
    """A span that has ended.

    Attributes:
        parent: None for the root.
        client: Whether it is a request to somebody else.
        error: Why it failed, for a person; None where it did not.
        execution: Temporal's id of the execution in which it ended.
        known: The event of that one's history that has told of its end.
    """

    name: str
    ref: SpanRef
    parent: SpanRef | None
    began: datetime
    ended: datetime
    attributes: dict[str, Value]
    client: bool = False
    error: str | None = None
    execution: str = ""
    known: int = 0


@dataclass(frozen=True)
class Told:
    """What is known of an execution of a run.

    Attributes:
        history: Its attempts.
        events: Its events.
        result: How the run has ended; None where it goes on.
        began: When the run began.
        ended: When this execution ended; where it has not, up to when it is known.
    """

    namespace: str
    run_id: str
    history: History
    events: Sequence[ev.Event]
    result: RunResult | None
    began: datetime
    ended: datetime


@dataclass
class Waited:
    """An approval that was waited for; `decided` is None where the run ended before. `known` is as in `Span`."""

    call: str
    name: str
    asked: datetime
    until: datetime
    decided: ev.ApprovalDecided | None = None
    known: int = 0


def spans(told: Told, capture: Capture = "off") -> list[Span]:
    """Return the spans of an execution that have ended; that of the run is there once it has, too.

    While it goes on there are more and more of them; none that was there changes.
    """
    return _Spans(told, capture).all()


def waits(told: Told) -> list[Waited]:
    """Return the approvals for which the execution waited, as far as they were decided or the run has ended."""
    opening = told.history.opening
    open_ = dict[str, tuple[str, datetime]]()
    for call in opening.calls if opening else ():
        if call.asked_at is not None and call.decision is None:
            open_[call.position] = call.call.name, call.asked_at
    found = list[Waited]()
    for event in told.events:
        if isinstance(event, ev.ApprovalRequested):
            open_.setdefault(event.call, (event.name, event.time))
        elif isinstance(event, ev.ApprovalDecided) and event.call in open_:
            name, at = open_.pop(event.call)
            known = ev.position_key(event.position)[0] % ev.EXECUTION
            found.append(Waited(event.call, name, at, event.time, event, known))
    if told.result:
        last = told.history.last
        found += [Waited(call, name, at, told.ended, known=last) for call, (name, at) in open_.items()]
    return found


def provider_of(model: str) -> str:
    """Return what the conventions call the provider of `PROVIDER:NAME`."""
    prefix = model.partition(":")[0]
    return "openai" if prefix.startswith("openai") else prefix


def name_of(model: str) -> str:
    """Return the name of `PROVIDER:NAME` as the provider knows it."""
    return model.partition(":")[2] or model


_FINISHES = {"calls": "tool_calls", "filtered": "content_filter"}


@dataclass
class _Spans:
    told: Told
    capture: Capture
    redactor: redaction.Redactor = field(default_factory=redaction.current)

    def all(self) -> list[Span]:
        attempts = [self._attempt(one) for one in self.told.history.attempts]
        made = [*attempts, *(self._wait(one) for one in waits(self.told))]
        return [*made, *([self._run(self.told.result)] if self.told.result else [])]

    @property
    def _spec(self) -> AgentSpec:
        assert self.told.history.opening is not None  # noqa: S101 - a history begins with the start
        return self.told.history.opening.spec

    @property
    def _root(self) -> SpanRef:
        state = self.told.history.opening
        return ids.of_run(self.told.namespace, self.told.run_id, state.execution if state else "")

    def _common(self, operation: str = "") -> dict[str, Value]:
        state = self.told.history.opening
        session = state.session.name if state and state.session else ""
        attributes: dict[str, Value] = {"gen_ai.operation.name": operation} if operation else {}
        return {
            **attributes,
            "gen_ai.agent.name": self._spec.name,
            "gen_ai.conversation.id": self._text(session or self.told.run_id),
            "perdure.run.id": self._text(self.told.run_id),
        }

    def _text(self, text: str) -> str:
        return self.redactor.text(text)

    # -- the run -----------------------------------------------------------------------------------------------

    def _run(self, result: RunResult) -> Span:
        told, spec, history = self.told, self._spec, self.told.history
        attributes = self._common("invoke_agent") | {
            "gen_ai.provider.name": provider_of(spec.model),
            "gen_ai.request.model": name_of(spec.model),
            "perdure.run.status": result.status,
            **_usage(result.usage),
        }
        if result.cost_usd is not None:
            attributes["perdure.cost_usd"] = float(result.cost_usd)
        if history.opening and history.opening.tenant:
            attributes["perdure.tenant"] = self._text(history.opening.tenant)
        if fork := next((one.forked_from for one in told.events if isinstance(one, ev.RunStarted)), None):
            attributes["perdure.forked_from"] = self._text(f"{fork.run_id} step {fork.step}")
        failed = result.status in ("failed", "budget_exhausted")
        if failed:
            attributes["error.type"] = result.failure or result.status
        if self.capture != "off":
            said = [one.content for one in history.opening.messages if one.role == "user"] if history.opening else []
            attributes["gen_ai.system_instructions"] = self._json([{"type": "text", "content": spec.instructions}])
            attributes["gen_ai.input.messages"] = self._messages(said[:1])
            attributes["gen_ai.output.messages"] = self._json([_message("assistant", _words(result.text))])
        parent: SpanRef | None = None
        if history.follows:
            parent = ids.of_run(told.namespace, told.run_id, history.follows)
        elif history.caller:
            parent = ids.of_call(told.namespace, history.caller, told.run_id)
        return Span(
            f"invoke_agent {spec.name}",
            self._root,
            parent,
            told.began,
            told.ended,
            attributes,
            error=self._text(result.reason or result.status) if failed else None,
            execution=history.made_by(history.last),
            known=history.last,
        )

    def _wait(self, one: Waited) -> Span:
        attributes = self._common() | {"gen_ai.tool.name": one.name, "perdure.call": one.call}
        if one.decided:
            attributes["perdure.approval.decision"] = "approved" if one.decided.approve else "denied"
            attributes["perdure.approval.via"] = one.decided.via
            attributes["perdure.approval.edited"] = one.decided.edited
        else:
            attributes["perdure.approval.decision"] = "none"
        key = (self.told.namespace, self.told.run_id, "approval", one.call, one.asked.isoformat())
        ref = SpanRef(self._root.trace, ids.span_id(*key))
        return Span(
            f"approval {one.name}",
            ref,
            self._root,
            one.asked,
            one.until,
            attributes,
            execution=self.told.history.made_by(one.known),
            known=one.known,
        )

    # -- attempts ----------------------------------------------------------------------------------------------

    def _attempt(self, one: Attempted) -> Span:
        name, attributes = self._chat(one) if one.kind == "chat" else self._tool(one)
        attributes |= {"gen_ai.agent.name": self._agent(one)}
        attributes |= {"perdure.step": one.step, "perdure.attempt": one.made.attempt}
        if one.made.error_type:
            attributes["error.type"] = self._text(one.made.error_type)
        if one.made.unseen:
            attributes["perdure.estimated"] = True
        words = "its worker was lost" if one.made.error_type == LOST else one.made.error_type
        namespace, run_id = self.told.namespace, self.told.run_id
        ref = ids.of_attempt(namespace, run_id, one.execution, one.activity, one.number, one.handed)
        if one.child:
            ref = ids.of_call(namespace, run_id, one.child)
            attributes["perdure.call.run.id"] = self._text(one.child)
        return Span(
            name,
            ref,
            self._root,
            one.made.began,
            max(one.made.ended, one.made.began),
            attributes,
            client=one.kind == "chat",
            error=self._text(words) if words else None,
            execution=one.execution,
            known=one.known,
        )

    def _agent(self, one: Attempted) -> str:
        """Return the agent whose step it is: a run may be handed over to another one."""
        asked = (event for event in self.told.events if isinstance(event, ev.ModelStarted) and event.step == one.step)
        return next((event.agent for event in asked if event.agent), self._spec.name)

    def _chat(self, one: Attempted) -> tuple[str, dict[str, Value]]:
        rules = self._spec.of(self._agent(one))
        model = one.name or rules.model
        attributes = self._common("chat") | {
            "gen_ai.provider.name": provider_of(model),
            "gen_ai.request.model": name_of(model),
            **_usage(one.usage),
        }
        if limit := rules.settings.max_output_tokens:
            attributes["gen_ai.request.max_tokens"] = limit
        if one.purpose:
            attributes["perdure.purpose"] = one.purpose
        if one.cost_usd is not None:
            attributes["perdure.cost_usd"] = float(one.cost_usd)
        if not one.made.error_type:
            attributes["gen_ai.response.finish_reasons"] = [_FINISHES.get(one.finish, one.finish)]
            attributes["gen_ai.response.model"] = one.served or name_of(model)
        if self.capture != "off":
            attributes["gen_ai.input.messages"] = self._messages(one.asked)
            if one.answered:
                attributes["gen_ai.output.messages"] = self._json([self._reply(one.answered, one.finish)])
        return f"chat {name_of(model)}", attributes

    def _tool(self, one: Attempted) -> tuple[str, dict[str, Value]]:
        tool = self._spec.known_tool(one.name)
        attributes = self._common("execute_tool" if one.kind == "tool" else "") | {
            "gen_ai.tool.name": one.name,
            "gen_ai.tool.type": "function",
            "perdure.call": one.call,
        }
        if one.call_id:
            attributes["gen_ai.tool.call.id"] = one.call_id
        if tool:
            attributes["perdure.tool.effect"] = tool.effect
        if one.status:
            attributes["perdure.tool.status"] = one.status
        if self.capture != "off":
            arguments = self._shown(one.arguments, tool.parameters if tool else None)
            attributes["gen_ai.tool.call.arguments"] = json.dumps(arguments, ensure_ascii=False)
            if one.result:
                attributes["gen_ai.tool.call.result"] = self._whole(one.result)
        return f"{'execute_tool' if one.kind == 'tool' else one.kind} {one.name}", attributes

    # -- contents ----------------------------------------------------------------------------------------------

    def _whole(self, text: str) -> str:
        return text if self.capture == "whole" else self._text(text)

    def _shown(self, value: Any, schema: Mapping[str, Any] | None = None) -> Any:
        return value if self.capture == "whole" else self.redactor.json(value, schema)

    def _json(self, value: Any) -> str:
        return json.dumps(self._shown(value), ensure_ascii=False)

    def _messages(self, said: Iterable[Content | ToolResult]) -> str:
        messages = list[dict[str, Any]]()
        for one in said:
            if isinstance(one, ToolResult):
                part = {"type": "tool_call_response", "id": one.call_id, "response": one.content or one.message or ""}
                messages.append(_message("tool", [part]))
            else:
                messages.append(_message("user", _words(one)))
        return self._json(messages)

    def _reply(self, message: AssistantMessage, finish: str) -> dict[str, Any]:
        calls = [
            {"type": "tool_call", "id": call.id, "name": call.name, "arguments": self._arguments(call)}
            for call in message.calls
        ]
        reply = _message("assistant", [*(_words(message.text) if message.text else []), *calls])
        return {**reply, "finish_reason": _FINISHES.get(finish, finish)}

    def _arguments(self, call: ToolCall) -> Any:
        tool = self._spec.known_tool(call.name)
        return self._shown(call.arguments, tool.parameters if tool else None)


def _message(role: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": role, "parts": parts}


def _words(content: Content) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "content": content}]
    return [{"type": "text", "content": part.text} if part.kind == "text" else {"type": part.kind} for part in content]


def _usage(usage: Usage) -> dict[str, Value]:
    told: dict[str, Value] = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
    }
    if usage.cached_tokens:
        told["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    if usage.reasoning_tokens:
        told["gen_ai.usage.reasoning.output_tokens"] = usage.reasoning_tokens
    if usage.estimated:
        told["perdure.usage.estimated"] = True
    return told
