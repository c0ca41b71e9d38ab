"""The commands that stay, `doctor`, and what is common to all: errors, exit codes, colours."""

import asyncio
import json
import signal
import socket

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure.engine.server import DevServer, find_binary
from perdure.settings import Settings
from perdure.testing import ModelServer
from tests.acceptance.conftest import Cli, write_agents


@pytest.fixture
def fresh(tmp_path):
    """The command line in a folder without an engine."""
    write_agents(tmp_path)
    return Cli(tmp_path, tmp_path / ".perdure")


# -- dev and worker ----------------------------------------------------------------------------------------------------


def test_dev_serves_engine_and_agents_and_others_find_it_without_being_told(fresh):
    with fresh.process("dev", "agents.py", "--json") as dev:
        ready = json.loads(dev.stdout.readline())
        assert ready["started"]
        assert "clerk" in ready["agents"]
        assert fresh("run", "hostile", "go").stdout.startswith("plain")
        assert ready["ui_url"] in fresh("doctor", "agents.py:clerk").stdout
        dev.send_signal(signal.SIGTERM)
        assert dev.wait(30) == 0
    assert "start one with `perdure dev`" in fresh("ls", code=1).stderr


def test_the_engine_comes_back_where_it_was_so_that_workers_and_followers_go_on(fresh):
    with fresh.process("dev", "--json") as dev:
        first = json.loads(dev.stdout.readline())
        with fresh.worker("agents.py"):
            fresh("run", "agents.py:clerk", "go", "--id", "lasting", "--no-wait", code=3)
            with fresh.process("watch", "lasting") as watch:
                watch.stdout.readline()
                dev.send_signal(signal.SIGTERM)
                assert dev.wait(30) == 0
            with fresh.process("dev", "--json") as again:
                second = json.loads(again.stdout.readline())
                assert (second["address"], second["ui_url"]) == (first["address"], first["ui_url"])
                fresh("approve", "lasting")
                fresh("watch", "lasting")
                assert fresh.json("show", "lasting")["status"] == "completed"


async def test_dev_uses_the_server_that_the_environment_names_and_starts_none(fresh, tmp_path):
    async with await DevServer.start(Settings(home=tmp_path / "other")) as server:
        with fresh.process("dev", "--json", TEMPORAL_ADDRESS=server.address) as dev:
            ready = json.loads(dev.stdout.readline())
            assert ready["address"] == server.address
            assert not ready["started"]
            dev.send_signal(signal.SIGINT)
            assert dev.wait(30) == 0
            assert "no other is started" in dev.stderr.read()
    assert not (tmp_path / ".perdure" / "temporal.db").exists()


def test_a_worker_says_what_it_serves_and_lets_calls_finish_when_it_is_stopped(cli):
    with cli.process("worker", "agents.py", "--json") as worker:
        ready = json.loads(worker.stdout.readline())
        assert len(ready["queues"]) == 1
        assert "dawdler" in ready["agents"]
        cli("run", "agents.py:dawdler", "go", "--id", "graceful", "--detach")
        for line in cli("watch", "graceful", "--json", code=None).stdout.splitlines():
            if json.loads(line)["type"] == "tool_started":
                break
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
        assert "Serving" in worker.stderr.read()


def test_one_worker_serves_several_files_on_queues_of_their_own(cli, elsewhere):
    with cli.process("worker", "agents.py", str(elsewhere().folder / "agents.py"), "--json") as worker:
        ready = json.loads(worker.stdout.readline())
        assert len(ready["queues"]) == 2
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("import nothing_of_this_name", 2, "ModuleNotFoundError"),
        ("def broken(:", 2, "line 1"),
        ("from perdure import tool\n@tool\ndef f(): pass", 2, "description"),
        ("x = 1", 2, "declares no agent"),
    ],
)
def test_a_file_that_cannot_be_served_is_one_sentence(cli, text, code, said):
    (cli.folder / "bad.py").write_text(text)
    done = cli("worker", "bad.py", code=code)
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_worker_without_a_server_says_where_it_looked(fresh):
    done = fresh("worker", "agents.py", code=1, TEMPORAL_ADDRESS="127.0.0.1:9")
    assert "No Temporal server answers at 127.0.0.1:9 (from TEMPORAL_ADDRESS)" in done.stderr


def test_a_web_ui_port_that_is_taken_is_one_sentence(fresh):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = fresh("dev", "--ui-port", str(taken.getsockname()[1]), code=1)
    assert "did not start" in done.stderr


async def test_a_server_that_never_had_a_run_lists_none(cli, tmp_path):
    """With a store of its own: what an archive keeps is listed whichever server is asked."""
    async with await WorkflowEnvironment.start_local(dev_server_existing_path=find_binary()) as environment:
        own = {"TEMPORAL_ADDRESS": environment.client.service_client.config.target_host, "PERDURE_HOME": str(tmp_path)}
        for words in (["ls", "--agent", "clerk"], ["ls", "--status", "waiting_approval"], ["approvals"]):
            assert await asyncio.to_thread(cli.json, *words, **own) == []


# -- doctor ------------------------------------------------------------------------------------------------------------


def test_doctor_says_for_each_part_whether_it_is_well(served):
    told = served.json("doctor", "agents.py:clerk")
    assert told["ok"]
    assert {finding["what"] for finding in told["findings"]} >= {"server", "namespace", "search attributes", "store"}
    assert {finding["state"] for finding in told["findings"]} == {"ok"}


