"""Plans: what can be one, which steps may begin, and what a run that follows one does next."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure import Agent, tool
from perdure.cli import plans as shown
from perdure.errors import AgentError
from perdure.events import PlanChanged
from perdure.messages import AssistantMessage, CallRecord, Entry, ToolCall, ToolMessage, ToolResult, UserMessage
from perdure.policies import Approval, Limits
from perdure.strategies import Ask, Do, Situation, plan_views, planning
from perdure.strategies.plan import AMEND_NOW, KEEP_NOW, MAKE, NO_PLAN, PLAN_WAITS, STEPS_WAIT, SUM_UP, Plan
from perdure.strategies.plan_views import PlanView
from perdure.strategies.planning import AMEND, KEEP, PLAN, STEP, problem

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@tool(effect="read")
def look(place: str) -> str:
    """Look at a place."""
    return place


@tool
def book(seat: str) -> str:
    """Book a seat."""
    return seat


def step(name: str, *needs: str, tools: tuple[str, ...] = ("look",), goal: str = "") -> dict[str, Any]:
    return {"id": name, "goal": goal or f"Do {name}.", "depends_on": list(needs), "tools": list(tools)}


def wrong(*steps: dict[str, Any], settled: set[str] | None = frozenset(), most: int = 10) -> str | None:  # type: ignore[assignment]
    return problem(planning.read(list(steps)), ["look", "book"], most, settled)


# -- what can be a plan ------------------------------------------------------------------------------------


def test_a_plan_whose_steps_can_follow_each_other_is_fine():
    assert wrong(step("a"), step("b"), step("c", "a", "b", tools=("look", "book")), step("d", "c")) is None


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([step("a"), step("a")], "Two steps have the id 'a'"),
        ([step("a", "b")], "Step 'a' depends on 'b', which is no step of the plan"),
        ([step("a", "a")], "in a circle: a → a"),
        ([step("z"), step("a", "c"), step("b", "a"), step("c", "b")], "in a circle: a → c → b → a"),
        ([step("a", tools=("fly",))], "Step 'a' wants the tool 'fly', which there is not. The tools are: book, look."),
        ([step(str(at)) for at in range(11)], "at most 10 steps; this one has 11"),
        ([step("done")], "Step 'done' is done or under way, and can't be changed"),
        ([step(str(at), goal="x" * 1_000) for at in range(30)], "The plan is too long"),
    ],
)
def test_what_can_not_be_a_plan_is_refused_in_one_sentence(steps, words):
    assert words in str(wrong(*steps, settled={"done"}, most=30 if len(steps) == 30 else 10))


def test_an_amendment_may_build_on_what_is_done():
    assert wrong(step("more", "done"), settled={"done"}) is None


def test_what_is_done_is_not_asked_about_where_nobody_knows_it():
    assert wrong(step("more", "done"), settled=None) is None


@pytest.mark.parametrize(
    ("steps", "words"),
    [("all", "have to be a list"), ([{"goal": "no id"}], "id: Field required"), ([step("no spaces")], "pattern")],
)
def test_what_is_no_list_of_steps_is_refused(steps, words):
    with pytest.raises(ValueError, match=words):
        planning.read(steps)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_steps": 0}, "max_steps"),
        ({"max_steps": 31}, "max_steps"),
        ({"replan": "often"}, "replan"),
        ({"share": 0}, "share has to be above 0"),
        ({"step_limits": {"steps": 0}}, "step_limits: option steps: "),
        ({"approve": "yes"}, "approve has to be True, False or a function"),
    ],
)
def test_a_strategy_that_can_not_be_is_refused_when_it_is_declared(options, words):
    with pytest.raises(AgentError, match=words):
        Plan(**options)


def test_the_limits_of_steps_may_be_given_as_data():
    agent = Agent("trip", "m:x", tools=[look], strategy=Plan(step_limits={"steps": 5}))
    assert agent.below[0].limits == Limits(steps=5)


# -- a run that follows one, played without an engine ------------------------------------------------------


class Play:
    """A transcript, and what the strategy makes of it: calls of a turn are answered by `give`."""

    def __init__(self, **options: Any) -> None:
        limits = options.pop("limits", Limits())
        self.agent = Agent("trip", "m:x", tools=[look, book], limits=limits, strategy=Plan(**options))
        self.spec = self.agent.spec
        self.entries: list[Entry] = [UserMessage(role="user", content="A trip.")]
        self.progress: dict[str, Any] = {}
        self.turns = 0

    def move(self, *, answer_only: bool = False) -> Any:
        assert self.agent.strategy
        seen = Situation("trip", self.spec, self.entries, self.progress, step=self.turns + 1, answer_only=answer_only)
        made: Any = self.agent.strategy.move(seen)
        assert made == self.agent.strategy.move(seen)  # by what it is given alone
        self.progress = json.loads(json.dumps(made.progress))
        return made

    def say(self, text: str) -> None:
        self.entries.append(UserMessage(role="user", content=text))

    def model(self, name: str, arguments: dict[str, Any], status: Any = "ok", **more: Any) -> None:
        """Have the model make a call, which ends so."""
        content = json.dumps(arguments) if name in (PLAN, AMEND) and status == "ok" else ""
        self._turn([(name, arguments, {"status": status, "content": content, **more})])

    def plan(self, *steps: dict[str, Any], **more: Any) -> None:
        self.model(PLAN if "amend" not in more else AMEND, {"steps": list(steps)}, more.get("status", "ok"))

    def steps(self, made: Do, **ends: Any) -> None:
        """End the steps that begin: well, where `ends` says nothing else."""
        calls: list[Any] = []
        for call in made.calls:
            name = call.arguments["step"]
            end = ends.get(name, {"status": "ok", "content": f"{name} is fine"})
            calls.append((call.name, call.arguments, end))
        self._turn(calls)

    def _turn(self, calls: list[tuple[str, dict[str, Any], dict[str, Any]]]) -> None:
        if not self.progress:
            self.move()
        self.turns += 1
        made = [ToolCall(id=f"{self.turns}.{at}", name=call[0], arguments=call[1]) for at, call in enumerate(calls, 1)]
        self.entries.append(AssistantMessage(role="assistant", calls=made))
        for call, (name, _, end) in zip(made, calls, strict=True):
            self.entries.append(ToolMessage(role="tool", result=ToolResult(call_id=call.id, name=name, **end)))

    def statuses(self) -> dict[str, str]:
        return {one.id: one.status for one in PlanView.model_validate(self.progress).steps}


FAILED = {"status": "error", "message": "It broke."}


def begun(made: Any) -> list[str]:
    assert isinstance(made, Do), made
    return [call.arguments["step"] for call in made.calls]


def asked(made: Any, note: str, *tools: str) -> None:
    assert isinstance(made, Ask), made
    assert note in made.note
    assert not tools or list(made.tools or ()) == list(tools)


def test_first_the_model_is_asked_for_a_plan_and_told_what_steps_can_use():
    made = Play().move()
    asked(made, MAKE, PLAN)
    assert "- look: Look at a place." in made.instructions


def test_steps_that_need_nothing_of_each_other_begin_together_and_the_rest_when_these_are_done():
    play = Play(replan=False)
    play.plan(step("a"), step("b"), step("c", "a", "b", tools=("book",)))
    made = play.move()
    assert begun(made) == ["a", "b"]
    assert play.statuses() == {"a": "running", "b": "running", "c": "todo"}
    play.steps(made)
    made = play.move()
    assert begun(made) == ["c"]
    [call] = made.calls
    assert call.name == STEP
    assert call.arguments["tools"] == ["book"]
    for words in ("A trip.", "Do c.", "a is fine", "b is fine"):
        assert words in call.arguments["task"]
    play.steps(made)
    made = play.move()
    asked(made, SUM_UP)
    assert made.answer_only
    assert play.statuses() == dict.fromkeys("abc", "done")


def test_a_step_is_told_nothing_of_those_that_it_does_not_need():
    play = Play(replan=False)
    play.plan(step("a"), step("b"), step("c", "a"))
    play.steps(play.move())
    assert "b is fine" not in play.move().calls[0].arguments["task"]


def test_the_model_looks_at_the_plan_after_each_round_as_long_as_something_is_left():
    play = Play()
    play.plan(step("a"), step("b", "a"))
    play.steps(play.move())
    made = play.move()
    asked(made, AMEND_NOW, AMEND, KEEP)
    assert made.must_call  # a word in between would end the run
    assert "- a: done\n- b: to do, after a" in made.note
    play.model(KEEP, {})
    made = play.move()
    assert begun(made) == ["b"]
    play.steps(made)
    asked(play.move(), SUM_UP)


def test_an_amendment_takes_the_place_of_all_that_is_left_and_of_nothing_that_is_done():
    play = Play()
    play.plan(step("a"), step("b", "a"), step("c", "b"))
    play.steps(play.move())
    play.plan(step("c", "a"), step("d", "a"), amend=True)
    made = play.move()
    assert begun(made) == ["c", "d"]
    assert play.statuses() == {"a": "done", "c": "running", "d": "running"}
    assert play.progress["amended"] == 1


def test_an_amendment_that_changes_what_is_done_is_not_taken_and_the_model_is_told_why():
    play = Play()
    play.plan(step("a"), step("b", "a"))
    play.steps(play.move())
    play.plan(step("a"), amend=True)
    asked(
        play.move(), "Your last change was not taken: Step 'a' is done or under way, and can't be changed", AMEND, KEEP
    )
    play.model(KEEP, {})
    assert begun(play.move()) == ["b"]


def test_with_an_empty_amendment_nothing_is_left_to_do():
    play = Play()
    play.plan(step("a"), step("b", "a"))
    play.steps(play.move())
    play.plan(amend=True)
    asked(play.move(), SUM_UP)
    assert play.statuses() == {"a": "done"}


def test_amendments_are_bounded():
    play = Play(max_amendments=2)
    play.plan(step("s0"), step("next", "s0"))
    for at in (1, 2):
        play.steps(play.move())
        play.plan(step(f"s{at}"), step("next", f"s{at}"), amend=True)
    play.steps(play.move())
    assert begun(play.move()) == ["next"]


def test_the_failure_of_a_step_goes_to_the_model_which_may_try_it_again():
    play = Play(replan="failures")
    play.plan(step("a"), step("b"), step("c", "a"))
    play.steps(play.move(), a=FAILED)
    made = play.move()
    asked(made, "- a: failed\n- b: done\n- c: skipped, for it needs one that failed", AMEND, KEEP)
    play.plan(step("a"), step("c", "a"), amend=True)
    made = play.move()
    assert begun(made) == ["a"]
    play.steps(made)
    assert begun(play.move()) == ["c"]


def test_the_last_step_that_fails_goes_to_the_model_too():
    play = Play()
    play.plan(step("a"))
    play.steps(play.move(), a=FAILED)
    asked(play.move(), AMEND_NOW)


@pytest.mark.parametrize("status", ["error", "denied", "cancelled", "in_doubt"])
def test_without_replanning_steps_that_need_one_that_failed_are_skipped_and_others_go_on(status):
    play = Play(replan=False)
    play.plan(step("a"), step("b"), step("c", "a"), step("d", "c"), step("e", "b"))
    play.steps(play.move(), a={"status": status})
    made = play.move()
    assert begun(made) == ["e"]
    play.steps(made)
    asked(play.move(), SUM_UP)
    assert play.statuses() == {"a": "failed", "b": "done", "c": "skipped", "d": "skipped", "e": "done"}


def test_what_the_user_says_reaches_the_model_before_anything_else_begins():
    play = Play(replan=False)
    play.plan(step("a"), step("b", "a"))
    play.steps(play.move())
    play.say("No flights.")
    asked(play.move(), AMEND_NOW, AMEND, KEEP)
    play.plan(step("train", "a"), amend=True)
    made = play.move()
    assert begun(made) == ["train"]
    assert "No flights." in made.calls[0].arguments["task"]


def test_what_the_user_says_of_a_plan_that_can_not_be_amended_any_more_is_heard():
    play = Play(max_amendments=0)
    play.plan(step("a"), step("b", "a"))
    play.say("No flights.")
    asked(play.move(), KEEP_NOW, KEEP)
    play.model(KEEP, {})
    assert begun(play.move()) == ["a"]


def test_a_plan_that_is_denied_is_made_again_as_often_as_people_want():
    play = Play()
    for _ in range(4):
        play.model(PLAN, {"steps": [step("a")]}, "denied", message="Denied by Ann: too dear.")
        asked(play.move(), f"Denied by Ann: too dear. {MAKE}", PLAN)
    play.plan(step("b"))
    assert begun(play.move()) == ["b"]


def test_after_three_plans_that_can_not_be_the_model_answers_without_one():
    play = Play()
    for _ in range(2):
        play.model(PLAN, {}, "error", message="Steps wait for each other.")
        asked(play.move(), f"Steps wait for each other. {MAKE}", PLAN)
    play.model(PLAN, {}, "error", message="Steps wait for each other.")
    made = play.move()
    asked(made, NO_PLAN)
    assert made.answer_only


def test_after_three_amendments_that_can_not_be_it_goes_on_as_planned_and_asks_again_later():
    play = Play()
    play.plan(step("a"), step("b", "a"), step("c", "b"))
    play.steps(play.move())
    for _ in range(3):
        asked(play.move(), AMEND_NOW)
        play.plan(step("a"), amend=True)
    made = play.move()
    assert begun(made) == ["b"]
    play.steps(made)
    asked(play.move(), AMEND_NOW)


def test_what_was_skipped_by_a_limit_begins_in_the_next_round():
    play = Play(replan=False)
    play.plan(step("a"), step("b"))
    play.steps(play.move(), b={"status": "skipped"})
    assert begun(play.move()) == ["b"]


def test_no_more_steps_begin_at_once_than_a_turn_can_have_calls():
    play = Play(limits=Limits(calls_per_turn=2))
    play.plan(*(step(name) for name in "abc"))
    assert begun(play.move()) == ["a", "b"]


def test_a_step_that_waits_for_a_person_is_waited_for_and_told_of():
    play = Play(replan=False)
    play.plan(step("a"), step("b"))
    play.steps(play.move(), a={"status": "waiting"})
    asked(play.move(), STEPS_WAIT)
    news = ToolResult(call_id="2.1", name=STEP, status="ok", content="late")
    play.entries.append(UserMessage(role="user", content="Call 2.1", source="runtime", result=news))
    asked(play.move(), SUM_UP)
    assert play.statuses() == {"a": "done", "b": "done"}


def test_a_plan_that_waits_for_a_person_may_be_made_anew():
    play = Play()
    play.model(PLAN, {"steps": [step("a")]}, "waiting")
    play.say("Otherwise, please.")
    asked(play.move(), PLAN_WAITS, PLAN)


def test_in_the_last_turn_the_model_answers_with_what_is_known():
    play = Play()
    play.plan(step("a"), step("b", "a"))
    play.steps(play.move())
    made = play.move(answer_only=True)
    asked(made, "what is left undone")
    assert made.answer_only
    assert "- b: to do, after a" in made.note


def test_what_earlier_turns_of_a_session_planned_is_not_this_runs():
    play = Play()
    play.plan(step("old"))
    play.entries += [AssistantMessage(role="assistant", text="Done."), UserMessage(role="user", content="Now Rome.")]
    play.progress, play.turns = {}, 0
    asked(play.move(), MAKE)
    play.plan(step("new"))
    made = play.move()
    assert begun(made) == ["new"]
    assert "A trip." not in made.calls[0].arguments["task"]


# -- whatever happens --------------------------------------------------------------------------------------


@st.composite
def plans(draw: st.DrawFn) -> list[dict[str, Any]]:
    count = draw(st.integers(1, 8))
    names = [f"s{at}" for at in range(count)]
    made = [
        step(name, *draw(st.lists(st.sampled_from(names[:at]), unique=True)) if at else ())
        for at, name in enumerate(names)
    ]
    return draw(st.permutations(made))


ENDS = ["ok", "ok", "ok", "error", "cancelled", "denied"]
ENOUGH = 60


def ends_of(made: Do, data: st.DataObject) -> dict[str, str]:
    """Return how the steps end that begin."""
    return {name: data.draw(st.sampled_from(ENDS)) for name in begun(made)}


@settings(max_examples=25, deadline=None)
@given(plans(), st.data())
def test_any_plan_ends_with_each_step_done_once_after_those_that_it_needs(steps, data):
    play = Play(replan=data.draw(st.sampled_from([True, False, "failures"])))
    needs = {one["id"]: set(one["depends_on"]) for one in steps}
    play.plan(*steps)
    done: set[str] = set()
    tried: list[str] = []
    for _ in range(ENOUGH):
        made = play.move()
        if isinstance(made, Ask):
            if made.answer_only:
                break
            play.model(KEEP, {})
            continue
        ends = ends_of(made, data)
        assert all(needs[name] <= done for name in ends)
        tried += ends
        done |= {name for name, end in ends.items() if end == "ok"}
        play.steps(made, **{name: {"status": end} for name, end in ends.items()})
    else:
        pytest.fail("it does not end")
    assert len(tried) == len(set(tried))
    stand = play.statuses()
    assert {name for name, status in stand.items() if status == "done"} == done
    assert set(stand.values()) <= {"done", "failed", "skipped"}


@settings(max_examples=25, deadline=None)
@given(plans(), st.data())
def test_a_plan_ends_whatever_the_model_the_user_and_its_steps_do(first, data):
    play = Play(max_amendments=3)
    play.plan(*first)
    finished: dict[str, str] = {}
    speaks = data.draw(st.sets(st.integers(0, 10), max_size=3))
    for turn in range(ENOUGH * 3):
        if turn in speaks:
            play.say("Otherwise, please.")
        made = play.move()
        if isinstance(made, Do):
            assert not set(begun(made)) & set(finished)  # what is done is never begun again
            ends = ends_of(made, data)
            finished |= {name: end for name, end in ends.items() if end == "ok"}
            play.steps(made, **{name: {"status": end} for name, end in ends.items()})
        elif made.answer_only:
            break
        elif AMEND in (made.tools or ()) and data.draw(st.booleans()):
            play.plan(
                *data.draw(plans()), amend=True, status=data.draw(st.sampled_from(["ok", "ok", "error", "denied"]))
            )
        else:
            play.model(KEEP, {})
    else:
        pytest.fail("it does not end")


# -- what it makes of an agent -----------------------------------------------------------------------------


def test_steps_are_done_by_an_agent_with_the_same_rules_and_no_plan_of_its_own():
    rules = Approval(default="always", tools={"book": "always", PLAN: "never"})
    agent = Agent("trip", ["m:x", "m:y"], "Be kind.", [look, book], approval=rules, memory=True, strategy=Plan())
    [below] = agent.below
    assert below.name == "trip-step"
    assert below.strategy is None
    assert below.spec.memory is None
    assert below.spec.models == ["m:x", "m:y"]
    assert [one.name for one in below.spec.tools] == ["look", "book"]
    assert below.rules.tools == {"book": "always"}
    assert below.instructions.startswith("Be kind.")
    assert [one.name for one in agent.spec.tools] == [PLAN, AMEND, KEEP, STEP]


@pytest.mark.parametrize(
    ("approve", "steps", "asks"),
    [
        (True, [step("a")], True),
        (True, [step("a", "a")], False),  # it can't be: nobody is bothered with it
        (lambda steps: any("book" in one["tools"] for one in steps), [step("a")], False),
        (lambda steps: any("book" in one["tools"] for one in steps), [step("a", tools=("book",))], True),
    ],
)
async def test_a_person_is_asked_about_plans_that_can_be_and_should_be_approved(approve, steps, asks):
    agent = Agent("trip", "m:x", tools=[look, book], strategy=Plan(approve=approve))
    made = agent.tool(PLAN)
    assert made
    assert made.ask
    assert await made.ask(steps=steps) is asks  # type: ignore[misc]


def test_what_people_see_of_a_plan_is_as_new_as_its_calls():
    play = Play()
    play.plan(step("a"), step("b"), step("c", "a"))
    play.move()
    told = PlanView.model_validate(play.progress)
    records = [
        CallRecord(position="2.1", name=STEP, status="ok"),
        CallRecord(position="2.2", name=STEP, status="open"),
    ]
    now = plan_views.live(told, records, ["trip/2.1", "trip/2.2", "trip/2.2~abc"])
    assert [(one.status, one.run) for one in now.steps] == [
        ("done", "trip/2.1"),
        ("running", "trip/2.2~abc"),
        ("todo", ""),
    ]


def test_a_plan_is_shown_a_step_a_line_and_told_in_one():
    steps = [
        plan_views.StepView(id="look", goal="Look.", status="done", call="2.1", run="trip/2.1"),
        plan_views.StepView(id="buy", goal="Buy it.", depends_on=["look"]),
    ]
    lines = list(shown.lines(PlanView(steps=steps, amended=1), io.StringIO()))
    assert lines == [
        "  done     look  Look.  (run trip/2.1)",
        "  todo     buy   Buy it.  (after look)",
        "  amended once",
    ]
    told = PlanChanged(run_id="trip", position="1.0", time=NOW, type="plan_changed", steps=steps, amended=1)
    assert shown.in_words(told, io.StringIO()) == "plan: 1 of 2 steps done; to do: buy; amended once"
