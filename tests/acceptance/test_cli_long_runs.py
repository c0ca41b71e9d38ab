"""Runs that have continued as new, as a user sees them at the command line: like any other."""

import json

import pytest

from tests.acceptance.test_cli_runs import read_until

SHORT = {"PERDURE_MAX_HISTORY_EVENTS": "40"}


def test_a_long_run_is_followed_approved_and_shown_as_one(served):
    run = served.json("run", "agents.py:marathon", "Run.", "--id", "long", "--no-wait", code=3, **SHORT)
    assert [request["call"] for request in run["waiting"]] == ["9.1"]
    assert "long" in served("approvals").stdout
    served("approve", "long", "9.1", "--by", "ann")
    followed = served.json("run", "agents.py:marathon", "Run.", "--id", "long")
    assert followed["status"] == "completed"
    assert [call["position"] for call in followed["calls"]] == [f"{n}.1" for n in range(1, 10)]
    assert "before" not in followed or followed["before"] is None

    shown = served.json("show", "long", "--transcript")
    assert [call["result"]["status"] for call in shown["calls"]] == ["ok"] * 9
    assert [message["role"] for message in shown["messages"]] == ["user", *["assistant", "tool"] * 9, "assistant"]
    assert [event["type"] for event in shown["events"]].count("run_started") == 1
    assert int(shown["events"][-1]["position"].partition(".")[0]) > 200_000
    text = served("show", "long", "--transcript").stdout
    assert "Task     Run." in text
    assert text.count("runner 0") >= 2
    assert [one["id"] for one in served.json("ls", "--agent", "marathon")].count("long") == 1


@pytest.mark.long
def test_a_long_run_is_watched_from_the_event_where_one_has_stopped(served):
    served("run", "agents.py:marathon", "Run.", "--id", "watched", "--no-wait", code=3, **SHORT)
    with served.process("watch", "watched", "--json") as watch:
        asked = json.loads(read_until(watch.stdout, "approval_requested"))
    served("deny", "watched", "9.1")
    kept = ("watch", "watched", "--json", "--no-stream")
    again = served(*kept, "--after", asked["position"]).stdout.splitlines()
    told = [json.loads(line) for line in again]
    aside = ("worker_took_over", "phase_changed")
    assert [event["type"] for event in told if event["type"] not in aside] == [
        "approval_decided",
        "tool_finished",
        "model_started",
        "model_finished",
        "run_finished",
    ]
    whole = [json.loads(line) for line in served(*kept).stdout.splitlines()]
    assert whole[-len(told) :] == told


def test_a_setting_that_is_too_small_is_refused_with_a_sentence(served):
    done = served("ls", code=2, PERDURE_MAX_HISTORY_EVENTS="3")
    assert "PERDURE_MAX_HISTORY_EVENTS is set to '3', which can't be" in done.stderr
