"""`make bench`: what Perdure costs beside Temporal by hand, in tables for `docs/benchmarks.md`.

Every measurement has a process of its own; the subjects take turns, round after round, on one server. What counts
is each round's ratio to `bare` in that same round: it stays where the machine's speed does not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.report import Column, table
from perdure import Settings
from perdure.engine.server import DevServer

BARE, PERDURE, LOCAL = "bare", "perdure", "perdure, local=True"
VARIANTS = [BARE, "bare, unsandboxed", "bare, local activity", PERDURE, LOCAL]
UNSAFE = "perdure, unsafe with probe"


@dataclass(frozen=True)
class Plan:
    """One kind of measurement, with which numbers, of whom, how often."""

    kind: str
    numbers: Sequence[int]
    subjects: Sequence[str]
    rounds: int


SHORT = [
    Plan("steps", [10, 30, 100], [BARE, PERDURE, LOCAL], 5),
    Plan("burst", [50], [BARE, PERDURE, LOCAL], 3),
    Plan("idle", [200], [BARE, PERDURE], 3),
    Plan("crash", [1], [BARE, PERDURE, UNSAFE], 1),
]
FULL = [
    Plan("steps", [10, 30, 100, 300], VARIANTS, 5),
    Plan("steps", [1000], [BARE, PERDURE, LOCAL], 3),
    Plan("burst", [200], VARIANTS, 3),
    Plan("idle", [900], [BARE, PERDURE], 3),
    Plan("crash", [1], [BARE, PERDURE, UNSAFE], 3),
]

TABLES = {
    "steps": {
        "ms": "Milliseconds per step",
        "cpu_ms": "CPU milliseconds per step, in the worker",
        "bytes": "Bytes of history per step",
        "events": "Events of history per step",
        "workflow_tasks": "Workflow tasks per step",
        "executions": "Executions, each with a history of its own",
    },
    "burst": {
        "runs_per_s": "Runs of 5 steps, all started at once: runs per second",
        "cpu_ms_per_run": "Runs of 5 steps, all started at once: CPU milliseconds per run, in the worker",
    },
    "idle": {"kb_per_run": "Runs that wait for approval: KB of worker memory each"},
    "crash": {
        "seconds": "kill -9 while a tool runs, another worker started at once: seconds until the run's end",
        "began": "kill -9 while a tool runs: how often the tool began",
    },
}
ABSOLUTE = {"seconds", "began", "executions"}
"""Metrics that the machine's speed does not change: shown as they are, not as ratios."""

COLUMN = {"steps": "K={}", "burst": "{} runs", "idle": "{} runs", "crash": "kill -9"}

TEMPORAL = "import temporalio.{activity,client,worker,workflow}"
IMPORTS = {
    TEMPORAL: ["-c", "import temporalio.activity, temporalio.client, temporalio.worker, temporalio.workflow"],
    "python alone": ["-c", ""],
    "import perdure": ["-c", "import perdure"],
    "from perdure import Agent, tool": ["-c", "from perdure import Agent, tool"],
    "what a worker imports": ["-c", "import perdure.worker"],
    "perdure --help": ["-m", "perdure.starter", "--help"],
}


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a measurement: nothing that this machine is set up for, but the server in `home`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "PERDURE_"))}
    return {**kept, "PERDURE_HOME": str(home), "TEMPORAL_CONFIG_FILE": os.devnull}


def measure(plan: Plan, env: dict[str, str]) -> dict[str, list[Column]]:
    """Return a plan's columns by metric: numbers and rounds outside, subjects taking turns inside."""
    columns = {metric: [Column(COLUMN[plan.kind].format(n)) for n in plan.numbers] for metric in TABLES[plan.kind]}
    for at, number in enumerate(plan.numbers):
        for turn in range(plan.rounds):
            for name in plan.subjects:
                told = f"{plan.kind} {number}, round {turn + 1} of {plan.rounds}: {name}"
                measured = _one(["-m", "bench.measure", plan.kind, name, str(number)], env, told)
                for metric, value in measured.items():
                    columns[metric][at].add(name, value)
    return columns


def _one(arguments: Sequence[str], env: dict[str, str], told: str) -> dict[str, float]:
    print(told, file=sys.stderr, flush=True)
    done = subprocess.run([sys.executable, *arguments], env=env, stdout=subprocess.PIPE, check=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def measure_imports(rounds: int, env: dict[str, str]) -> Column:
    """Return how long a process takes from its start to its end, in milliseconds."""
    column = Column("milliseconds")
    for turn in range(rounds + 1):
        for name, arguments in IMPORTS.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, *arguments], env=env, stdout=subprocess.DEVNULL, check=True)
            if turn:  # the first writes bytecode
                column.add(name, 1_000 * (time.perf_counter() - began))
    return column


async def bench(plans: Sequence[Plan], *, imports: int) -> None:
    """Measure all of `plans` and print their tables."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        env = environment(home)
        os.environ.update(env)
        async with await DevServer.start(Settings(home=home)):
            for plan in plans:
                for metric, columns in (await asyncio.to_thread(measure, plan, env)).items():
                    reference = None if metric in ABSOLUTE else BARE
                    print(table(TABLES[plan.kind][metric], columns, reference), flush=True)
        if imports:
            print(table("A process that does no more than this", [measure_imports(imports, env)], TEMPORAL))


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="What Perdure costs beside Temporal by hand.")
    parser.add_argument(
        "--full", action="store_true", help="more steps, runs, subjects and rounds: half an hour or more"
    )
    kinds = [*TABLES, "imports"]
    parser.add_argument("--only", choices=kinds, nargs="+", default=kinds, help="only these kinds of measurement")
    chosen = parser.parse_args()
    plans = [plan for plan in (FULL if chosen.full else SHORT) if plan.kind in chosen.only]
    asyncio.run(bench(plans, imports=10 if "imports" in chosen.only else 0))


if __name__ == "__main__":
    main()
