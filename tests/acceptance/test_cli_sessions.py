"""Conversations over many runs, from the command line."""

import json
from uuid import uuid4

import pytest


@pytest.fixture
def name():
    return f"s-{uuid4().hex[:8]}"


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def asking(served, name):
    """Begin a turn of the clerk that waits for approval of call 2.1."""
    served("run", "agents.py:clerk", "go", "--session", name, "--no-wait", code=3)


def test_from_a_pipe_each_line_is_a_turn_and_the_answers_are_all_that_is_printed(served, name):
    done = served("chat", "agents.py:talker", "--session", name, stdin="first\n\nsecond\n")
    assert done.stdout.splitlines() == ["She is ada@example.com.", "As I said."]
    again = served("chat", "agents.py:talker", "--session", name, "--json", stdin="third")
    [result] = lines(again.stdout)
    assert (result["run_id"], result["status"]) == (f"{name}.3", "completed")
    assert "2 turns so far" in again.stderr


def test_without_a_name_a_new_session_begins_and_its_name_is_told(served):
    first = served("chat", "agents.py:talker", stdin="hello\n").stderr
    assert "Session talker-" in first
    made = first.partition("Session ")[2].split()[0]
    assert served.json("sessions", "show", made)["turns"][0]["input"] == "hello"


def test_a_chat_at_a_terminal_asks_for_approval_and_goes_on(served, name):
    with served.terminal("chat", "agents.py:clerk", "--session", name) as terminal:
        terminal.until("> ")
        terminal.type("/help\n/nonsense\n/show\n")
        terminal.until("There is no command /nonsense")
        terminal.until("There is no session")
        terminal.type("go\n")
        terminal.until("[l]ater: ")
        terminal.type("y\n")
        terminal.until("Done: sent to ada@example.com")
        terminal.type("and now?\n")
        terminal.until("Done.")
        terminal.type("/show\n")
        terminal.until("and now?\r\n      Done.")
        terminal.until_asked()
        terminal.type("\x04")
        shown = terminal.to_the_end()
    assert terminal.code == 0
    assert f"perdure chat agents.py:clerk --session {name}" in shown
    assert "worker" not in shown  # brief: what is done and asked, nothing else


def test_a_session_is_listed_while_its_first_turn_waits(served, name):
    asking(served, name)
    listed = {one["name"]: one for one in served.json("sessions")}
    assert (listed[name]["agent"], listed[name]["turns"]) == ("clerk", 0)
    assert "none of its turns has ended" in served("sessions", "export", name, code=1).stderr
    served("deny", f"{name}.1")
    served("watch", f"{name}.1")


def test_ctrl_c_leaves_the_turn_alone_and_what_is_typed_then_reaches_it(served, name):
    with served.terminal("chat", "agents.py:sociable", "--session", name) as terminal:
        terminal.until("> ")
        terminal.type("go\n")
        terminal.until("[l]ater: ")
        terminal.type("\x03")
        terminal.until("The turn goes on")
        terminal.type("How far are you?\n")
        terminal.until("[l]ater: ")
        served("approve", f"{name}.1", "1.1")
        terminal.until("Done: sent to ann")
        terminal.until_asked()
        terminal.type("\x03")
        terminal.to_the_end()
    assert terminal.code == 130
    [turn] = served.json("sessions", "show", name)["turns"]
    assert turn["text"] == "Done: sent to ann"
    said = [message["content"] for message in lines(served("sessions", "export", name).stdout)]
    assert [text for text in said if text in ("go", "How far are you?", "I still wait.")] == [
        "go",
        "How far are you?",
        "I still wait.",
    ]


def test_a_turn_that_is_under_way_is_taken_up_again_by_who_comes_back(served, name):
    asking(served, name)
    with served.terminal("chat", "agents.py:clerk", "--session", name) as terminal:
        terminal.until("Turn 1 is under way")
        terminal.until("[l]ater: ")
        terminal.type("y\n")
        terminal.until("Done: sent to ada@example.com")
        terminal.until_asked()
        terminal.type("\x04")
        terminal.to_the_end()
    assert terminal.code == 0


def test_who_will_answer_later_gets_the_prompt_back_and_hears_how_it_ended(served, name):
    with served.terminal("chat", "agents.py:clerk", "--session", name) as terminal:
        terminal.until("> ")
        terminal.type("go\n")
        terminal.until("[l]ater: ")
        terminal.type("l\n")
        terminal.until_asked()
        served("approve", f"{name}.1", "2.1")
        served("watch", f"{name}.1")
        terminal.type("thanks\n")
        terminal.until("Done.\r\n")
        shown = terminal.until_asked()
        terminal.type("\x04")
        terminal.to_the_end()
    assert shown.index("Done: sent to ada@example.com") < shown.index("Done.\r\n")


