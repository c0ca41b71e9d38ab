"""The commands by which people take hold of a run that goes on."""


def start(cli, agent, name, code=3):
    """Start a run, and leave it where it waits for a person."""
    return cli("run", f"agents.py:{agent}", "go", "--id", name, "--no-wait", code=code)


def test_a_run_is_paused_decided_about_and_resumed(served):
    start(served, "clerk", "pausable")
    assert "Run pausable: paused." in served("pause", "pausable", "--by", "ann", "--reason", "lunch").stderr
    shown = served("show", "pausable").stdout
    assert "Status   paused" in shown
    assert "Reason   paused by ann: lunch" in shown
    assert "paused by ann (update): lunch" in shown
    assert "waits to be resumed since" in shown
    assert "perdure resume pausable\n" in shown
    assert "paused already, by ann" in served.json("pause", "pausable", code=1)["error"]["message"]
    assert "pausable" in {run["id"] for run in served.json("ls", "--status", "paused")}
    assert [one["wants"] for one in served.json("approvals") if one["run_id"] == "pausable"] == ["approval"]
    served("approve", "pausable")
    assert served("resume", "pausable", "--reason", "back").stdout == "Done: sent to ada@example.com\n"
    assert "back" in served("watch", "pausable").stdout


def test_a_run_that_is_not_paused_can_be_given_more_but_not_resumed(served):
    start(served, "clerk", "unpaused")
    assert "not paused" in served("resume", "unpaused", code=1).stderr
    served("resume", "unpaused", "--add-steps", "3", "--add-usd", "0.5", "--detach")
    assert "with 3 steps, 0.5 USD added" in served("show", "unpaused").stdout
    assert served.json("show", "unpaused")["limits"]["steps"] == 18
    served("deny", "unpaused")


def test_at_its_limit_a_run_asks_for_more_and_without_takes_its_last_turn(served):
    shown = start(served, "thrifty", "asks-for-more").stderr
    assert "paused at a limit, until it is resumed: The limit of 2 steps is reached." in shown
    [request] = served.json("show", "asks-for-more")["waiting"]
    assert (request["wants"], request["why"]) == ("more", "The limit of 2 steps is reached.")
    assert request in served.json("approvals")
    assert "perdure resume asks-for-more --add-…" in served("approvals").stdout
    assert "asks for more since" in (shown := served("show", "asks-for-more").stdout)
    assert "perdure resume asks-for-more --add-…" in shown
    done = served("resume", "asks-for-more", code=1)
    assert done.stdout == "That is all: ada@example.com\n"
    start(served, "thrifty", "gets-more")
    assert served("resume", "gets-more", "--add-steps", "2").stdout == "That is all: ada@example.com\n"


def test_a_message_reaches_the_model_while_its_call_goes_on_waiting(served):
    start(served, "sociable", "spoken-to")
    assert "Run spoken-to: told." in served("say", "spoken-to", "how is it going?", "--by", "ann").stderr
    start(served, "sociable", "spoken-to")
    shown = served("show", "spoken-to", "--transcript").stdout
    assert "ann says (update): how is it going?" in shown
    assert "I still wait." in shown
    served("approve", "spoken-to", "1.1", "--by", "ann")
    assert served("run", "agents.py:sociable", "go", "--id", "spoken-to").stdout == "Done: sent to ann\n"
    call = served.json("show", "spoken-to")["calls"][0]
    assert (call["status"], call["result"]["content"]) == ("ok", "sent to ann")
    assert "has ended" in served("say", "spoken-to", "hello", code=1).stderr
    assert "told: as TEXT" in served("say", "spoken-to", code=2).stderr


def test_a_question_is_listed_and_answered(served):
    shown = start(served, "curious", "asked").stderr
    assert "ask_user waits for an answer: Which day?" in shown
    assert "perdure answer asked TEXT --call 1.1" in shown
    listed = next(one for one in served.json("approvals") if one["run_id"] == "asked")
    assert (listed["wants"], listed["arguments"]) == ("answer", {"question": "Which day?"})
    assert "ask_user waits for an answer since" in served("approvals").stdout
    assert served.json("show", "asked")["status"] == "waiting_input"
    assert "no call '9.9'" in served("answer", "asked", "Monday", "--call", "9.9", code=1).stderr
    assert "The answer is empty" in served("answer", "asked", " ", code=1).stderr
    assert "perdure answer asked TEXT --call 1.1" in served("approve", "asked", code=1).stderr
    assert served.json("answer", "asked", "Monday", "--by", "ann")["call"] == "1.1"
    assert "ask_user answered by ann (update): Monday" in served("watch", "asked").stdout
    assert served.json("show", "asked")["text"] == "On Monday."


def test_on_a_terminal_a_question_is_answered_right_there(served):
    with served.terminal("run", "agents.py:curious", "go", "--id", "asked-here") as terminal:
        terminal.until("Answer 1.1 (nothing: later): ")
        terminal.type("Friday\n")
        shown = terminal.to_the_end()
    assert terminal.code == 0
    assert "On Friday." in shown


def test_a_run_that_waits_is_cancelled_with_its_reason(served):
    start(served, "curious", "unanswered")
    served("cancel", "unanswered", "--reason", "never mind")
    served("watch", "unanswered")
    told = served.json("show", "unanswered")
    assert (told["status"], told["reason"]) == ("cancelled", "never mind")
