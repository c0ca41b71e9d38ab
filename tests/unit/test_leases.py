"""A budget that is shared over a tree of runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure import leases
from perdure.budgets import Additions, allowance, cost, turns_left
from perdure.leases import Grant, LeaseRequest, carve, give_back, lacking, lend, more, take
from perdure.messages import AssistantMessage, RunResult, ToolCall, Usage
from perdure.outcomes import result_from
from perdure.policies import AgentSpec, Limits, ToolSpec
from perdure.reports import ModelTurn
from perdure.resuming import carried_on
from perdure.state import Amounts, Borrowing, Outcome, RunState, begin
from perdure.steps import Borrow, CallModel, Finish, next_step
from perdure.turns import fail, fold_turn

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOOK = ToolSpec(name="look", description="Look.", parameters={}, effect="read")


def a_run(name: str = "root", parent: str = "", limits: Limits | None = None, **more: Any) -> RunState:
    limits = limits or Limits.model_validate(
        {"steps": 40, "input_tokens": 1000, "output_tokens": 100, "usd": 1, **more}
    )
    return begin(name, AgentSpec(name="a", model="m:x", tools=[LOOK]), "go", limits, "e", parent)


def turn(input_tokens: int = 0, output_tokens: int = 0, usd: Any = 0) -> ModelTurn:
    usage = Usage(input_tokens=input_tokens, output_tokens=output_tokens)
    message = AssistantMessage(role="assistant", text="So far.")
    return ModelTurn(message=message, usage=usage, cost_usd=None if usd is None else Decimal(usd))


def spend(state: RunState, *amounts: Any) -> None:
    fold_turn(state, turn(*amounts), NOW)
    state.outcome = None


def ended(state: RunState) -> RunResult:
    return result_from(state, Outcome(status="completed"), timedelta())


def asks(state: RunState, wanted: Amounts, number: int = 1) -> LeaseRequest:
    return LeaseRequest(id=f"r{number}", child=state.run_id, wanted=wanted)


def test_a_child_gets_a_part_of_what_is_free_and_no_more_than_its_own_limits() -> None:
    root = a_run()
    given = carve(root, "child", Limits(steps=5, input_tokens=None, usd=None))
    assert given is not None
    assert (given.steps, given.input_tokens, given.output_tokens, given.usd) == (5, 500, 50, Decimal("0.5"))
    left = allowance(root)
    assert (left.input_tokens, left.output_tokens, left.usd, turns_left(root)) == (500, 50, Decimal("0.5"), 2)


def test_a_child_carved_out_twice_gets_the_same_and_is_counted_once() -> None:
    root = a_run()
    assert carve(root, "child", Limits()) == carve(root, "child", Limits(steps=3))
    assert allowance(root).input_tokens == 500


def test_a_child_has_the_time_that_its_parent_has_left() -> None:
    root = a_run(wall_time=60)
    root.ran = timedelta(seconds=45)
    given = carve(root, "child", Limits())
    assert given is not None
    assert given.wall_time == timedelta(seconds=15)


def test_a_limit_that_neither_has_stays_without() -> None:
    root = a_run(usd=None, input_tokens=None)
    given = carve(root, "child", Limits(input_tokens=None))
    assert given is not None
    assert (given.input_tokens, given.usd) == (None, None)


@pytest.mark.parametrize("limits", [{"steps": 3}, {"input_tokens": 1}, {"usd": "0.000000000001"}])
def test_who_has_nothing_to_give_gives_no_lease(limits: dict[str, Any]) -> None:
    root = a_run(**limits)
    assert carve(root, "child", Limits()) is None
    assert root.leases == {}


def test_a_lender_keeps_what_two_turns_of_its_own_need() -> None:
    root = a_run()
    spend(root, 100, 10, "0.1")
    given = carve(root, "child", Limits(steps=99), share=1)
    assert given is not None
    assert (given.steps, given.input_tokens, given.output_tokens) == (37, 900 - 3 * 110, 90 - 3 * 10)
    assert turns_left(root) == 2


def test_what_a_child_has_not_used_comes_back_and_the_rest_is_charged_once() -> None:
    root = a_run()
    limits = carve(root, "child", Limits())
    child = a_run("child", "root", limits)
    spend(child, 70, 7, "0.07")
    for _ in range(2):
        give_back(root, "child", ended(child))
    left = allowance(root)
    assert (left.input_tokens, left.output_tokens, left.usd) == (930, 93, Decimal("0.93"))
    assert cost(root) == Decimal("0.07")
    result = ended(root)
    assert (result.steps, result.usage.input_tokens, result.cost_usd) == (1, 70, Decimal("0.07"))
    assert carve(root, "child", Limits()) is None, "it has ended"


def test_of_a_child_that_tells_nothing_all_is_charged_that_it_was_lent() -> None:
    root = a_run()
    carve(root, "child", Limits())
    give_back(root, "child", None)
    assert (allowance(root).input_tokens, allowance(root).usd, cost(root)) == (500, Decimal("0.5"), None)


def test_a_cost_that_is_not_known_is_charged_as_all_the_money_that_was_lent() -> None:
    root = a_run()
    child = a_run("child", "root", carve(root, "child", Limits()))
    spend(child, 10, 1, None)
    give_back(root, "child", ended(child))
    assert (allowance(root).input_tokens, allowance(root).usd, cost(root)) == (990, Decimal("0.5"), None)


def test_a_child_gets_as_much_more_as_its_parent_has() -> None:
    root = a_run()
    child = a_run("child", "root", carve(root, "child", Limits()))
    grant = more(root, asks(child, Amounts(steps=2, input_tokens=700)))
    assert grant.amounts == Amounts(steps=2, input_tokens=500)
    assert lacking(root, Amounts(steps=2, input_tokens=700)) == Amounts(input_tokens=200)
    for _ in range(2):
        lend(root, "child", grant)
        take(child, grant)
    assert (child.limits.input_tokens, allowance(root).input_tokens) == (1000, 0)


@pytest.mark.parametrize("end", ["closing", "outcome", "ended"])
def test_nothing_more_is_given_by_a_run_that_ends_or_to_one_that_has_ended(end: str) -> None:
    root = a_run()
    child = a_run("child", "root", carve(root, "child", Limits()))
    root.closing = end == "closing"
    root.outcome = Outcome(status="failed") if end == "outcome" else None
    if end == "ended":
        give_back(root, "child", ended(child))
    assert more(root, asks(child, Amounts(steps=1))) == Grant(id="r1")


def test_requests_of_strangers_and_those_that_come_twice_are_answered() -> None:
    root = a_run()
    child = a_run("child", "root", carve(root, "child", Limits()))
    request = asks(child, Amounts(steps=1))
    assert not leases.answered(root, request)
    lend(root, "child", more(root, request))
    assert leases.answered(root, request)
    assert leases.answered(root, asks(a_run("stranger"), Amounts(steps=1)))


# -- who borrows -------------------------------------------------------------------------------------------


def test_a_run_that_has_a_parent_asks_for_more_before_its_last_turn() -> None:
    child = a_run("child", "root", Limits(steps=3))
    spend(child)
    child.messages.pop()
    assert next_step(child) == CallModel()
    spend(child)
    step = next_step(child)
    assert step == Borrow(Amounts(steps=2))
    take(child, Grant(id="r1", amounts=Amounts(steps=2)))
    assert (next_step(child), child.limits.steps) == (CallModel(), 5)


def test_it_asks_for_what_is_scarce_half_as_much_again_and_at_least_three_turns() -> None:
    child = a_run("child", "root", Limits(steps=99, input_tokens=1000, output_tokens=50))
    spend(child, 500, 40)
    assert leases.wanted(child) == Amounts(input_tokens=3 * 540, output_tokens=3 * 40)
    child = a_run("child", "root", Limits(steps=99, input_tokens=1000, usd=Decimal(1)))
    for _ in range(9):
        spend(child, 90, 10, "0.1")
    assert leases.wanted(child) == Amounts(input_tokens=500, usd=Decimal("0.5"))


@pytest.mark.parametrize("how", ["nothing", "too little", "no answer"])
def test_a_run_whose_parent_can_not_help_takes_its_last_turn_and_asks_no_more(how: str) -> None:
    child = a_run("child", "root", Limits(steps=99, input_tokens=1000))
    spend(child, 480, 20)
    assert isinstance(next_step(child), Borrow)
    if how == "no answer":
        leases.unanswered(child, "r1")
    else:
        take(child, Grant(id="r1", amounts=Amounts(input_tokens=5 * (how == "too little"))))
    assert next_step(child) == CallModel(answer_only=True)


def test_an_answer_that_comes_too_late_is_taken_all_the_same() -> None:
    child = a_run("child", "root", Limits(steps=1))
    leases.unanswered(child, "r1")
    assert next_step(child) == CallModel(answer_only=True)
    take(child, Grant(id="r1", amounts=Amounts(steps=4)))
    leases.unanswered(child, "r1")
    assert (next_step(child), child.limits.steps) == (CallModel(), 5)


def test_no_more_time_can_be_borrowed() -> None:
    child = a_run("child", "root", Limits(steps=1, wall_time=timedelta(seconds=10)))
    child.ran = timedelta(seconds=9)
    assert next_step(child) == CallModel(answer_only=True)


def test_a_call_that_does_not_fit_is_made_again_with_more_and_ends_the_run_where_there_is_none() -> None:
    child = a_run("child", "root", Limits(steps=99, input_tokens=1000, output_tokens=None))
    fail(child, "budget", "It would need 1,200 tokens.")
    assert next_step(child) == Borrow(Amounts(input_tokens=500))
    take(child, Grant(id="r1", amounts=Amounts(input_tokens=500)))
    assert next_step(child) == CallModel()
    fail(child, "budget", "It would need 1,600 tokens.")
    take(child, Grant(id="r2"))
    fail(child, "budget", "It would need 1,600 tokens.")
    assert next_step(child) == Finish(Outcome(status="budget_exhausted", reason="It would need 1,600 tokens."))


def test_a_run_of_its_own_asks_nobody() -> None:
    assert next_step(a_run(steps=1)) == CallModel(answer_only=True)


def test_a_resumed_run_asks_its_parent_again() -> None:
    child = a_run("child", "root", Limits(steps=1))
    leases.unanswered(child, "r1")
    child.outcome = Outcome(status="budget_exhausted")
    assert isinstance(next_step(carried_on(child, Additions())), Borrow)


# -- whatever a tree does ----------------------------------------------------------------------------------


class Tree:
    """Runs that lend to each other, as workflows do it."""

    def __init__(self, limits: Limits) -> None:
        self.nodes: dict[str, RunState] = {"0": a_run("0", "", limits)}
        self.open: list[str] = ["0"]
        self.requests: list[LeaseRequest] = []
        self.grants: list[tuple[str, Grant]] = []

    def carve(self, name: str, wanted: Limits, share: float) -> None:
        child = f"{name}.{len(self.nodes)}"
        limits = carve(self.nodes[name], child, wanted, share)
        if limits:
            self.nodes[child] = a_run(child, name, limits)
            self.open.append(child)

    def spend(self, name: str, parts: tuple[float, float, float]) -> None:
        state = self.nodes[name]
        if turns_left(state) < 1:
            return
        left = allowance(state)
        amounts = (left.input_tokens, left.output_tokens, left.usd)
        spend(state, *[_part(amount, part) for amount, part in zip(amounts, parts, strict=True)])

    def ask(self, name: str, wanted: Amounts) -> None:
        request = leases.ask(self.nodes[name], wanted)
        self.requests.append(request)
        self.answer(request)

    def answer(self, request: LeaseRequest) -> None:
        parent = self.nodes[request.child].borrowing.parent
        if not parent or leases.answered(self.nodes[parent], request):
            return
        if (short := lacking(self.nodes[parent], request.wanted)) and self.nodes[parent].borrowing.parent:
            self.ask(parent, short)
        grant = more(self.nodes[parent], request)
        self.grants.append((request.child, grant))
        self.deliver(request.child, grant)

    def deliver(self, child: str, grant: Grant) -> None:
        lend(self.nodes[self.nodes[child].borrowing.parent], child, grant)
        take(self.nodes[child], grant)

    def end(self, name: str, *, lost: bool) -> None:
        parent = self.nodes[name].borrowing.parent
        if not parent or any(other.startswith(f"{name}.") for other in self.open):
            return  # who has children waits for them
        if name in self.open:
            self.open.remove(name)
        give_back(self.nodes[parent], name, None if lost else ended(self.nodes[name]))


def _part(amount: Any, part: float) -> Any:
    if amount is None:
        return 7
    return int(amount * part) if isinstance(amount, int) else amount * Decimal(str(part))


amount = st.one_of(st.none(), st.integers(1, 10_000))
all_limits = st.builds(
    Limits,
    steps=st.integers(1, 60),
    input_tokens=amount,
    output_tokens=amount,
    usd=st.one_of(st.none(), st.decimals("0.01", 10, places=2)),
)
parts = st.sampled_from([0.0, 0.1, 0.5, 1.0])
acts = st.one_of(
    st.tuples(st.just("carve"), all_limits, st.sampled_from([0.2, 0.5, 1.0])),
    st.tuples(st.just("spend"), st.tuples(parts, parts, parts), st.none()),
    st.tuples(
        st.just("ask"),
        st.builds(Amounts, steps=st.integers(0, 9), input_tokens=st.integers(0, 5000), usd=st.decimals(0, 5, places=2)),
        st.none(),
    ),
    st.tuples(st.just("end"), st.sampled_from([False, False, False, True]), st.none()),
    st.tuples(st.just("again"), st.integers(0, 99), st.none()),
)


@settings(max_examples=60, deadline=None)
@given(limits=all_limits, story=st.lists(st.tuples(st.integers(0, 99), acts), max_size=40))
def test_whatever_a_tree_does_it_never_spends_more_than_its_root_may(limits: Limits, story: list[Any]) -> None:
    tree, lost = Tree(limits), False
    for who, (what, this, that) in story:
        name = tree.open[who % len(tree.open)]
        match what:
            case "carve":
                tree.carve(name, this, that)
            case "spend":
                tree.spend(name, this)
            case "ask":
                tree.ask(name, this)
            case "end":
                lost = lost or this
                tree.end(name, lost=this)
            case _:
                again(tree, this)
        check_spent(tree, limits)
    for name in sorted(tree.open, key=len, reverse=True):
        tree.end(name, lost=False)
    assert tree.open == ["0"]
    if not lost:
        check_nothing_leaked(tree, limits)


def again(tree: Tree, number: int) -> None:
    """Let something arrive twice."""
    if tree.requests:
        tree.answer(tree.requests[number % len(tree.requests)])
    if tree.grants:
        tree.deliver(*tree.grants[number % len(tree.grants)])
    gone = sorted(tree.nodes.keys() - set(tree.open))
    if gone:
        tree.end(gone[number % len(gone)], lost=True)


def spent(tree: Tree) -> Amounts:
    own = [
        Amounts(
            steps=state.steps,
            input_tokens=state.usage.input_tokens,
            output_tokens=state.usage.output_tokens,
            usd=state.cost,
        )
        for state in tree.nodes.values()
    ]
    return sum(own, Amounts())


def check_spent(tree: Tree, limits: Limits) -> None:
    total = spent(tree)
    for name in Amounts.model_fields:
        limit = getattr(limits, name)
        assert limit is None or getattr(total, name) <= limit, f"more {name} than allowed"
    for state in tree.nodes.values():
        for child, lease in state.leases.items():
            assert lease.limits == tree.nodes[child].limits, "lender and borrower disagree"


def check_nothing_leaked(tree: Tree, limits: Limits) -> None:
    total, left = spent(tree), allowance(tree.nodes["0"])
    for name in ("input_tokens", "output_tokens", "usd"):
        limit = getattr(limits, name)
        assert limit is None or getattr(left, name) == limit - getattr(total, name), f"{name} leaked"


def test_the_state_of_who_lends_and_borrows_is_kept() -> None:
    root = a_run()
    root.borrowing = Borrowing(parent="above", answers=["r1"])
    carve(root, "child", Limits())
    give_back(root, "child", ended(a_run("child", "root")))
    carve(root, "other", Limits())
    assert RunState.model_validate_json(root.model_dump_json(exclude_defaults=True)) == root


def test_a_turn_that_calls_is_not_followed_by_a_request_before_its_results_are_there() -> None:
    child = a_run("child", "root", Limits(steps=2))
    call = ToolCall(id="a", name="look")
    fold_turn(child, ModelTurn(message=AssistantMessage(role="assistant", calls=[call])), NOW)
    assert not isinstance(next_step(child), Borrow)
