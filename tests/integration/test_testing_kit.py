"""The testing kit, as a user's test suite has it."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, AgentError, Approval, tool
from perdure.testing import Fake, ScriptedModel, assert_never_twice, call


@tool(effect="read")
def look_up(order: str) -> str:
    """Look an order up."""
    raise AssertionError("a test must not come here")


@tool(approval="always")
def refund(order: str, cents: int) -> str:
    """Refund an order."""
    raise AssertionError("a test must not come here")


clerk = Agent("clerk", "openai:none", instructions="Look before you refund.", tools=[look_up, refund])
SCRIPT: list[Any] = [call("look_up", order="A7"), call("refund", order="A7", cents=500), "Order A7: ${refund}."]


def test_agent_is_tested_in_ten_lines(perdure_env):
    model, pay = ScriptedModel(SCRIPT), Fake("refunded 5 euros")
    with perdure_env.start(clerk, "Refund A7", model=model, tools={"look_up": "delivered", "refund": pay}) as run:
        assert run.until_asked().arguments == {"order": "A7", "cents": 500}
        assert not pay.calls
        run.approve()
        assert run.result().text == "Order A7: refunded 5 euros."
    assert pay.arguments == [{"order": "A7", "cents": 500}]
    assert_never_twice(pay)
    model.assert_shown("Look before you refund.", "delivered", "refund")
    model.assert_finished()


def test_approval_is_waited_for_three_days_in_a_moment(perdure_env):
    pay = Fake("refunded")
    with perdure_env.start(clerk, "Refund A7", model=[*SCRIPT[1:2], "Done."], tools={"refund": pay}) as run:
        run.until_asked()
        assert run.skip(timedelta(days=3))
        run.approve()
        assert run.result().duration > timedelta(days=3)
    assert len(pay.calls) == 1


def test_approval_that_nobody_gives_expires_when_it_should_and_not_before(perdure_env):
    pay, strict = Fake("refunded"), replace(clerk, approval=Approval(expires=timedelta(days=7)))
    with perdure_env.start(strict, "Refund A7", model=[*SCRIPT[1:2], "Nobody agreed."], tools={"refund": pay}) as run:
        run.until_asked()
        run.skip(timedelta(days=6))
        assert "approval_decided" not in [event.type for event in run.events()]
        run.skip(timedelta(days=2))
        assert run.result().text == "Nobody agreed."
        decided = run.until("approval_decided")
    assert (decided.approve, decided.via) == (False, "expiry")
    assert not pay.calls


def test_fake_of_an_agents_agent_is_found_by_its_name(perdure_env):
    chief = Agent("chief", "openai:none", tools=[clerk.as_tool("Looks after orders.")])
    with perdure_env.start(
        chief,
        "What of A7?",
        model=[call("clerk", task="Look A7 up."), "${clerk}"],
        models={"clerk": [call("look_up", order="A7"), "${look_up}"]},
        tools={"look_up": lambda order: f"{order} is on its way"},
    ) as run:
        assert run.result().text == "A7 is on its way"


def test_effect_whose_outcome_a_fake_leaves_open_is_in_doubt(perdure_env):
    with perdure_env.start(
        clerk,
        "Refund A7",
        model=[call("refund", order="A7", cents=1), "Done."],
        tools={"refund": Fake(RuntimeError("gone"))},
    ) as run:
        run.approve()
        run.until("in_doubt")
        run.call(run.handle.settle("1.1", "done", result="it was paid"))
        assert run.result().text == "Done."


def test_fake_of_a_tool_that_is_not_there_is_refused(perdure_env):
    with pytest.raises(AgentError, match=r"no tool 'refnd'.*look_up, refund"):
        perdure_env.run(clerk, "Refund A7", model=["Done."], tools={"refnd": "x"})


def test_what_the_model_was_not_shown_is_told_with_what_it_was(perdure_env):
    model = ScriptedModel(["Done."])
    perdure_env.run(clerk, "Refund A7", model=model)
    model.assert_never_shown("A8")
    with pytest.raises(AssertionError, match="not shown 'A8', but:\nLook before"):
        model.assert_shown("A8")
    with pytest.raises(AssertionError, match="shown 'A7' with request 1"):
        model.assert_never_shown("A7")


def test_effect_that_is_in_a_ledger_twice_is_named():
    assert_never_twice([{"reference": "a"}, {"reference": "b"}], key="reference")
    with pytest.raises(AssertionError, match="more than once: a: 2 times"):
        assert_never_twice([{"reference": "a"}, {"reference": "a"}], key="reference")


def test_plugin_that_nobody_uses_imports_nothing_of_the_engine():
    code = "import sys, pytest; had = set(sys.modules); import perdure.testing.plugin; print(*set(sys.modules) - had)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name for name in loaded if not name.startswith("perdure")} == set()


def test_the_guide_to_testing_runs_as_it_stands(perdure_env):
    guide = Path(__file__).parents[2] / "docs/guides/testing.md"
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", guide.read_text(), flags=re.DOTALL)[0], names)
    names["test_a_refund_waits_for_somebody_however_long_it_takes"](perdure_env)


def test_run_that_does_not_come_to_what_a_test_waits_for_says_so(perdure_env):
    with perdure_env.start(clerk, "Refund A7", model=[SCRIPT[1]], tools={"refund": "x"}) as run:
        run.until_asked()
        with pytest.raises(TimeoutError, match=r"within 0\.1 s; does the run wait for a person"):
            run.call(run.handle.result(), seconds=0.1)
