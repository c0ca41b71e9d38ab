"""The commands about runs, as a user types them."""

import json
import signal

import pytest

from tests.acceptance.conftest import HOSTILE


def read_until(stream, text):
    """Return the first line of `stream` that holds `text`."""
    return next(line for line in stream if text in line)


def test_the_answer_goes_to_stdout_and_the_story_to_stderr(served):
    done = served("run", "agents.py:dawdler", "go")
    assert done.stdout == "I am well rested.\n"
    assert "dawdle(seconds=1) started" in done.stderr
    assert "completed" in done.stderr
    assert "\x1b" not in done.stderr


def test_with_json_the_result_is_one_object_on_stdout(served):
    result = served.json("run", "agents.py:dawdler", "go")
    assert result["status"] == "completed"
    assert result["text"] == "I am well rested."
    assert [call["name"] for call in result["calls"]] == ["dawdle"]


def test_a_served_agent_is_found_by_its_name(served):
    assert served("run", f"only-{served.folder.name}", "go").stdout == f"{HOSTILE}\n"


def test_a_large_result_is_shown_in_part_and_printed_whole_on_request(served):
    run = served.json("run", "agents.py:exporter", "go")["run_id"]
    assert "65,536 of 188,889 bytes were shown; --result 1.1 prints all of it" in served("show", run).stdout
    rows = served("show", run, "--result", "1.1").stdout.splitlines()
    assert (len(rows), rows[-1]) == (20_000, "row 19999")
    assert "has no call '7.1'; its last ones are: 1.1." in served("show", run, "--result", "7.1", code=1).stderr


def test_a_large_task_is_taken_and_one_that_is_too_large_refused(served):
    assert served("run", "agents.py:hostile", "-", stdin="x" * 3_000_000).stdout == f"{HOSTILE}\n"
    refused = served("run", "agents.py:hostile", "-", stdin="x" * 20_000_000, code=1)
    assert "at most 16,000,000 are taken: give larger documents to a tool, by their address" in refused.stderr


def test_an_unknown_agent_is_an_error_that_lists_those_known(served):
    done = served("run", "nobody", "go", code=2)
    assert "No worker has announced an agent 'nobody'; known are " in done.stderr
    assert "clerk" in done.stderr
    error = served.json("run", "nobody", "go", code=2)["error"]
    assert error["kind"] == "not_found"


def test_a_file_with_several_agents_asks_which(served):
    done = served("run", "agents.py", "go", code=2)
    assert "agents.py:clerk" in done.stderr


@pytest.mark.long
def test_an_agent_served_on_two_queues_is_not_guessed(served, elsewhere):
    other = elsewhere()
    with other.worker("agents.py"):
        done = served("run", "payer", "go", code=2)
    assert "choose one with --task-queue" in done.stderr


def test_input_is_read_from_stdin_and_from_a_file(served):
    served("run", "agents.py:hostile", "-", "--id", "from-stdin", stdin="written by hand")
    assert "written by hand" in served("show", "from-stdin").stdout
    (served.folder / "task.txt").write_text("kept in a file")
    served("run", "agents.py:hostile", "--input-file", "task.txt", "--id", "from-file")
    assert "kept in a file" in served("show", "from-file").stdout


def test_images_go_with_the_input(served):
    (served.folder / "dot.png").write_bytes(b"\x89PNG")
    words = ("--image", "dot.png", "--image", "https://example.com/cat.jpg", "--id", "pictures")
    served("run", "agents.py:hostile", "what is this", *words)
    message = served.json("show", "pictures", "--transcript")["messages"][0]
    assert [part["kind"] for part in message["content"]] == ["text", "image", "image"]
    assert message["content"][1]["url"] == "data:image/png;base64,iVBORw=="
    assert "is no image" in served("run", "agents.py:hostile", "x", "--image", "task.mp3", code=2).stderr


def test_a_detached_run_prints_its_id_alone_and_the_same_id_is_one_run(served):
    done = served("run", "agents.py:dawdler", "go", "--detach", "--id", "twice")
    assert done.stdout == "twice\n"
    again = served("run", "agents.py:dawdler", "go", "--id", "twice")
    assert again.stdout == "I am well rested.\n"
    assert "Run twice exists already: following it" in again.stderr
    told = served.json("run", "agents.py:dawdler", "stop", "--id", "twice")
    assert (told["existing"], told["same_task"]) == (True, False)
    other = served("run", "agents.py:dawdler", "stop", "--id", "twice", "--detach").stderr
    assert other == "Run twice exists already, for another task.\n"
    assert len(served.json("show", "twice")["calls"]) == 1


