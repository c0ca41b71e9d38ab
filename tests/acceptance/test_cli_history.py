"""The commands about what runs have done, as a user types them."""

import json
from pathlib import Path


def script(served, name, replies) -> str:
    """Return a scripted model of the test's own."""
    path: Path = served.folder / f"{name}.json"
    path.write_text(json.dumps(replies))
    return f"scripted:{path}"


LOOKING = {"text": "Let me look.", "calls": [{"name": "look", "arguments": {"name": "ada"}}]}


def test_a_fork_goes_on_with_another_model_and_diff_shows_where_they_part(served):
    served("run", "agents.py:clerk", "Write to Ada.", "--id", "letter", "--no-wait", code=3)
    served("approve", "letter")
    other = script(served, "brief", [LOOKING, {"text": "I'd rather not."}])
    forked = served("fork", "letter", "--at", "1", "--model", other, "--id", "letter-2")
    assert forked.stdout == "I'd rather not.\n"
    assert "forked from letter at step 1" in forked.stderr
    assert "Forked   from letter at step 1" in served("show", "letter-2").stdout
    assert served.json("show", "letter-2")["forked_from"] == {"run_id": "letter", "step": 1}

    shown = served("diff", "letter", "letter-2", code=1).stdout
    assert "B  letter-2, forked from letter at step 1" in shown
    assert "They part at step 2" in shown
    assert "I'd rather not." in shown
    told = served.json("diff", "letter", "letter-2", code=1)
    assert (told["same"], told["parting"]["step"]) == (False, 2)
    assert [one["what"] for one in told["parting"]["differences"]] == ["text", "calls"]
    assert told["right"]["forked_from"]["run_id"] == "letter"


def test_an_effect_of_a_fork_waits_for_approval_and_says_why(served):
    served("run", "agents.py:payer", "go", "--id", "bill", "--no-wait", code=3)
    served("settle", "bill", "1.1", "done", "--reason", "it is on the account")
    waiting = served.json("fork", "bill", "--at", "0", "--id", "bill-2", "--no-wait", code=3)
    assert waiting["status"] == "waiting_approval"
    assert "forked from bill at step 0" in waiting["waiting"][0]["why"]
    served("deny", "bill-2")


def test_a_run_is_the_same_as_a_fork_that_changes_nothing(served):
    served("run", "agents.py:dawdler", "go", "--id", "nap")
    served("fork", "nap", "--at", "1", "--id", "nap-2")
    assert "They are the same" in served("diff", "nap", "nap-2").stdout
    assert served.json("diff", "nap", "nap-2")["same"] is True


def test_a_run_that_can_not_be_compared_or_forked_is_named(served):
    served("run", "agents.py:dawdler", "go", "--id", "rest")
    assert "There is no run 'nothing'" in served("diff", "rest", "nothing", code=2).stderr
    assert served.json("diff", "rest", "nothing", code=2)["error"]["kind"] == "not_found"
    assert "has taken 2 steps: fork it at 0 to 2" in served("fork", "rest", "--at", "9", code=2).stderr
    assert "nothing is left to do" in served("fork", "rest", "--at", "2", code=2).stderr
    assert "is empty" in served("fork", "rest", "--at", "1", "--say", " ", code=2).stderr
    assert "can't be read" in served("fork", "rest", "--at", "1", "--instructions-file", "none.txt", code=2).stderr
    assert "There is no run" in served("fork", "nothing", "--at", "1", code=1).stderr


def test_the_same_id_twice_is_one_fork(served):
    served("run", "agents.py:dawdler", "go", "--id", "doze")
    (served.folder / "rules.txt").write_text("Sleep well.")
    for code, at in ((0, "1"), (0, "1")):
        served("fork", "doze", "--at", at, "--instructions-file", "rules.txt", "--id", "doze-2", code=code)
    done = served("fork", "doze", "--at", "0", "--id", "doze-2", "--detach")
    assert done.stdout == "doze-2\n"
    assert "exists already, for another task" in done.stderr


def test_prune_says_what_it_removes_and_keeps_and_refuses_nonsense(served):
    served("run", "agents.py:dawdler", "go", "--id", "old")
    told = served.json("prune", "--older-than", "30d", "--dry-run")
    assert (told["dry_run"], told["runs"], told["kept"]) == (True, [], {"open": [], "in_engine": [], "scheduled": []})
    done = served("prune", "--older-than", "a month", code=2)
    assert "'a month' is no age" in done.stderr
    assert served.json("prune", "--older-than", "-1d", code=2)["error"]["kind"] == "usage"
    assert "--older-than" in served("prune", code=2).stderr


def test_archive_says_where_nothing_is_left_to_be_archived(served):
    served("run", "agents.py:dawdler", "go", "--id", "archived")
    assert served.json("archive") == {"archived": []}
    assert "Nothing was left to be archived." in served("archive").stderr
