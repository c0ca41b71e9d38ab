"""Answers that are data, from the command line: the example, and a worker that is killed in the middle."""

import json
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.long
def test_the_answer_is_printed_as_json_though_the_worker_is_killed_while_it_is_mended(elsewhere):
    cli = elsewhere()
    script = json.loads((EXAMPLES / "itinerary.json").read_text())
    script[2]["delay"] = 3
    (cli.folder / "script.json").write_text(json.dumps(script))
    (cli.folder / "itinerary.py").write_text((EXAMPLES / "itinerary.py").read_text())
    model = {"ITINERARY_MODEL": f"scripted:{cli.folder / 'script.json'}"}
    with cli.process("worker", "itinerary.py", "--json", **model) as doomed:
        assert json.loads(doomed.stdout.readline())["event"] == "ready"
        run = cli("run", "itinerary.py", "Lisbon", "--detach", **model).stdout.strip()
        while not any(event["type"] == "told" for event in cli.json("show", run)["events"]):
            assert doomed.poll() is None
        doomed.kill()
    with cli.process("worker", "itinerary.py", "--json", **model) as next_one:
        assert json.loads(next_one.stdout.readline())["event"] == "ready"
        answer = cli("run", "itinerary.py", "Lisbon", "--id", run, **model).stdout
        shown = cli.json("show", run)
    assert json.loads(answer) == shown["output"]
    assert (shown["output"]["legs"][-1]["end"], shown["status"], shown["steps"]) == ("Oslo", "completed", 3)
    assert len(shown["workers"]) == 2
