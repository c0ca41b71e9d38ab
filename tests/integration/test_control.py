"""A person takes hold of a run: pauses it, speaks to it, answers it, gives it more, ends it."""

import asyncio
from datetime import timedelta
from decimal import Decimal

import pytest

from perdure.budgets import Additions
from perdure.errors import DecisionRejected
from perdure.messages import UserMessage
from perdure.policies import Approval, Limits
from perdure.testing import ScriptedModel
from perdure.tools import ask_user, tool


def calling(*names, **more):
    return {"calls": [{"name": name, "arguments": {}} for name in names], **more}


class Held(ScriptedModel):
    """Gives its replies once it is let go on."""

    def __init__(self, *replies):
        super().__init__(replies)
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def generate(self, request):
        self.asked.set()
        if len(request.messages) == 1:
            await self.go_on.wait()
        return await super().generate(request)


QUESTION = {"calls": [{"name": "ask_user", "arguments": {"question": "Which day?"}}]}


@pytest.fixture
def done():
    """What tools have done, in order."""
    return []


@pytest.fixture
def book(done):
    @tool(approval="always")
    def book() -> str:
        """Book."""
        done.append("booked")
        return "booked it"

    return book


@pytest.fixture
def look(done):
    @tool(effect="read")
    def look() -> str:
        """Look."""
        done.append("looked")
        return "seen"

    return look


@pytest.fixture
def hold(done, anchor):
    """A tool that does not end before it is let go."""

    @tool(timeout=20)
    def hold() -> str:
        """Hold."""
        anchor.wait(20)
        done.append("held")
        return "held it"

    return hold


def spoken(run):
    """What the transcript has of people and runtime, after the task."""
    return [(message.source, message.content) for message in run.state.messages if isinstance(message, UserMessage)][1:]


# -- pause and resume ------------------------------------------------------------------------------------------------


async def test_pause_lets_what_runs_finish_and_starts_nothing_new(stage, done, anchor, hold):
    handle = await stage.start([calling("hold", "hold"), "done"], [hold])
    await stage.until(handle, "tool_started")
    await handle.pause(by="Ann", reason="lunch")
    anchor.set()
    await stage.until(handle, "tool_finished")
    await stage.until_status(handle, "paused")
    assert done == ["held"]
    await handle.resume(by="Ben")
    run = await stage.end(handle)
    assert done == ["held", "held"]
    assert [(event.by, event.via, event.reason) for event in run.told("paused")] == [("Ann", "update", "lunch")]
    assert [event.by for event in run.told("resumed")] == ["Ben"]


async def test_a_person_can_decide_while_the_run_is_paused_and_it_is_done_afterwards(stage, done, book):
    handle = await stage.start([calling("book"), "done"], [book])
    await stage.until(handle, "approval_requested")
    await handle.pause()
    await handle.approve()
    await stage.until_status(handle, "paused")
    assert done == []
    await handle.resume()
    await stage.end(handle)
    assert done == ["booked"]


async def test_a_second_pause_and_a_needless_resume_are_refused(stage, book):
    handle = await stage.start([calling("book"), "done"], [book])
    await stage.until(handle, "approval_requested")
    with pytest.raises(DecisionRejected, match="not paused"):
        await handle.resume()
    await handle.pause(by="Ann")
    with pytest.raises(DecisionRejected, match="paused already, by Ann"):
        await handle.pause()
    await handle.resume()
    await handle.deny()
    await stage.end(handle)


async def test_a_resume_that_comes_before_a_pause_does_not_undo_it(stage, book):
    handle = await stage.start([calling("book"), "done"], [book])
    await stage.until(handle, "approval_requested")
    await stage.signal(handle, "resume")
    await stage.signal(handle, "pause")
    await stage.signal(handle, "deny")
    await stage.until(handle, "approval_decided")
    await stage.until_status(handle, "paused")
    await handle.resume()
    run = await stage.end(handle)
    assert len(run.told("resumed")) == 1
    assert [event.name for event in run.told("decision_refused")] == ["resume"]


