"""What reaches a terminal: foreign text is harmless, JSON stays JSON, numbers are readable."""

import json
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import events as ev
from perdure.asking import Kind
from perdure.cli import output, story
from perdure.cli.board import Board
from perdure.cli.choice import unknown
from perdure.cli.output import Misuse, as_json, columns, one_line, safe, span
from perdure.cli.runs import WaitingFor
from perdure.errors import AgentNotFound, RunNotFound, ToolDefinitionError
from perdure.messages import Usage
from perdure.state import Phase

NOW = datetime(2026, 1, 1, tzinfo=UTC)
COMMON: dict[str, Any] = {"run_id": "r", "position": "1.0", "time": NOW}


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left_but_newline_and_tab(text):
    shown = safe(text)
    assert all(character.isprintable() or character in "\n\t" or ord(character) > 0x9F for character in shown)
    assert not {"\x1b", "\r", "\x9b", "\u202e", "\u2066"} & set(shown)
    shown.encode()


@given(st.text())
def test_one_line_is_one_line_and_within_its_limit_where_nothing_is_escaped(text):
    assert "\n" not in one_line(text, 20)
    assert len(one_line(text, 20)) <= 20


@given(st.recursive(st.text() | st.integers() | st.none(), st.lists) | st.dictionaries(st.text(), st.text()))
def test_json_is_the_same_value_and_has_nothing_that_a_terminal_obeys(value):
    try:
        text = as_json(value)
    except UnicodeEncodeError:
        pytest.fail("lone surrogates have to survive")
    assert json.loads(text) == value
    assert safe(text) == text


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.04, "0.0 s"),
        (12.34, "12.3 s"),
        (125, "2 min 05 s"),
        (3720, "1 h 02 min"),
        (100_000, "1 d 03 h"),
        (-1, "0.0 s"),
    ],
)
def test_durations_are_for_people(seconds, shown):
    assert span(timedelta(seconds=seconds)) == shown


def test_columns_are_aligned_by_what_a_terminal_shows_not_by_characters():
    lines = columns([["東京", "a"], ["x", "b"]]).splitlines()
    assert lines == ["東京  a", "x     b"]


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (Misuse("no"), 2, "usage"),
        (AgentNotFound("no"), 2, "not_found"),
        (ToolDefinitionError("no"), 2, "agent"),
        (RunNotFound("no"), 1, "not_found"),
        (ZeroDivisionError("by zero"), 1, "internal"),
    ],
)
def test_whatever_is_raised_becomes_one_sentence_or_an_envelope(error, code, kind, capsys):
    def fail():
        raise error

    assert output.guarded(fail, []) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("Error: ")
    assert output.guarded(fail, ["--json"]) == code
    told = capsys.readouterr()
    assert json.loads(told.out)["error"]["kind"] == kind
    assert told.err == ""


def test_an_answer_that_the_terminal_cannot_write_is_no_reason_to_fail(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdout", open("/dev/null", "w", encoding="ascii"))  # noqa: PTH123, SIM115
    assert output.guarded(lambda: output.data("北京"), []) == 0
    sys.stdout.close()


def test_an_event_cannot_smuggle_control_characters_into_its_line():
    wicked = "\x1b[2Jbook\r"
    events: list[ev.Event] = [
        ev.ToolStarted(
            type="tool_started", call="1.1", name=wicked, effect="read", arguments={wicked: wicked}, **COMMON
        ),
        ev.ToolFinished(type="tool_finished", call="1.1", name=wicked, status="error", message=wicked, **COMMON),
        ev.ApprovalRequested(type="approval_requested", call="1.1", name=wicked, hash="h", why=wicked, **COMMON),
        ev.ModelFinished(type="model_finished", model="m", text=wicked, calls=[wicked], **COMMON),
        ev.RunFinished(type="run_finished", status="failed", reason=wicked, **COMMON),
    ]
    for event in events:
        assert safe(line := story.line(event, NOW, StringIO())) == line


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            ev.ApprovalRequested(
                type="approval_requested", call="1.1", name="pay", hash="", why="pay needs approval.", **COMMON
            ),
            "pay waits for approval",
        ),
        (
            ev.ApprovalRequested(
                type="approval_requested", call="1.1", name="pay", hash="", why="Over the limit.", **COMMON
            ),
            "pay waits for approval: Over the limit.",
        ),
        (
            ev.DecisionRefused(
                type="decision_refused", name="approve", via="update", by="ann", reason="Too late.", **COMMON
            ),
            "approval by ann (update) was refused: Too late.",
        ),
        (
            ev.DecisionRefused(type="decision_refused", name="aprove", via="signal", reason="No such.", **COMMON),
            "aprove (signal) was refused: No such.",
        ),
        (
            ev.PhaseChanged(
                type="phase_changed", phase=Phase.WAITING, before=Phase.GENERATING, status="waiting_approval", **COMMON
            ),
            "waiting: waiting_approval",
        ),
        (
            ev.RetryScheduled(
                type="retry_scheduled",
                activity="perdure.model",
                activity_id="2",
                attempt=1,
                message="The worker that executed it was lost.",
                **COMMON,
            ),
            "model call: attempt 1 failed, and another followed: The worker that executed it was lost.",
        ),
        (
            ev.BudgetWarning(type="budget_warning", limit="steps", share=0.8, most="15 steps", **COMMON),
            "nearly used up: 80% of 15 steps are gone",
        ),
        (ev.Told(type="told", content="Stop.\x1b[2J", **COMMON), "the runtime tells the model: Stop.\\x1b[2J"),
        (
            ev.ToolProgress(type="tool_progress", call="1.1", name="look", text="12 hotels", fraction=0.5, **COMMON),
            "look: 12 hotels (50%)",
        ),
    ],
)
def test_an_event_says_once_what_happened(event, words):
    assert story.what(event, StringIO()) == words


