"""What people decide, as a run's history tells it: whatever way it came by, and in whatever order."""

from __future__ import annotations

from datetime import timedelta

import pytest

from perdure import approvals
from perdure.decisions import Decision, Receipt, Settlement
from perdure.messages import AssistantMessage, Problem
from perdure.reports import Judgement, ModelTurn, ProbeReport
from perdure.state import CallStatus
from perdure.wire import JUDGE, PROBE, JudgeInput, ProbeInput, ToolInput, edit_id
from tests.unit.histories import NOW, History, a_call, asking, in_doubt, lost_worker

# -- what people decide ---------------------------------------------------------------------------------------


async def test_request_for_approval_shows_what_a_decision_is_bound_to():
    history = await asking()
    (request,) = history.told("approval_requested")
    assert (request.call, request.name, request.why) == ("1.1", "pay", "why")
    await history.signal("approve", {"hash": request.hash})
    assert not history.told("decision_refused")


@pytest.mark.parametrize("name", ["approve", "deny"])
async def test_signal_decides_and_who_and_why_are_told(name):
    history = await asking()
    await history.signal(name, {"call": "id1", "by": "Ann", "reason": "so"})
    (decided,) = history.told("approval_decided")
    assert (decided.call, decided.by, decided.via, decided.reason) == ("1.1", "Ann", "signal", "so")
    assert decided.approve == (name == "approve")
    assert [event.status for event in history.told("tool_finished")] == ([] if decided.approve else ["denied"])


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("aprove", ["1.1"], "There is no signal 'aprove'"),
        ("approve", [["1.1"]], "takes a JSON object"),
        ("approve", [{"call": "1.1", "hash": "0" * 16}], "other arguments"),
        ("approve", [{"cal": "1.1"}], "does not know cal"),
    ],
)
async def test_signal_that_does_not_take_is_told_as_refused_with_the_reason(name, values, said):
    history = await asking()
    await history.signal(name, *values)
    (refused,) = history.told("decision_refused")
    assert (refused.name, refused.via) == (name, "signal")
    assert said in refused.reason
    assert history.state.calls[0].status is CallStatus.ASKING


async def test_second_decision_is_refused():
    history = await asking()
    await history.signal("approve", {"call": "1.1", "by": "Ann"})
    await history.signal("deny", {"call": "1.1", "by": "Ben"})
    (refused,) = history.told("decision_refused")
    assert "it was approved by Ann" in refused.reason


async def test_signal_that_comes_before_its_request_is_taken_with_it():
    history = History()
    await history.start()
    scheduled = await history.ask_model()
    await history.signal("approve", {"call": "1.1", "by": "Ann"})
    message = AssistantMessage(role="assistant", calls=[a_call("pay")])
    await history.complete(scheduled, ModelTurn(message=message))
    assert [event.type for event in history.told()[-2:]] == ["model_finished", "approval_decided"]
    assert history.state.calls[0].status is CallStatus.READY


async def test_settlement_that_comes_before_the_doubt_is_taken_with_it():
    history = History()
    await history.start()
    await history.turn("far")
    scheduled = await history.call_tool("1.1", "Far")
    await history.signal("settle", {"call": "1.1", "outcome": "done", "result": "paid"})
    await history.add("activity_task_timed_out", {"scheduled_event_id": scheduled, "failure": lost_worker()})
    assert [event.outcome for event in history.told("settled")] == ["done"]
    assert [record.status for record in history.state.records] == ["ok"]


async def test_signal_about_a_call_that_does_not_come_is_refused_when_its_time_is_up():
    history = History()
    await history.start()
    await history.ask_model()
    await history.signal("approve", "1.1")
    assert not history.told("decision_refused")
    await history.ring(approvals.EARLY_SUMMARY)
    (refused,) = history.told("decision_refused")
    assert "The run has no call '1.1'" in refused.reason


async def test_signal_about_a_call_that_does_not_come_is_refused_at_the_latest_with_the_runs_end():
    history = await asking()
    await history.signal("approve", "7.7")
    await history.add("workflow_execution_terminated", {"reason": "x"})
    assert [event.type for event in history.told()[-2:]] == ["run_finished", "decision_refused"]


async def test_edited_arguments_wait_for_their_judgement():
    history = await asking()
    await history.signal("approve", {"call": "1.1", "by": "Ann", "arguments": {"n": 2}})
    assert not history.told("approval_decided")
    await judge(history, "signal 1")
    (decided,) = history.told("approval_decided")
    assert (decided.by, decided.edited) == ("Ann", True)
    assert history.state.calls[0].arguments == {"n": 2}


async def judge(history: History, by: str, problem: Problem | None = None, call: str = "1.1") -> None:
    request = JudgeInput(agent="a", spec=history.spec, tool="pay")
    scheduled = await history.activity(JUDGE, edit_id(call, by), request)
    await history.complete(scheduled, Judgement(problem=problem))


async def test_edited_arguments_that_do_not_fit_are_refused_and_the_call_still_waits():
    history = await asking()
    await history.signal("approve", {"call": "1.1", "arguments": {"n": "x"}})
    await judge(history, "signal 1", Problem(error_type="invalid_arguments", message="n is no number."))
    assert [event.reason for event in history.told("decision_refused")] == ["n is no number."]
    assert history.state.calls[0].status is CallStatus.ASKING


