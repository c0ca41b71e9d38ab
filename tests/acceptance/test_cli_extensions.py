"""The example package that adds to Perdure: installed beside it, and used by its names alone."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import environment

ROOT = Path(__file__).parents[2]
PATIENCE = 60


@pytest.fixture(scope="module")
def env(engine, tmp_path_factory):
    """The environment of commands where the package is installed, and one more that is broken."""
    folder = tmp_path_factory.mktemp("extension")
    site = folder / "site"
    shutil.copytree(
        ROOT / "examples/extension", folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info")
    )
    install = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site)]
    subprocess.run([sys.executable, *install, str(folder / "source")], check=True, capture_output=True)
    (site / "broken-2.dist-info").mkdir()
    (site / "broken-2.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 2\n")
    points = "[perdure.tools]\nlost = no_such_module:tools\n[perdure.memory]\nodd = json:dumps\n"
    (site / "broken-2.dist-info/entry_points.txt").write_text(points)
    env = environment(engine.folder)
    return {**env, "PYTHONPATH": os.pathsep.join([str(site), *filter(None, [env.get("PYTHONPATH"), str(ROOT)])])}


def perdure(env, folder, *words):
    command = [sys.executable, "-m", "perdure.starter", *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert "Traceback" not in done.stderr
    return done


def test_an_agent_of_extensions_alone_runs(env, tmp_path):
    shutil.copy(ROOT / "examples/extension/agent.yaml", tmp_path)
    os.mkfifo(tmp_path / "notices.log")  # whoever reads it waits for the notice
    command = [sys.executable, "-m", "perdure.starter", "worker", "agent.yaml", "--json"]
    told = {**env, "PERDURE_NOTIFY_BY": "log", "PERDURE_NOTIFY_ON": "ended"}
    with subprocess.Popen(command, cwd=tmp_path, env=told, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout
        assert json.loads(worker.stdout.readline())["event"] == "ready"
        done = perdure(told, tmp_path, "run", "gambler", "Roll", "--json")
        result = json.loads(done.stdout)
        notice = (tmp_path / "notices.log").read_text()
        worker.send_signal(signal.SIGTERM)
        worker.wait(PATIENCE)
    assert result["text"].startswith("The grey parrot heard [")
    assert f"Run {result['run_id']} (gambler) has ended, completed." in notice
    assert [(call["name"], call["status"]) for call in result["calls"]] == [("roll_dice", "ok")]


def test_doctor_lists_what_is_installed_and_what_is_wrong_with_it(env, tmp_path):
    found = {one["what"]: one for one in json.loads(perdure(env, tmp_path, "doctor", "--json").stdout)["findings"]}
    names = ("extension parrot", "extension newest", "extension games", "extension log")
    assert [found[name]["state"] for name in names] == ["ok"] * 4
    assert found["extension games"]["text"] == "perdure.tools, perdure_games.tools:TOOLS of perdure-games 1.0"
    lost, odd = found["extension lost"], found["extension odd"]
    assert lost["state"] == odd["state"] == "broken"
    assert (
        "'lost' of broken 2 (perdure.tools, no_such_module:tools) can't be loaded: ModuleNotFoundError" in lost["text"]
    )
    assert "'odd' of broken 2 (perdure.memory, json:dumps) is not what it says" in odd["text"]
    assert lost["advice"] == "Fix broken 2, or uninstall it."


def test_what_can_not_be_used_is_misuse_that_says_where(env, tmp_path):
    agent = "name: gambler\nmodel: parrot:grey\ntools: [{}]\n"
    (tmp_path / "lost.yaml").write_text(agent.format("lost"))
    (tmp_path / "gmes.yaml").write_text(agent.format("gmes"))
    lost, near = (perdure(env, tmp_path, "worker", f"{name}.yaml") for name in ("lost", "gmes"))
    assert (lost.returncode, near.returncode) == (2, 2)
    assert "lost.yaml:3:9: Extension 'lost' of broken 2" in lost.stderr
    assert "gmes.yaml:3:9: No installed package has 'gmes' for perdure.tools; did you mean 'games'?" in near.stderr