def test_the_board_shows_tools_under_way_what_waits_and_tokens_so_far():
    board, later = Board(), NOW + timedelta(seconds=3)
    board.take(ev.RunStarted(type="run_started", agent="a", model="m", spec_hash="", **COMMON))
    board.take(ev.ModelStarted(type="model_started", model="m", **COMMON))
    assert board.line(later) == "model thinking 3.0 s · 0 tokens in, 0 out · 3.0 s"
    board.take(ev.ModelFinished(type="model_finished", model="m", usage=Usage(input_tokens=1200), **COMMON))
    board.take(ev.ToolStarted(type="tool_started", call="1.1", name="look", effect="read", **COMMON))
    board.take(ev.ApprovalRequested(type="approval_requested", call="1.2", name="send", hash="", why="", **COMMON))
    assert board.line(later) == "look 3.0 s, waiting for 1.2 send · 1,200 tokens in, 0 out · 3.0 s"
    board.take(ev.ToolFinished(type="tool_finished", call="1.1", name="look", status="ok", **COMMON))
    board.take(
        ev.ApprovalDecided(
            type="approval_decided", call="1.2", name="send", approve=True, by="ann", via="update", **COMMON
        )
    )
    assert board.line(later).startswith("working 3.0 s")


def test_a_cost_is_told_where_it_is_known_and_a_model_that_stood_in_is_named():
    cost: dict[str, Any] = {"cost_usd": Decimal("0.01234"), "fallback": "openai:big is down"}
    reply = ev.ModelFinished(type="model_finished", model="openai:small", **cost, **COMMON)
    told = story.what(reply, StringIO())
    assert told == "model replied (openai:small, since openai:big is down), 0 tokens in, 0 out, $0.0123"
    unknown = story.what(ev.ModelFinished(type="model_finished", model="m", **COMMON), StringIO())
    assert "$" not in unknown


def test_the_board_shows_the_end_of_what_a_model_writes_until_the_reply_is_there():
    board = Board()
    board.take(ev.ModelStarted(type="model_started", model="m", **COMMON))
    said = "one two\nthree \x1b[2J" + " word" * 200
    board.take(ev.TextDelta(type="text_delta", text=said, **COMMON))
    shown = board.written(40)
    assert len(shown) == 6
    assert all(len(line) <= 40 for line in shown)
    board.take(ev.TextDelta(type="text_delta", text="Anew \x1b[2J", attempt=2, **COMMON))
    assert board.written(40) == ["Anew \\x1b[2J"]
    board.take(ev.ModelFinished(type="model_finished", model="m", text="Anew.", **COMMON))
    assert board.written(40) == []


def test_the_board_shows_what_there_is_of_an_answer_that_is_data():
    board = Board()
    board.take(ev.ModelStarted(type="model_started", model="m", **COMMON))
    board.take(ev.TextDelta(type="text_delta", text='{"title": "Lisbon", "days": 3, "legs": [{"to": "Os', **COMMON))
    assert board.written(40) == ['  "legs": [', "    {", '      "to": "Os"', "    }", "  ]", "}"]
    board.take(ev.TextDelta(type="text_delta", text="{no JSON", attempt=2, **COMMON))
    assert board.written(40) == ["{no JSON"]


def test_the_board_shows_how_far_tools_are():
    board, later = Board(), NOW + timedelta(seconds=3)
    started = ev.ToolStarted(type="tool_started", call="1.1", name="look", effect="read", **COMMON)
    board.take(started)
    board.take(
        ev.ToolProgress(type="tool_progress", call="1.1", name="look", text="12 hotels\x1b", fraction=0.4, **COMMON)
    )
    assert board.line(later).startswith("look 3.0 s: 12 hotels\\x1b (40%) ·")
    board.take(started)
    assert board.line(later).startswith("look 3.0 s ·")


def test_what_runs_may_be_listed_by_is_what_they_may_wait_for():
    assert get_args(WaitingFor) == get_args(Kind)


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("ls --json", True),
        ("ls", False),
        ("run clerk -- --json", False),
        ("eval suite.yaml --json report.json", False),
        ("eval suite.yaml --json=report.json", False),
        ("eval suite.yaml --json -", True),
        ("eval suite.yaml --json=-", True),
    ],
)
def test_errors_are_json_where_stdout_is_to_have_json_and_not_where_a_file_is(line, asked):
    assert output.wants_json(line.split()) is asked


def test_an_unknown_agent_is_told_with_the_one_that_was_meant_and_without_those_of_steps():
    said = unknown("tripp", {"trip", "trip-step", "quick-step"}, None)
    assert said == "No worker has announced an agent 'tripp'; known are quick-step, trip. Did you mean trip?"
    assert unknown("nosuch", {"trip"}, None).endswith("known are trip.")
