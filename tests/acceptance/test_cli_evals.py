"""`perdure eval`, as seen from a terminal; also where it is killed."""

from __future__ import annotations

import json
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.acceptance.conftest import PATIENCE, Cli

SUITE = """\
suite: payers
agent: payer.py:payer
approvals: {pay: approve}
cases:
  - name: pays
    input: Pay A7
    expect: {called: {tool: pay, times: 1}, contains: paid}
  - name: asks nobody
    input: Just say it
    expect: {not_called: pay}
"""

AGENT = '''
from pathlib import Path

from perdure import Agent, tool

HERE = Path(__file__).parent


@tool(approval="always", timeout=60)
def pay(order: str) -> str:
    """Pay an order."""
    with (HERE / "paid.txt").open("a") as file:
        file.write(f"{order}\\n")
    return "paid"


payer = Agent("payer-of-suites", f"scripted:{HERE / 'good.json'}", tools=[pay])
'''

PAYS = {"calls": [{"name": "pay", "arguments": {"order": "A7"}}]}
TALKS = {"about": "Just say it", "text": "It is said."}


def write_suite(folder: Path, delay: float = 0) -> None:
    """Write a suite, its agent, and two models: one that does what is wanted, one that talks."""
    (folder / "suite.yaml").write_text(SUITE)
    (folder / "payer.py").write_text(AGENT)
    good = [PAYS, {"text": "It is ${pay}.", "delay": delay}, TALKS]
    (folder / "good.json").write_text(json.dumps(good))
    (folder / "bad.json").write_text(json.dumps([{"text": "Consider it paid."}, TALKS]))


@pytest.mark.long
def test_rates_are_told_and_a_drop_below_the_baseline_fails(elsewhere) -> None:
    cli: Cli = elsewhere()
    write_suite(cli.folder)
    good = cli(
        "eval", "suite.yaml", "--repeat", "2", "--jobs", "8", "--json", "good.out", "--baseline", "good.json", code=2
    )
    assert "good.json is not what `perdure eval --json FILE` writes" in good.stdout + good.stderr
    good = cli("eval", "suite.yaml", "--repeat", "2", "--jobs", "8", "--json", "good.out")
    table = good.stdout.splitlines()
    assert table[0].split()[:4] == ["CASE", "MODEL", "PASSED", "RATE"]
    assert "2/2" in table[1]
    assert "4/4" in table[3]
    files = ("--junit", "bad.xml", "--html", "bad.html", "--baseline", "good.out")
    bad = cli("eval", "suite.yaml", "--model", "scripted:bad.json", "--repeat", "2", "--jobs", "8", *files, code=1)
    assert "Dropped: all cases, scripted:bad.json: 100% → 50%" in bad.stderr
    assert "Dropped: pays, scripted:bad.json: 100% → 0%" in bad.stderr
    suite = ET.parse(cli.folder / "bad.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("4", "2")
    assert "Consider it paid." in (cli.folder / "bad.html").read_text()


@pytest.mark.long
def test_evaluation_that_was_killed_goes_on_under_its_id(elsewhere) -> None:
    cli: Cli = elsewhere()
    write_suite(cli.folder, delay=0.5)
    command = (
        "eval",
        "suite.yaml",
        "--case",
        "pays",
        "--repeat",
        "6",
        "--jobs",
        "2",
        "--id",
        f"killed-{cli.folder.name}",
    )
    paid, deadline = cli.folder / "paid.txt", time.monotonic() + PATIENCE
    with cli.process(*command) as process:
        while not paid.exists() or len(paid.read_text().splitlines()) < 3:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.kill()
        process.wait(PATIENCE)
    before = len(paid.read_text().splitlines())
    again = cli(*command, "--json", "-")
    report = json.loads(again.stdout)
    assert report["totals"][0]["passed"] == 6
    again_paid = len(paid.read_text().splitlines())
    spoilt = sum(one["run_id"].count(".") > 4 for one in report["attempts"])
    assert again_paid <= 6 + spoilt
    assert before >= 3


def test_what_is_wrong_is_told_before_anything_runs(elsewhere) -> None:
    cli: Cli = elsewhere()
    write_suite(cli.folder)
    for words, told in {
        ("--case", "nope"): "suite.yaml has no case 'nope'; it has pays, asks nobody.",
        ("--model", "nobody:x"): "Model 'nobody:x': provider 'nobody' is not known here",
        ("--id", "a b"): "An evaluation's id has 1 to 40 letters",
        ("--html", "nowhere/page.html"): "there is no folder nowhere",
    }.items():
        done = cli("eval", "suite.yaml", *words, code=2)
        assert told in done.stderr
        assert "Evaluation " not in done.stderr
