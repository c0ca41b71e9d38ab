"""`make overhead`: what it costs to be told everything of a run, beside being told nothing.

A model without latency answers with one tool call after another, so that nothing hides what telling costs. Each
measurement has a process of its own; with everything off and with everything on take turns, round after round, and what
counts is each round's ratio. Spans and metrics go to an endpoint that takes them, in a process of its own.

One run tells what its own steps cost. Many at once tell what they cost with what is told of a run after its end, which
the same worker does beside those that go on.

What can be turned on is a line of `SWITCHES`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bench.__main__ import environment
from bench.report import Column, table
from perdure import Settings
from perdure.engine.server import DevServer

OFF, ON = "everything off", "everything on"
SINK = "{sink}"
"""Stands for the address of the endpoint."""


@dataclass(frozen=True)
class Switch:
    """Something of which runs tell: the environment in which they do, and in which they do not."""

    on: Mapping[str, str]
    off: Mapping[str, str]


SWITCHES: dict[str, Switch] = {
    "OpenTelemetry": Switch(
        {"OTEL_EXPORTER_OTLP_ENDPOINT": SINK, "PERDURE_CAPTURE_CONTENT": "redacted"}, {"PERDURE_OTEL": "false"}
    ),
    "Prometheus": Switch({"PERDURE_METRICS_PORT": "0"}, {}),
    "log of events": Switch({"PERDURE_EVENT_LOG": os.devnull}, {}),
    "copies while runs go on": Switch({}, {"PERDURE_COPY_EVERY": "0"}),
    "streaming": Switch({"PERDURE_STREAM": "true"}, {"PERDURE_STREAM": "false"}),
}

METRICS = {
    "steps": {"ms": "Milliseconds per step", "cpu_ms": "CPU milliseconds per step, in the worker"},
    "burst": {"cpu_ms_per_run": "Runs of 5 steps, all started at once: CPU milliseconds per run, in the worker"},
}
HEADING = {"steps": "K={}", "burst": "{} runs"}


def variants(*, each: bool) -> dict[str, list[str]]:
    """Return what is on in each of the variants; with `each`, everything by itself as well."""
    alone = {f"{name} alone": [name] for name in SWITCHES} if each else {}
    return {OFF: [], **alone, ON: list(SWITCHES)}


def variables(on: list[str], sink: str) -> dict[str, str]:
    """Return the environment in which just that is on."""
    chosen = [switch.on if name in on else switch.off for name, switch in SWITCHES.items()]
    return {name: value.replace(SINK, sink) for some in chosen for name, value in some.items()}


def measure(
    kind: str, numbers: list[int], rounds: int, env: dict[str, str], sink: str, *, each: bool
) -> dict[str, list[Column]]:
    """Return columns by metric: numbers outside, variants taking turns inside."""
    columns = {metric: [Column(HEADING[kind].format(number)) for number in numbers] for metric in METRICS[kind]}
    for at, number in enumerate(numbers):
        for turn in range(rounds):
            for name, on in variants(each=each).items():
                print(f"{kind} {number}, round {turn + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
                command = [sys.executable, "-m", "bench.measure", kind, "perdure", str(number)]
                done = subprocess.run(command, env={**env, **variables(on, sink)}, stdout=subprocess.PIPE, check=True)
                for metric, value in json.loads(done.stdout).items():
                    if metric in columns:
                        columns[metric][at].add(name, value)
    return columns


class _Taker(BaseHTTPRequestHandler):
    """Takes whatever it is sent."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@contextmanager
def _sink() -> Generator[str]:
    """Run an endpoint in a process of its own; yield its address."""
    with subprocess.Popen([sys.executable, "-m", "bench.overhead", "--sink"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().decode().strip()
        finally:
            process.terminate()


def _serve() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Taker) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


async def bench(plans: dict[str, list[int]], rounds: int, *, each: bool) -> None:
    """Measure and print the tables."""
    with tempfile.TemporaryDirectory() as folder, _sink() as sink:
        home = Path(folder) / "home"
        kept = environment(home)
        env = {name: value for name, value in kept.items() if not name.startswith("OTEL_")}
        os.environ.update(env)
        async with await DevServer.start(Settings(home=home)):
            for kind, numbers in plans.items():
                measured = await asyncio.to_thread(measure, kind, numbers, rounds, env, sink, each=each)
                for metric, columns in measured.items():
                    print(table(METRICS[kind][metric], columns, OFF), flush=True)


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description="What it costs to be told of runs.")
    parser.add_argument("--steps", type=int, nargs="*", default=[30, 100], help="steps of a run")
    parser.add_argument("--runs", type=int, nargs="*", default=[50], help="runs at once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--each", action="store_true", help="everything by itself as well")
    parser.add_argument("--sink", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.sink:
        _serve()
    else:
        plans = {"steps": chosen.steps, "burst": chosen.runs}
        asyncio.run(
            bench({kind: numbers for kind, numbers in plans.items() if numbers}, chosen.rounds, each=chosen.each)
        )


if __name__ == "__main__":
    main()