@pytest.mark.long
def test_a_run_that_no_worker_takes_says_so_and_goes_on_waiting(elsewhere):
    alone = elsewhere()
    with alone.process("run", "agents.py:hostile", "go") as run:
        line = read_until(run.stderr, "No worker serves run ")
        assert "start one with `perdure worker agents.py`" in line
        with alone.worker("agents.py"):
            assert run.wait(30) == 0


def test_a_run_that_nobody_serves_is_shown_so_wherever_one_looks(elsewhere):
    alone, absent = elsewhere(), "No worker serves run unserved (queue agents-"
    told = alone.json("run", "agents.py:hostile", "go", "--id", "unserved", "--no-wait", code=1)
    assert told["error"]["message"].startswith(absent)
    assert absent in alone("show", "unserved").stdout
    assert not alone.json("show", "unserved")["served"]
    with alone.process("watch", "unserved") as watch:
        assert absent in watch.stderr.readline()
    done = alone("cancel", "unserved")
    assert absent in done.stderr
    assert "It keeps the request until then." in done.stderr
    with alone.worker("agents.py"):
        alone("watch", "unserved")
    assert alone.json("show", "unserved")["status"] == "cancelled"
    assert alone.json("show", "unserved")["served"]


def test_ctrl_c_leaves_the_run_alone(served):
    with served.process("run", "agents.py:clerk", "go", "--id", "left-alone") as run:
        read_until(run.stderr, "perdure deny")
        run.send_signal(signal.SIGINT)
        said = run.stderr.read()
        assert run.wait(30) == 130
    assert "The run goes on. Watch it with `perdure watch left-alone`" in said
    assert served.json("show", "left-alone")["status"] == "waiting_approval"


def test_watch_gives_each_event_once_and_goes_on_after_a_position(served):
    served("run", "agents.py:dawdler", "go", "--id", "watched")
    events = [json.loads(line) for line in served("watch", "watched", "--json").stdout.splitlines()]
    assert events[0]["type"] == "run_started"
    assert events[-1]["type"] == "run_finished"
    positions = [event["position"] for event in events]
    assert len(set(positions)) == len(positions)
    rest = served("watch", "watched", "--after", positions[3], "--json").stdout.splitlines()
    assert [json.loads(line)["position"] for line in rest] == positions[4:]
    assert served.json("watch", "watched", "--after", "nonsense", code=2)["error"]["kind"] == "usage"


def test_runs_are_listed_by_status_and_agent(served):
    served("run", "agents.py:tireless", "go", "--id", "listed", code=1)
    runs = served.json("ls", "--status", "budget_exhausted", "--agent", "tireless")
    assert "listed" in [run["id"] for run in runs]
    assert "listed" in served("ls", "--agent", "tireless").stdout
    assert served.json("ls", "--agent", "nobody") == []


def test_an_exhausted_run_exits_with_1_and_is_resumed_with_more_steps(served):
    result = served.json("run", "agents.py:tireless", "go", "--id", "tired", code=1)
    assert result["status"] == "budget_exhausted"
    assert (
        "perdure resume tired --add-steps 5"
        in served("run", "agents.py:tireless", "go", "--id", "tired", code=1).stderr
    )
    assert "The limit of 2 steps is reached. Resume it with more" in served("resume", "tired", code=1).stderr
    assert served.json("resume", "tired", "--add-steps", "1", code=1)["steps"] == 3
    assert [run["id"] for run in served.json("ls", "--agent", "tireless")].count("tired") == 1


def test_runs_are_listed_by_their_start_the_newest_first_and_a_resumed_one_once(served):
    served("run", "agents.py:pair", "go", "--id", "older", "--no-wait", code=3)
    served("run", "agents.py:tireless", "go", "--id", "newer", code=1)
    served("resume", "newer", "--add-steps", "1", code=1)
    assert [run["id"] for run in served.json("ls", "--limit", "2")] == ["newer", "older"]