async def test_plain_signals_pause_and_resume_and_what_does_not_take_is_shown(stage, done, book):
    handle = await stage.start([calling("book"), "done"], [book])
    await stage.until(handle, "approval_requested")
    await stage.signal(handle, "pause", "lunch")
    await stage.signal(handle, "pause")
    await stage.signal(handle, "approve")
    await stage.until(handle, "decision_refused")
    await stage.until_status(handle, "paused")
    await stage.signal(handle, "resume", {"add": {"steps": 2, "usd": "0.5", "wall_time": "PT1M"}, "by": "Ben"})
    run = await stage.end(handle)
    assert [event.reason for event in run.told("decision_refused")] == ["The run is paused already, by unknown."]
    assert run.told("resumed")[0].add == Additions(steps=2, usd=Decimal("0.5"), wall_time=timedelta(minutes=1))
    assert run.state.limits.steps == Limits().steps + 2


async def test_paused_time_is_not_counted(stage, book):
    limits = Limits(wall_time=timedelta(seconds=2))
    handle = await stage.start([calling("book"), "done"], [book], limits=limits)
    await stage.until(handle, "approval_requested")
    await handle.pause()
    await handle.approve()
    await stage.until_status(handle, "paused")
    await asyncio.sleep(2.1)  # it is time that passes which is meant
    await handle.resume()
    assert (await stage.end(handle)).result.status == "completed"


# -- at a limit ------------------------------------------------------------------------------------------------------


async def test_at_a_limit_it_asks_and_goes_on_with_more(stage, done, look):
    limits = Limits(steps=2, on_exhausted="ask")
    handle = await stage.start([calling("look"), calling("look"), "all seen"], [look], limits=limits)
    event = await stage.until(handle, "paused")
    assert (event.by, event.reason) == ("", "The limit of 2 steps is reached.")
    await stage.until_status(handle, "paused")
    assert done == ["looked"]
    await handle.resume(add_steps=2)
    run = await stage.end(handle)
    assert (run.result.status, run.result.text, run.result.steps) == ("completed", "all seen", 3)


async def test_at_a_limit_without_more_it_takes_its_last_turn(stage, look):
    limits = Limits(steps=2, on_exhausted="ask")
    handle = await stage.start([calling("look"), "what I know"], [look], limits=limits)
    await stage.until(handle, "paused")
    await handle.resume()
    run = await stage.end(handle)
    assert (run.result.status, run.result.text, run.result.steps) == ("budget_exhausted", "what I know", 2)


async def test_more_may_be_given_to_a_run_that_has_not_asked(stage, look, book):
    limits = Limits(steps=2)
    handle = await stage.start([calling("book"), calling("look"), "all seen"], [look, book], limits=limits)
    await stage.until(handle, "approval_requested")
    await handle.resume(Additions(steps=2))
    await handle.approve()
    assert (await stage.end(handle)).result.status == "completed"


# -- say -------------------------------------------------------------------------------------------------------------


async def test_messages_reach_the_model_before_its_next_turn_in_their_order(stage, anchor, hold):
    handle = await stage.start([calling("hold"), "done"], [hold])
    await stage.until(handle, "tool_started")
    await handle.say("first", by="Ann")
    await stage.signal(handle, "say", "second")
    await handle.say("third")
    anchor.set()
    run = await stage.end(handle)
    assert spoken(run) == [("user", "first"), ("user", "second"), ("user", "third")]
    assert [(event.by, event.via) for event in run.told("said")][:2] == [("Ann", "update"), ("unknown", "signal")]
    assert [m.content for m in stage.model.requests[1].messages if m.role == "user"][1:] == ["first", "second", "third"]


async def test_a_message_during_the_last_words_makes_the_model_speak_again(stage):
    model = Held("bye", "as you say")
    handle = await stage.start(model)
    await model.asked.wait()
    await handle.say("wait")
    model.go_on.set()
    run = await stage.end(handle)
    assert run.result.text == "as you say"
    assert stage.model.requests[1].messages[-1].content == "wait"


