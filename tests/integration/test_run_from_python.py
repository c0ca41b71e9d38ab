"""`perdure.run`, from a script in an empty folder, with nothing running."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import asyncio
import perdure
from perdure import Agent, tool

@tool(effect="read")
def add(a: int, b: int) -> int:
    "Add two numbers."
    with open("added.txt", "a") as added:
        added.write(f"{a}+{b} ")
    return a + b

calculator = Agent("calculator", model="scripted:script.json", tools=[add])

if __name__ == "__main__":
    result = asyncio.run(perdure.run(calculator, "How much is 1 + 2?", id="sum"))
    print(result.model_dump_json())
"""
REPLIES = [{"calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}, {"text": "It is ${add}."}]


def run_script(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(SCRIPT)
    (folder / "script.json").write_text(json.dumps(REPLIES))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "PERDURE_"))}
    return subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_a_script_starts_engine_and_worker_by_itself_and_the_same_id_is_one_run(tmp_path: Path) -> None:
    first = run_script(tmp_path)
    assert first.returncode == 0, first.stderr
    result = json.loads(first.stdout)
    assert (result["status"], result["text"], result["run_id"]) == ("completed", "It is 3.", "sum")
    again = run_script(tmp_path)
    assert json.loads(again.stdout) == result
    assert (tmp_path / "added.txt").read_text() == "1+2 ", "the second script started another run"


def test_a_script_never_starts_an_engine_in_place_of_one_that_the_environment_names(tmp_path: Path) -> None:
    done = run_script(tmp_path, TEMPORAL_ADDRESS="127.0.0.1:1")
    assert done.returncode != 0
    assert "127.0.0.1:1" in done.stderr
    assert not (tmp_path / ".perdure" / "temporal.db").exists()
