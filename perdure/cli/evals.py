"""`perdure eval`: a suite of cases, each a real run, and whether what it finds has become worse."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import session
from perdure.cli.output import (
    DONE,
    FAILED,
    INTERRUPTED,
    Misuse,
    as_json,
    coloured,
    columns,
    data,
    lay_out,
    one_line,
    paint,
    safe,
    say,
)
from perdure.errors import PerdureError

if TYPE_CHECKING:
    from perdure.evals import Attempt, Report, Suite
    from perdure.evals.results import Row
    from perdure.evals.running import OnAttempt
    from perdure.settings import Settings


def eval(  # noqa: A001 - the command's name
    suite: Annotated[str, typer.Argument(metavar="SUITE", help="FILE.yaml, FILE.py[:name] or module[:name].")],
    *,
    model: Annotated[
        list[str] | None, typer.Option(metavar="PROVIDER:NAME", help="Compare these. Default: the suite's.")
    ] = None,
    judge: Annotated[
        str | None, typer.Option(metavar="PROVIDER:NAME", help="Judges by rubrics. Default: the suite's.")
    ] = None,
    case: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only these cases.")] = None,
    repeat: Annotated[int, typer.Option(min=1, max=1000, help="Attempts at each case with each model.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, max=200, help="Attempts at once.")] = 4,
    id: Annotated[
        str | None, typer.Option("--id", help="The evaluation's; the same one again takes up what was done.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An earlier --json FILE: exit 1 only where a rate has dropped.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML there.")] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JSON there; - is stdout.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page there.")] = None,
) -> int:
    """Try an agent on the cases of a suite, each a real run, and tell how often each passes.

    A worker of this process serves the agent; where no engine runs, one does meanwhile. Exit code: 0 all passed (with
    --baseline: nothing dropped); 1 something did not, or no server; 2 misuse, or a faulty suite.
    """
    from perdure.evals import running

    chosen = _narrowed(suite, case or [], judge)
    settings, evaluation, models = (
        session.settings(),
        id or running.new_evaluation(),
        running.models_of(chosen, model or []),
    )
    before = _checked(chosen, models, evaluation, [junit, json, html], baseline)
    try:
        report = session.finish(_evaluated(settings, chosen, evaluation, models, repeat, jobs))
    except KeyboardInterrupt:
        again = f"perdure eval {shlex.quote(suite)} --id {shlex.quote(evaluation)}"
        say(f"\nWhat is done is kept. Go on with the same options and {safe(again)}.")
        return INTERRUPTED
    _write(report, junit, json, html)
    if json is None or str(json) != "-":
        lay_out(_table(report))
    _tell_failures(report)
    return _judged(report, before)


def _narrowed(reference: str, cases: Sequence[str], judge: str | None) -> Suite:
    from perdure.evals import load_suite

    suite = load_suite(reference)
    names = [case.name for case in suite.cases]
    if unknown := [name for name in cases if name not in names]:
        raise Misuse(f"{reference} has no case {unknown[0]!r}; it has {', '.join(names)}.")
    kept = [case for case in suite.cases if case.name in cases] if cases else suite.cases
    return suite.model_copy(update={"cases": kept, "judge": judge or suite.judge})


def _checked(
    suite: Suite, models: Sequence[str], evaluation: str, files: Sequence[Path | None], baseline: Path | None
) -> Report | None:
    """Return the baseline; whatever can be known to be wrong is told before anything is paid for."""
    from perdure.evals import running

    try:
        running.check(suite, models, evaluation, session.settings())
    except PerdureError as error:
        raise Misuse(str(error)) from error
    for file in files:
        if file and not file.parent.is_dir():
            raise Misuse(f"{file} can't be written: there is no folder {file.parent}.")
    return _read(baseline) if baseline else None


def _read(file: Path) -> Report:
    from pydantic import ValidationError

    from perdure.evals import Report

    try:
        return Report.model_validate_json(file.read_bytes())
    except OSError as error:
        raise Misuse(f"{file} can't be read: {error.strerror}.") from error
    except ValidationError as error:
        raise Misuse(f"{file} is not what `perdure eval --json FILE` writes.") from error


async def _evaluated(
    settings: Settings, suite: Suite, evaluation: str, models: Sequence[str], repeat: int, jobs: int
) -> Report:
    from perdure.engine import runtime
    from perdure.engine.connection import target
    from perdure.engine.server import DevServer
    from perdure.evals import evaluate

    runtime.prepare()
    logging.getLogger("temporalio").setLevel(logging.CRITICAL)  # what fails in a run is in the run, and in the report
    attempts = len(suite.cases) * len(models) * repeat
    say(f"Evaluation {safe(evaluation)} of suite {suite.suite}, attempts: {attempts}.")
    async with AsyncExitStack() as stack:
        if not target(settings).options.get("target_host"):
            await stack.enter_async_context(await DevServer.start(settings))
        client = await session.connect(settings)
        with _progress(attempts) as tell:
            return await evaluate(
                suite, client, models=models, repeat=repeat, jobs=jobs, id=evaluation, on_attempt=tell
            )


@contextmanager
def _progress(attempts: int) -> Generator[OnAttempt]:
    """Show on a terminal how far it is; into a pipe, one line for each attempt."""
    if not coloured(sys.stderr):
        yield lambda attempt: say(_line(attempt))
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    words = TextColumn("{task.fields[passed]} passed, {task.fields[failed]} failed")
    with Progress(
        BarColumn(), MofNCompleteColumn(), words, TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as progress:
        bar = progress.add_task("", total=attempts, passed=0, failed=0)
        counts = {True: 0, False: 0}

        def tell(attempt: Attempt) -> None:
            counts[attempt.passed] += 1
            progress.update(bar, advance=1, passed=counts[True], failed=counts[False])

        yield tell


def _line(attempt: Attempt) -> str:
    word = paint("passed", "green", sys.stderr) if attempt.passed else paint("failed", "red", sys.stderr)
    return f"{word}  {one_line(attempt.case)} · {safe(attempt.model)} · {attempt.repeat}"


def _write(report: Report, junit: Path | None, json: Path | None, html: Path | None) -> None:
    from perdure.evals import pages

    text = as_json(report.as_data(), indent=2)
    if str(json) == "-":
        data(text)
        json = None
    wanted: list[tuple[Path | None, Callable[[Report], str]]] = [(junit, pages.junit), (html, pages.page)]
    for file, words in [(file, made(report)) for file, made in wanted if file] + (
        [(json, f"{text}\n")] if json else []
    ):
        try:
            file.write_text(words, encoding="utf-8", errors="replace")
        except OSError as error:
            raise Misuse(f"{file} can't be written: {error.strerror}.") from error


# -- what is shown -------------------------------------------------------------------------------------------


def _table(report: Report) -> str:
    head = ["CASE", "MODEL", "PASSED", "RATE", "95 %", f"PASS^{report.repeat}", "STEPS", "SECONDS", "USD"]
    rows = report.rows()
    lines = [_cells(row, report.repeat) for row in rows]
    if len(report.cases) > 1:
        lines += [_cells(row, report.repeat) for row in report.totals()]
    return columns([head, *lines], {0: lambda cell: paint(cell, "bold"), 3: _rate})


def _cells(row: Row, k: int) -> list[str]:
    low, high = row.interval
    hat = row.pass_hat(k)
    return [
        one_line(row.case, 50) or "all",
        one_line(row.model, 40),
        f"{row.passed}/{row.of}",
        f"{row.rate:.0%}",
        f"{low:.0%} to {high:.0%}",
        "" if hat is None else f"{hat:.0%}",
        f"{row.steps:g}",
        f"{row.seconds:.1f}",
        "unknown" if row.cost_usd is None else f"{row.cost_usd:.4f}",
    ]


def _rate(cell: str) -> str:
    return paint(cell, {"100%": "green", "RATE": ""}.get(cell, "red"))


_FAILURES = 20
"""So many are told in full."""


def _tell_failures(report: Report) -> None:
    failed = [one for one in report.attempts if not one.passed]
    for attempt in failed[:_FAILURES]:
        say(f"{_line(attempt)}\n        {one_line(attempt.reason, 500)}\n        perdure show {safe(attempt.run_id)}")
    if len(failed) > _FAILURES:
        say(f"… and {len(failed) - _FAILURES} more; --json FILE or --html FILE has them all.")


def _judged(report: Report, before: Report | None) -> int:
    from perdure.evals.results import drops

    if before is None:
        return DONE if report.passed else FAILED
    fallen = drops(report, before)
    for drop in fallen:
        say(paint(f"Dropped: {safe(drop.sentence)}", "red", sys.stderr))
    if not fallen:
        say("Nothing has dropped below the baseline.")
    return FAILED if fallen else DONE
