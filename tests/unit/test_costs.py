"""What requests have used, summed up; unknown is not zero."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from perdure.cli import cost as cli
from perdure.costs import report, summed
from perdure.messages import Usage
from perdure.usage import Prompt, UsageRow

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def row(run_id="r1", step=1, usd: str | None = "0.01", *, sent=100, **more):
    told = {"namespace": "default", "agent": "writer", "model": "openai:gpt-5", "kind": "model", "attempt": 1, **more}
    place = {"run_id": run_id, "position": f"{step}.0", "at": NOON + timedelta(minutes=step), "step": step}
    used = {"usage": Usage(input_tokens=sent, output_tokens=10), "cost_usd": None if usd is None else Decimal(usd)}
    return UsageRow.model_validate({**used, **told, **place})


def test_an_unknown_price_is_unknown_in_the_sum_and_what_is_known_is_told_beside():
    total = summed([row(), row(usd=None), row(usd="0.02")])
    assert (total.cost_usd, total.known_usd, total.unpriced) == (None, Decimal("0.03"), 1)
    assert summed([row(), row()]).cost_usd == Decimal("0.02")


def test_what_failed_and_what_was_lost_is_counted_and_told():
    lost = row(status="lost", usage=Usage(input_tokens=50, estimated=True))
    total = summed([row(), row(status="failed", usage=Usage()), lost])
    assert (total.requests, total.failed, total.lost, total.estimated) == (3, 1, 1, 1)
    assert (total.wasted.input_tokens, total.wasted_usd) == (50, Decimal("0.02"))
    assert total.usage.estimated


def test_what_costs_most_comes_first_and_days_and_steps_in_their_order():
    rows = [row("cheap", 10, "0.01"), row("dear", 2, "0.5"), row("unknown", 3, None, sent=900)]
    assert [one.name for one in report(rows, "run").groups] == ["dear", "cheap", "unknown"]
    assert [one.name for one in report([row(step=10), row(step=2), row(step=3)], "step").groups] == ["2", "3", "10"]
    days = report([row(step=3000), row(step=1)], "day").groups
    assert [one.name for one in days] == sorted(one.name for one in days)
    assert len(days) == 2


def test_steps_of_several_runs_are_told_apart():
    rows = [row("a", 10), row("a", 2), row("b", 3)]
    assert [one.name for one in report(rows, "step").groups] == ["a 2", "a 10", "b 3"]


def test_a_tool_is_charged_what_its_results_took_in_prompts():
    prompt = Prompt(instructions=10, reread=40, results={"find": 50, "book": 25})
    found = report([row(prompt=prompt, input_usd=Decimal("0.004")), row(prompt=None)], "tool")
    assert [(one.name, one.usage.input_tokens, one.cost_usd) for one in found.groups] == [
        ("find", 50, Decimal("0.002")),
        ("book", 25, Decimal("0.001")),
    ]
    assert found.total.requests == 2


def test_shares_are_of_what_is_known_to_be_weighed():
    total = summed([row(prompt=Prompt(reread=50)), row(prompt=None, sent=900)])
    assert total.weighed == 100
    assert total.share(total.prompt.reread) == 0.5
    assert summed([row(prompt=None)]).share(0) is None


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("by", ["run", "model", "tool", "step"])
def test_a_report_fits_the_terminal(width, by, monkeypatch):
    monkeypatch.setattr(cli, "shows_blocks", lambda: True)
    prompt = Prompt(instructions=10, reread=40, results={"find": 50})
    rows = [row(f"a-run-with-quite-a-long-name-{n}", n, prompt=prompt) for n in range(1, 4)]
    lines = cli.lines(report([*rows, row(usd=None, status="lost")], by, ["r1"]), width)
    assert max(map(len, lines)) <= width
    assert "Wasted: 1 of 4 requests" in " ".join(" ".join(lines).split())
    if width >= 80:
        assert any("█" in line for line in lines)


def test_csv_has_a_line_for_each_group_and_leaves_empty_what_is_not_known():
    lines = cli.as_lines_of_csv(report([row(), row("r2", usd=None)], "run")).split("\n")
    assert lines[0].startswith("run,runs,requests,failed,lost,estimated,input_tokens")
    assert lines[1].startswith("r1,1,1,0,0,0,100,0,10,0,0.01,0.01,0,")
    assert ",0,0,1,0,0," not in lines[1]
    assert lines[2].startswith("r2,1,1,0,0,0,100,0,10,0,,0,1,")
