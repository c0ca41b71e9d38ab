"""What agents remember, as a user sees and changes it."""

import json
import time

import pytest

from tests.acceptance.conftest import HOSTILE, PATIENCE

AGENTS = """
from pathlib import Path

from perdure import Agent, Memory

HERE = Path(__file__).parent
writer = f"scripted:{HERE / 'writer.json'}"
concierge = Agent("concierge", f"scripted:{HERE / 'concierge.json'}", memory=Memory(model=writer))
"""
GATED = """
import asyncio
import json
import os
from pathlib import Path

from perdure import Agent, Memory
from perdure.activities.providers import register
from perdure.models import ModelReply

HERE = Path(__file__).parent


class Gated:
    provider = "gated"

    async def generate(self, request):
        (HERE / f"asked-{os.getpid()}").touch()
        while (HERE / "hold").exists():
            await asyncio.sleep(0.05)
        return ModelReply(text=(HERE / "facts.json").read_text())

    async def aclose(self):
        pass


register("gated", lambda name, settings: Gated())
patient = Agent("patient", f"scripted:{HERE / 'patient.json'}", memory=Memory(model="gated:writer"))
"""
FACT = {"text": "Ann prefers window seats.", "scope": "user", "quote": "a window seat", "supersedes": []}


@pytest.fixture(scope="module")
def concierge(cli):
    """The command line in a folder where an agent with memory is served."""
    (cli.folder / "concierge.py").write_text(AGENTS)
    (cli.folder / "concierge.json").write_text(json.dumps([{"text": "Noted."}]))
    (cli.folder / "writer.json").write_text(json.dumps([{"text": json.dumps({"facts": [FACT]})}]))
    with cli.worker("concierge.py"):
        yield cli


def remembered(cli, *words):
    """Wait until something is remembered, and return it: nobody is told when a run's memory is done."""
    deadline = time.monotonic() + PATIENCE
    while not (facts := cli.json("memory", *words)):
        assert time.monotonic() < deadline, "nothing was remembered"
    return facts


def test_what_a_user_says_is_remembered_shown_and_told_in_the_next_run(concierge):
    concierge("run", "concierge.py:concierge", "I want a window seat.", "--user", "ann", "--id", "first")
    (fact,) = remembered(concierge, "--user", "ann")
    assert (fact["text"], fact["source"], fact["agent"]) == (FACT["text"], "first", "concierge")
    shown = concierge("memory", "--user", "ann").stdout
    assert "Ann prefers window seats." in shown
    assert "user ann" in shown
    concierge("run", "concierge.py:concierge", "Book a flight.", "--user", "ann", "--id", "second")
    concierge("run", "concierge.py:concierge", "Book a flight.", "--user", "ben", "--id", "third")
    assert "window seats" in concierge("show", "second", "--transcript").stdout
    assert "1 remembered fact is told" in concierge("show", "second").stdout
    assert "window seats" not in concierge("show", "third", "--transcript").stdout
    assert "Task     Book a flight." in concierge("show", "second").stdout


@pytest.mark.long
def test_a_worker_killed_while_it_remembers_leaves_the_fact_once(elsewhere):
    cli = elsewhere()
    (cli.folder / "patient.py").write_text(GATED)
    (cli.folder / "patient.json").write_text(json.dumps([{"text": "Noted."}]))
    (cli.folder / "facts.json").write_text(json.dumps({"facts": [FACT]}))
    (cli.folder / "hold").touch()
    with cli.process("worker", "patient.py", "--json") as killed:
        words = ("patient.py:patient", "I want a window seat.", "--user", "kim", "--id", "killed-while-remembering")
        assert cli("run", *words).stdout == "Noted.\n"  # it did not wait for what is held
        deadline = time.monotonic() + PATIENCE
        while not list(cli.folder.glob("asked-*")):
            assert time.monotonic() < deadline, "the model that writes was not asked"
        killed.kill()
        killed.wait(PATIENCE)
    assert cli("memory", "--user", "kim").stderr == "Nothing is remembered.\n"
    (cli.folder / "hold").unlink()
    with cli.worker("patient.py"):
        (fact,) = remembered(cli, "--user", "kim")
        assert fact["source"] == "killed-while-remembering"
        assert len(list(cli.folder.glob("asked-*"))) == 2
    assert len(cli.json("memory", "--user", "kim", "--all")) == 1


def test_a_person_enters_corrects_searches_and_deletes(cli):
    fact = cli.json("memory", "add", "Bea lives in Graz.", "--agent", "clerk", "--user", "bea", "--by", "eva")
    assert (fact["source"], fact["subject"]) == ("person:eva", "bea")
    done = cli("memory", "correct", fact["id"], "Bea lives in Linz.")
    now = done.stderr.split()[0]
    assert done.stderr == f"{now} replaces {fact['id']}.\n"
    assert done.stdout == ""
    assert [one["id"] for one in cli.json("memory", "search", "where lives bea", "--agent", "clerk")] == [now]
    history = cli("memory", "list", "--user", "bea", "--all").stdout
    assert f"replaced by {now}" in history
    assert "Bea lives in Graz." in history
    cli("memory", "delete", now)
    assert cli("memory", "--user", "bea").stderr == "Nothing is remembered.\n"
    gone = cli("memory", "--user", "bea", "--all").stdout
    assert gone.count("deleted 2") == 2
    assert "Graz" not in gone + cli("memory", "search", "Graz", "--all").stdout


def test_what_is_not_there_is_an_error_of_one_sentence(cli):
    assert cli("memory", "delete", "nope", code=1).stderr == "Error: Nothing is remembered under 'nope'.\n"
    error = cli.json("memory", "correct", "nope", "x", code=1)["error"]
    assert error == {"kind": "not_found", "message": "Nothing is remembered under 'nope'."}
    assert "at most 500 characters" in cli("memory", "add", "x" * 501, "--agent", "clerk", code=1).stderr
    assert "no word to search for" in cli("memory", "search", " ", code=2).stderr
    assert "'--agent'" in cli("memory", "add", "x", code=2).stderr


def test_what_is_remembered_is_harmless_on_a_terminal(cli):
    cli("memory", "add", HOSTILE, "--agent", "clerk", "--user", HOSTILE)
    shown = cli("memory", "--agent", "clerk").stdout
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "[bold]" in shown


def test_memory_needs_no_engine(cli, tmp_path):
    env = {"PERDURE_HOME": str(tmp_path / "home"), "TEMPORAL_ADDRESS": "127.0.0.1:1"}
    assert cli("memory", **env).stderr == "Nothing is remembered.\n"
    cli("memory", "add", "Here.", "--agent", "clerk", **env)
    assert "Here." in cli("memory", **env).stdout


def test_a_store_that_is_down_is_one_sentence(cli):
    done = cli("memory", code=1, PERDURE_STORE="postgresql://127.0.0.1:1/none")
    assert done.stderr.startswith("Error: The store at ")
    assert len(done.stderr.splitlines()) == 1
