"""The state of a fork: what of the run that it comes from goes along, and what does not."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.decisions import Saying
from perdure.errors import ForkError
from perdure.forking import changed, forked
from perdure.messages import Undone, Usage
from perdure.outcomes import fold_report, start
from perdure.policies import AgentSpec, ModelSettings, Price
from perdure.sensitive import Vaulted
from perdure.state import CallStatus, RunState, SessionTurn, begin
from perdure.steps import CallModel, CallTools, Finish, Wait, next_step
from perdure.turns import fail, fold_turn
from tests.unit.test_steps import NOW, a_run, asks, ok, says
from tests.unit.test_steps_whatever_happens import go_on, interfere, paired

SPEC = AgentSpec(name="a", model="openai:one", instructions="Be kind.")


def looked(**limits: Any) -> RunState:
    """A run whose model has looked once, and got its result."""
    state = a_run(**limits)
    fold_turn(state, asks("look"), NOW)
    (call,) = state.calls
    start(state, call)
    fold_report(state, call, ok(call))
    return state


def of(state: RunState, say: str | None = None, **more: Any) -> RunState:
    """A fork of a run as it is now."""
    return forked(state, "fork", state.spec, say, **more)


def test_a_fork_has_the_transcript_and_asks_the_model_next() -> None:
    state = looked()
    new = of(state)
    assert (new.run_id, new.steps) == ("fork", 1)
    assert new.messages == state.messages
    assert new.records == state.records
    assert new.forked_from
    assert (new.forked_from.run_id, new.forked_from.step) == ("run", 1)
    assert next_step(new) == CallModel()


def test_what_belongs_to_the_other_run_stays_with_it() -> None:
    state = looked()
    state.usage = state.last = Usage(input_tokens=9)
    state.cost, state.ran, state.unpriced = Decimal(1), timedelta(minutes=9), True
    state.session, state.taken, state.resets = SessionTurn(name="s", number=4), ["x"], 2
    state.queued = [Saying(content="later")]
    state.secrets, state.execution = Vaulted(id="v", names=["pin"]), "e9"
    new = of(state)
    assert (new.usage, new.last, new.cost, new.ran, new.unpriced) == (Usage(), Usage(), Decimal(0), timedelta(), False)
    assert (new.session, new.taken, new.queued, new.resets, new.executed) == (None, [], [], 0, {})
    assert (new.secrets, new.execution, new.leases, new.effects) == (None, "", {}, [])


def test_the_other_run_is_left_as_it_is() -> None:
    state = looked()
    before = state.model_dump()
    new = of(state, "And?")
    new.messages.pop()
    new.records.clear()
    new.variables["a"] = 1
    assert state.model_dump() == before


def test_limits_of_steps_are_counted_from_where_it_begins() -> None:
    assert of(looked(steps=3)).limits.steps == 4


def test_what_is_said_comes_last_and_what_was_said_meanwhile_before_it() -> None:
    state = looked()
    state.said = [Saying(content="first")]
    new = of(state, "second")
    assert [getattr(entry, "content", None) for entry in new.messages[-2:]] == ["first", "second"]
    assert new.said == []


def test_a_run_that_has_ended_is_open_again_and_told_so_after_its_last_turn() -> None:
    state = looked(steps=2)
    state.closing = True
    fold_turn(state, says("That is all."), NOW)
    fail(state, "budget", "used up")
    new = of(state, "Go on.")
    assert (new.outcome, new.closing) == (None, False)
    told = [str(getattr(entry, "content", "")) for entry in new.messages[-2:]]
    assert "The limit was raised" in told[0]
    assert told[1] == "Go on."


def test_what_was_undone_since_is_told() -> None:
    gone = Undone(position="1.1", name="look", status="undone")
    new = of(looked(), gone=[gone])
    assert "Since then this was undone, or was to be: look (call 1.1)." in str(getattr(new.messages[-1], "content", ""))


def test_a_call_without_a_result_can_not_be_gone_on_from() -> None:
    state = a_run()
    fold_turn(state, asks("look"), NOW)
    with pytest.raises(ForkError, match=r"After step 1 of run run, call 1\.1 \(look\) has no result yet"):
        of(state)


def test_after_an_answer_something_has_to_be_said() -> None:
    state = a_run()
    fold_turn(state, says("done"), NOW)
    with pytest.raises(ForkError, match="nothing is left to do: say something"):
        of(state)
    assert next_step(of(state, "And?")) == CallModel()


def test_an_effect_of_a_fork_waits_for_approval_and_a_read_does_not() -> None:
    new = of(looked())
    fold_turn(new, asks("look", "send"), NOW)
    assert [call.status for call in new.calls] == [CallStatus.READY, CallStatus.ASKING]
    assert "forked from run at step 1" in (new.calls[1].call.ask or new.may_repeat)
    assert next_step(new) == CallTools(("2.1",))


@pytest.mark.parametrize("model", ["gpt", ":gpt", "openai:"])
def test_a_model_has_to_be_named_with_its_provider(model: str) -> None:
    with pytest.raises(ForkError, match="has to be PROVIDER:NAME"):
        changed(SPEC, model, None)


def test_what_was_set_for_the_first_model_does_not_hold_for_another() -> None:
    own = ModelSettings(
        price=Price(input=Decimal(1), output=Decimal(2)), base_url="http://a/v1", api_key_env="KEY", temperature=0.5
    )
    spec = SPEC.model_copy(update={"settings": own})
    assert changed(spec, None, None) == changed(spec, "openai:one", None) == spec
    sibling = changed(spec, "openai:two", None)
    assert (sibling.model, sibling.settings.price) == ("openai:two", None)
    assert (sibling.settings.base_url, sibling.settings.temperature) == ("http://a/v1", 0.5)
    stranger = changed(spec, "other:one", "Be brief.")
    assert (stranger.settings.base_url, stranger.settings.api_key_env) == (None, ModelSettings().api_key_env)
    assert (stranger.settings.temperature, stranger.instructions) == (0.5, "Be brief.")
    assert changed(spec, None, "").instructions == ""


@settings(max_examples=80, deadline=None)
@given(data=st.data(), interruptions=st.integers(0, 4))
def test_wherever_a_run_is_forked_it_ends_and_does_no_effect_that_nobody_has_approved(
    data: st.DataObject, interruptions: int
) -> None:
    state, at = a_run(steps=4), data.draw(st.integers(0, 12))
    for turn in range(at):
        if turn < interruptions:
            interfere(state, data)
        if go_on(state, data):
            break
    try:
        new = RunState.model_validate_json(of(state, data.draw(st.sampled_from([None, "And?"]))).model_dump_json())
    except ForkError:
        return
    kept = len(new.messages)
    for _ in range(400):
        step = next_step(new)
        if isinstance(step, CallTools):
            due = [call for call in new.all_calls if call.position in step.positions]
            assert all(call.effect == "read" or call.decision for call in due), "nobody has approved that"
        if isinstance(go_on(new, data), Finish):
            assert paired(new) or new.calls
            assert new.steps <= new.limits.steps
            assert new.messages[: min(kept, len(new.messages))]
            return
    raise AssertionError("the run did not end")


def test_a_fork_of_a_run_that_has_done_nothing_is_that_run_again() -> None:
    state = begin("run", a_run().spec, "go", None, "e")
    new = of(state)
    assert new.messages == state.messages
    assert not isinstance(next_step(new), Wait)
