"""`perdure demo`, as a person runs it: real engine, real HTTP, real processes."""

import asyncio
import json
import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from perdure.testing import ModelServer

ROOT = Path(__file__).parents[2]
DEMO = (sys.executable, "-m", "perdure.starter", "demo")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home for all: a demo after a demo works as well."""
    return tmp_path_factory.mktemp("demo") / "home"


@pytest.fixture
def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    return {**kept, "PYTHONPATH": str(ROOT), "DEMO_OF": str(home)}


def play(environment: dict[str, str], home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the demo to its end; nobody sits at its terminal."""
    return subprocess.run(
        [*DEMO, "--home", str(home), *options],
        check=False,
        cwd=home.parent,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
    )


def left_over(mark: Path) -> list[str]:
    """Return the processes that were started for the demo of that folder, by the environment they inherited."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"DEMO_OF={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has just ended, or is somebody else's
            continue
    return found


def test_journey_is_booked_once_though_the_worker_is_killed(home, environment):
    done = play(environment, home, "--yes", "--json")
    outcome = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert outcome["status"] == "completed"
    assert outcome["bookings"] == {"flights": 1, "hotels": 1}
    assert f"worker {outcome['killed_worker']} is killed" in done.stderr
    assert "Had flight_book been done? Yes" in done.stderr
    assert outcome["text"].startswith("You fly with ")
    assert outcome["ui"].endswith(f"/namespaces/default/workflows/{outcome['run']}")
    assert outcome["usage"]["output_tokens"] > 0
    assert left_over(home) == []


def test_person_sees_answer_timeline_tokens_and_counts(home, environment):
    done = play(environment, home, "--slow")
    assert done.returncode == 0, done.stderr
    assert "The demo approves by itself (nobody is at a terminal)" in done.stderr
    assert "wait_a_moment ok" in done.stderr
    for part in ("You fly with", "Timeline", "with another worker now", "Tokens ", "Web UI ", "1 flight, 1 hotel"):
        assert part in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.long
async def test_real_model_books_what_it_wants_and_is_counted_by_what_it_did(home, environment):
    night = {"check_in": "2027-01-04", "nights": 2, "guest": "Zhang Wei"}
    stays = {"city": "Shanghai", "check_in": "2027-01-04", "nights": 2}
    replies: list[Mapping[str, Any]] = [
        {"calls": [{"name": "hotel_search", "arguments": stays}]},
        {"calls": [{"name": "hotel_book", "arguments": {"hotel_id": "${hotel_search.hotels.0.id}", **night}}]},
        {"text": "Only \x1b[31mthe hotel\u202e."},
    ]
    async with ModelServer(replies) as server:
        environment |= {"OPENAI_BASE_URL": server.base_url, "NO_PROXY": "127.0.0.1"}
        done = await asyncio.to_thread(play, environment, home, "--model", "openai:any", "--yes", "--json")
    outcome = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert outcome["bookings"] == {"flights": 0, "hotels": 1}
    assert outcome["killed_worker"]
    assert "hotel_book ok, at attempt 2 with the same key" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert left_over(home) == []


@pytest.mark.long
def test_person_who_denies_the_flight_gets_the_hotel_alone(home, environment):
    ours, theirs = pty.openpty()
    command = [*DEMO, "--home", str(home), "--json"]
    with subprocess.Popen(command, env=environment, stdin=theirs, stderr=theirs, stdout=subprocess.PIPE) as demo:
        os.close(theirs)
        shown = b""
        for answer in (b"perhaps\n", b"n\n", b"y\n"):
            while not shown.endswith(b"[y/n] ") and not shown.endswith(b"[y/n]\x1b[0m "):
                shown += os.read(ours, 4096)
            os.write(ours, answer)
            shown += os.read(ours, 1)
        os.set_blocking(ours, False)
        outcome = json.loads(demo.communicate(timeout=60)[0])
    os.close(ours)
    assert outcome["ok"]
    assert outcome["bookings"] == {"flights": 0, "hotels": 1}
    assert outcome["killed_worker"]
    assert outcome["text"].startswith("As you did not agree to the flight, none is booked. You stay at ")
    assert left_over(home) == []


def test_missing_key_is_said_before_anything_is_started(tmp_path, environment):
    done = play(environment, tmp_path / "home", "--model", "openai:gpt-5-mini")
    assert done.returncode == 1
    assert "OPENAI_API_KEY" in done.stderr
    assert not (tmp_path / "home").exists()


def test_demo_that_is_ended_early_leaves_nothing_behind(home, environment):
    demo = subprocess.Popen(
        [*DEMO, "--home", str(home), "--slow", "--yes"], env=environment, stderr=subprocess.PIPE, text=True
    )
    assert demo.stderr is not None
    seen = next(line for line in demo.stderr if "wait_a_moment begins" in line)
    demo.terminate()
    rest = demo.communicate(timeout=60)[1]
    assert seen
    assert "the run is cancelled" in rest
    assert demo.returncode == 143
    assert left_over(home) == []
