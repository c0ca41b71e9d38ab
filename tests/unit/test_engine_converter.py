import inspect
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from temporalio.contrib.pydantic import pydantic_data_converter

from perdure import decisions, messages, policies
from perdure.decisions import Answer, Cancellation, Decision, DecisionRecord, Pause, Receipt, Saying, Settlement
from perdure.engine.converter import data_converter
from perdure.messages import (
    AssistantMessage,
    CallRecord,
    Compaction,
    ContextHealth,
    Data,
    Entry,
    FilePart,
    ImagePart,
    Part,
    Private,
    Problem,
    Published,
    RunResult,
    Segment,
    SegmentBody,
    TextPart,
    ToolCall,
    ToolMessage,
    ToolResult,
    Undone,
    Usage,
    UserMessage,
    Verbatim,
)
from perdure.policies import (
    AgentSpec,
    Approval,
    ContextPolicy,
    Limits,
    McpServerSpec,
    McpTool,
    MemoryPolicy,
    ModelSettings,
    OutputSpec,
    Price,
    Remote,
    Shaping,
    StrategySpec,
    SubAgent,
    ToolSpec,
    VariablesSpec,
)
from perdure.recurring import Recurring
from perdure.reports import Structured

PROBLEM = Problem(error_type="invalid_json", message="line 1", suggestion="quote it")
CALL = ToolCall(id="c1", name="look", arguments={"a": None, "b": [0, "", {"c": False}]}, problem=PROBLEM, ask="costly")
RESULT = ToolResult(
    call_id="c1", name="look", status="error", content="…", size=9, error_type="gone", message="m", execution_order=1
)
REMOTE = Remote(activity="Book", task_queue="java")
TOOL = ToolSpec(
    name="look",
    description="Looks.",
    parameters={"type": "object", "properties": {"x": {"default": None}}},
    effect="idempotent",
    timeout=timedelta(milliseconds=1500),
    approval="predicate:look",
    in_doubt="tell_model",
    remote=REMOTE,
)
SAMPLES: list[Data] = [
    StrategySpec(name="plan", options={"replan": True}, asks=False),
    McpTool(server="files", name="read_file"),
    McpServerSpec(name="files", allowed_tools=["read_file"], effects={"*": "unsafe"}, approval={"*": "always"}),
    Published(topic="offer", body={"total": 7}),
    SubAgent(spec=AgentSpec(name="scout", model="openai:gpt-5"), share=0.25),
    Private(kind="phone", value="13812345678"),
    Compaction(role="compaction", covers=2, summary="short", shortened=3),
    Compaction(role="compaction", covers=2, keeps=0, verbatim=Verbatim(done=["book(): ok"]), limit=400, cut=900),
    Verbatim(said=["go"], identifiers=["book: id=BK-1"], handles=[("look()", "0" * 32)]),
    ContextHealth(tokens=900, window=4_000),
    ContextPolicy(window=16_000, summary_model="m:m"),
    Segment(ref="0" * 32, length=3, records=1, head="a"),
    SegmentBody(entries=[Compaction(role="compaction")], records=[CallRecord(position="1.1", name="t", status="ok")]),
    Shaping(fields=["a.b"], limit=3, max_chars=10),
    MemoryPolicy(scopes=["tenant"], recall=3, model="m:m"),
    VariablesSpec(json_schema={"type": "object"}, initial={"a": 1}, show=["a"]),
    TextPart(kind="text", text=""),
    ImagePart(kind="image", url="https://example.com/a.png", detail="low"),
    FilePart(kind="file", filename="a.pdf", data="aGk="),
    PROBLEM,
    ToolCall(id="c1", name="look"),
    CALL,
    RESULT,
    UserMessage(role="user", content="hello 你好"),
    UserMessage(role="user", content=[TextPart(kind="text", text="t")], source="runtime"),
    AssistantMessage(role="assistant"),
    AssistantMessage(
        role="assistant", text="t", calls=[CALL], reasoning=[{"reasoning_content": ""}], provider="openai"
    ),
    ToolMessage(role="tool", result=RESULT),
    Usage(),
    Usage(input_tokens=3, estimated=True),
    CallRecord(position="2.1", name="look", arguments={"x": 0}, status="open"),
    Undone(position="2.1", name="book", status="failed", message="Too late."),
    RunResult(run_id="r", status="completed"),
    RunResult(run_id="r", status="failed", cost_usd=Decimal("0.10"), duration=timedelta(days=3), failure="quota"),
    Recurring(schedule="daily", keep_variables=True),
    OutputSpec(name="Trip", json_schema={"type": "object", "properties": {}}, wrapped=True),
    Structured(value={"n": None}),
    Decision(call="2.1", approve=False, arguments={}),
    Settlement(call="2.1", outcome="done", result={"n": None}),
    Answer(text="Monday", call="2.1", by="ann"),
    Pause(by="ann", reason="lunch"),
    Saying(content="Hurry.", now=True),
    Cancellation(reason="enough"),
    Receipt(accepted=False, reason="closed"),
    DecisionRecord(by="ann", via="signal", at=datetime(2026, 1, 2, tzinfo=UTC), approve=True),
    Approval(default="always", tools={"look": "never"}, expires=timedelta(hours=1)),
    Limits(steps=3),
    Limits(usd=Decimal("0.5"), input_tokens=None, wall_time=timedelta(hours=1), calls_per_tool={"look": 2}),
    Price(input=Decimal("1.25"), output=Decimal(10)),
    ModelSettings(temperature=0.0, extra_body={"x": None}),
    REMOTE,
    VariablesSpec(json_schema={"type": "object"}, initial={"seats": 1}, show=["seats"]),
    MemoryPolicy(),
    MemoryPolicy(scopes=["tenant"], recall=0, model="m:small"),
    TOOL,
    AgentSpec(name="a", model="openai:m", tools=[TOOL], limits=Limits(steps=3), approval=Approval(default="always")),
]
DEFAULTS: dict[type[Data], dict[str, Any]] = {
    ToolSpec: {
        "effect": "unsafe",
        "timeout": timedelta(seconds=10),
        "attempts": 3,
        "approval": None,
        "parallel": False,
        "local": False,
        "probe": False,
        "in_doubt": "ask",
        "result_limit": 65_536,
        "remote": None,
        "polling": False,
        "asks_user": False,
    },
    Limits: {
        "steps": 15,
        "input_tokens": 400_000,
        "output_tokens": 40_000,
        "usd": None,
        "wall_time": timedelta(minutes=10),
        "calls_per_tool": {},
        "on_exhausted": "end",
        "calls_per_turn": 32,
        "parallel_reads": 8,
        "malformed_turns": 3,
        "repeat_told": 3,
        "repeat_refused": 5,
        "repeat_ended": 8,
    },
    Approval: {"default": "never", "tools": {}, "expires": None, "remind_every": None, "on_denial": "continue"},
    ModelSettings: {"timeout": timedelta(minutes=10), "attempts": 3, "api_key_env": "OPENAI_API_KEY"},
}