def test_no_wait_leaves_a_chat_where_a_turn_waits_for_a_person(served, name):
    done = served("chat", "agents.py:clerk", "--session", name, "--no-wait", stdin="go\nnot said\n", code=3)
    assert done.stdout == ""
    assert f"perdure approve {name}.1 2.1" in done.stderr


def test_what_is_sent_while_a_turn_waits_reaches_it_or_begins_the_next(served, name):
    served("run", "agents.py:sociable", "go", "--session", name, "--no-wait", code=3)
    said = served.json("run", "agents.py:sociable", "Hurry.", "--session", name, "--detach")
    assert (said["how"], said["turn"], said["run_id"]) == ("said", 1, f"{name}.1")
    queue = ["run", "agents.py:sociable", "Later.", "--session", name, "--when-busy", "queue"]
    queued = served.json(*queue, "--detach")
    assert (queued["how"], queued["turn"]) == ("queued", 1)
    with served.process(*queue, "--json") as waiting:
        served("approve", f"{name}.1", "1.1")
        out, _ = waiting.communicate(timeout=60)
    result = json.loads(out)
    assert (result["run_id"], result["turn"], result["status"]) == (f"{name}.3", 3, "completed")
    turns = served.json("sessions", "show", name)["turns"]
    assert [turn["input"] for turn in turns] == ["go", "Later.", "Later."]


def test_sessions_are_listed_shown_and_exported_with_their_calls(served, name):
    asking(served, name)
    shown = served("sessions", "show", name).stdout
    assert f"perdure watch {name}.1" in shown
    served("approve", f"{name}.1", "2.1")
    served("watch", f"{name}.1")
    told = served.json("sessions", "show", name, "--transcript")
    assert (told["agent"], told["open"], [turn["status"] for turn in told["turns"]]) == ("clerk", None, ["completed"])
    assert len(told["messages"]) == 6
    assert "sent to ada@example.com" in served("sessions", "show", name, "--transcript").stdout
    assert name in [one["name"] for one in served.json("sessions", "--agent", "clerk")]
    assert name in served("sessions").stdout
    messages = lines(served("sessions", "export", name).stdout)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    call = messages[1]["tool_calls"][0]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("look", {"name": "ada"})
    assert messages[2] == {"role": "tool", "tool_call_id": call["id"], "content": "ada@example.com"}
    served("sessions", "export", name, "--output", "talk.jsonl")
    assert lines((served.folder / "talk.jsonl").read_text()) == messages


def test_a_session_is_deleted_only_when_asked_for_and_no_turn_is_under_way(served, name):
    asking(served, name)
    assert "is under way" in served("sessions", "delete", name, "--yes", code=1).stderr
    served("deny", f"{name}.1", "2.1")
    served("watch", f"{name}.1")
    assert "--yes" in served("sessions", "delete", name, code=2).stderr
    with served.terminal("sessions", "delete", name) as terminal:
        terminal.until("[N]o: ")
        terminal.type("\n")
        terminal.to_the_end()
        assert terminal.code == 130
    served("sessions", "delete", name, "--yes")
    assert served.json("sessions", "show", name, code=1)["error"]["kind"] == "not_found"
    assert name not in served("sessions").stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["chat", "agents.py:clerk", "--session", "a b"], 2, "letters, digits"),
        (["run", "agents.py:clerk", "x", "--session", "s", "--id", "i"], 2, "do not go together"),
        (["run", "agents.py:clerk", " ", "--session", "s"], 2, "Say what the agent is to do"),
        (["sessions", "show", "nobody"], 1, "There is no session 'nobody'"),
        (["sessions", "export", "nobody"], 1, "There is no session 'nobody'"),
        (["sessions", "delete", "nobody", "--yes"], 1, "There is no session 'nobody'"),
        (["chat", "agents.py:clerk", "--session", "s", "--var", "seats=1"], 2, "declares no variables"),
    ],
)
def test_what_can_not_be_is_told_in_one_sentence(served, words, code, said):
    assert said in served(*words, code=code, stdin="hello\n").stderr


def test_a_store_that_is_down_is_named_and_another_agents_session_is_refused(served, name):
    asking(served, name)
    down = served("chat", "agents.py:clerk", code=1, PERDURE_STORE="postgresql://x@127.0.0.1:1/d")
    assert "can't be used" in down.stderr
    other = served("run", "agents.py:pair", "x", "--session", name, code=1)
    assert "is with agent 'clerk', not with 'pair'" in other.stderr
