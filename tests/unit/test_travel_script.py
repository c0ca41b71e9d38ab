"""The scripted conversation of the travel agent."""

import json
import os
import subprocess
import sys
from datetime import date, timedelta

import jsonschema
import pytest

from perdure.examples.travel.agent import TOOLS, wait_a_moment
from perdure.examples.travel.script import TASK, next_monday, replies, task

TODAY = date(2026, 11, 30)


@pytest.mark.parametrize("days", range(7))
def test_next_monday_is_the_first_monday_after_today(days):
    today = TODAY + timedelta(days=days)
    assert next_monday(today) == date(2026, 12, 7)


def test_task_says_what_day_it_is():
    assert "Monday, 2026-11-30" in task(TODAY)
    assert TASK.startswith("Today is ")


def test_script_searches_both_then_books_both_then_answers():
    search, book, answer = replies(TODAY)
    assert [call["name"] for call in search["calls"]] == ["flight_search", "hotel_search"]
    assert [call["name"] for call in book["calls"]] == ["flight_book", "hotel_book"]
    assert "calls" not in answer
    assert search["calls"][0]["arguments"]["date"] == book["calls"][1]["arguments"]["check_in"] == "2026-12-07"


def test_slow_script_waits_a_moment_first():
    assert replies(TODAY, slow=True)[0]["calls"] == [{"name": "wait_a_moment", "arguments": {}}]
    assert replies(TODAY, slow=True)[1:] == replies(TODAY)


def test_calls_of_the_script_fit_the_tools():
    schemas = {tool.name: tool.spec.parameters for tool in [*TOOLS, wait_a_moment]}
    for reply in replies(TODAY, slow=True):
        for call in reply.get("calls", []):
            jsonschema.validate(call["arguments"], schemas[call["name"]])


@pytest.mark.parametrize("slow", ["0", "1"])
def test_command_prints_the_script_as_json(slow):
    command = [sys.executable, "-m", "perdure.examples.travel.script"]
    done = subprocess.run(command, capture_output=True, check=True, env={**os.environ, "TRAVEL_SLOW_TOOL": slow})
    assert len(json.loads(done.stdout)) == 3 + int(slow)


def test_script_says_what_was_denied():
    answer = replies(TODAY, denied={"flight_book"})[-1]["text"]
    assert "flight, none is booked" in answer
    assert "${flight_book" not in answer
    assert "${hotel_book.booking_id}" in answer