def written(value: Any) -> bytes:
    return data_converter.payload_converter.to_payloads([value])[0].data


def read_back(value: Any, hint: Any) -> Any:
    converter = data_converter.payload_converter
    return converter.from_payloads(converter.to_payloads([value]), [hint])[0]


def shortened(sample: Data) -> str:
    return type(sample).__name__


@pytest.mark.parametrize("sample", SAMPLES, ids=shortened)
def test_every_class_comes_back_as_it_was(sample):
    assert read_back(sample, type(sample)) == sample


def test_every_class_of_the_vocabulary_has_a_sample():
    classes = {
        value
        for module in (decisions, messages, policies)
        for _, value in inspect.getmembers(module, inspect.isclass)
        if issubclass(value, Data) and value is not Data and value.__module__ == module.__name__
    }
    assert {type(sample) for sample in SAMPLES} >= classes


@pytest.mark.parametrize("sample", [s for s in SAMPLES if hasattr(s, "role")], ids=shortened)
def test_a_message_keeps_its_type_in_a_union_and_in_a_list(sample):
    assert read_back([sample], list[Entry]) == [sample]


@pytest.mark.parametrize(
    "sample", [s for s in SAMPLES if isinstance(s, TextPart | ImagePart | FilePart)], ids=shortened
)
def test_a_part_keeps_its_type_in_a_union_and_in_a_list(sample):
    assert read_back([sample], list[Part]) == [sample]


def test_what_equals_its_default_is_not_written():
    assert json.loads(written({"result": RunResult(run_id="r", status="completed")})) == {
        "result": {"run_id": "r", "status": "completed"}
    }


def test_plain_values_are_written_as_by_temporals_own_converter():
    for value in (None, b"bytes", "text", 1, [1, {"a": None}], {"when": datetime(2026, 1, 2, tzinfo=UTC)}):
        theirs = pydantic_data_converter.payload_converter.to_payloads([value])
        assert data_converter.payload_converter.to_payloads([value]) == theirs


def test_what_the_plain_pydantic_converter_wrote_is_read():
    payloads = pydantic_data_converter.payload_converter.to_payloads([TOOL])
    assert data_converter.payload_converter.from_payloads(payloads, [ToolSpec]) == [TOOL]


def test_half_an_emoji_does_not_fail_the_task():
    call = ToolCall(id="c1", name="say", arguments={"text": "cut \ud83d"})
    assert read_back(call, ToolCall).arguments == {"text": "cut ?"}


@pytest.mark.parametrize("kind", DEFAULTS, ids=lambda kind: kind.__name__)
def test_defaults_stay_for_ever_because_waiting_runs_were_written_without_them(kind):
    now = {name: field.get_default(call_default_factory=True) for name, field in kind.model_fields.items()}
    assert {name: now[name] for name in DEFAULTS[kind]} == DEFAULTS[kind]
