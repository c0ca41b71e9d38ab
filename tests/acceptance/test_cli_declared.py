"""Agents in YAML, as a user serves and runs them."""

import json

import pytest

from tests.acceptance.conftest import Cli

TOOLS = '''
def address_of(name: str) -> str:
    """Look up an address."""
    return f"{name}@example.com"
'''
AGENT = """
name: porter
model: scripted:script.json
tools:
  - function: porter_tools:address_of
    effect: read
"""
SCRIPT = [{"calls": [{"name": "address_of", "arguments": {"name": "ada"}}]}, {"text": "She is ${address_of}."}]


@pytest.fixture(scope="module")
def porter(cli):
    folder = cli.folder / "porter"
    folder.mkdir()
    (folder / "porter_tools.py").write_text(TOOLS)
    (folder / "agent.yaml").write_text(AGENT)
    (folder / "script.json").write_text(json.dumps(SCRIPT))
    (folder / "wrong.yaml").write_text(AGENT.replace("effect:", "efect:"))
    there = Cli(folder, cli.folder)
    there.env = cli.env
    with there.worker("agent.yaml"):
        yield there


def test_a_yaml_file_is_taken_where_a_python_file_is(porter):
    assert porter("run", "agent.yaml", "go").stdout == "She is ada@example.com.\n"
    assert porter("run", "agent.yaml:porter", "go").stdout == "She is ada@example.com.\n"
    assert porter("run", "porter", "go").stdout == "She is ada@example.com.\n"
    found = {one["what"]: one["state"] for one in porter.json("doctor", "agent.yaml")["findings"]}
    assert found["workers of porter"] == "ok"


def test_an_error_in_a_yaml_file_is_misuse_with_its_place(porter):
    told = "wrong.yaml:6:5: unknown key 'efect'; did you mean 'effect'?"
    assert told in porter("run", "wrong.yaml", "go", code=2).stderr
    assert porter.json("run", "wrong.yaml", "go", code=2)["error"] == {"kind": "agent", "message": told}
    assert told in porter("worker", "wrong.yaml", code=2).stderr
