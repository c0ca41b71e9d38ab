"""`perdure new`: from nothing to a running agent, as its README says."""

import re
import subprocess
import sys

import pytest

from tests.acceptance.conftest import Cli


@pytest.fixture(scope="module")
def made(cli):
    """The folder of an agent in YAML, and beside it that of one in Python."""
    assert "Made desk/ with agent.yaml, tools.py, script.json" in cli("new", "desk", "--yaml").stderr
    assert "Made clerk/ with agent.py, script.json" in cli("new", "clerk", "--python").stderr
    there = Cli(cli.folder / "desk", cli.folder)
    there.env = cli.env
    return there


@pytest.mark.long
def test_a_new_agent_passes_its_own_test(made):
    plugins = ["-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "perdure.testing.plugin"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "--import-mode=importlib", ".", "../clerk"]
    done = subprocess.run(command, cwd=made.folder, env=made.env, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_a_new_agent_runs_and_asks(made):
    with made.worker("agent.yaml", "../clerk/agent.py"):
        with made.terminal("run", "agent.yaml", "Refund order A7") as terminal:
            terminal.until("[l]ater: ")
            terminal.type("y\n")
            assert "Order A7: refunded 500 cents." in terminal.to_the_end()
        assert terminal.code == 0
        assert (made.folder / "refunds.txt").read_text() == "A7 500\n"
        assert (
            made.json("run", "../clerk/agent.py", "Refund order A7", "--no-wait", code=3)["status"]
            == "waiting_approval"
        )


def test_what_the_readme_of_a_new_agent_says_are_commands(made):
    shown = (made.folder / "README.md").read_text()
    assert re.findall(r"^perdure (\w+) (\S+)", shown, flags=re.MULTILINE) == [
        ("dev", "agent.yaml"),
        ("run", "agent.yaml"),
    ]
    assert (made.folder / ".gitignore").read_text().splitlines()[0] == ".env"


def test_a_new_agent_takes_no_name_that_is_none_and_no_folder_that_is_there(cli):
    (cli.folder / "taken").mkdir()
    assert "There is a 'taken' here already; choose another name" in cli("new", "taken", code=2).stderr
    assert "made of letters, digits, '-' and '_'; '../up' is not" in cli("new", "../up", code=2).stderr
