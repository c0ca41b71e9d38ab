"""One move of a graph: what has ended is taken into the state, and where the run goes from there."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from perdure.errors import VariableError
from perdure.messages import JSON, AssistantMessage, Content, TextPart, ToolCall, ToolMessage, ToolResult, UserMessage
from perdure.results import short, words
from perdure.strategies import Answer, Ask, Directed, Do, Fail, Move, Situation
from perdure.strategies.graph_moves import Ended, advance, begin, wave
from perdure.strategies.graph_shape import START, WHOLE, BranchSpec, GraphSpec, NodeSpec, Progress
from perdure.strategies.graph_state import Misfit, Reducer, given, instance, merged
from perdure.strategies.graph_text import filled
from perdure.strategies.graph_types import listed
from perdure.variables import check_size

CONDITION_SECONDS = 5.0
"""Within which a function of the application has to decide."""

MISFITS = 2
"""How often an agent is asked once more whose answer does not fit."""

SUM_UP = "The work is done: nothing more will be called. Answer the user now, with what was found and done."


class Halt(Exception):
    """The run can't go on."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


class Code(Protocol):
    """What a graph has of the application: by name in a run, as it is deployed now here."""

    state: type[BaseModel]
    conditions: Mapping[str, Callable[[Any], Any]]
    reducers: Mapping[str, Reducer]
    answered: Callable[[Any], Any] | None


