"""What people say to a run: what takes, what does not and why, and how it is written as a signal."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from perdure import control
from perdure.budgets import Additions
from perdure.control import Resumption, Wanted, apply, check, read_signal
from perdure.decisions import Answer, Cancellation, Decision, Pause, Saying
from perdure.messages import AssistantMessage, TextPart, ToolCall
from perdure.outcomes import close, result_of, start
from perdure.policies import AgentSpec, ToolSpec
from perdure.reports import ModelTurn
from perdure.resuming import carried_on
from perdure.state import SHAPE, CallStatus, RunState, begin
from perdure.steps import CallModel, CallTools, Wait, next_step
from perdure.tools import ask_user
from perdure.turns import close_soon, fold_turn, open_turn

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PAY = ToolSpec(name="pay", description="Pay.", parameters={})


def a_run(*names: str) -> RunState:
    """Return a run whose first turn makes these calls; all but questions ask for approval."""
    state = begin("run", AgentSpec(name="a", model="m:m", tools=[PAY, ask_user.spec]), "go", None, "e")
    calls = [ToolCall(id=f"id{index}", name=name, ask="why") for index, name in enumerate(names)]
    if calls:
        fold_turn(state, ModelTurn(message=AssistantMessage(role="assistant", calls=calls)), NOW)
    return state


def say(state: RunState, wanted: Wanted) -> str:
    """Say something, and return why it did not take: "" where it did."""
    receipt = check(state, wanted)
    if receipt.accepted and receipt.reason != "repeated":
        apply(state, control.about(wanted, receipt.call), "update", NOW)
    return receipt.reason


def test_what_comes_by_two_ways_is_taken_once() -> None:
    messages: list[Wanted] = [
        Saying(content="hello", id="1"),
        Pause(id="2"),
        Resumption(id="3"),
        Answer(text="x", id="4"),
        Cancellation(id="5"),
    ]
    state = a_run("ask_user", "pay")
    assert [say(state, wanted) for wanted in messages] == [""] * 5
    assert [say(state, wanted) for wanted in messages] == ["repeated"] * 5
    assert len(state.said) == 1


def test_nothing_can_be_said_or_added_in_the_last_turn() -> None:
    state = a_run()
    close_soon(state)
    assert say(state, Saying(content="hello")) == "closing"
    assert say(state, Resumption(add=Additions(steps=1))) == "closing"
    assert say(state, Pause()) == ""
    assert say(state, Resumption()) == "", "a pause can be lifted all the same"


@pytest.mark.parametrize("content", ["", "  \n", []])
def test_an_empty_message_is_refused(content: Any) -> None:
    assert say(a_run(), Saying(content=content)) == "empty"


def test_now_breaks_off_only_a_model_call_that_is_under_way() -> None:
    state = a_run()
    say(state, Saying(content="hello", now=True))
    open_turn(state, answer_only=False)
    assert state.generating
    assert not state.generating.interrupted
    say(state, Saying(content="stop", now=True))
    assert state.generating.interrupted


def test_an_answer_needs_an_open_question() -> None:
    state = a_run("ask_user", "ask_user", "pay")
    assert "Say which call is meant" in check(state, Answer(text="x")).message
    assert "asks nothing: it waits for approval" in check(state, Answer(text="x", call="1.3")).message
    assert say(state, Answer(text="one", call="1.2")) == ""
    assert say(state, Answer(text="two")) == "", "one question is left"
    assert [call.result.content for call in state.calls[:2] if call.result] == ["two", "one"]
    assert "asks nothing: it has its result already" in check(state, Answer(text="x", call="1.1")).message
    for call in ("", "1.1"):
        refused = check(a_run("ask_user"), Decision(call=call, approve=True)).message
        assert refused.endswith("Answer it with `perdure answer run TEXT --call 1.1`."), "it is no approval"


def test_an_empty_answer_is_refused() -> None:
    state = begin("run", AgentSpec(name="a", model="m:m", tools=[ask_user.spec]), "go", None, "e", shape=SHAPE)
    asked = AssistantMessage(role="assistant", calls=[ToolCall(id="id", name="ask_user")])
    fold_turn(state, ModelTurn(message=asked), NOW)
    assert [say(state, Answer(text=text)) for text in ("", " \n", "yes")] == ["empty", "empty", ""]


def test_a_question_needs_no_approval_and_is_withdrawn_by_a_message() -> None:
    state = a_run("ask_user")
    assert state.calls[0].status is CallStatus.QUESTION
    say(state, Saying(content="You choose."))
    open_turn(state, answer_only=False)
    assert not state.parked
    assert state.records[0].status == "skipped"


def test_a_run_that_is_started_again_is_neither_paused_nor_conceded() -> None:
    state = a_run("pay")
    say(state, Pause())
    control.run_short(state, "steps")
    say(state, Saying(content="hello"))
    again = carried_on(state, Additions())
    assert (again.paused, again.short, again.conceded) == (None, "", False)
    assert [saying.content for saying in again.said] == ["hello"], "it was kept"


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("say", "hello", Saying(content="hello")),
        ("say", {"content": "x", "now": True, "by": "Ann"}, Saying(content="x", now=True, by="Ann")),
        ("say", {"content": [{"kind": "text", "text": "x"}]}, Saying(content=[TextPart(kind="text", text="x")])),
        ("answer", "Monday", Answer(text="Monday")),
        ("answer", {"call": "2.1", "text": "Monday"}, Answer(text="Monday", call="2.1")),
        ("pause", None, Pause()),
        ("pause", "lunch", Pause(reason="lunch")),
        ("cancel", {"by": "Ann", "reason": "enough"}, Cancellation(by="Ann", reason="enough")),
        ("resume", {}, Resumption()),
        (
            "resume",
            {"add": {"steps": 2, "usd": 0.5, "wall_time": "PT5M"}},
            Resumption(add=Additions(steps=2, usd=Decimal("0.5"), wall_time=timedelta(minutes=5))),
        ),
    ],
)
def test_signal_is_understood(name: str, value: Any, wanted: Wanted) -> None:
    assert read_signal(name, [json.dumps(value).encode()]) == wanted


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("say", {}, "content: Field required"),
        ("say", {"content": 7}, "content"),
        ("say", {"text": "x"}, "does not know text; it knows content, by, now, next, id"),
        ("answer", {"call": "2.1"}, "text: Field required"),
        ("resume", {"steps": 5}, "does not know steps; it knows add"),
        ("resume", {"add": {"step": 5}}, "does not know step; it knows steps, input_tokens"),
        ("resume", {"add": {"steps": -5}}, "add.steps: Input should be greater than or equal to 0"),
        ("pause", 7, 'takes a JSON object such as {"by": "Ann"}, not int'),
    ],
)
def test_signal_that_is_not_understood_says_why(name: str, value: Any, said: str) -> None:
    refused = read_signal(name, [json.dumps(value).encode()])
    assert isinstance(refused, str)
    assert said in refused


def test_a_message_withdraws_the_request_for_what_is_staged_and_the_next_answer_makes_it_again() -> None:
    send = ToolSpec(name="send", description="Send.", parameters={}, defer=True)
    state = begin("run", AgentSpec(name="a", model="m:m", tools=[send]), "go", None, "e")
    call = ToolCall(id="id0", name="send")
    fold_turn(state, ModelTurn(message=AssistantMessage(role="assistant", calls=[call])), NOW)
    answer = ModelTurn(message=AssistantMessage(role="assistant", text="done"))
    fold_turn(state, answer, NOW)
    assert next_step(state) == Wait("waiting_approval")
    say(state, Saying(content="wait"))
    assert next_step(state) == CallModel()
    open_turn(state, answer_only=False)
    assert not state.open_calls
    fold_turn(state, answer, NOW)
    assert next_step(state) == Wait("waiting_approval")
    say(state, Decision(call="", approve=True))
    assert next_step(state) == CallTools(("1.1",))
    say(state, Saying(content="now?"))
    start(state, state.calls[0])
    assert next_step(state) == Wait("running")
    close(state, state.calls[0], result_of(state.calls[0], "ok"))
    assert next_step(state) == CallModel(), "what was said is heard afterwards"
