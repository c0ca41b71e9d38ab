"""Kill workers at each point of a workload of mixed tools, then at random, and count what went wrong; see `make chaos`.

python -m bench.crash --kills 200         # each point once, then 200 things broken under a dozen runs
python -m bench.crash --no-each --kills 20 --seed 7 --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.crashing import ledger
from bench.crashing.peer import Peer
from perdure.testing.crash import Report, Workload, crash
from perdure.testing.crash.report import COLUMNS, told, total

HERE = Path(__file__).parent / "crashing"
TASKS = ("See to a long order.", "See to an order that fails.", "See to a question.")
PEERS = ("duplicates", "lost", "wedged")
"""What one can count from outside."""
EVENTS = 40
"""So many events and a run continues as new: the long order does so once."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.crash", description="Kill workers, and count what went wrong."
    )
    parser.add_argument("--kills", type=int, default=int(os.environ.get("KILLS", "50")), help="things broken at random")
    parser.add_argument("--no-each", action="store_true", help="leave out the kills at each point")
    parser.add_argument("--only", default="", help="of the points, those with this in their names")
    parser.add_argument("--peers", metavar="PYTHON", help="run the long order on others too, with this interpreter")
    parser.add_argument("--workers", type=int, default=3, help="of the runs at random (default 3)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once where each point is killed at (default 2)")
    parser.add_argument("--seed", type=int, help="of what is random (default: another one each time)")
    parser.add_argument("--tasks", type=int, default=len(TASKS), help="how many of the tasks (default all)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


def _progress(part: str, done: int, of: int) -> None:
    sys.stderr.write(f"\r\033[K{part}: {done} of {of}" if sys.stderr.isatty() else "")
    sys.stderr.flush()


async def perdure(folder: Path, arguments: argparse.Namespace) -> Report:
    """Return what came of the workload on Perdure."""
    place = folder / "perdure.db"
    environment = {ledger.PLACE: str(place), "PYTHONPATH": str(HERE.parents[1])}
    workload = Workload(
        str(HERE / "agent.py"),
        TASKS[: arguments.tasks],
        lambda run: ledger.of(place, run),
        model=f"scripted:{HERE / 'orders.json'}",
        environment=environment,
        settings={"max_history_events": EVENTS},
    )
    return await crash(
        workload,
        each=not arguments.no_each,
        only=arguments.only,
        kills=arguments.kills,
        workers=arguments.workers,
        jobs=arguments.jobs,
        seed=arguments.seed,
        progress=_progress,
    )


async def peers(folder: Path, arguments: argparse.Namespace) -> dict[str, Report]:
    """Return what came of the long order elsewhere."""
    programs = {"Temporal by hand": "bare", "pydantic-ai on Temporal": "pydantic_agent"}
    given = {"workers": arguments.workers, "jobs": arguments.jobs, "seed": arguments.seed or 0}
    return {
        name: await Peer([arguments.peers, "-m", f"bench.peers.{program}"], folder / program, arguments.only).crash(
            each=not arguments.no_each, kills=arguments.kills, **given
        )
        for name, program in programs.items()
    }


def table(reports: dict[str, Report]) -> Table:
    """Return the table of what was counted."""
    shown = Table(title="What went wrong")
    for heading in ("", "Killed", "Runs", *COLUMNS.values()):
        shown.add_column(heading, justify="right" if heading in ("Runs", *COLUMNS.values()) else "left")
    for name, report in reports.items():
        for part, runs in report.parts().items():
            counts = asdict(total(runs))
            cells = [str(counts[column]) if name == "Perdure" or column in PEERS else "–" for column in COLUMNS]
            shown.add_row(name, part, str(len(runs)), *cells)
    return shown


def main() -> int:
    """Run it, and return 1 if anything went wrong."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # workers end with it
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="bench-crash-") as folder:
        reports = {"Perdure": asyncio.run(perdure(Path(folder), arguments))}
        if arguments.peers:
            reports |= asyncio.run(peers(Path(folder), arguments))
    if arguments.json:
        print(json.dumps({name: report.as_json() for name, report in reports.items()}, indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else 140).print(table(reports))
        for name, report in reports.items():
            missed = sum(not run.reached for run in report.runs)
            broken = ", ".join(f"{way} {times}" for way, times in report.broken.items()) or "nothing"
            sys.stderr.write(
                f"\n{name}: seed {report.seed}; broken at random: {broken}; points not come to again: {missed}\n"
            )
            sys.stderr.writelines(f"\n{told(run)}\n" for run in report.unsound)
    return int(bool(reports["Perdure"].counts))


if __name__ == "__main__":
    sys.exit(main())
