"""`python -m bench.history`: what a step leaves in history, from 10 steps to 3,000, beside Temporal by hand.

The tool returns 1,000 characters. The hand-written loop records each message once, too, so that what is compared is
what Perdure adds. A run of Perdure continues as new when the engine suggests it: all its histories count.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from pathlib import Path
from statistics import median

from bench.__main__ import ABSOLUTE, BARE, PERDURE, TABLES, Plan, environment, measure
from bench.report import Column, table
from perdure import Settings
from perdure.engine.server import DevServer

STEPS = [10, 100, 300, 1000, 3000]
METRICS = ["bytes", "ms", "executions"]


async def history(steps: list[int], rounds: int) -> None:
    """Measure runs of so many steps and print their tables, then how flat the history is."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        env = environment(home)
        os.environ.update(env)
        async with await DevServer.start(Settings(home=home)):
            measured = await asyncio.to_thread(measure, Plan("steps", steps, [BARE, PERDURE], rounds), env)
    for metric in METRICS:
        reference = None if metric in ABSOLUTE else BARE
        print(table(TABLES["steps"][metric], measured[metric], reference))
    print(told(steps, measured["bytes"]))


def told(steps: list[int], sizes: list[Column]) -> str:
    """Return how many bytes a step has, beside one of a run of 100, or of the shortest measured."""
    per_step = {number: median(column.values[PERDURE]) for number, column in zip(steps, sizes, strict=True)}
    base = 100 if 100 in per_step else steps[0]  # noqa: PLR2004
    parts = [f"{size / per_step[base]:.3f} at {number:,}" for number, size in per_step.items()]
    return f"\nBytes of a step, beside those at {base} steps: {', '.join(parts)}."


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.history", description="What a step leaves in history.")
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS, help="of each run; default 10 to 3,000")
    parser.add_argument("--rounds", type=int, default=1, help="how often each is measured; default 1")
    chosen = parser.parse_args()
    asyncio.run(history(chosen.steps, chosen.rounds))


if __name__ == "__main__":
    main()
