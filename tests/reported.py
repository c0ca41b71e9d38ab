"""What users of such systems report as broken, and the tests that hold it here: `@pytest.mark.reported(13)`.

`python -m tests.reported` writes the page of the documentation.
"""

from __future__ import annotations

import ast
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "reported.md"


@dataclass(frozen=True)
class Report:
    """What somebody reported.

    Attributes:
        where: The issues of the projects that it was reported to.
        symptom: What happens there.
        instead: What has to happen.
    """

    where: str
    symptom: str
    instead: str


def _read() -> dict[int, Report]:
    with (TESTS / "reported.csv").open(encoding="utf-8", newline="") as rows:
        return {int(number): Report(*told) for number, *told in csv.reader(rows)}


REPORTS = _read()


@dataclass(frozen=True)
class Held:
    """A test that holds a report: its file, from the folder of the project, and its name."""

    file: str
    name: str


def held() -> dict[int, list[Held]]:
    """Return the tests that say which report they hold, by its number."""
    found: dict[int, list[Held]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for test, numbers in _marked(ast.parse(path.read_text("utf-8"))):
            for number in numbers:
                held = Held(path.relative_to(TESTS.parent).as_posix(), test)
                found.setdefault(number, []).append(held)
    return found


def _marked(tree: ast.Module) -> Iterator[tuple[str, list[int]]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.reported":
                yield node.name, [ast.literal_eval(number) for number in mark.args]


def page() -> str:
    """Return the page of the documentation that lists all reports with their tests."""
    tests = held()
    lines = [
        "# What users of such systems report as broken",
        "",
        "Each line was reported to a runtime or library for agents, with what has to happen instead, and the tests",
        "that fail where it does not happen here. Written by `make docs`; a report without a test fails the checks.",
        "",
        "| | reported | symptom | instead | held by |",
        "|---|---|---|---|---|",
    ]
    for number, report in REPORTS.items():
        by = "<br>".join(f"[{_words(test.name)}](../{test.file})" for test in tests.get(number, []))
        cells = (cell.replace("|", "\\|") for cell in (_links(report.where), report.symptom, report.instead, by))
        lines.append(f"| {number} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _words(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def _links(where: str) -> str:
    issues = (issue.split("#") for issue in where.split(", "))
    return ", ".join(f"[{repo}#{number}](https://github.com/{repo}/issues/{number})" for repo, number in issues)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
