"""The commands by which people decide."""

import re

import pytest


@pytest.fixture
def asking(served, request):
    """The id of a run that waits for approval of call 2.1."""
    name = request.node.name.removeprefix("test_")[:40]
    served("run", "agents.py:clerk", "go", "--id", name, "--no-wait", code=3)
    return name


def sent(cli):
    file = cli.folder / "sent.txt"
    return file.read_text().split() if file.exists() else []


def test_no_wait_exits_with_3_and_shows_the_commands_that_answer(served):
    done = served("run", "agents.py:clerk", "go", "--id", "shown-request", "--no-wait", code=3)
    assert done.stdout == ""
    assert '"to": "ada@example.com"' in done.stderr
    assert "perdure approve shown-request 2.1" in done.stderr
    assert "perdure deny shown-request 2.1" in done.stderr
    assert "send waits for approval\n" in done.stderr
    told = served.json("run", "agents.py:clerk", "go", "--id", "shown-request", "--no-wait", code=3)
    assert told["status"] == "waiting_approval"
    assert told["waiting"][0]["arguments"] == {"to": "ada@example.com"}


def test_what_a_run_below_waits_for_is_shown_with_the_commands_that_answer(served):
    done = served("run", "agents.py:chief", "go", "--id", "above", "--no-wait", code=3)
    assert "above/1.1 2.1  send waits for approval" in done.stderr
    assert "perdure approve above/1.1 2.1" in done.stderr
    assert "perdure approve above/1.1 2.1" in served("show", "above").stdout
    told = served.json("run", "agents.py:chief", "go", "--id", "above", "--no-wait", code=3)
    assert (told["status"], told["waiting"][0]["run_id"]) == ("waiting_approval", "above/1.1")
    refused = served("approve", "above", code=1)
    assert "Nothing waits for a decision in above; what it waits for is in above/1.1." in refused.stderr
    served("approve", "above/1.1", "2.1")
    served("watch", "above")
    assert served.json("show", "above")["text"] == "All is sent."


def test_the_person_at_the_terminal_is_asked_what_a_run_below_asks(served):
    with served.terminal("run", "agents.py:chief", "go", "--id", "above-here") as terminal:
        assert "above-here/1.1 2.1" in terminal.until("[l]ater: ")
        terminal.type("y\n")
        shown = terminal.to_the_end()
    assert terminal.code == 0
    assert "All is sent." in shown


@pytest.mark.reported(21)
def test_approvals_lists_what_waits_over_all_runs_and_approve_takes_it_off(served, asking):
    waiting = {request["run_id"]: request for request in served.json("approvals")}
    assert waiting[asking]["call"] == "2.1"
    assert waiting[asking]["tool"] == "send"
    assert waiting[asking]["since"]
    shown = served("approvals").stdout
    assert f"perdure approve {asking} 2.1" in shown
    assert waiting[asking]["hash"] in shown
    served("approve", asking, "2.1", "--by", "ann", "--reason", "fine")
    assert served("watch", asking).stdout.count("send approved by ann") == 1
    assert asking not in {request["run_id"] for request in served.json("approvals")}
    assert served.json("show", asking)["text"] == "Done: sent to ada@example.com"


def test_staged_actions_are_listed_with_their_arguments_and_approved_by_one_command(served):
    served("run", "agents.py:wirer", "go", "--id", "staged", "--no-wait", code=3)
    [request] = [request for request in served.json("approvals") if request["run_id"] == "staged"]
    assert [action["arguments"]["to"] for action in request["arguments"]["actions"]] == ["ann", "ben"]
    assert "staged actions wait for approval" in re.sub(" +", " ", served("show", "staged").stdout)
    served("approve", "staged", "staged")
    served("watch", "staged")
    told = served.json("show", "staged")
    assert (told["status"], told["text"]) == ("completed", "I will tell both.")
    assert [(call["status"], call["message"]) for call in told["calls"]] == [("ok", "wired ann"), ("ok", "wired ben")]


def test_one_waiting_call_needs_no_position_and_may_be_given_other_arguments(served, asking):
    told = served("approve", asking, "--args", '{"to": "bob@example.com"}')
    assert "approved with other arguments." in told.stdout + told.stderr
    served("watch", asking)
    call = served.json("show", asking)["calls"][-1]
    assert call["arguments"] == {"to": "bob@example.com"}
    assert "bob@example.com" in sent(served)


def test_arguments_that_do_not_fit_are_refused_and_the_call_goes_on_waiting(served, asking):
    error = served.json("approve", asking, "2.1", "--args", '{"whom": 1}', code=1)["error"]
    assert error["kind"] == "rejected"
    assert "do not fit send" in error["message"]
    (served.folder / "args.json").write_text('{"to": "eve@example.com"}')
    served("approve", asking, "2.1", "--args-file", "args.json")


def test_a_decision_that_cannot_take_says_why(served, asking):
    assert "has no call '9.9'" in served("approve", asking, "9.9", code=1).stderr
    assert "other arguments" in served("approve", asking, "2.1", "--hash", "stale", code=1).stderr
    assert "is not in doubt: it waits for approval." in served("settle", asking, "2.1", "done", code=1).stderr
    served("deny", asking, "2.1")
    served("watch", asking)
    assert "has ended" in served("approve", asking, "2.1", code=1).stderr
    assert "no run 'nowhere'" in served("approve", "nowhere", code=1).stderr


