"""Decisions of people: which take, and what they do."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.approvals import apply_decision, apply_settlement, check, expire, next_alarm, premature, takes
from perdure.control import Wanted, read_signal
from perdure.decisions import Decision, Settlement
from perdure.messages import AssistantMessage, ToolCall, content_hash
from perdure.outcomes import close, lost, result_of, start
from perdure.policies import AgentSpec, Approval, ToolSpec
from perdure.reports import ModelTurn
from perdure.state import CallState, CallStatus, RunState, begin
from perdure.steps import CallTools, Finish, Wait, next_step
from perdure.turns import fold_turn

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
TOOLS = [
    ToolSpec(name="pay", description="Pay.", parameters={}),
    ToolSpec(name="send", description="Send.", parameters={}, probe=True, result_limit=10),
]


def a_run(*names: str, ask: str | None = "why", **rules: Any) -> RunState:
    """Return a run whose first turn makes these calls, all of which ask unless said otherwise."""
    spec = AgentSpec(name="a", model="m:m", tools=TOOLS, approval=Approval(**rules))
    state = begin("run", spec, "go", None, "e")
    calls = [ToolCall(id=f"id{i}", name=name, arguments={"n": i}, ask=ask) for i, name in enumerate(names, 1)]
    fold_turn(state, ModelTurn(message=AssistantMessage(role="assistant", calls=calls)), NOW)
    return state


def in_doubt(name: str = "pay") -> RunState:
    state = a_run(name, ask=None)
    start(state, state.calls[0])
    lost(state, state.calls[0], "It did not end in time.", NOW, HOUR)
    return state


def yes(call: str = "1.1", **fields: Any) -> Decision:
    return Decision(call=call, approve=True, by="Ann", **fields)


def no(call: str = "1.1", **fields: Any) -> Decision:
    return Decision(call=call, approve=False, by="Ann", **fields)


def decide(state: RunState, decision: Decision) -> CallState | None:
    """Take a decision that would be accepted."""
    assert check(state, decision).accepted
    call = state.find(decision.call)
    apply_decision(state, decision, "update", NOW)
    return call


def settle(state: RunState, settlement: Settlement) -> CallState:
    assert check(state, settlement).accepted
    call = state.calls[0]
    apply_settlement(state, settlement)
    return call


# -- which decisions take -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["1.1", "id1", ""])
def test_call_is_named_by_position_or_id_or_not_at_all_where_only_one_waits(name):
    receipt = check(a_run("pay"), yes(name))
    assert (receipt.accepted, receipt.call) == (True, "1.1")


def test_check_changes_nothing():
    state = a_run("pay", "send")
    before = state.model_dump_json()
    for wanted in (yes(), no("1.2"), yes("9.9"), yes(hash="x"), Settlement(call="1.1", outcome="done")):
        check(state, wanted)
    assert state.model_dump_json() == before


def closed() -> RunState:
    state = a_run("pay")
    close(state, state.calls[0], result_of(state.calls[0], "ok"))
    return state


def decided() -> RunState:
    state = a_run("pay", "send")
    apply_decision(state, yes(), "update", NOW)
    return state


@pytest.mark.parametrize(
    ("state", "wanted", "reason", "said"),
    [
        (a_run("pay"), yes("1.2"), "unknown_call", "The run has no call '1.2': waiting are 1.1 (pay)."),
        (a_run("pay", ask=None), yes("7.1"), "unknown_call", "The run has no call '7.1': nothing waits"),
        (a_run("pay", ask=None), yes(""), "unknown_call", "Nothing waits for a decision in "),
        (a_run("pay", "send"), yes(""), "unknown_call", "Say which call is meant: waiting are 1.1 (pay), 1.2 (send)."),
        (a_run("pay", ask=None), yes(), "not_waiting", "Call 1.1 does not wait for approval: it has not begun yet."),
        (closed(), yes(), "already_decided", "already: ok"),
        (
            decided(),
            no(),
            "already_decided",
            "it was approved by Ann, and has not begun yet.",
        ),
        (a_run("pay"), yes(hash="0" * 16), "stale_hash", "other arguments"),
        (in_doubt(), yes(), "not_waiting", "in doubt"),
        (
            a_run("pay"),
            Settlement(call="1.1", outcome="done"),
            "not_in_doubt",
            "call 1.1 is not in doubt: it waits for approval.",
        ),
        (closed(), Settlement(call="1.1", outcome="done"), "already_decided", "already: ok"),
        (a_run("pay"), Settlement(call="x", outcome="done"), "unknown_call", "The run has no call 'x'"),
    ],
)
def test_decision_that_does_not_take_says_why(state, wanted, reason, said):
    receipt = check(state, wanted)
    assert (receipt.accepted, receipt.reason) == (False, reason)
    assert said in receipt.message
    assert receipt.message.endswith(".")


def test_only_a_decision_about_what_is_not_there_yet_may_have_come_too_early():
    early = [check(a_run("pay"), yes("2.1")), check(a_run("pay", ask=None), yes())]
    early.append(check(a_run("pay"), Settlement(call="1.1", outcome="done")))
    assert all(premature(receipt) for receipt in early)
    late = [
        check(closed(), yes()),
        check(decided(), yes()),
        check(a_run("pay"), yes(hash="x")),
        check(a_run("pay"), yes()),
    ]
    assert not any(premature(receipt) for receipt in late)


def test_hash_of_the_arguments_that_were_shown_is_the_right_one():
    assert check(a_run("pay"), yes(hash=content_hash({"n": 1}))).accepted


def test_decision_that_arrives_by_two_ways_is_taken_once():
    state, decision = a_run("pay", "send"), yes("1.1", id="d1")
    assert takes(check(state, decision))
    decide(state, decision)
    for again in (decision, no("1.2", id="d1")):
        assert check(state, again).accepted
        assert not takes(check(state, again))
        assert not premature(check(state, again))
    assert takes(check(state, yes("1.2", id="d2")))
    assert not takes(check(state, yes("1.1", id="d2")))


def test_retry_that_arrives_by_two_ways_is_one_try():
    state, word = in_doubt(), Settlement(call="1.1", outcome="retry", id="s1")
    settle(state, word)
    start(state, state.calls[0])
    lost(state, state.calls[0], "Again.", NOW, HOUR)
    assert not takes(check(state, word))
    assert takes(check(state, Settlement(call="1.1", outcome="retry")))


# -- what they do ---------------------------------------------------------------------------------------------


def test_approved_call_is_executed_with_its_own_arguments():
    state = a_run("pay")
    call = decide(state, yes(reason="fine"))
    assert call
    assert next_step(state) == CallTools(("1.1",))
    assert (call.arguments, call.decision and call.decision.edited) == ({"n": 1}, False)
    assert call.decision
    assert (call.decision.by, call.decision.via, call.decision.reason, call.decision.at) == (
        "Ann",
        "update",
        "fine",
        NOW,
    )


def test_edited_arguments_are_executed_instead_and_have_a_hash_of_their_own():
    state = a_run("pay")
    call = decide(state, yes(arguments={"n": 2}))
    assert call
    assert call.decision
    assert (call.arguments, call.hash, call.decision.edited) == ({"n": 2}, content_hash({"n": 2}), True)
    assert call.call.arguments == {"n": 1}


def test_edit_that_changes_nothing_is_none():
    call = decide(a_run("pay"), yes(arguments={"n": 1}))
    assert call
    assert call.decision
    assert not call.decision.edited


def test_denied_call_is_told_to_the_model_which_goes_on():
    state = a_run("pay")
    call = decide(state, no(reason="too dear"))
    assert call
    assert call.result
    assert (call.result.status, call.result.message) == ("denied", "Denied by Ann: too dear. It was not executed.")
    assert call.result.suggestion
    assert state.outcome is None
    assert not state.calls


def test_denial_that_stops_the_run_skips_what_has_not_begun_and_waits_for_what_has():
    state = a_run("send", "pay", "pay", on_denial="stop")
    decide(state, yes("1.1"))
    start(state, state.calls[0])
    decide(state, no("1.2"))
    assert [call.result.status if call.result else call.status for call in state.calls] == [
        "running",
        "denied",
        "skipped",
    ]
    assert state.outcome
    assert (state.outcome.status, state.outcome.reason) == ("completed", "pay was denied by Ann.")
    assert next_step(state) == Wait("running")
    close(state, state.calls[0], result_of(state.calls[0], "ok"))
    assert isinstance(next_step(state), Finish)


def test_settled_as_done_gives_the_tools_result_and_who_said_so():
    call = settle(in_doubt(), Settlement(call="1.1", outcome="done", result={"id": 7}, by="Ann", reason="Seen."))
    assert call.result
    assert (call.result.status, call.result.content) == ("ok", '{"id": 7}')
    assert call.result.note == "Ann looked it up and says that it was done. Seen."
    assert call.result.execution_order == 1


@pytest.mark.parametrize(
    ("given", "shown"), [(None, "It was done."), ("", "It was done."), ("B7", "B7"), (0, "0"), (False, "false")]
)
def test_settled_result_may_be_anything_or_nothing(given, shown):
    call = settle(in_doubt(), Settlement(call="1.1", outcome="done", result=given))
    assert call.result
    assert call.result.content == shown


def test_settled_result_is_cut_like_the_tools_own():
    call = settle(in_doubt("send"), Settlement(call="1.1", outcome="done", result="x" * 99))
    assert call.result
    assert (call.result.content, call.result.size) == ("x" * 10, 99)


def test_settled_as_not_done_is_an_error_result():
    call = settle(in_doubt(), Settlement(call="1.1", outcome="not-done", by="Ann"))
    assert call.result
    assert (call.result.status, call.result.error_type, call.result.note) == ("error", "not_done", "Settled by Ann.")


def test_settled_as_retry_is_tried_again_with_the_same_key_and_known_as_such():
    state = in_doubt()
    key = state.calls[0].key
    call = settle(state, Settlement(call="1.1", outcome="retry"))
    assert (call.key, call.again, call.doubt) == (key, True, None)
    assert next_step(state) == CallTools(("1.1",))


def test_person_may_be_quicker_than_the_probe():
    state = in_doubt("send")
    assert state.calls[0].status is CallStatus.DOUBTED
    settle(state, Settlement(call="1.1", outcome="done"))
    assert not state.calls


# -- alarms ---------------------------------------------------------------------------------------------------


def test_request_waits_for_ever_unless_told_otherwise():
    assert next_alarm(a_run("pay"), NOW + 1000 * HOUR) is None


def test_reminders_come_at_every_interval_and_the_expiry_once():
    state = a_run("pay", remind_every=2 * HOUR, expires=5 * HOUR)
    alarms = [next_alarm(state, NOW + hours * HOUR) for hours in (0, 1, 2, 3, 4)]
    assert alarms == [NOW + hours * HOUR for hours in (2, 2, 4, 4, 5)]


def test_nothing_rings_once_all_is_decided():
    state = a_run("pay", remind_every=HOUR)
    decide(state, yes())
    assert next_alarm(state, NOW) is None


def test_request_that_expires_is_denied_by_nobody():
    state = a_run("pay", "send", expires=HOUR)
    expire(state, NOW + HOUR - timedelta(microseconds=1))
    assert all(call.status is CallStatus.ASKING for call in state.calls)
    state.calls[1].asked_at = NOW + HOUR
    expire(state, NOW + HOUR)
    first, second = state.calls
    assert first.result
    assert first.decision
    assert (first.result.status, first.decision.by, first.decision.via) == ("denied", "nobody", "expiry")
    assert "not decided within 1:00:00. It was not" in (first.result.message or "")
    assert second.status is CallStatus.ASKING


def test_expiry_with_a_denial_that_stops_ends_the_run_once():
    state = a_run("pay", "pay", expires=HOUR, on_denial="stop")
    expire(state, NOW + HOUR)
    assert [record.status for record in state.records] == ["denied", "skipped"]
    assert isinstance(next_step(state), Finish)


# -- plain signals --------------------------------------------------------------------------------------------


def signal(name: str, *values: Any) -> Wanted | str:
    return read_signal(name, [json.dumps(value).encode() for value in values])


@pytest.mark.parametrize(
    ("name", "values", "means"),
    [
        ("approve", [], Decision(call="", approve=True)),
        ("approve", [None], Decision(call="", approve=True)),
        ("approve", ["2.1"], Decision(call="2.1", approve=True)),
        ("deny", ["2.1"], Decision(call="2.1", approve=False)),
        (
            "deny",
            [{"call": "2.1", "by": "Ann", "reason": "no"}],
            Decision(call="2.1", approve=False, by="Ann", reason="no"),
        ),
        ("approve", [{"call": "1.1", "approve": True}], Decision(call="1.1", approve=True)),
        (
            "approve",
            [{"arguments": {"n": 2}, "hash": "h"}],
            Decision(call="", approve=True, arguments={"n": 2}, hash="h"),
        ),
        ("decide", [{"call": "1.1", "approve": False}], Decision(call="1.1", approve=False)),
        ("settle", [{"call": "1.1", "outcome": "retry"}], Settlement(call="1.1", outcome="retry")),
        ("settle", [{"outcome": "done", "result": [1]}], Settlement(call="", outcome="done", result=[1])),
    ],
)
def test_signal_means_what_it_says(name, values, means):
    assert signal(name, *values) == means


def test_signal_without_a_payload_is_one_without_arguments():
    assert read_signal("approve", [b""]) == Decision(call="", approve=True)


@pytest.mark.parametrize(
    ("name", "payloads", "said"),
    [
        ("aprove", [b"{}"], "There is no signal 'aprove'; known are approve, deny, decide, settle, answer, say, pause"),
        ("approve", [b"{}", b"{}"], "takes one JSON value, not 2"),
        ("approve", [b"2.1.1"], "this is not JSON"),
        ("approve", [b"\xff\xfe"], "this is not JSON"),
        ("approve", [b"[" * 100_000], "this is not JSON"),
        ("approve", [b'{"arguments": {"n": NaN}}'], "this is not JSON"),
        ("approve", [b'{"arguments": ' + b'{"a":' * 200 + b"1" + b"}" * 201], "this is not JSON"),
        ("approve", [b"2.1"], "takes a JSON object such as"),
        ("deny", [b"true"], "not bool"),
        ("deny", [b'["2.1"]'], "not list"),
        ("approve", [b'{"call": "1.1", "approve": false}'], "says False for approve, which contradicts its name"),
        ("deny", [b'{"call": "1.1", "approve": "yes"}'], "says 'yes' for approve"),
        ("approve", [b'{"cal": "1.1"}'], "does not know cal; it knows call, approve, hash, arguments, by, reason"),
        ("approve", [b'{"call": 2.1}'], "call: Input should be a valid string"),
        ("approve", [b'{"call": "1.1", "arguments": "n=1"}'], "arguments: Input should be an object"),
        ("approve", [b'{"call": "1.1", "by": null}'], "by: Input should be a valid string"),
        ("decide", [b'{"call": "1.1"}'], "approve: Field required"),
        ("decide", [b'{"call": "1.1", "approve": "true"}'], "approve: Input should be a valid boolean"),
        ("settle", [b'"1.1"'], "outcome: Field required"),
        ("settle", [b'{"call": "1.1", "outcome": "maybe"}'], "outcome: Input should be 'done', 'not-done' or 'retry'"),
        ("settle", [b'{"call": "1.1", "outcome": "done", "approve": true}'], "does not know approve"),
        ("settle", [b'{"call": "1.1", "outcome": ["done"]}'], "outcome: Input should be"),
    ],
)
def test_signal_that_cannot_be_understood_is_refused_in_one_sentence(name, payloads, said):
    refused = read_signal(name, payloads)
    assert isinstance(refused, str)
    assert said in refused
    assert refused.endswith(".")
    assert "\n" not in refused


def test_refusal_of_an_endless_signal_is_short():
    refused = read_signal("approve", [json.dumps({"x" * 10_000: 1}).encode()])
    assert len(str(refused)) < 2_100
