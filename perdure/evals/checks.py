"""The checks that need nothing but the run's result. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, cast

from perdure.evals.evidence import Evidence, Verdict
from perdure.evals.suites import Called, Expect
from perdure.messages import JSON, RunResult

_SHOWN = 200
"""Characters of an answer that a reason quotes."""


def verdicts(expect: Expect, evidence: Evidence) -> Iterator[Verdict]:
    """Yield what is found about a run, in the order in which `Expect` has its entries."""
    result = evidence.result
    if expect.status:
        yield _ended(expect.status, result)
    yield from _of_text(expect, result.text)
    yield from _of_output(expect, result)
    yield from _of_path(expect, evidence)
    for name, wanted in expect.variables.items():
        is_there = result.variables.get(name)
        yield _verdict(f"variable {name} is {_json(wanted)}", is_there == wanted, f"it is {_json(is_there)}")
    yield from _of_means(expect, result)


def _verdict(check: str, passed: bool, reason: str) -> Verdict:
    return Verdict(check=check, passed=passed, reason="" if passed else reason)


def _ended(wanted: str, result: RunResult) -> Verdict:
    return _verdict(f"ends {wanted}", result.status == wanted, f"{result.status}: {result.reason or 'no reason given'}")


def _of_text(expect: Expect, text: str) -> Iterator[Verdict]:
    said = f"the answer is {_brief(text)}"
    for one in expect.contains:
        yield _verdict(f"contains {one!r}", one in text, said)
    for one in expect.lacks:
        yield _verdict(f"lacks {one!r}", one not in text, said)
    for one in expect.matches:
        yield _verdict(f"matches {one!r}", re.search(one, text) is not None, said)


def _of_output(expect: Expect, result: RunResult) -> Iterator[Verdict]:
    if expect.json_schema is not None:
        problem = _misfit(expect.json_schema, result)
        yield _verdict("fits json_schema", not problem, problem)
    if expect.output is not None:
        check = f"output holds {_json(expect.output)}"
        yield _verdict(check, holds(result.output, expect.output), f"it is {_brief(_json(result.output))}")


def _misfit(schema: dict[str, JSON], result: RunResult) -> str:
    from jsonschema import Draft202012Validator

    value: Any = result.output
    if value is None:
        try:
            value = json.loads(result.text)
        except ValueError:
            return f"the answer is no JSON: {_brief(result.text)}"
    validator: Any = Draft202012Validator(schema)  # its stubs leave types open
    error = next(iter(validator.iter_errors(value)), None)
    return f"{'.'.join(map(str, error.path)) or 'it'}: {error.message}" if error else ""


def _of_path(expect: Expect, evidence: Evidence) -> Iterator[Verdict]:
    names = list(dict.fromkeys(call.name for call in evidence.calls))
    path = f"called were {', '.join(names) or 'no tools'}"
    for wanted in expect.called:
        yield _called(wanted, evidence)
    for tool in expect.not_called:
        yield _verdict(f"does not call {tool}", tool not in names, path)
    if expect.order:
        came = [name for name in names if name in expect.order]
        yield _verdict(
            f"order {' → '.join(expect.order)}", came == expect.order, f"it was {' → '.join(came) or 'none'}"
        )


def _called(wanted: Called, evidence: Evidence) -> Verdict:
    made = evidence.called(wanted.tool)
    fitting = [one for one in made if one.status == wanted.status and holds(one.arguments, wanted.arguments)]
    often = "" if wanted.times is None else f" {wanted.times} times"
    told = f" with {_json(wanted.arguments)}" if wanted.arguments else ""
    status = "" if wanted.status == "ok" else f", {wanted.status}"
    passed = bool(fitting) if wanted.times is None else len(fitting) == wanted.times
    calls = [f"{_brief(_json(one.arguments))} ({one.status})" for one in made[:3]]
    reason = f"{len(fitting)} such calls; of {wanted.tool} there were {', '.join(calls) or 'none'}"
    return _verdict(f"calls {wanted.tool}{often}{told}{status}", passed, reason)


def holds(value: Any, wanted: Any) -> bool:
    """Return whether all that is wanted is in a value: of mappings what is named, all else as it is."""
    if isinstance(wanted, Mapping):
        named = cast("Mapping[str, Any]", wanted)
        there = cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None
        return there is not None and all(name in there and holds(there[name], named[name]) for name in named)
    return bool(value == wanted)


def _of_means(expect: Expect, result: RunResult) -> Iterator[Verdict]:
    if expect.max_cost_usd is not None:
        cost = result.cost_usd
        said = "it is not known" if cost is None else f"{cost} USD"
        yield _verdict(f"costs at most {expect.max_cost_usd} USD", _within(cost, expect.max_cost_usd), said)
    if expect.max_steps is not None:
        check = f"at most {expect.max_steps} steps"
        yield _verdict(check, result.steps <= expect.max_steps, f"it took {result.steps}")
    if expect.max_duration is not None:
        limit, took = expect.max_duration.total_seconds(), result.duration.total_seconds()
        yield _verdict(f"within {limit:g} s", took <= limit, f"it took {took:.1f} s")


def _within(cost: Decimal | None, limit: Decimal) -> bool:
    return cost is not None and cost <= limit


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _brief(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…")
