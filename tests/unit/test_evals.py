"""Suites and checks: what a run is held to, what a few attempts tell, and errors that say where and what to do."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from perdure import AgentError
from perdure.errors import AgentNotFound
from perdure.evals import (
    Attempt,
    Called,
    Case,
    Decision,
    Evidence,
    Expect,
    Report,
    Suite,
    Verdict,
    checks,
    load_suite,
    pages,
)
from perdure.evals.results import drops
from perdure.evals.statistics import mean_pass_hat, pass_hat, wilson
from perdure.messages import CallRecord, RunResult

AGENT = """
from perdure import Agent

def polite(evidence):
    return "please" in evidence.text or "it is rude"

clerk = Agent("clerk", "openai:none", instructions="Be brief.")
"""


def found(expect: dict[str, Any], **result: Any) -> list[Verdict]:
    """Return what is found about a run that gave `result`."""
    case = Case(name="one", input="Do it", expect=Expect.model_validate(expect))
    given = RunResult.model_validate({"run_id": "r", "status": "completed", **result})
    return list(checks.verdicts(case.expect, Evidence(case, given)))


def call(name: str, status: Any = "ok", **arguments: Any) -> CallRecord:
    return CallRecord(position="1.1", name=name, arguments=arguments, status=status)


CALLS = [call("search", city="Rome"), call("book", seat={"row": 3, "place": "A"}), call("pay", "denied", usd=5)]


@pytest.mark.parametrize(
    ("expect", "result", "passes"),
    [
        ({"status": "completed"}, {}, True),
        ({"status": "completed"}, {"status": "failed", "reason": "no key"}, False),
        ({"contains": "Rome"}, {"text": "To Rome."}, True),
        ({"contains": ["Rome", "Oslo"]}, {"text": "To Rome."}, False),
        ({"lacks": "Oslo"}, {"text": "To Rome."}, True),
        ({"lacks": "Rome"}, {"text": "To Rome."}, False),
        ({"matches": r"F\d{5}"}, {"text": "Booked: F00012."}, True),
        ({"matches": r"F\d{5}"}, {"text": "Booked: F12."}, False),
        ({"json_schema": {"required": ["a"]}}, {"text": '{"a": 1}'}, True),
        ({"json_schema": {"required": ["a"]}}, {"text": '{"b": 1}'}, False),
        ({"json_schema": {"required": ["a"]}}, {"text": "a"}, False),
        ({"json_schema": {"required": ["a"]}}, {"text": "of people", "output": {"a": 1}}, True),
        ({"output": {"a": {"b": 1}}}, {"output": {"a": {"b": 1, "c": 2}}}, True),
        ({"output": {"a": {"b": 2}}}, {"output": {"a": {"b": 1}}}, False),
        ({"called": ["search", "book"]}, {"calls": CALLS}, True),
        ({"called": "pay"}, {"calls": CALLS}, False),
        ({"called": {"tool": "pay", "status": "denied"}}, {"calls": CALLS}, True),
        ({"called": {"tool": "book", "times": 2}}, {"calls": CALLS}, False),
        ({"called": {"tool": "book", "arguments": {"seat": {"row": 3}}}}, {"calls": CALLS}, True),
        ({"called": {"tool": "book", "arguments": {"seat": {"row": 4}}}}, {"calls": CALLS}, False),
        ({"not_called": "cancel"}, {"calls": CALLS}, True),
        ({"not_called": "pay"}, {"calls": CALLS}, False),
        ({"order": ["search", "pay"]}, {"calls": CALLS}, True),
        ({"order": ["pay", "search"]}, {"calls": CALLS}, False),
        ({"order": ["search", "cancel"]}, {"calls": CALLS}, False),
        ({"variables": {"seats": 2}}, {"variables": {"seats": 2}}, True),
        ({"variables": {"seats": 2}}, {"variables": {}}, False),
        ({"max_cost_usd": "0.01"}, {"cost_usd": Decimal("0.01")}, True),
        ({"max_cost_usd": "0.01"}, {"cost_usd": Decimal("0.02")}, False),
        ({"max_cost_usd": "0.01"}, {"cost_usd": None}, False),
        ({"max_steps": 3}, {"steps": 3}, True),
        ({"max_steps": 3}, {"steps": 4}, False),
        ({"max_duration": "30s"}, {"duration": timedelta(seconds=30)}, True),
        ({"max_duration": "30s"}, {"duration": timedelta(seconds=31)}, False),
    ],
)
def test_each_check_passes_and_fails_as_it_says(expect, result, passes) -> None:
    verdicts = found(expect, **result)
    assert verdicts
    assert all(one.passed for one in verdicts) is passes
    assert all(one.passed or one.reason for one in verdicts)


def test_a_few_attempts_leave_a_wide_interval() -> None:
    assert wilson(0, 0) == (0, 1)
    assert [round(bound, 4) for bound in wilson(5, 5)] == [0.5655, 1]
    assert [round(bound, 4) for bound in wilson(0, 5)] == [0, 0.4345]
    assert [round(bound, 4) for bound in wilson(8, 10)] == [0.4902, 0.9433]


def test_pass_hat_is_the_chance_that_all_of_k_pass() -> None:
    assert pass_hat(5, 5, 5) == 1
    assert pass_hat(4, 5, 5) == 0
    assert pass_hat(4, 5, 2) == pytest.approx(6 / 10)
    assert mean_pass_hat([(5, 5), (4, 5)], 2) == pytest.approx(0.8)
    assert mean_pass_hat([(1, 1)], 2) is None


def report(rates: dict[str, list[int]], model: str = "m:1") -> Report:
    """Return a report in which each case has these attempts, 1 where one passed."""
    attempts = [
        Attempt(
            case=case,
            model=model,
            repeat=nth,
            run_id=f"{case}-{nth}",
            status="completed",
            text="<b>",
            verdicts=[Verdict(check="contains 'x'", passed=bool(passed), reason="" if passed else "it is <no>\x07")],
        )
        for case, each in rates.items()
        for nth, passed in enumerate(each, 1)
    ]
    repeat = max(map(len, rates.values()))
    return Report(suite="s", id="e", models=[model], cases=list(rates), repeat=repeat, attempts=attempts)


def test_a_drop_is_what_chance_does_not_explain() -> None:
    assert drops(report({"a": [1]}), report({"a": [1]})) == []
    assert [one.case for one in drops(report({"a": [0]}), report({"a": [1]}))] == ["", "a"]
    assert drops(report({"a": [1, 1, 1, 0, 0]}), report({"a": [1, 1, 1, 1, 0]})) == []
    assert drops(report({"new": [0]}), report({"a": [1]})) == []


def test_a_drop_is_seen_beside_a_baseline_of_another_model() -> None:
    found = drops(report({"a": [0]}, "m:2"), report({"a": [1]}, "m:1"))
    assert found[-1].sentence == "a, m:2: 100% → 0%"


def test_a_report_is_read_again_from_its_json() -> None:
    before = report({"a": [1, 0]})
    assert Report.model_validate_json(json.dumps(before.as_data(), default=str)) == before


def test_junit_tells_each_attempt_whatever_a_model_has_written() -> None:
    tree = ET.fromstring(pages.junit(report({"a": [1, 0]})))
    suite = tree[0]
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [case.get("name") for case in suite] == ["a [1]", "a [2]"]
    assert suite[1][0].get("message") == "contains 'x': it is <no>\N{REPLACEMENT CHARACTER}"


def test_page_shows_what_a_model_has_written_as_text() -> None:
    page = pages.page(report({"a": [1, 0]}))
    assert "<b></p>" not in page
    assert "&lt;b&gt;" in page
    assert "it is &lt;no&gt;" in page


# -- suites that are declared --------------------------------------------------------------------------------


def declared(folder: Path, text: str) -> Suite:
    (folder / "clerk.py").write_text(AGENT, encoding="utf-8")
    (folder / "suite.yaml").write_text(text, encoding="utf-8")
    return load_suite(str(folder / "suite.yaml"))


GOOD = """\
suite: clerks
agent: clerk.py:clerk
model: scripted:replies.json
approvals:
  pay: [approve, {deny: too dear}]