async def test_two_edits_of_one_call_at_once_are_told_apart_and_the_first_to_be_judged_wins():
    history = await asking()
    for by in ("Ann", "Ben"):
        await history.signal("approve", {"call": "1.1", "by": by, "arguments": {"by": by}})
    await judge(history, "signal 2")
    await judge(history, "signal 1")
    assert [event.by for event in history.told("approval_decided")] == ["Ben"]
    assert [event.type for event in history.told()[-1:]] == ["decision_refused"]
    assert history.state.calls[0].arguments == {"by": "Ben"}


async def test_update_counts_when_it_is_answered_and_only_if_it_was_accepted():
    history = await asking()
    await history.update("u1", Decision(call="", approve=True, by="Ann"))
    await history.update("u2", Decision(call="1.1", approve=False, by="Ben"))
    assert not history.told("approval_decided")
    await history.answer("u2", Receipt(accepted=False, call="1.1", reason="invalid_edit", message="It does not fit."))
    assert [event.reason for event in history.told("decision_refused")] == ["It does not fit."]
    await history.answer("u1", Receipt(accepted=True, call="1.1"))
    assert [(event.by, event.via) for event in history.told("approval_decided")] == [("Ann", "update")]


async def test_update_that_broke_decides_nothing():
    history = await asking()
    await history.update("u1", Decision(call="1.1", approve=True))
    await history.answer("u1", None)
    await history.answer("u9", Receipt(accepted=True, call="1.1"))
    assert history.story()[-1] == "approval_requested"


async def test_decision_that_came_by_two_ways_is_told_once():
    history = await asking()
    word = {"call": "1.1", "approve": True, "id": "d1"}
    await history.signal("decide", word)
    await history.update("u1", Decision.model_validate(word))
    await history.answer("u1", Receipt(accepted=True, call="1.1", reason="repeated"))
    await history.signal("decide", word)
    assert len(history.told("approval_decided")) == 1
    assert not history.told("decision_refused")


async def test_edit_that_came_by_two_ways_is_judged_once_and_the_next_one_is_not_taken_for_it():
    history = History()
    await history.start()
    await history.turn("pay", "pay")
    word = {"call": "1.1", "arguments": {"n": 2}, "id": "d1"}
    await history.signal("approve", word)
    await judge(history, "signal 1")
    await history.signal("approve", word)
    await history.signal("approve", {"call": "1.2", "arguments": {"n": 3}})
    await judge(history, "signal 2", call="1.2")
    assert [call.arguments for call in history.state.calls] == [{"n": 2}, {"n": 3}]
    assert not history.told("decision_refused")


async def test_settlement_is_told_with_its_outcome():
    history = await in_doubt("mail")
    await history.update("u1", Settlement(call="1.1", outcome="not-done", by="Ann", reason="Looked."))
    await history.answer("u1", Receipt(accepted=True, call="1.1"))
    (settled,) = history.told("settled")
    assert (settled.outcome, settled.by, settled.reason) == ("not-done", "Ann", "Looked.")
    assert [event.status for event in history.told("tool_finished")] == ["error"]


# -- doubts, reminders, expiry --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "after"),
    [("done", ["probed", "tool_finished"]), ("unknown", ["probed", "in_doubt"]), ("not_done", ["probed", "in_doubt"])],
)
async def test_probe_is_told_with_what_it_found(outcome, after):
    history = await in_doubt()
    assert [call.status for call in history.state.calls] == [CallStatus.DOUBTED]
    request = ProbeInput(tool="send", call=ToolInput(agent="a", call_id="id1", position="1.1", key="k"))
    scheduled = await history.activity(PROBE, "1.1?1", request)
    assert [call.status for call in history.state.calls] == [CallStatus.PROBING]
    await history.complete(scheduled, ProbeReport(outcome=outcome, asked_at=NOW))
    assert history.story()[-2:] == after


async def test_retry_is_told_as_another_start_of_the_same_call():
    history = await in_doubt("mail")
    await history.signal("settle", {"call": "1.1", "outcome": "retry", "by": "Ann"})
    await history.report(await history.call_tool("1.1", "mail", 1), execution_order=1)
    assert [event.type for event in history.told()[-4:]] == ["in_doubt", "settled", "tool_started", "tool_finished"]
    assert [record.execution_order for record in history.state.records] == [1]


async def test_reminder_is_told_for_what_still_waits():
    history = await asking(remind_every=timedelta(seconds=1))
    await history.ring(approvals.ALARM_SUMMARY)
    await history.signal("approve", "1.1")
    await history.ring(approvals.ALARM_SUMMARY)
    assert [event.call for event in history.told("approval_reminder")] == ["1.1"]


async def test_request_that_expired_is_told_as_denied_by_nobody():
    history = await asking(expires=timedelta(seconds=1))
    await history.ring(approvals.ALARM_SUMMARY)
    await history.expired("1.1")
    (decided,) = history.told("approval_decided")
    assert (decided.by, decided.via, decided.approve) == ("nobody", "expiry", False)
    assert not history.told("approval_reminder")
    assert [event.status for event in history.told("tool_finished")] == ["denied"]
