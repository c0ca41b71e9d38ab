"""`perdure cost` counts what the model server counts, also where a worker was killed in the middle of a model call."""

import csv
import io
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from perdure.testing import ModelServerProcess

AGENT = """
from decimal import Decimal

from perdure import Agent, ModelSettings, Price, tool


@tool(effect="read")
def look(name: str) -> str:
    '''Look up an address.'''
    return f"{name}@example.com " * 20


settings = ModelSettings(base_url=BASE_URL, api_key_env="NO_KEY", price=Price(input=Decimal(2), output=Decimal(8)))
accountant = Agent("accountant", "openai:scripted", tools=[look], settings=settings, instructions="Look up addresses.")
"""

SCRIPT: list[Any] = [
    {"calls": [{"name": "look", "arguments": {"name": "ada"}}], "usage": {"input_tokens": 300, "output_tokens": 20}},
    {"calls": [{"name": "look", "arguments": {"name": "ben"}}], "error": {"kind": "server"}, "times": 1},
    {"text": "Found both.", "hang": True, "times": 1, "usage": {"input_tokens": 900, "output_tokens": 5}},
]
"""The second reply comes at the second try; the third one never, at first."""


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServerProcess]:
    with ModelServerProcess(SCRIPT) as server:
        yield server


@pytest.fixture(scope="module")
def counted(cli: Any, server: ModelServerProcess) -> Any:
    """The command line, once a run has ended whose worker was killed while the model was asked the third time."""
    (cli.folder / "accountant.py").write_text(AGENT.replace("BASE_URL", repr(server.base_url)))
    cli.env |= {"PERDURE_HEARTBEAT_TIMEOUT": "2", "NO_KEY": "none"}
    with cli.process("worker", "accountant.py", "--json") as first:
        assert json.loads(first.stdout.readline())["event"] == "ready"
        cli("run", "accountant.py", "Find Ada and Ben.", "--id", "counted", "--detach")
        until_asked(server, 4)
        first.kill()
    assert cli.json("cost", "counted")["total"]["requests"] == 3  # it goes on, and what has ended is counted
    with cli.worker("accountant.py"):
        cli("run", "accountant.py", "Find Ada and Ben.", "--id", "counted")
    return cli


def until_asked(server: ModelServerProcess, times: int) -> None:
    """Wait until the model server has got so many requests: of the last one, the engine has not heard by then."""
    deadline = time.monotonic() + 60
    while len(server.requests()) < times:
        assert time.monotonic() < deadline
        time.sleep(0.01)  # the server can only be asked


@pytest.mark.reported(34)
def test_attempts_and_usage_are_those_of_the_model_server(counted, server):
    asked = server.requests()
    total = counted.json("cost", "counted")["total"]
    assert total["requests"] == len(asked) == 5
    received = [one["usage"] for one in asked if one["usage"]]
    assert len(received) == 3
    sent = total["usage"]["input_tokens"] - total["wasted"]["input_tokens"]
    assert sent == sum(one["prompt_tokens"] for one in received)
    got = total["usage"]["output_tokens"] - total["wasted"]["output_tokens"]
    assert got == sum(one["completion_tokens"] for one in received)


@pytest.mark.reported(34)
def test_the_attempt_that_was_lost_with_its_worker_is_estimated_and_flagged(counted):
    found = counted.json("cost", "counted")
    assert (found["total"]["failed"], found["total"]["lost"], found["total"]["estimated"]) == (1, 1, 1)
    assert found["total"]["wasted"]["input_tokens"] > 100
    assert [(one["name"], one["requests"]) for one in found["groups"]] == [("1", 1), ("2", 2), ("3", 2)]
    text = " ".join(counted("cost", "counted").stdout.split())
    assert "Wasted: 2 of 5 requests (1 lost with a worker or broken off)" in text
    assert "the usage of 1 requests (~)" in text


def test_it_is_counted_likewise_by_agent_model_tool_and_day(counted):
    for by in ("model", "day"):
        found = counted.json("cost", "--by", by, "--agent", "accountant")
        assert [one["requests"] for one in found["groups"]] == [5]
    tools = counted.json("cost", "--by", "tool", "--agent", "accountant")
    assert [one["name"] for one in tools["groups"]] == ["look"]
    assert float(tools["groups"][0]["cost_usd"]) > 0
    (row,) = csv.DictReader(io.StringIO(counted("cost", "--csv", "--agent", "accountant").stdout))
    assert (row["agent"], row["requests"], row["lost"]) == ("accountant", "5", "1")


def test_it_is_the_same_once_the_run_has_been_archived(counted):
    before = counted.json("cost", "counted")
    deadline = time.monotonic() + 60
    while (after := counted.json("cost", "counted"))["live"] and time.monotonic() < deadline:
        pass
    assert after["live"] == []
    assert {**after, "live": []} == {**before, "live": []}


def test_what_is_asked_for_wrongly_is_said_in_a_sentence(cli):
    assert "no moment: write 7d" in cli("cost", "--since", "soon", code=2).stderr
    assert "do not go together" in cli("cost", "--csv", "--json", code=2).stdout
    assert "There is no run 'nobody'" in cli("cost", "nobody", code=1).stderr
    assert cli("cost", "--agent", "nobody").stderr.strip() == "No request to a model has ended."


def test_the_trace_of_a_run_that_was_killed_and_went_on_is_one_tree_with_the_lost_request(counted, server, tmp_path):
    trace = counted.json("trace", "counted")
    spans = [part for step in trace["root"]["spans"] for part in step["spans"]]
    asked = [[one["status"] for one in span["spans"]] or [span["status"]] for span in spans if span["kind"] == "model"]
    assert asked == [["ok"], ["failed", "ok"], ["lost", "ok"]]
    assert sum(map(len, asked)) == len(server.requests())
    assert [span["call"] for span in spans if span["kind"] == "tool"] == ["1.1", "2.1"]
    assert len({mark["by"] for mark in trace["marks"] if mark["kind"] == "worker_took_over"}) == 2
    for columns in ("60", "120"):
        shown = counted("trace", "counted", COLUMNS=columns).stdout
        assert max(map(len, shown.splitlines())) <= int(columns)
        assert "request 1 lost" in shown
        assert "\x1b" not in shown
    page = tmp_path / "trace.html"
    counted("trace", "counted", "--html", str(page))
    assert "<svg" in page.read_text()
    assert [file.name for file in tmp_path.iterdir()] == ["trace.html"]
    assert "can't be written" in counted("trace", "counted", "--html", str(tmp_path / "none" / "x.html"), code=2).stderr
    assert "can't be written" in counted("trace", "counted", "--html", str(tmp_path), code=2).stderr
