"""`perdure graph`, and runs that go along graphs, as seen from a terminal; also where their worker is killed."""

from __future__ import annotations

import json
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples/graph_trip.py")
PATIENCE = 60

MOVER = '''
import time
from pathlib import Path

from pydantic import BaseModel

from perdure import Agent, Done, NotDone, tool
from perdure.strategies.graph import END, START, Edge, Graph, Join, Node

HERE = Path(__file__).parent


class Parcel(BaseModel):
    seen: list[str] = []
    paid: str = ""
    sent: str = ""


def note(word):
    with (HERE / "done.txt").open("a") as file:
        file.write(f"{word}\\n")


@tool(effect="read", timeout=60)
def look() -> list[str]:
    """Look."""
    (HERE / "looking").touch()
    while not (HERE / "go").exists():
        time.sleep(0.05)
    return ["seen"]


def was_paid(ctx):
    return Done("paid") if "paid" in (HERE / "done.txt").read_text() else NotDone()


@tool(parallel=True, probe=was_paid, timeout=60)
def pay() -> str:
    """Pay."""
    note("paid")
    while not (HERE / "go").exists():
        time.sleep(0.05)
    return "paid"


@tool(parallel=True)
def send() -> str:
    """Send."""
    note("sent")
    return "sent"


mover = Agent(
    "mover",
    "scripted:none",
    variables=Parcel,
    strategy=Graph(
        Parcel,
        nodes=[Node("look", look, writes="seen"), Node("pay", pay, writes="paid"), Node("send", send, writes="sent")],
        edges=[Edge(START, "look", "pay", "send"), Edge("look", END), Edge("pay", END), Edge("send", END)],
        answer="{seen} {paid} {sent}",
    ),
)
'''


def until(there: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := there():
            return found
        time.sleep(0.05)  # another process can only be looked at
    return pytest.fail("it did not come about")


def test_a_graph_is_drawn_without_a_server(cli, tmp_path):
    drawn = cli("graph", EXAMPLE, PERDURE_HOME=str(tmp_path))
    assert drawn.stdout.startswith("flowchart TD\n    s((start))\n")
    assert 'n3 -->|"affordable: yes"| n5' in drawn.stdout
    picture = tmp_path / "trip.svg"
    cli("graph", EXAMPLE, "--svg", str(picture), PERDURE_HOME=str(tmp_path))
    assert ET.fromstring(picture.read_text()).tag.endswith("svg")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "Say either AGENT or --run RUN."),
        (["agents.py:clerk"], "is led by its model alone, not by a graph"),
        (["agents.py"], "say which"),
    ],
)
def test_what_has_no_graph_is_refused_in_one_sentence(cli, arguments, told):
    refused = cli("graph", *arguments, code=2)
    assert told in refused.stderr


def test_the_example_runs_and_its_way_is_drawn(cli):
    with cli.worker(EXAMPLE):
        cli("run", f"{EXAMPLE}:trip", "Turin", "--id", "turin", "--no-wait", code=3)
        drawn = cli.json("graph", "--run", "turin")
        assert drawn["now"] == ["confirm"]
        assert drawn["visits"] == {"hotel": 2, "train": 1, "add_up": 2, "lower": 1, "tell": 1, "confirm": 1}
        marked = cli("graph", "--run", "turin").stdout
        assert "class n6 now" in marked
        assert "hotel \u00d72, train, add_up \u00d72, lower, tell, confirm (now)" in cli("show", "turin").stdout
        assert '"hotel \u00d72"' in marked
        cli("approve", "turin", "--args", json.dumps({"people": 3}))
        ended = cli("run", f"{EXAMPLE}:trip", "Turin", "--id", "turin")
    assert ended.stdout == "We are going! *** Turin Palace and the 09:10 to Turin, for 3\n"


def test_nothing_is_done_twice_where_a_worker_is_killed_in_the_middle_of_a_wave(cli):
    folder = cli.folder
    (folder / "mover.py").write_text(MOVER)
    cli.env |= {"PERDURE_HEARTBEAT_TIMEOUT": "2"}
    done = folder / "done.txt"
    with cli.process("worker", "mover.py", "--json") as first:
        assert json.loads(first.stdout.readline())["event"] == "ready"
        cli("run", "mover.py", "go", "--id", "moved", "--detach")
        until(lambda: done.exists() and len(done.read_text().split()) == 2 and (folder / "looking").exists())
        until(lambda: any(one["status"] == "ok" for one in cli.json("show", "moved")["calls"]))
        first.kill()
    (folder / "go").touch()
    with cli.worker("mover.py"):
        ended = cli("run", "mover.py", "go", "--id", "moved")
    assert ended.stdout == '["seen"] paid sent\n'
    assert sorted(done.read_text().split()) == ["paid", "sent"]