@dataclass
class Walk:
    """One move of a run.

    Attributes:
        wrote: What it changes of the state.
        failed: Nodes that have failed for good, and why.
        complaints: What is wrong with answers of agents that are asked once more.
    """

    code: Code
    graph: GraphSpec
    seen: Situation
    at: Progress
    wrote: dict[str, JSON] = field(default_factory=dict[str, JSON])
    failed: dict[str, Halt] = field(default_factory=dict[str, Halt])
    complaints: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def values(self) -> dict[str, JSON]:
        """The state as it is now."""
        declared = self.seen.spec.variables
        return {**(declared.initial if declared else {}), **self.seen.variables, **self.wrote}

    async def move(self) -> Move:
        """Return what the run does next."""
        try:
            if not self.seen.progress:
                await self._begin()
            else:
                await self._go_on()
            check_size(self.values)
        except Halt as halt:  # nothing of this move holds: it is made anew when the run is resumed
            return Fail(short(halt.reason), halt.kind)
        except VariableError as error:
            return Fail(short(error), "variables")
        if self.failed and not self.seen.answer_only:
            first = next(iter(self.failed.values()))
            return Fail(short(first.reason), first.kind, progress=self.at.as_json(), variables=self.wrote)
        return await self._next()

    # -- what has ended ------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        entries = self.seen.entries
        behind = [place for place, one in enumerate(entries, 1) if isinstance(one, AssistantMessage | ToolMessage)]
        first = seen.asked_at if (seen := self.seen).handed_over else max(behind, default=0)
        users = (place for place in range(first, len(entries)) if _is_users(entries[place]))
        self.at = Progress(began=next(users, first))
        if self.graph.takes:
            try:
                new = {self.graph.takes: self.asked}
                self.wrote |= merged(self.code.state, self.values, new, self.code.reducers)
            except Misfit as error:
                raise Halt("input", f"What the user asks for is no {self.graph.takes}: {error}.") from error
        self.at = begin(self.graph, self.at.began, await self._branched(START))

    async def _go_on(self) -> None:
        calls, results = self._calls(), {result.call_id: result for result in self.seen.results}
        ended: list[Ended] = []
        for name in self.at.active:
            call = calls.get(name)
            one = self._ended(self.graph.node(name), call, results.get(call.id) if call else None)
            ended.extend([one] if one else [])
        course = await asyncio.gather(*(self._directed(one) for one in ended))
        again = {"due": self.graph.in_order({*self.at.due, *self.failed, *self.complaints})}
        self.at = advance(self.graph, self.at.model_copy(update=again), course)

    async def _directed(self, ended: Ended) -> Ended:
        return ended if ended.targets else Ended(ended.node, await self._branched(ended.node))

    def _calls(self) -> dict[str, ToolCall]:
        """Return the calls of the last turn, by node."""
        return {call.name: call for call in self.seen.last.calls} if self.seen.last else {}

    def _ended(self, node: NodeSpec, call: ToolCall | None, result: ToolResult | None) -> Ended | None:
        """Take what a node has given into the state; None where it has to be visited again."""
        if result is not None and result.status in ("ok", "staged"):
            try:
                new = given(node, result, call.arguments if call else {}) if result.status == "ok" else {}
                self.wrote |= merged(self.code.state, self.values, new, self.code.reducers)
            except Misfit as error:
                return self._misfit(node, str(error))
            except Exception as error:  # noqa: BLE001 - a reducer is application code
                return self._lost(node, f"what it gave could not be merged: {words(error)}")
            left = {name: times for name, times in self.at.misfits.items() if name != node.name}
            self.at = self.at.model_copy(update={"misfits": left})
            return Ended(node.name)
        said = (result.message or result.status) if result else "it has no result"
        if result is not None and result.status == "denied":
            if node.on_denied:
                return Ended(node.name, (node.on_denied,))
            self.failed[node.name] = Halt("denied", f"{node.name}: {said}")
            return None
        return self._lost(node, said)

    def _misfit(self, node: NodeSpec, why: str) -> Ended | None:
        times = self.at.misfits.get(node.name, 0)
        if not node.is_agent or times >= MISFITS:
            return self._lost(node, why)
        self.at = self.at.model_copy(update={"misfits": {**self.at.misfits, node.name: times + 1}})
        self.complaints[node.name] = why
        return None

    def _lost(self, node: NodeSpec, why: str) -> Ended | None:
        if node.on_error:
            return Ended(node.name, (node.on_error,))
        self.failed[node.name] = Halt("node_failed", f"Node {node.name} failed: {why}")
        return None

    # -- conditions ----------------------------------------------------------------------------------------

    async def _branched(self, source: str) -> tuple[str, ...] | None:
        """Return where a branch leads from `source`; None where it has none."""
        branch = self.graph.branch(source)
        if branch is None:
            return None
        value = await self._value(branch)
        target = branch.target(value)
        if not target:
            text = f"The branch of {_named(source)} has no case for {json.dumps(value)[:200]}"
            raise Halt("no_branch", f"{text}, and does not say where the graph goes otherwise.")
        return (target,)

    async def _value(self, branch: BranchSpec) -> JSON:
        if not branch.called:
            return self.values.get(branch.by)
        condition = self.code.conditions.get(branch.source)
        if condition is None:
            text = f"The graph that is deployed now has no condition {branch.by} for {_named(branch.source)}"
            raise Halt("strategy_unavailable", f"{text}. Deploy it again, then resume the run.")
        return await self._asked_of(condition, f"Condition {branch.by} of {_named(branch.source)}")

    async def _asked_of(self, function: Callable[[Any], Any], what: str) -> JSON:
        """Return what a function of the application says of the state."""
        state = instance(self.code.state, self.values)
        try:
            async with asyncio.timeout(CONDITION_SECONDS):
                if inspect.iscoroutinefunction(function):
                    value = await function(state)
                else:
                    value = await asyncio.to_thread(function, state)
                    value = await value if inspect.isawaitable(value) else value
            return to_jsonable_python(value)
        except TimeoutError:
            raise Halt("condition_failed", f"{what} did not decide within {CONDITION_SECONDS:g} s.") from None
        except Exception as error:
            raise Halt("condition_failed", f"{what} failed: {words(error)}") from error

    # -- what is next --------------------------------------------------------------------------------------

    async def _next(self) -> Move:
        if self.seen.answer_only:
            return await self._end(unfinished=not self.at.over)
        if self.at.over:
            return await self._end(unfinished=False)
        names, self.at = wave(self.at, self.seen.spec.limits.calls_per_turn)
        kept: dict[str, Any] = {"progress": self.at.as_json(), "variables": self.wrote}
        return Do([Directed(name=name, arguments=self._arguments(self.graph.node(name))) for name in names], **kept)

    async def _end(self, *, unfinished: bool) -> Move:
        kept: dict[str, Any] = {"progress": self.at.as_json(), "variables": self.wrote}
        if self.graph.answers == "model":
            return Ask(note="" if self.seen.answer_only else SUM_UP, answer_only=True, **kept)
        if unfinished:
            left = ", ".join(self.graph.in_order([*self.at.due, *self.failed]))
            known = {name: value for name, value in self.values.items() if value not in (None, "", [], {})}
            text = f"Not finished: the limit of this run was reached before {left}."
            return Answer(f"{text} What is known: {json.dumps(known, ensure_ascii=False)}", **kept)
        try:
            return Answer(await self._answer(), **kept)
        except Halt as halt:
            return Fail(short(halt.reason), halt.kind)

    async def _answer(self) -> str:
        if self.graph.answers == "text":
            return filled(self.graph.answer, self.values, self.asked)
        if self.code.answered is None:
            raise Halt("strategy_unavailable", "The graph that is deployed now has no function that gives the answer.")
        value = await self._asked_of(self.code.answered, f"Function {self.graph.answer}, which gives the answer,")
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    # -- what a node is given ------------------------------------------------------------------------------

    def _arguments(self, node: NodeSpec) -> dict[str, JSON]:
        if node.is_agent:
            return {"task": self._task(node)}
        values = self.values
        tool = self.seen.spec.tool(node.name)
        required: Sequence[str] = tool.parameters.get("required", ()) if tool else ()
        found: dict[str, JSON] = dict(node.given)
        for name, read in node.takes.items():
            value = values if read == WHOLE else values.get(read)
            if value is not None or name in required:
                found[name] = value
        return {"question": filled(node.text, values, self.asked), **found} if node.kind == "approval" else found

    def _task(self, node: NodeSpec) -> str:
        parts = [filled(node.text, self.values, self.asked) if node.text else self.asked]
        if said := self.said:
            parts.append("The user has said since:\n" + "\n".join(f"- {text}" for text in said))
        if node.schema_of:
            values = listed(node.schema_of)
            shape = (
                f"one of these words: {', '.join(map(str, values))}"
                if values is not None
                else f"JSON that fits this schema: {json.dumps(node.schema_of, ensure_ascii=False)}"
            )
            parts.append(f"Answer with nothing but {shape}")
        if why := self.complaints.get(node.name):
            parts.append(f"The last answer to this could not be used: {why}.")
        return "\n\n".join(part for part in parts if part) or node.name

    @property
    def asked(self) -> str:
        """What the user asks for."""
        entry = self.seen.entries[self.at.began] if self.at.began < len(self.seen.entries) else None
        return _text(entry.content) if isinstance(entry, UserMessage) else ""

    @property
    def said(self) -> list[str]:
        """What the user has said since."""
        later = self.seen.entries[self.at.began + 1 :]
        return [_text(entry.content) for entry in later if isinstance(entry, UserMessage) and entry.source == "user"]


def _is_users(entry: object) -> bool:
    return isinstance(entry, UserMessage) and entry.source == "user"


def _named(source: str) -> str:
    return "the start" if source == START else source


def _text(content: Content) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content if isinstance(part, TextPart))
