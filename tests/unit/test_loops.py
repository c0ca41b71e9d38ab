"""Runs that go round in circles are told, refused, and ended, in that order; runs that get on never are."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.budgets import Additions
from perdure.loops import repeats_itself, rounds
from perdure.messages import AssistantMessage, ToolCall, ToolMessage, UserMessage
from perdure.outcomes import fold_report, result_of, start
from perdure.policies import AgentSpec, Limits, ToolSpec
from perdure.reports import ModelTurn, ToolReport
from perdure.resuming import carried_on
from perdure.state import RunState, begin
from perdure.steps import Finish, next_step
from perdure.testing import load_recordings
from perdure.testing.recording import Turn
from perdure.turns import CUT_OFF, LOOPED, fold_turn

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DATA = Path(__file__).parents[3] / "shared/data/airline-gpt4o"


def a_run(**limits: Any) -> RunState:
    tools = [ToolSpec(name=name, description="Do.", parameters={}, effect="read") for name in "ABCDEF"]
    tools.append(ToolSpec(name="poll", description="Poll.", parameters={}, effect="read", polling=True))
    spec = AgentSpec(name="a", model="m:x", tools=tools, limits=Limits(steps=999, **limits))
    return begin("run", spec, "go", None, "")


def play(state: RunState, calls: str, result: str = "fine", *, text: str = "", status: Any = "ok", **given: Any) -> str:
    """Play a turn that calls the tools with these letters; return what became of it: told, refused or ended."""
    names = calls.split() if " " in calls else calls
    asked = [ToolCall(id=f"{state.steps}.{n}", name=name, arguments=given) for n, name in enumerate(names)]
    before = len(state.messages) + 1 + len(asked)
    fold_turn(state, ModelTurn(message=AssistantMessage(role="assistant", text=text, calls=asked)), NOW)
    for call in list(state.open_calls):
        start(state, call)
        gave = {"message": result} if status == "error" else {"content": result}
        fold_report(state, call, ToolReport(result=result_of(call, status, **gave)))
    refused = any(record.status == "skipped" for record in state.records[-len(asked) :])
    told = len(state.messages) > before
    return "".join(["t" * told, "r" * refused, "E" * bool(state.outcome)]) or "."


def notes(state: RunState) -> list[str]:
    return [str(m.content) for m in state.messages if isinstance(m, UserMessage) and m.source == "runtime"]


@pytest.mark.parametrize(
    ("cycle", "firsts"),
    [
        ("A", [2, 4, 7]),
        ("AB", [7, 10, 17]),
        ("ABC", [11, 15, 26]),
        ("ABCD", [15, 20, 35]),
    ],
)
def test_a_cycle_is_told_then_refused_then_ended(cycle: str, firsts: list[int]) -> None:
    state = a_run()
    seen = [play(state, cycle[turn % len(cycle)]) for turn in range(firsts[-1] + 1)]
    assert [next(turn for turn, what in enumerate(seen) if kind in what) for kind in "trE"] == firsts
    assert all("r" in what for what in seen[firsts[1] :])
    step = next_step(state)
    assert isinstance(step, Finish)
    assert (step.outcome.status, step.outcome.failure) == ("failed", "no_progress")
    assert f"{8 if cycle == 'A' else 9} times in a row" in str(step.outcome.reason)


def test_what_the_model_is_told_says_what_it_did_and_what_to_do() -> None:
    state = a_run()
    for turn in range(11):
        play(state, "AB"[turn % 2])
    told = [
        f"You have made the same 2 calls {times} times in a row with the same results. Repeating it again will not "
        "help: do something else, or answer with what you know."
        for times in (4, 5)
    ]
    assert notes(state) == told
    last = state.messages[-1]
    assert isinstance(last, ToolMessage)
    assert last.result.message == "Not executed: the same calls gave the same results 5 times in a row."


def test_calls_of_one_turn_are_one_round_in_whatever_order() -> None:
    state = a_run()
    assert [play(state, calls) for calls in ("ABCDEF", "FEDCBA", "BACDEF")] == [".", ".", "t"]
    assert [play(state, "A A A A A A A A")] == ["."], "one turn is no loop yet"


@pytest.mark.parametrize("cycle", ["A", "AB", "ABC", "ABCD", "ABCDEF"])
def test_a_result_that_changes_is_progress(cycle: str) -> None:
    state = a_run()
    assert {play(state, cycle[turn % len(cycle)], str(turn)) for turn in range(60)} == {"."}


def test_a_result_that_goes_back_and_forth_is_progress() -> None:
    state = a_run()
    assert {play(state, "A", str(turn % 2)) for turn in range(60)} == {"."}


def test_an_error_that_repeats_is_no_progress() -> None:
    state = a_run()
    seen = [play(state, "A", "No such flight.", status="error") for _ in range(8)]
    assert seen == [".", ".", "t", "t", "tr", "tr", "tr", "trE"]


def test_the_same_words_before_the_same_error_are_no_progress_whatever_the_arguments() -> None:
    state = a_run()
    seen = [play(state, "A", "Down.", text="Let me try again.", status="error", n=turn) for turn in range(8)]
    assert seen == [".", ".", "t", "t", "tr", "tr", "tr", "trE"]
    assert notes(state)[0].startswith("You have said the same 3 times in a row, and met the same errors.")


def test_the_same_words_before_calls_that_succeed_are_progress() -> None:
    state = a_run()
    assert {play(state, "A", "Saved.", text="Next.", n=turn) for turn in range(40)} == {"."}


def test_different_arguments_without_words_are_progress_though_all_fail() -> None:
    state = a_run()
    assert {play(state, "A", "Not there.", status="error", n=turn) for turn in range(40)} == {"."}


def test_turns_without_anything_new_are_no_progress_whatever_their_order() -> None:
    state = a_run()
    seen = [play(state, letter) for letter in "ABCDEF" * 9]
    first = {kind: next(n for n, turn in enumerate(seen) if kind in turn) for kind in "trE"}
    assert first["t"] < first["r"] < first["E"]
    assert first == {"t": 6 + 12 - 1, "r": 6 + 16, "E": 6 + 32 - 1}
    said = "You have made only calls that you had made before, with the same results, for 12 turns."
    assert notes(state)[0].startswith(said)


def test_polling_tools_are_left_out_of_account() -> None:
    state = a_run()
    assert {play(state, "poll ", "not yet") for _ in range(40)} == {"."}
    assert [play(state, calls) for calls in ("A", "poll A", "poll ", "A")] == [".", ".", ".", "t"]


def test_a_message_of_a_person_starts_the_count_anew() -> None:
    state = a_run()
    for _ in range(4):
        play(state, "A")
    state.messages.append(UserMessage(role="user", content="Try that once more."))
    assert [play(state, "A") for _ in range(3)] == [".", ".", "t"]


def test_a_refused_call_is_never_executed() -> None:
    state = a_run()
    for turn in range(16):
        play(state, "AB"[turn % 2])
    assert state.executed == {"A": 5, "B": 5}


def test_a_run_is_never_ended_before_a_call_was_refused() -> None:
    state = a_run(repeat_refused=20)
    seen = [play(state, "A") for _ in range(21)]
    assert seen[18:] == ["t", "tr", "trE"]


def test_counters_survive_a_resume() -> None:
    state = a_run()
    for turn in range(10):
        play(state, "AB"[turn % 2])
    state = RunState.model_validate_json(carried_on(state, Additions(steps=5)).model_dump_json())
    assert rounds(state.trail) == 4
    assert play(state, "A") == "r"


@pytest.mark.parametrize("cycle", ["A", "AB", "ABCD"])
def test_a_run_that_was_ended_for_its_loop_may_go_one_round_more_when_it_is_resumed(cycle: str) -> None:
    state = a_run()
    while not state.outcome:
        play(state, cycle[state.steps % len(cycle)])
    state = RunState.model_validate_json(carried_on(state, Additions()).model_dump_json())
    assert notes(state)[-1].startswith("The run was resumed")
    executed = sum(state.executed.values())
    again = [play(state, cycle[state.steps % len(cycle)]) for _ in range(5 * len(cycle))]
    assert sum(state.executed.values()) == executed + len(cycle)
    assert again[-1] == "trE"


def test_a_run_that_was_ended_for_its_loop_gets_on_where_its_tool_was_fixed() -> None:
    state = a_run()
    while not state.outcome:
        play(state, "A", "Down.", status="error")
    state = carried_on(state, Additions())
    assert [play(state, "A", "Here it is."), rounds(state.trail)] == [".", 1]


def test_a_state_of_before_is_read() -> None:
    old = a_run().model_dump(mode="json")
    del old["trail"]
    old["repeat"] = {"call": "0123456789abcdef", "result": "0123456789abcdef", "count": 4}
    assert rounds(RunState.model_validate(old).trail) == 1


# -- text --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["ha " * 100, "Well. " + "I will look. " * 40, "x" * 200, "a\n\nb\n\n" * 60])
def test_a_text_that_ends_in_one_phrase_over_and_over_repeats_itself(text: str) -> None:
    assert repeats_itself(text)


@pytest.mark.parametrize("text", ["", "ha ha ha ha", "I will look. " * 40 + "There it is.", "no no no no, " * 3])
def test_a_text_that_says_something_does_not(text: str) -> None:
    assert not repeats_itself(text)


@pytest.mark.parametrize(("text", "note"), [("I will look. " * 40, LOOPED), ("I will look, and then", CUT_OFF)])
def test_a_reply_that_was_cut_off_while_it_repeated_itself_is_told_so(text: str, note: str) -> None:
    state = a_run()
    fold_turn(state, ModelTurn(message=AssistantMessage(role="assistant", text=text), finish="length"), NOW)
    assert notes(state) == [note]


# -- nothing false -----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(turns=st.lists(st.sampled_from(["A", "B", "AB", "BA", "C", "poll "]), max_size=60), fresh=st.integers(1, 2))
def test_a_loop_breaker_never_fires_while_every_second_turn_brings_something_new(turns: list[str], fresh: int) -> None:
    state = a_run()
    for number, calls in enumerate(turns):
        assert play(state, calls, str(number // fresh)) == "."


@settings(max_examples=40, deadline=None)
@given(turns=st.lists(st.sampled_from(["A", "B", "AB", "C"]), max_size=80), result=st.sampled_from(["ok", "error"]))
def test_told_comes_before_refused_and_refused_before_ended(turns: list[str], result: str) -> None:
    state = a_run()
    seen = ""
    for calls in turns:
        what = play(state, calls, status=result)
        assert "r" not in what or "t" in seen
        assert "E" not in what or "r" in seen + what
        seen += what
        if state.outcome:
            return


def recorded(turn: Turn) -> RunState:
    """Play a recorded turn."""
    names = {call.name for call in turn.calls}
    tools = [ToolSpec(name=name, description="Do.", parameters={}, effect="read") for name in names]
    spec = AgentSpec(name="a", model="m:x", tools=tools, limits=Limits(steps=99, input_tokens=None))
    state = begin("run", spec, turn.input, None, "")
    results = iter(turn.calls)
    for message in turn.messages:
        if isinstance(message, AssistantMessage):
            fold_turn(state, ModelTurn(message=message), NOW)
            for call in list(state.open_calls):
                gave = next(results).result
                broken = gave.startswith("Error")
                report = result_of(call, "error", gave) if broken else result_of(call, "ok", content=gave)
                start(state, call)
                fold_report(state, call, ToolReport(result=report))
    return state


@pytest.mark.skipif(not DATA.exists(), reason=f"the recordings are not at {DATA}")
def test_it_never_fires_on_recorded_conversations() -> None:
    turns = [turn for recording in load_recordings(DATA / "conversations.jsonl") for turn in recording.turns]
    assert len(turns) > 300
    for turn in turns:
        state = recorded(turn)
        assert notes(state) == []
        assert {record.status for record in state.records} <= {"ok", "error"}
