"""Whether a deploy would break runs, told before it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import typer

from perdure import starter
from perdure.cli import output
from perdure.testing import check_histories
from tests.replay.replaying import FOLLOWERS, HERE, NAMES, follower_of

NAME = NAMES[0]


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    line = ["check-histories", *words]
    command = typer.main.get_command(starter.app)
    code = output.guarded(lambda: command.main(line, prog_name="perdure", standalone_mode=False), line)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A folder with a run that today's code would lead otherwise, and one of another application."""
    history = json.loads((HERE / "histories" / f"{NAME}.json").read_text("utf-8"))
    whole = json.dumps(history)
    (tmp_path / "foreign.json").write_text(whole.replace('"AgentWorkflow"', '"TheirWorkflow"'), encoding="utf-8")
    (tmp_path / "changed.json").write_text(whole.replace('"perdure.model"', '"perdure.models"'), encoding="utf-8")
    return tmp_path


async def test_folder_of_histories_of_runs_that_would_go_on(tmp_path: Path) -> None:
    for name in NAMES[:3]:  # test_replay.py replays them all
        shutil.copy(HERE / "histories" / f"{name}.json", tmp_path)
    checked = [one async for one in check_histories(tmp_path)]
    assert [(one.verdict, one.why) for one in checked] == [("fine", "")] * 3


@pytest.mark.parametrize("name", FOLLOWERS[:1])
async def test_what_follows_a_run_is_checked_as_well(name: str, tmp_path: Path) -> None:
    (tmp_path / "it.json").write_text(follower_of(name).to_json(), encoding="utf-8")
    assert [one.verdict async for one in check_histories(tmp_path)] == ["fine"]


def test_run_that_would_break_is_named_with_the_reason(other: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, str(other))
    assert code == 1
    assert "1 history replayed, 1 would break, 0 of them running; 1 of other workflows left out" in out
    assert "changed.json" in err
    assert "perdure.model" in err
    code, out, _ = told(capsys, str(other), "--json")
    assert code == 1
    assert {one["verdict"] for one in json.loads(out)["checked"]} == {"breaks", "foreign"}


@pytest.mark.parametrize("content", [None, "{}", "no JSON"])
def test_folder_without_histories_is_misuse(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content:
        (tmp_path / "case.json").write_text(content, encoding="utf-8")
    code, _, err = told(capsys, str(tmp_path))
    assert code == 2
    assert str(tmp_path) in err


def test_no_source_or_two_is_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys)[0] == told(capsys, ".", "--from-server")[0] == told(capsys, ".", "--query", "x")[0] == 2
