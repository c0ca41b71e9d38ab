"""A report as files for others: JUnit's XML, and a page. Pure."""

from __future__ import annotations

from html import escape
from xml.sax.saxutils import escape as xml_escape
from xml.sax.saxutils import quoteattr

from perdure.evals.evidence import Attempt, Verdict
from perdure.evals.results import Report, Row

_ILLEGAL = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 65534, 65535, *range(55296, 57344)], "�")
"""What no XML may hold."""

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1c2733; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 2rem; }
th, td { text-align: left; padding: .35rem .7rem; border-bottom: 1px solid #d8dee6; vertical-align: top; }
th { font-weight: 600; color: #51606f; } td.n { text-align: right; font-variant-numeric: tabular-nums; }
.ok { color: #12723d; } .no { color: #b3261e; } code { font-size: .9em; } summary { cursor: pointer; }
@media (prefers-color-scheme: dark) { body { background: #14191f; color: #dbe3ea; } th, td { border-color: #313b46; }
  th { color: #9aa8b5; } .ok { color: #57c785; } .no { color: #ff8a80; } }
"""


def junit(report: Report) -> str:
    """Return the report as JUnit XML: one test suite for each model, one test case for each attempt."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f"<testsuites name={_attribute(report.suite)}>"]
    for row in report.totals():
        name = f"{report.suite} · {row.model}"
        seconds = sum(one.seconds for one in row.attempts)
        counts = f'tests="{row.of}" failures="{row.of - row.passed}" errors="0" time="{seconds:.3f}"'
        lines.append(f"  <testsuite name={_attribute(name)} {counts}>")
        lines += [line for one in row.attempts for line in _testcase(name, one, report.repeat)]
        lines.append("  </testsuite>")
    return "\n".join([*lines, "</testsuites>", ""])


def _testcase(suite: str, attempt: Attempt, repeat: int) -> list[str]:
    name = attempt.case if repeat == 1 else f"{attempt.case} [{attempt.repeat}]"
    head = f'    <testcase classname={_attribute(suite)} name={_attribute(name)} time="{attempt.seconds:.3f}"'
    if attempt.passed:
        return [f"{head}/>"]
    failed = "\n".join(_words(one) for one in attempt.verdicts if not one.passed)
    text = xml_escape(f"{failed}\nrun {attempt.run_id}".translate(_ILLEGAL))
    return [f"{head}>", f"      <failure message={_attribute(attempt.reason)}>{text}</failure>", "    </testcase>"]


def _attribute(text: str) -> str:
    return quoteattr(text.translate(_ILLEGAL))


def _words(verdict: Verdict) -> str:
    return f"{verdict.check}: {verdict.reason}" if verdict.reason else verdict.check


def page(report: Report) -> str:
    """Return the report as one HTML page that needs nothing else."""
    title = escape(f"{report.suite}, evaluation {report.id}")
    head = (
        "<tr><th>case<th>model<th>passed<th>rate<th>95 %<th>pass^" + f"{report.repeat}<th>steps<th>seconds<th>USD</tr>"
    )
    rows = "\n".join(_row(row, report.repeat) for row in [*report.totals(), *report.rows()])
    attempts = "\n".join(map(_attempt, report.attempts))
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>\n'
        f"<h1>{title}</h1>\n<table>{head}\n{rows}</table>\n<h2>Attempts</h2>\n{attempts}\n</html>\n"
    )


def _row(row: Row, repeat: int) -> str:
    low, high = row.interval
    hat = row.pass_hat(repeat)
    cost = "unknown" if row.cost_usd is None else f"{row.cost_usd:.4f}"
    cells = [
        f"{row.passed}/{row.of}",
        f"{row.rate:.0%}",
        f"{low:.0%} to {high:.0%}",
        "" if hat is None else f"{hat:.0%}",
        f"{row.steps:g}",
        f"{row.seconds:.1f}",
        cost,
    ]
    numbers = "".join(f'<td class="n">{cell}' for cell in cells)
    kind = "ok" if row.passed == row.of else "no"
    return f'<tr><td class="{kind}">{escape(row.case) or "<b>all</b>"}<td>{escape(row.model)}{numbers}</tr>'


def _attempt(attempt: Attempt) -> str:
    kind, word = ("ok", "passed") if attempt.passed else ("no", "failed")
    what = escape(f"{attempt.case} · {attempt.model} · {attempt.repeat}")
    found = "".join(f'<li class="{"ok" if one.passed else "no"}">{escape(_words(one))}' for one in attempt.verdicts)
    return (
        f'<details{"" if attempt.passed else " open"}><summary><span class="{kind}">{word}</span> {what}</summary>'
        f"<p><code>{escape(attempt.run_id)}</code></p><p>{escape(attempt.text)}</p><ul>{found}</ul></details>"
    )