expect:
  functions: clerk.py:polite
cases:
  - name: one
    input: Do it
    approvals: {ask_user: {answer: two}}
    expect: {contains: done, called: [look, {tool: pay, times: 1}]}
"""


def test_suite_in_yaml_is_the_same_as_one_in_python(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    suite = declared(tmp_path, GOOD)
    assert suite == Suite(
        suite="clerks",
        agent=suite.agent,
        model="scripted:replies.json",
        approvals={"pay": [Decision(approve=True), Decision(deny="too dear")]},
        expect=Expect(status="completed", functions=suite.expect.functions),
        cases=[
            Case(
                name="one",
                input="Do it",
                approvals={"ask_user": [Decision(answer="two")]},
                expect=Expect(contains=["done"], called=[Called(tool="look"), Called(tool="pay", times=1)]),
            )
        ],
    )
    assert suite.agent.name == "clerk"
    assert suite.expect.functions[0].__name__ == "polite"


def test_suite_in_python_is_found_by_its_file(tmp_path) -> None:
    file = tmp_path / "suites_of_clerks.py"
    suite = 'Suite(suite="s", agent=clerk, cases=[Case(name="a", input="Do it")])'
    file.write_text(f"{AGENT}\nfrom perdure.evals import Case, Suite\nmine = {suite}\n", encoding="utf-8")
    assert load_suite(str(file)).suite == "s"
    assert load_suite(f"{file}:mine").cases[0].name == "a"
    with pytest.raises(AgentNotFound, match=r"has no suite 'other'; it has mine\."):
        load_suite(f"{file}:other")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("contains: done", "contain: done", "12:14: unknown key 'contain'; did you mean 'contains'?"),
        ("name: one", "nam: one", "9:5: unknown key 'nam'; did you mean 'name'?"),
        ("clerk.py:clerk", "clerk.py:cler", "2:8: "),
        ("clerk.py:polite", "clerk.py:polit", "7:14: clerk.py has no 'polit'; did you mean 'polite'?"),
        ("contains: done", "matches: '['", "12:23: cases.0.expect.matches has to be a regular expression: "),
        ("contains: done", "judged: it is kind", "the document needs the key judge"),
        ("[approve, {deny: too dear}]", "perhaps", "5:8: approvals.pay.0 has to be approve, deny, or one of"),
        ("suite: clerks\n", "", "key 'suite' is missing; add it."),
        ("times: 1", "times: -1", "cases.0.expect.called.1.times"),
    ],
)
def test_what_is_wrong_with_a_suite_is_one_sentence_with_its_place(tmp_path, old, new, words) -> None:
    assert old in GOOD
    with pytest.raises(AgentError) as raised:
        declared(tmp_path, GOOD.replace(old, new))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


# -- the guide -----------------------------------------------------------------------------------------------

GUIDE = (Path(__file__).parents[2] / "docs/guides/evals.md").read_text(encoding="utf-8")


def test_suites_of_the_guide_can_be_declared_as_shown(tmp_path) -> None:
    (tmp_path / "checks.py").write_text("def nothing_was_paid(evidence): ...\n", encoding="utf-8")
    [python] = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)
    (tmp_path / "clerk.py").write_text(python, encoding="utf-8")
    [yaml] = re.findall(r"```yaml\n(.*?)```", GUIDE, flags=re.DOTALL)
    (tmp_path / "guide.yaml").write_text(yaml, encoding="utf-8")
    assert [case.name for case in load_suite(str(tmp_path / "guide.yaml")).cases][1] == "nobody agrees"
    assert load_suite(str(tmp_path / "clerk.py")).suite == "clerk"


def test_guide_tells_of_every_expectation_and_every_key() -> None:
    for name in (*Expect.model_fields, *Case.model_fields, *Suite.model_fields, *Called.model_fields):
        assert f"`{name}`" in GUIDE or f"{name}:" in GUIDE, name