async def test_a_message_reaches_the_model_with_the_approval_still_open(stage, done, book):
    handle = await stage.start([calling("book"), "still waiting", "booked at last"], [book])
    await stage.until(handle, "approval_requested")
    with pytest.raises(DecisionRejected, match="empty"):
        await handle.say(" ")
    await handle.say("how is it going?")
    await stage.until(handle, lambda event: event.type == "model_finished" and event.text == "still waiting")
    seen = stage.model.requests[1].messages
    assert (seen[-2].result.status, seen[-1].content) == ("waiting", "how is it going?")
    await stage.until_status(handle, "waiting_approval")
    await handle.approve("1.1", by="Ann")
    run = await stage.end(handle)
    assert done == ["booked"]
    assert spoken(run)[-1] == ("runtime", "Call 1.1 book, approved by Ann: booked it")
    assert run.result.text == "booked at last"
    assert [(call.position, call.status) for call in run.result.calls] == [("1.1", "ok")]


async def test_parked_calls_are_denied_edited_and_expire_by_the_same_position(stage, book):
    @tool(approval="always")
    def sell(price: int = 1) -> str:
        """Sell."""
        return f"sold for {price}"

    rules = Approval(expires=timedelta(seconds=1.5))
    handle = await stage.start([calling("book", "sell", "sell"), "waiting", "over"], [book, sell], approval=rules)
    await stage.until(handle, "approval_requested", nth=3)
    await handle.say("hello")
    await stage.until(handle, lambda event: event.type == "model_finished" and event.text == "waiting")
    await handle.deny("1.1", by="Ann", reason="no")
    await handle.approve("1.2", arguments={"price": 7}, by="Ben")
    run = await stage.end(handle)
    first, second, third = [text for source, text in spoken(run) if source == "runtime"][:3]
    assert "Call 1.1 book, denied by Ann" in first
    assert "Call 1.2 sell, approved by Ben: sold for 7" in second
    assert "Call 1.3 sell, denied by nobody" in third


async def test_a_parked_call_is_executed_while_the_model_speaks(stage, done, book):
    handle = await stage.start([calling("book"), {"text": "hm", "delay": 1}, "fine"], [book])
    await stage.until(handle, "approval_requested")
    await handle.say("hello")
    await stage.until(handle, "model_started", nth=2)
    await handle.approve()
    run = await stage.end(handle)
    order = [event.type for event in run.projection.events]
    assert order.index("tool_finished") < [i for i, kind in enumerate(order) if kind == "model_finished"][1]
    assert run.result.text == "fine"


async def test_now_breaks_off_the_model_call_under_way(stage):
    model = Held("I hear you")
    handle = await stage.start(model)
    await model.asked.wait()
    await handle.say("stop", now=True)
    run = await stage.end(handle)
    assert (run.result.text, run.result.steps) == ("I hear you", 2)
    first = run.told("model_finished")[0]
    assert (first.finish, first.usage.estimated) == ("interrupted", True)
    assert first.usage.input_tokens > 0
    assert run.result.usage.estimated


async def test_now_interrupts_no_tool(stage, done, anchor, hold):
    handle = await stage.start([calling("hold"), "done"], [hold])
    await stage.until(handle, "tool_started")
    await handle.say("stop", now=True)
    anchor.set()
    run = await stage.end(handle)
    assert done == ["held"]
    assert run.results[0].status == "ok"


async def test_a_reply_that_meets_the_interruption_is_kept(stage):
    asked = asyncio.Event()

    def just_in_time(_):
        asked.set()
        return {"text": "just in time", "delay": 1}

    agent = stage.agent([just_in_time, "and more"])
    await stage.serve(agent, settings=stage.client.settings.model_copy(update={"grace": timedelta(seconds=10)}))
    handle = await stage.start_again(agent)
    await asked.wait()
    await stage.stop()  # the reply is still recorded; nobody is left to act on it
    await stage.until(handle, "model_finished")
    await stage.signal(handle, "say", {"content": "stop", "now": True})
    await stage.serve(agent)
    run = await stage.end(handle)
    assert [event.finish for event in run.told("model_finished")] == ["stop", "stop"]
    assert run.result.text == "and more"


async def test_nothing_can_be_said_in_the_last_turn(stage, look):
    limits = Limits(steps=2)
    handle = await stage.start([calling("look"), {"text": "over", "delay": 1}], [look], limits=limits)
    await stage.until(handle, lambda event: event.type == "model_started" and event.answer_only)
    with pytest.raises(DecisionRejected, match="last turn"):
        await handle.say("wait", now=True)
    await stage.end(handle)


# -- answer ----------------------------------------------------------------------------------------------------------


