"""What an open run waits for, and what its page in the Web UI says of it."""

from __future__ import annotations

from decimal import Decimal

from perdure import asking
from perdure.decisions import Pause
from perdure.details import details
from perdure.messages import ToolCall, Usage
from perdure.policies import AgentSpec, Limits
from perdure.state import CallState, CallStatus, Outcome, Phase, RunState


def call(position: str, status: CallStatus, name: str = "book") -> CallState:
    """Return a call that stands so."""
    made = ToolCall(id=f"c{position}", name=name, arguments={})
    return CallState(call=made, position=position, key="k", status=status)


def state(*calls: CallState, **more: object) -> RunState:
    """Return a run with those calls."""
    given = {"run_id": "trip 7", "spec": AgentSpec(name="travel", model="script:x"), "limits": Limits(), **more}
    return RunState.model_validate({**given, "calls": [each.model_dump() for each in calls]})


def test_each_kind_is_named_once_in_the_order_in_which_people_are_asked():
    calls = [call(f"1.{n}", status) for n, status in enumerate([CallStatus.ASKING, CallStatus.QUESTION] * 2, 1)]
    assert asking.kinds(state(*calls, call("1.9", CallStatus.IN_DOUBT))) == ["approval", "answer", "settlement"]


def test_a_run_that_goes_on_waits_for_nobody():
    assert asking.kinds(state(call("1.1", CallStatus.RUNNING), call("1.2", CallStatus.READY))) == []


def test_a_pause_waits_for_a_resumption_and_a_limit_for_more_of_the_budget():
    assert asking.kinds(state(paused=Pause(by="ann"))) == ["resumption"]
    assert asking.kinds(state(short="The limit of 2 steps is reached.")) == ["budget"]


def test_a_run_that_is_cut_off_waits_for_nobody():
    ended = Outcome(status="cancelled")
    assert asking.kinds(state(call("1.1", CallStatus.ASKING), outcome=ended)) == []


def test_the_page_says_where_the_run_stands_and_how_to_answer():
    used = {"steps": 2, "usage": Usage(input_tokens=12_345, output_tokens=67), "cost": Decimal("0.0123")}
    limits = Limits(steps=15, input_tokens=400_000, output_tokens=None, usd=Decimal(1))
    told = details(
        state(call("2.1", CallStatus.ASKING), **used, limits=limits), Phase.WAITING, "waiting_approval"
    ).splitlines()
    assert told == [
        "**waiting** · step 2 of 15 · waiting approval",
        "",
        "Waits for",
        "",
        "- approval of call 2.1 (`book`): `perdure approve 'trip 7' 2.1` or `perdure deny 'trip 7' 2.1`",
        "",
        "Used: 2 of 15 steps, 12,345 of 400,000 input tokens, 67 output tokens, 0.0123 of 1 USD",
    ]


def test_the_page_of_a_run_that_waits_for_nobody_has_no_list():
    told = details(state(), Phase.GENERATING, "running")
    assert "Waits for" not in told
    assert told.startswith("**generating** · step 0 of ")


def test_nothing_on_the_page_is_what_a_model_has_written():
    asked = call("1.1", CallStatus.QUESTION, "ask_user")
    asked.arguments = {"question": "Is 13812345678 yours?"}
    told = details(state(asked), Phase.WAITING, "waiting_input")
    assert "13812345678" not in told
    assert "perdure answer 'trip 7' TEXT --call 1.1" in told