def test_with_no_wait_all_that_a_run_waits_for_is_shown(served):
    said = served("run", "agents.py:pair", "go", "--id", "both", "--no-wait", code=3).stderr
    assert "perdure approve both 1.1" in said
    assert "perdure approve both 1.2" in said


def test_steps_can_be_limited_from_the_command_line(served):
    result = served.json("run", "agents.py:clerk", "go", "--steps", "1", code=1)
    assert result["steps"] == 1
    assert result["reason"] == "The limit of 1 step is reached."


def test_show_tells_what_a_cancelled_run_has_undone_and_what_it_could_not(served):
    served("run", "agents.py:renter", "go", "--id", "undone", "--no-wait", code=3)
    served("cancel", "undone")
    watched = served("watch", "undone").stdout
    assert "rent is being undone" in watched
    assert "rent could not be undone: Nobody takes it back." in watched
    shown = served("show", "undone").stdout.partition("\nUndone\n")[2].splitlines()
    assert shown[:2] == [
        "  1.2   rent could not be undone: Nobody takes it back.",
        "  1.1   rent undone: room 1 no more",
    ]
    told = served.json("show", "undone")
    assert told["status"] == "cancelled"
    assert [(one["position"], one["status"]) for one in told["undone"]] == [("1.2", "failed"), ("1.1", "undone")]


def test_a_cancelled_run_exits_with_1_wherever_it_is_followed(served):
    with served.process("run", "agents.py:clerk", "go", "--id", "unwanted", "--json") as run:
        read_until(run.stderr, "perdure deny")
        told = served.json("cancel", "unwanted", "--reason", "changed my mind")
        assert (told["cancel_requested"], told["queued"]) == (True, False)
        assert json.loads(run.stdout.read())["status"] == "cancelled"
        assert run.wait(30) == 1
    shown = served("show", "unwanted").stdout
    assert "changed my mind" in shown
    assert "Last words\nLet me look." in shown


def test_show_says_what_is_being_retried_and_why(served):
    with served.process("run", "agents.py:stubborn", "go", "--id", "retried") as run:
        line = read_until(run.stderr, "model call: attempt")
        assert "127.0.0.1:9" in line
        retrying = served.json("show", "retried")["retrying"]
        assert retrying[0]["what"] == "model call"
        assert retrying[0]["number"] > 1
        assert "last failure: The connection to http://127.0.0.1:9/v1" in served("show", "retried").stdout
        served("cancel", "retried")
        assert run.wait(30) == 1


def test_show_tells_calls_with_arguments_and_results(served):
    served("run", "agents.py:dawdler", "go", "--id", "shown", "--priority", "2", "--tenant", "acme")
    shown = served("show", "shown", "--transcript").stdout
    for text in ("completed", "dawdle(seconds=1)", "well rested", "Timeline", "Web UI", "Transcript"):
        assert text in shown
    told = served.json("show", "shown")
    assert told["calls"][0]["result"]["content"] == "well rested"
    assert told["agent"] == "dawdler"
    assert (told["priority"], told["tenant"]) == (2, "acme")
    assert "priority 2, tenant acme" in shown


def test_what_a_model_wrote_does_not_reach_the_terminal_as_it_is(served):
    with served.terminal("run", "agents.py:hostile", "go") as terminal:
        shown = terminal.to_the_end()
    assert terminal.code == 0
    assert r"plain \x1b]0;owned\x07\x1b[31mred\x1b[0m \u202eevil [bold]markup[/bold]" in shown
    assert "\x1b]0;" not in shown
    assert "\u202e" not in shown


def test_on_a_terminal_the_live_line_shows_what_goes_on(served):
    with served.terminal("run", "agents.py:dawdler", "go") as terminal:
        assert "dawdle 0." in terminal.until("dawdle 0.")
        shown = terminal.to_the_end()
    assert terminal.code == 0
    assert shown.rstrip().endswith("I am well rested.")


def test_a_closed_pipe_ends_a_command_quietly(served):
    with served.process("watch", "no-such-run-yet") as missing:
        assert missing.wait(30) == 1
    served("run", "agents.py:hostile", "go", "--id", "piped")
    with served.process("show", "piped") as show:
        show.stdout.close()
        assert show.wait(30) == 141
        assert show.stderr.read() == ""