def test_a_denied_call_is_never_executed_and_the_model_is_told_why(served, asking):
    before = sent(served)
    served("deny", asking, "2.1", "--reason", "wrong person")
    served("watch", asking)
    result = served.json("show", asking)
    assert result["calls"][-1]["status"] == "denied"
    assert "wrong person" in result["calls"][-1]["result"]["message"]
    assert sent(served) == before


def test_a_decision_made_while_no_worker_runs_takes_effect_with_the_next_one(elsewhere):
    alone = elsewhere()
    with alone.worker("agents.py"):
        alone("run", "agents.py:clerk", "go", "--id", "kept", "--no-wait", code=3)
    assert alone.json("approve", "kept", "2.1")["queued"]
    assert "Run kept: queued. No worker answered: it is left with the run" in alone("pause", "kept").stderr
    assert alone("resume", "kept", "--detach").stdout == "kept\n"
    with alone.worker("agents.py"):
        alone("watch", "kept")
    assert alone.json("show", "kept")["status"] == "completed"
    assert sent(alone) == ["ada@example.com"]


def test_a_call_in_doubt_is_listed_with_its_key_and_settled(served):
    served("run", "agents.py:payer", "go", "--id", "doubtful", "--no-wait", code=3)
    request = next(one for one in served.json("approvals") if one["run_id"] == "doubtful")
    assert request["wants"] == "settlement"
    assert request["key"].startswith("doubtful:")
    assert "OSError: connection reset" in request["why"]
    assert "perdure settle doubtful 1.1 not-done" in served("approvals").stdout
    assert "pay is in doubt since" in served("approvals").stdout
    served("settle", "doubtful", "1.1", "done", "--result", '"receipt 7"', "--by", "ann")
    served("watch", "doubtful")
    assert served.json("show", "doubtful")["text"] == "Paid: receipt 7"
    assert served.json("settle", "doubtful", "1.1", "retry", code=1)["error"]["kind"] == "rejected"


def test_on_a_terminal_a_request_is_answered_right_there(served):
    with served.terminal("run", "agents.py:clerk", "go", "--id", "answered") as terminal:
        terminal.until("[l]ater: ")
        terminal.type("e\n")
        assert '\n{"to": "ada@example.com"}\r\n' in terminal.until("on one line: ")
        terminal.type('{"whom": 1}\n')
        terminal.until("do not fit send")
        terminal.type("e\n{bad\n")
        terminal.until("is no JSON")
        terminal.type('e\n{"to": "zoe@example.com"}\n')
        shown = terminal.to_the_end()
    assert terminal.code == 0
    assert "Done: sent to zoe@example.com" in shown
    assert "zoe@example.com" in sent(served)


def test_a_request_that_somebody_else_decides_is_not_asked_about_any_longer(served):
    with served.terminal("run", "agents.py:pair", "go", "--id", "overtaken") as terminal:
        terminal.until("Approve 1.1 send?")
        served("approve", "overtaken", "1.1", "--by", "somebody")
        assert "(decided elsewhere)" in terminal.until("Approve 1.2 send?")
        terminal.type("n\n")
        terminal.until("Why")
        terminal.type("one is enough\n")
        terminal.to_the_end()
    assert terminal.code == 0
    calls = served.json("show", "overtaken")["calls"]
    assert [call["status"] for call in calls] == ["ok", "denied"]
    assert "one is enough" in calls[1]["result"]["message"]


def test_an_edit_that_changes_nothing_approves_nothing(served):
    with served.terminal("run", "agents.py:clerk", "go", "--id", "looked-at") as terminal:
        terminal.until("[l]ater: ")
        terminal.type('e\n{"to": "ada@example.com"}\nn\nnot her\n')
        terminal.to_the_end()
    assert served.json("show", "looked-at")["calls"][-1]["status"] == "denied"


def test_on_a_terminal_a_call_in_doubt_is_settled_right_there(served):
    with served.terminal("run", "agents.py:payer", "go", "--id", "settled-here") as terminal:
        terminal.until("What became of 1.1 pay? [d]one, [n]ot done, [r]etry, [l]ater: ")
        terminal.type("d\n")
        terminal.until("nothing if unknown): ")
        terminal.type("receipt 7\n")
        terminal.until("is no JSON (a text needs double quotes)")
        terminal.type('d\n"receipt 7"\n')
        shown = terminal.to_the_end()
    assert terminal.code == 0
    assert "Paid: receipt 7" in shown


def test_a_call_in_doubt_that_is_tried_again_is_asked_about_again(served):
    with served.terminal("run", "agents.py:payer", "go", "--id", "settled-twice") as terminal:
        terminal.until("[l]ater: ")
        terminal.type("r\n")
        terminal.until("settled as retry")
        terminal.type("n\n")
        terminal.to_the_end()
    assert served.json("show", "settled-twice")["calls"][0]["status"] == "error"


def test_later_leaves_the_request_open_and_goes_on_following(served):
    with served.terminal("run", "agents.py:clerk", "go", "--id", "postponed") as terminal:
        terminal.until("[l]ater: ")
        terminal.type("l\n")
        served("deny", "postponed", "2.1")
        shown = terminal.to_the_end()
    assert "denied" in shown
    assert served.json("show", "postponed")["calls"][-1]["status"] == "denied"
