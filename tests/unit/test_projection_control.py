"""What people say to a run that goes on, as its history tells it."""

from __future__ import annotations

from perdure.budgets import Additions
from perdure.control import Resumption
from perdure.decisions import Answer, Pause, Receipt, Saying
from perdure.messages import AssistantMessage
from perdure.reports import ModelTurn
from perdure.state import CallStatus
from perdure.steps import Wait, next_step
from tests.unit.histories import History, a_call, asking

TOOK = Receipt(accepted=True)


async def test_pause_and_resumption_are_told_with_who_and_why():
    history = await asking()
    await history.update("1", Pause(by="Ann", reason="lunch"))
    await history.answer("1", TOOK)
    assert next_step(history.state) == Wait("paused")
    await history.signal("resume", {"by": "Ben", "add": {"steps": 2}})
    paused, resumed = history.told("paused", "resumed")
    assert (paused.by, paused.via, paused.reason) == ("Ann", "update", "lunch")
    assert (resumed.by, resumed.via, resumed.add) == ("Ben", "signal", Additions(steps=2))
    assert history.state.limits.steps == 17
    assert next_step(history.state) == Wait("waiting_approval")


async def test_limit_at_which_a_run_has_paused_itself_is_told_once():
    history = await asking()
    await history.short("The limit of 2 steps is reached.")
    await history.signal("pause")
    paused = history.told("paused")
    assert [(event.by, event.reason) for event in paused] == [
        ("", "The limit of 2 steps is reached."),
        ("unknown", ""),
    ]


async def test_what_does_not_take_is_told_as_refused():
    history = await asking()
    await history.signal("pause", "lunch")
    await history.signal("pause", "dinner")
    await history.update("1", Saying(content=" ", by="Ann"))
    await history.answer("1", Receipt(accepted=False, reason="empty", message="The message is empty."))
    assert [(event.name, event.reason) for event in history.told("decision_refused")] == [
        ("pause", "The run is paused already, by unknown."),
        ("say", "The message is empty."),
    ]


async def test_what_does_not_apply_to_the_run_is_refused_at_once_and_does_nothing_later():
    history = await asking()
    await history.signal("resume", {"by": "Ann"})
    await history.signal("pause", {"by": "Ben"})
    await history.signal("pause", {"by": "Cleo"})
    await history.signal("say", " ")
    assert [event.name for event in history.told("decision_refused")] == ["resume", "pause", "say"]
    assert [event.by for event in history.told("paused", "resumed")] == ["Ben"]
    assert next_step(history.state) == Wait("paused")


async def test_message_parks_the_call_that_waits_and_its_result_is_told_when_there_is_one():
    history = await asking()
    await history.signal("say", "hello")
    asked = await history.ask_model()
    assert [call.position for call in history.state.parked] == ["1.1"]
    await history.complete(asked, ModelTurn(message=AssistantMessage(role="assistant", text="it waits")))
    await history.signal("deny", {"call": "1.1", "by": "Ann"})
    assert history.told("tool_finished")[-1].status == "denied"
    await history.ask_model()
    assert [event.call for event in history.told("tool_finished")] == ["1.1"]
    assert str(history.state.messages[-1].content).startswith("Call 1.1 pay, denied by Ann: ")  # type: ignore[union-attr]


async def test_question_and_answer_are_told():
    history = History()
    await history.start()
    await history.turn(a_call("ask_user", arguments={"question": "Which?"}))
    assert history.state.calls[0].status is CallStatus.QUESTION
    await history.update("1", Answer(text="That.", by="Ann"))
    await history.answer("1", Receipt(accepted=True, call="1.1"))
    asked, answered = history.told("asked", "answered")
    assert (asked.call, asked.question) == ("1.1", "Which?")
    assert (answered.call, answered.text, answered.by) == ("1.1", "That.", "Ann")


async def test_model_call_that_was_cancelled_without_a_report_counts_as_interrupted():
    history = History()
    await history.start()
    scheduled = await history.ask_model()
    await history.signal("say", {"content": "stop", "now": True})
    await history.add("activity_task_canceled", {"scheduled_event_id": scheduled})
    assert history.told("model_finished")[0].finish == "interrupted"
    assert (history.state.steps, history.state.outcome, history.state.generating) == (1, None, None)


async def test_resumption_that_comes_before_the_refusal_it_answers_is_the_same_as_after_it():
    history = History()
    await history.start()
    await history.ask_model()
    await history.signal("resume", {"add": Resumption(add=Additions(steps=1)).add.model_dump(mode="json")})
    assert history.state.generating
    assert history.state.generating.topped_up


async def test_cancellation_is_told_with_who_asked_for_it_and_why():
    history = await asking()
    await history.signal("cancel", {"reason": "enough", "by": "Ann"})
    await history.add("workflow_execution_cancel_requested", {"cause": "enough"})
    assert [(event.by, event.reason) for event in history.told("cancel_requested")] == [("Ann", "enough")]
