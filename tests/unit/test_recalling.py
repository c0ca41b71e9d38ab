"""When a run asks its memory, and what becomes of the answer."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import recalling
from perdure.budgets import Additions
from perdure.messages import AssistantMessage, ImagePart, Segment, TextPart, UserMessage
from perdure.policies import SEARCH_MEMORY, AgentSpec, MemoryPolicy
from perdure.reports import ModelTurn, RecallReport
from perdure.resuming import carried_on
from perdure.state import Outcome, RunState, begin
from perdure.steps import CallModel, Recall, Wait, next_step
from perdure.turns import fold_turn, open_turn
from tests.unit.histories import NOW

NOTES = UserMessage(role="user", content="Notes", source="runtime", facts=["f1", "f2"])


def a_run(input: Any = "Book a flight", shape: int = 1, policy: MemoryPolicy | None = None, **rest: Any) -> RunState:
    spec = AgentSpec(name="travel", model="m:m", memory=policy or MemoryPolicy())
    return begin("run", spec, input, None, "e", shape=shape, **{"user": "ann", **rest})


def test_memory_is_asked_once_before_the_model() -> None:
    state = a_run()
    assert next_step(state) == Recall()
    recalling.begin(state)
    assert next_step(state) == Wait("running")
    recalling.fold(state, RecallReport(message=NOTES))
    assert next_step(state) == CallModel()
    open_turn(state, answer_only=False)
    fold_turn(state, ModelTurn(message=AssistantMessage(role="assistant"), finish="length"), NOW)
    assert next_step(state) == CallModel()


@pytest.mark.parametrize(
    "state",
    [
        a_run(shape=0),
        a_run(user=""),
        a_run(policy=MemoryPolicy(recall=0)),
        begin("run", AgentSpec(name="a", model="m:m"), "go", None, "e", shape=1, user="ann"),
    ],
    ids=["of an older client", "without a user", "told nothing", "without memory"],
)
def test_a_run_that_has_nothing_to_ask_asks_the_model_at_once(state: RunState) -> None:
    assert next_step(state) == CallModel()


def test_notes_come_before_what_the_user_says_which_stays_the_last_word() -> None:
    state = a_run()
    recalling.fold(state, RecallReport(message=NOTES))
    assert [entry.role for entry in state.messages] == ["user", "user"]
    assert state.messages[0] == NOTES
    assert recalling.text_of(state.messages[-1].content) == "Book a flight"  # type: ignore[union-attr]


@pytest.mark.parametrize("report", [RecallReport(), RecallReport(problem="The store is down.")])
def test_a_run_goes_on_where_nothing_is_remembered_or_could_be_looked_up(report: RecallReport) -> None:
    state = a_run()
    recalling.begin(state)
    recalling.fold(state, report)
    assert len(state.messages) == 1
    assert next_step(state) == CallModel()


def test_what_is_asked_names_whom_the_run_works_for_and_what_the_user_says() -> None:
    segment = Segment(ref="r", length=4, head="h")
    said = [TextPart(kind="text", text="Book this"), ImagePart(kind="image", url="https://x/y.png")]
    asked = recalling.request(a_run(said, tenant="acme", before=segment, policy=MemoryPolicy(recall=3)))
    assert (asked.circle.agent, asked.circle.user, asked.circle.tenant) == ("travel", "ann", "acme")
    assert (asked.query, asked.before, asked.limit) == ("Book this", segment, 3)


def test_a_long_input_is_searched_by_its_beginning() -> None:
    assert len(recalling.request(a_run("x" * 100_000)).query) == 2_000


def test_a_run_that_was_cut_off_while_it_asked_asks_again_when_it_is_resumed() -> None:
    state = a_run()
    recalling.begin(state)
    state.outcome = Outcome(status="cancelled")
    assert next_step(carried_on(state, Additions())) == Recall()


def test_a_resumed_run_that_was_told_is_not_told_again() -> None:
    state = a_run()
    recalling.fold(state, RecallReport(message=NOTES))
    state.outcome = Outcome(status="cancelled")
    resumed = carried_on(state, Additions())
    assert next_step(resumed) == CallModel()
    assert len(resumed.messages) == 2


def test_only_the_runtimes_own_search_is_given_the_circle() -> None:
    state = a_run()
    assert recalling.circle(state, SEARCH_MEMORY) is not None
    assert recalling.circle(state, SEARCH_MEMORY.model_copy(update={"description": "My own."})) is None
    nobody = recalling.circle(a_run(user=""), SEARCH_MEMORY)
    assert nobody is not None
    assert nobody.subjects == []