async def test_the_answer_to_a_question_is_the_result_of_its_call(stage):
    handle = await stage.start([QUESTION, "Monday it is"], [ask_user], approval="always")
    event = await stage.until(handle, "asked")
    assert (event.call, event.question) == ("1.1", "Which day?")
    await stage.until_status(handle, "waiting_input")
    with pytest.raises(DecisionRejected, match="asks the user"):
        await handle.approve("1.1")
    await handle.answer("Monday", by="Ann")
    run = await stage.end(handle)
    assert [(result.status, result.content) for result in run.results] == [("ok", "Monday")]
    assert [(event.text, event.by) for event in run.told("answered")] == [("Monday", "Ann")]
    with pytest.raises(DecisionRejected, match="has ended"):
        await handle.answer("Tuesday")


async def test_a_plain_signal_answers_and_a_second_answer_is_refused(stage, anchor, hold):
    replies = [{"calls": [*QUESTION["calls"], *calling("hold")["calls"]]}, "fine"]
    handle = await stage.start(replies, [ask_user, hold])
    await stage.until(handle, "asked")
    await stage.signal(handle, "answer", "Monday")
    await stage.until(handle, "answered")
    with pytest.raises(DecisionRejected, match="asks nothing"):
        await handle.answer("Tuesday", "1.1")
    anchor.set()
    run = await stage.end(handle)
    assert run.results[0].content == "Monday"


async def test_a_message_instead_of_an_answer_withdraws_the_question(stage):
    handle = await stage.start([QUESTION, "as you like"], [ask_user])
    await stage.until(handle, "asked")
    await handle.say("You choose.")
    run = await stage.end(handle)
    assert [result.status for result in run.results] == ["skipped"]
    assert run.result.text == "as you like"


# -- cancel ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["signal", "update"])
async def test_cancel_ends_the_run_with_its_reason_whatever_way_it_comes(stage, book, way):
    handle = await stage.start([calling("book"), "waiting"], [book])
    await stage.until(handle, "approval_requested")
    await handle.say("hello")
    await stage.until(handle, lambda event: event.type == "model_finished" and event.text == "waiting")
    if way == "signal":
        await stage.signal(handle, "cancel", {"by": "Ann", "reason": "enough"})
    else:
        workflow = stage.client.temporal.get_workflow_handle(handle.id)
        assert (await workflow.execute_update("cancel", {"by": "Ann", "reason": "enough"}))["accepted"]
    run = await stage.end(handle)
    assert (run.result.status, run.result.reason) == ("cancelled", "enough")
    assert [(call.position, call.status) for call in run.result.calls] == [("1.1", "open")]


@pytest.mark.reported(37)
async def test_every_parked_call_in_flight_at_a_cancel_ends_by_name(stage, done, anchor):
    @tool(approval="always", timeout=20)
    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(20)
        return "waited"

    handle = await stage.start([calling("wait", "wait"), {"text": "hm", "delay": 20}], [wait])
    await stage.until(handle, "approval_requested", nth=2)
    await handle.say("hello")
    await stage.until(handle, "model_started", nth=2)
    await handle.approve("1.1")
    await stage.until(handle, "tool_started")
    await handle.cancel("enough")
    run = await stage.end(handle)
    assert [(call.position, call.status) for call in run.result.calls] == [("1.1", "in_doubt"), ("1.2", "open")]


async def test_what_is_left_while_no_worker_answers_is_taken_once_when_one_is_back(stage, book, monkeypatch):
    monkeypatch.setattr("perdure.speaking._PATIENCE", timedelta(seconds=0.3))
    handle = await stage.start([calling("book"), "hello", "done"], [book])
    await stage.until(handle, "approval_requested")
    await stage.stop()
    assert (await handle.say("hello")).reason == "queued"
    assert (await handle.pause()).reason == "queued"
    await stage.serve(*stage.agents)
    await stage.until_status(handle, "paused")
    await handle.resume()
    await stage.until(handle, lambda event: event.type == "model_finished" and event.text == "hello")
    await handle.approve()
    run = await stage.end(handle)
    assert [len(run.told(kind)) for kind in ("said", "paused", "resumed")] == [1, 1, 1]
    assert not run.told("decision_refused")
