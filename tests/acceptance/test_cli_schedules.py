"""Runs that begin by themselves, from the command line."""

import json
from uuid import uuid4

import pytest


@pytest.fixture
def name():
    return f"s-{uuid4().hex[:8]}"


def test_a_schedule_from_its_creation_to_its_end(served, name):
    words = ["schedule", "create", "talker", "Then: {{last.text}}", "--cron", "0 8 * * MON-FRI"]
    created = served(*words, "--timezone", "Europe/Oslo", "--id", name, "--overlap", "buffer-one")
    assert created.stdout == f"{name}\n"
    assert "the first run is due at " in created.stderr
    first = served("schedule", "trigger", name).stdout.strip()
    assert first.startswith(f"{name}-20")
    served("watch", first)
    served("schedule", "backfill", name, "--from", "2026-03-02T00:00+01:00", "--to", "2026-03-03T00:00+01:00")
    shown = served.json("schedule", "show", name)
    assert (shown["cron"], shown["timezone"], shown["overlap"]) == (["0 8 * * 1-5"], "Europe/Oslo", "buffer-one")
    assert (shown["outdated"], shown["paused"], shown["agent"]) == (False, False, "talker")
    served("watch", f"{name}-2026-03-02T07:00:00Z")
    run = served.json("show", f"{name}-2026-03-02T07:00:00Z", "--transcript")
    assert run["messages"][0]["content"] == "Then: She is ada@example.com."
    assert {one["id"] for one in served.json("ls", "--schedule", name)} == {run["run_id"], first}
    served("schedule", "pause", name, "--reason", "lunch")
    text = served("schedule", "show", name).stdout
    assert "paused" in text
    assert "lunch" in text
    assert f"{first}  completed" in text
    while not any(name in line and "  lunch" in line for line in served("schedule", "list").stdout.splitlines()):
        pass  # the list may lag behind; the test's own time limit ends it
    served("schedule", "update", name, "agents.py:talker", "--every", "2h", "--input", "Anew.")
    assert served.json("schedule", "show", name)["input"] == "Anew."
    served("schedule", "unpause", name)
    served("schedule", "delete", name)
    assert f"There is no schedule '{name}'" in served("schedule", "show", name, code=1).stderr
    assert served.json("show", first)["status"] == "completed"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nobody", "x", "--every", "2h"], "No worker has announced an agent 'nobody'; known are "),
        (["talker", "x"], "Say when: --cron '0 8 * * MON-FRI', or --every 2h."),
        (["talker", "x", "--cron", "0 88 * * *"], "'0 88 * * *' (--cron) is no time: Hour is not in range"),
        (["talker", "x", "--every", "0s"], "--every takes a duration of at least 1s, such as 15m or 2h; '0s' is less."),
        (
            ["talker", "x", "--cron", "0 8 * * *", "--timezone", "Mars/Base"],
            "Time zone 'Mars/Base' (--timezone) is not known",
        ),
        (["talker", "x", "--every", "soon"], "--every takes a duration such as 15m, 2h, 1h30m or 1d; 'soon' is none."),
        (["talker", "x", "--every", "2h", "--overlap", "skp"], "Invalid value for '--overlap': 'skp' is not one of"),
        (["talker", "{{last.foo}}", "--every", "2h"], "{{last.foo}} says nothing of the last run"),
    ],
)
def test_what_can_not_be_is_said_in_one_sentence(served, words, complaint):
    assert complaint in served("schedule", "create", *words, code=2).stderr


@pytest.mark.long
def test_a_run_whose_worker_is_killed_is_ended_by_the_next_one_and_known_to_the_run_after_it(elsewhere, name):
    cli = elsewhere()
    with cli.process("worker", "agents.py", "--json") as doomed:
        assert json.loads(doomed.stdout.readline())["event"] == "ready"
        cli("schedule", "create", "agents.py:dawdler", "Then: {{last.text}}", "--every", "1d", "--id", name)
        first = cli("schedule", "trigger", name).stdout.strip()
        while not (cli.folder / "dawdling").exists():
            assert doomed.poll() is None
        doomed.kill()
    with cli.worker("agents.py"):
        cli("watch", first)
        assert cli.json("show", first)["text"] == "I am well rested."
        second = cli("schedule", "trigger", name).stdout.strip()
        cli("watch", second)
        task = cli.json("show", second, "--transcript")["messages"][0]["content"]
        cli("schedule", "delete", name)
    assert task == "Then: I am well rested."