def test_doctor_finds_the_missing_worker_and_says_how_to_start_one(elsewhere):
    alone = elsewhere()
    done = alone("doctor", "agents.py:clerk")
    assert "! workers of clerk: none listens on queue" in done.stdout
    assert "perdure worker agents.py" in done.stdout
    with alone.worker("agents.py"):
        assert "✓ workers of clerk: there on queue" in alone("doctor", "agents.py:clerk").stdout
    gone = next(line for line in alone("doctor", "agents.py:clerk").stdout.splitlines() if "workers of clerk" in line)
    assert gone.startswith("! workers of clerk: none listens on queue")
    assert "last seen" in gone


def test_those_that_only_read_leave_an_empty_folder_empty(cli, tmp_path):
    with cli.process("dev", "--json", PERDURE_HOME=str(cli.folder / "other")) as dev:
        address = json.loads(dev.stdout.readline())["address"]
        empty = Cli(tmp_path, tmp_path / ".perdure")
        for words in (["ls"], ["doctor"], ["approvals"], ["show", "nowhere"], ["run", "nobody", "go"]):
            empty(*words, code=None, TEMPORAL_ADDRESS=address)
            assert not list(tmp_path.iterdir()), words


def test_doctor_finds_a_dead_model_endpoint_and_a_missing_key_and_prints_no_key(served):
    done = served("doctor", "agents.py:stubborn", code=1, OPENAI_API_KEY="sk-very-secret")
    assert "✗ model openai:none: The connection to http://127.0.0.1:9/v1" in done.stdout
    (served.folder / "keyless.py").write_text('from perdure import Agent\na = Agent("keyless", "openai:gpt-5")\n')
    keyless = served("doctor", "keyless.py", code=1, OPENAI_API_KEY="", OPENAI_BASE_URL="")
    assert "Set OPENAI_API_KEY" in keyless.stdout
    assert "secret" not in done.stdout + done.stderr


async def test_doctor_asks_the_model_server_for_its_models(served):
    async with ModelServer([{"text": "hello"}]) as server:
        text = (
            f'from perdure import *\na = Agent("a", "openai:m", settings=ModelSettings(base_url="{server.base_url}"))'
        )
        (served.folder / "reached.py").write_text(text)
        told = await asyncio.to_thread(served.json, "doctor", "reached.py")
    model = next(finding for finding in told["findings"] if finding["what"] == "model openai:m")
    assert model["state"] in ("ok", "note")
    assert "answers" in model["text"]


def test_doctor_without_a_server_says_what_to_do(fresh):
    done = fresh("doctor", code=1, TEMPORAL_ADDRESS="127.0.0.1:9")
    assert "✗ server: No Temporal server answers at 127.0.0.1:9" in done.stdout


# -- what is common to all ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["bogus"],
        ["run"],
        ["run", "agents.py:clerk"],
        ["run", "agents.py:clerk", "  "],
        ["run", "missing.py", "go"],
        ["run", "agents.py:nobody", "go"],
        ["run", "agents.py:clerk", "go", "--steps", "0"],
        ["run", "agents.py:clerk", "go", "--input-file", "missing.txt"],
        ["ls", "--status", "bogus"],
        ["approve", "x", "--args", "no json"],
        ["approve", "x", "--args", "[1]"],
        ["approve", "x", "--args", "{}", "--args-file", "missing.json"],
        ["settle", "x", "1.1", "perhaps"],
        ["settle", "x", "1.1", "done", "--result", "{bad"],
        ["worker"],
    ],
    ids=" ".join,
)
def test_misuse_exits_with_2_one_sentence_and_an_envelope(cli, words):
    done = cli(*words, code=2)
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    error = cli.json(*words, code=2)["error"]
    assert error["kind"] in ("usage", "not_found")
    assert error["message"].endswith(".")


def test_a_setting_that_cannot_be_is_named_and_what_can(cli):
    done = cli("ls", code=2, PERDURE_GRACE="soon")
    said = "PERDURE_GRACE is set to 'soon', which can't be: a duration is a number of seconds (7, 0.5) or ISO 8601"
    assert said in done.stderr
    cli("ls", PERDURE_GRACE="7", PERDURE_HEARTBEAT_TIMEOUT="0.5", PERDURE_CANCEL_GRACE="PT7S")


@pytest.mark.parametrize("command", ["show", "watch", "cancel", "resume", "approve", "deny"])
def test_a_run_that_does_not_exist_is_said_so(cli, command):
    error = cli.json(command, "nowhere", code=1)["error"]
    assert error["kind"] == "not_found"
    assert "There is no run 'nowhere'" in error["message"]


def test_alone_it_prints_its_commands(cli):
    shown = cli().stdout
    for command in ("demo", "dev", "worker", "run", "ls", "show", "watch", "approvals", "settle", "doctor"):
        assert command in shown
    assert cli("--version").stdout.strip()


def test_colours_are_for_terminals_alone_and_not_for_those_who_want_none(served):
    with served.terminal("doctor", "agents.py:clerk") as terminal:
        assert "\x1b[" in terminal.to_the_end()
    assert "\x1b[" not in served("doctor", "agents.py:clerk").stdout
