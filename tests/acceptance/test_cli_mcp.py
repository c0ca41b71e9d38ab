"""MCP servers on the command line: a worker that is killed in a call, and what the doctor says."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

PLAIN = Path(__file__).parents[1] / "mcp_servers" / "plain.py"
AGENT = """
import sys
from pathlib import Path
from perdure import Agent, MCPServer

HERE = Path(__file__).parent
desk = MCPServer("desk", command=[sys.executable, "-S", {plain!r}, str(HERE)])
teller = Agent("teller-{name}", f"scripted:{{HERE / 'script.json'}}", tools=[desk])
broken = MCPServer("broken", command=[sys.executable, "-c", "raise SystemExit('no licence')"])
bad = Agent("bad-{name}", f"scripted:{{HERE / 'script.json'}}", tools=[broken])
"""
SCRIPT = [{"calls": [{"name": "hold"}]}, {"text": "Done: ${hold}"}]
PATIENCE = 60


def until(fits):
    end = time.monotonic() + PATIENCE
    while not fits():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def desk(elsewhere):
    cli = elsewhere()
    name = cli.folder.name.replace("_", "-")
    (cli.folder / "desk.py").write_text(AGENT.format(plain=str(PLAIN), name=name))
    (cli.folder / "script.json").write_text(json.dumps(SCRIPT))
    tools = [{"name": "hold", "description": "Holds.", "inputSchema": {"type": "object"}}]
    (cli.folder / "tools.json").write_text(json.dumps(tools))
    yield cli, f"teller-{name}"
    (cli.folder / "go").touch()


def pids(cli):
    journal = cli.folder / "journal"
    lines = journal.read_text().splitlines() if journal.exists() else []
    return [int(line.split()[0]) for line in lines if " starts " in line]


@pytest.mark.long
def test_a_worker_killed_in_a_call_leaves_a_doubt_and_no_server(desk):
    cli, agent = desk
    journal = cli.folder / "journal"
    with cli.process("worker", "desk.py", "--json") as worker:
        assert worker.stdout
        assert json.loads(worker.stdout.readline())["event"] == "ready"
        run = f"{agent}-run"
        cli("run", agent, "go", "--id", run, "--detach")
        until(lambda: journal.exists() and " holds" in journal.read_text())
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    (server,) = pids(cli)
    until(lambda: not is_there(server))  # it was busy, and did not care for its stdin
    (cli.folder / "go").touch()
    with cli.worker("desk.py"):
        until(lambda: cli.json("show", run)["status"] == "waiting_decision")
        cli("settle", run, "1.1", "retry")
        until(lambda: cli.json("show", run)["status"] == "completed")
    assert len(pids(cli)) == 2
    assert not is_there(pids(cli)[1])
    assert "tools listed: desk: hold" in cli("show", run).stdout


def test_the_doctor_says_what_servers_offer_and_why_one_can_not_be_used(desk):
    cli, _ = desk
    said = {one["what"]: one for one in cli.json("doctor", "desk.py", code=1)["findings"]}
    assert said["MCP server desk"]["state"] == "ok"
    assert "hold (unsafe)" in said["MCP server desk"]["text"]
    assert said["MCP server broken"]["state"] == "broken"
    assert "no licence" in said["MCP server broken"]["text"]
