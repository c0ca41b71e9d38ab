"""Runs that the engine has forgotten, as a user sees them: another engine that never had them, with the same store."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.conftest import PATIENCE, Cli, write_agents
from tests.conftest import running_engine

pytestmark = pytest.mark.long

RUN = "letter"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """The command line while the engine still has the run, which is in the archive."""
    folder = tmp_path_factory.mktemp("before")
    write_agents(folder)
    with running_engine(tmp_path_factory.mktemp("engine-before")) as settings:
        cli = Cli(folder, settings.folder)
        with cli.worker("agents.py"):
            cli("run", "agents.py:clerk", "Write to Ada.", "--id", RUN, "--no-wait", code=3)
            cli("approve", RUN)
            cli("watch", RUN)
            yield cli


@pytest.fixture(scope="module")
def forgotten(before: Cli, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """The command line afterwards."""
    with running_engine(tmp_path_factory.mktemp("engine-after")) as settings:
        cli = Cli(before.folder, settings.folder)
        cli.env["PERDURE_STORE"] = f"sqlite:///{before.env['PERDURE_HOME']}/store.db"
        until_listed(cli, RUN)
        yield cli


def until_listed(cli: Cli, run_id: str) -> None:
    """Wait until a run is in the archive: nobody is told of it."""
    deadline = time.monotonic() + PATIENCE
    while run_id not in [run["id"] for run in cli.json("ls")]:
        assert time.monotonic() < deadline, f"run {run_id} was not archived"


def without(told: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in told.items() if name not in names}


def test_show_tells_what_it_told_before_and_where_that_comes_from(before: Cli, forgotten: Cli) -> None:
    shown = forgotten("show", RUN).stdout
    assert "Archive  the engine has forgotten it" in shown
    assert "Web UI" not in shown
    of_engine = ("archived", "web_ui", "served", "workers")
    then, now = (cli.json("show", RUN, "--transcript") for cli in (before, forgotten))
    assert without(now, *of_engine) == without(then, *of_engine)
    assert (then["archived"], now["archived"]) == (False, True)
    assert forgotten("show", RUN, "--result", "1.1").stdout == "ada@example.com\n"


def test_watch_tells_the_same_events_at_the_same_positions_and_ends(before: Cli, forgotten: Cli) -> None:
    then, now = (cli("watch", RUN, "--json").stdout.splitlines() for cli in (before, forgotten))
    assert now == then
    middle = json.loads(now[len(now) // 2])["position"]
    assert forgotten("watch", RUN, "--json", "--after", middle).stdout.splitlines() == now[len(now) // 2 + 1 :]


def test_ls_lists_it_among_the_others_by_status_and_agent(forgotten: Cli) -> None:
    [run] = forgotten.json("ls", "--status", "completed", "--agent", "clerk", "--limit", "1")
    assert (run["id"], run["status"], run["archived"]) == (RUN, "completed", True)
    assert forgotten.json("ls", "--status", "failed") == []


def test_nothing_can_be_said_to_it_any_more(forgotten: Cli) -> None:
    for words in (("say", RUN, "hi"), ("resume", RUN)):
        assert f"Run {RUN} has ended" in forgotten(*words, code=1).stderr


def test_its_id_is_one_run_still(forgotten: Cli) -> None:
    again = forgotten("run", "agents.py:clerk", "Write to Ada.", "--id", RUN)
    assert again.stdout == "Done: sent to ada@example.com\n"
    assert "exists already: following it" in again.stderr
    other = forgotten("run", "agents.py:clerk", "Write to Ben.", "--id", RUN, "--detach")
    assert "exists already, for another task" in other.stderr
    assert (forgotten.folder / "sent.txt").read_text() == "ada@example.com\n"


def test_it_is_compared_and_forked_as_if_it_were_there(before: Cli, forgotten: Cli) -> None:
    assert forgotten("fork", RUN, "--at", "2", "--id", "letter-2", "--detach").stdout == "letter-2\n"
    with forgotten.worker("agents.py"):
        assert forgotten.json("run", "agents.py:clerk", "x", "--id", "letter-2")["text"].startswith("Done: sent to")
    told = forgotten.json("diff", RUN, "letter-2")
    assert (told["same"], told["right"]["forked_from"]["run_id"]) == (True, RUN)
    assert (before.folder / "sent.txt").read_text() == "ada@example.com\n"


def test_prune_removes_it_and_then_nobody_has_it(forgotten: Cli) -> None:
    told = forgotten.json("prune", "--older-than", "0s", "--dry-run")
    assert RUN in told["runs"]
    done = forgotten.json("prune", "--older-than", "0s")
    assert (done["runs"], done["blobs"]) == (told["runs"], told["blobs"])
    assert f"There is no run '{RUN}'" in forgotten("show", RUN, code=1).stderr
    forked = forgotten.json("show", "letter-2", "--transcript")
    assert forked["messages"], "the fork has lost what it needs"
