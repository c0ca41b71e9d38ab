"""Plans: made by the model, approved or edited by people, done step by step in runs of their own, amended."""

import asyncio
import re
import threading
from datetime import timedelta
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from examples import plan_trip
from perdure import Agent, DecisionRejected, Limits, Sensitive, Task, ToolContext, tool
from perdure.models import ModelReply, ModelRequest
from perdure.strategies.plan import Plan
from perdure.strategies.plan_views import PlanView, plan_of
from perdure.testing import ScriptedModel
from tests.integration.test_mcp import Desk

ROOMY: Any = Limits(steps=60, input_tokens=None, output_tokens=None, wall_time=timedelta(minutes=5))


def step(name, *needs, tools=()):
    return {"id": name, "goal": f"Do {name}.", "depends_on": list(needs), "tools": list(tools)}


def call(name, **arguments):
    return {"calls": [{"name": name, "arguments": arguments}]}


def planned(*steps):
    return call("plan", steps=list(steps))


def amended(*steps):
    return call("amend_plan", steps=list(steps))


KEEP = call("keep_plan")


class Leader:
    """A model that plans: it says what is due by how often it was asked, and remembers with what words."""

    provider = "raw"

    def __init__(self, *replies: Any) -> None:
        self.replies = replies
        self.requests: list[ModelRequest] = []

    async def generate(self, request: ModelRequest) -> ModelReply:
        own = [m for m in request.messages if m.role == "assistant" and m.source == "model"]
        self.requests.append(request)
        due = self.replies[min(len(own), len(self.replies) - 1)]
        return await ScriptedModel([due]).generate(request)

    @property
    def notes(self) -> list[str]:
        return [str(request.messages[-1].content) for request in self.requests]  # type: ignore[union-attr]

    async def aclose(self) -> None:
        """Nothing is open."""


class Helpers:
    """A model that does steps: each by a script of its own; without one, it says that the step is done."""

    provider = "raw"

    def __init__(self, **scripts: Any) -> None:
        self.scripts = {name: ScriptedModel(replies) for name, replies in scripts.items()}
        self.tasks: dict[str, str] = {}
        self.tools: dict[str, list[str]] = {}

    async def generate(self, request: ModelRequest) -> ModelReply:
        task = str(request.messages[0].content)  # type: ignore[union-attr]
        found = re.search(r"Your step \((.*?)\)", task)
        assert found
        self.tasks[found[1]] = task
        self.tools[found[1]] = [one.name for one in request.tools]
        script = self.scripts.get(found[1]) or ScriptedModel([f"{found[1]} is done"])
        return await script.generate(request)

    async def aclose(self) -> None:
        """Nothing is open."""


class Cast:
    """A run that follows a plan: its agent, the model that plans, and the one that does steps."""

    def __init__(self, stage: Any, leader: Leader, helpers: Helpers | None = None, tools: Any = (), **options: Any):
        self.leader, self.helpers = leader, helpers or Helpers()
        model = stage.agent(self.helpers, name="helper").model
        limits = options.pop("limits", ROOMY)
        more = {
            name: options.pop(name) for name in ("approval", "variables", "conceal", "on_denial") if name in options
        }
        self.agent: Agent = stage.agent(
            leader, tools, name="trip", limits=limits, strategy=Plan(step_model=model, **options), **more
        )
        self.stage = stage

    async def start(self, task: Any = "A trip to Rome.") -> Any:
        await self.stage.serve(self.agent)
        return await self.stage.start_again(self.agent, task)

    async def run(self, task: Any = "A trip to Rome.") -> Any:
        return await self.stage.end(await self.start(task))


@pytest.fixture
def booked():
    return []


@pytest.fixture
def book(booked):
    @tool(approval="always")
    def book(seat: str) -> str:
        """Book a seat."""
        booked.append(seat)
        return f"booked {seat}"

    return book


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


class Gate:
    """Where steps wait, in threads of their own, until the test lets them go on."""

    def __init__(self) -> None:
        self._begun, self.open = threading.Event(), threading.Event()

    def wait(self) -> None:
        self._begun.set()
        self.open.wait(60)

    async def begun(self) -> None:
        assert await asyncio.to_thread(self._begun.wait, 60)


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def wait(gate):
    @tool(effect="read", timeout=60)
    def wait() -> str:
        """Wait."""
        gate.wait()
        return "waited"

    return wait


def statuses(done):
    return {one.id: one.status for one in PlanView.model_validate(done.state.progress).steps}


def names(done):
    return [result.name for result in done.results]


async def test_a_plan_is_made_its_steps_are_done_in_runs_of_their_own_and_summed_up(stage):
    leader = Leader(planned(step("flight"), step("hotel"), step("bill", "flight", "hotel")), KEEP, "All is done.")
    cast = Cast(stage, leader)
    done = await cast.run()
    assert (done.result.status, done.result.text) == ("completed", "All is done.")
    assert names(done) == ["plan", "step", "step", "keep_plan", "step"]
    assert statuses(done) == dict.fromkeys(("flight", "hotel", "bill"), "done")
    task = cast.helpers.tasks["bill"]
    for words in ("A trip to Rome.", "Do bill.", "flight is done", "hotel is done"):
        assert words in task
    assert "hotel" not in cast.helpers.tasks["flight"]
    child = stage.client.handle(f"{done.handle.id}/4.1")
    stage.audit(child)
    assert (await child.result()).text == "bill is done"
    assert done.result.steps == 5 + 3


async def test_how_far_a_plan_is_can_be_seen_while_it_is_followed_and_afterwards(stage, wait, gate):
    leader = Leader(planned(step("a", tools=["wait"]), step("b"), step("c", "a")), KEEP, "Done.")
    handle = await Cast(stage, leader, Helpers(a=[call("wait"), "waited"]), [wait]).start()
    await gate.begun()
    await stage.until(handle, lambda event: event.type == "tool_finished" and event.call == "2.2")
    now = plan_of(await stage.state(handle))
    assert now
    assert [(one.id, one.status, one.run) for one in now.steps] == [
        ("a", "running", f"{handle.id}/2.1"),
        ("b", "done", f"{handle.id}/2.2"),
        ("c", "todo", ""),
    ]
    gate.open.set()
    done = await stage.end(handle)
    told = [[one.status for one in event.steps] for event in done.told("plan_changed")]
    assert told == [
        ["running", "running", "todo"],
        ["done", "done", "todo"],
        ["done", "done", "running"],
        ["done", "done", "done"],
    ]


async def test_steps_that_need_nothing_of_each_other_really_overlap_also_where_they_have_effects(stage):
    both = asyncio.Barrier(2)

    @tool
    async def meet() -> str:
        """Wait for the other one."""
        await both.wait()
        return "met"

    meeting = [call("meet"), "met"]
    leader = Leader(planned(step("a", tools=["meet"]), step("b", tools=["meet"])), "Both met.")
    done = await Cast(stage, leader, Helpers(a=meeting, b=meeting), [meet]).run()
    assert [(result.name, result.content) for result in done.results[1:]] == [("step", "met")] * 2
    assert done.result.text == "Both met."


async def test_a_step_has_only_the_tools_that_the_plan_names_for_it(stage, booked, book):
    leader = Leader(planned(step("look"), step("buy", tools=["book"])), "Sorry.")
    helpers = Helpers(look=[call("book", seat="1A"), "no"], buy=["not today"])
    done = await Cast(stage, leader, helpers, [book]).run()
    assert (helpers.tools["look"], helpers.tools["buy"]) == ([], ["book"])
    assert (done.result.text, booked) == ("Sorry.", [])


async def test_a_person_approves_a_plan_before_anything_of_it_begins(stage):
    cast = Cast(stage, Leader(planned(step("a")), "Done."), approve=True)
    handle = await cast.start()
    asked = await stage.until(handle, "approval_requested")
    assert (asked.call, asked.name) == ("1.1", "plan")
    assert cast.helpers.tasks == {}
    await handle.approve("1.1", by="Ann")
    done = await stage.end(handle)
    assert (done.result.text, list(cast.helpers.tasks)) == ("Done.", ["a"])


async def test_a_person_edits_a_plan_and_what_they_wrote_is_done(stage):
    cast = Cast(stage, Leader(planned(step("plane")), "Done."), approve=True)
    handle = await cast.start()
    await stage.until(handle, "approval_requested")
    await handle.approve("1.1", arguments={"steps": [step("train"), step("bill", "train")]}, by="Ann")
    await stage.until(handle, lambda event: event.type == "model_finished", nth=2)
    done = await stage.end(handle)
    assert list(cast.helpers.tasks) == ["train"]  # the model's next word was its answer
    assert done.result.text == "Done."


async def test_an_edit_that_can_not_be_a_plan_is_refused_and_the_plan_goes_on_waiting(stage):
    cast = Cast(stage, Leader(planned(step("a")), "Done."), approve=True)
    handle = await cast.start()
    await stage.until(handle, "approval_requested")
    for steps, why in (
        ("all", "steps"),
        ([step("a", "a")], "in a circle: a → a"),
        ([step("a", "zz")], "depends on 'zz'"),
        ([step("a"), step("a")], "Two steps have the id 'a'"),
    ):
        with pytest.raises(DecisionRejected, match=why):
            await handle.approve("1.1", arguments={"steps": steps})
    await handle.approve("1.1", arguments={"steps": [step("b")]})
    done = await stage.end(handle)
    assert list(cast.helpers.tasks) == ["b"]
    assert done.result.text == "Done."
    assert len(done.told("approval_requested")) == 1


async def test_a_plan_that_is_denied_is_made_again_as_the_person_wants(stage):
    cast = Cast(stage, Leader(planned(step("plane")), planned(step("train")), "Done."), approve=True)
    handle = await cast.start()
    await stage.until(handle, "approval_requested")
    await handle.deny("1.1", by="Ann", reason="no planes")
    await stage.until(handle, "approval_requested", nth=2)
    assert "Denied by Ann: no planes." in cast.leader.notes[1]
    await handle.approve("2.1")
    await stage.end(handle)
    assert list(cast.helpers.tasks) == ["train"]


async def test_nobody_is_asked_about_a_plan_that_can_not_be(stage):
    cast = Cast(stage, Leader(planned(step("a", "z")), "Sorry."), approve=True)
    done = await cast.run()
    assert done.told("approval_requested") == []
    assert "depends on 'z'" in cast.leader.notes[1]


async def test_what_comes_out_amends_what_is_left(stage):
    leader = Leader(planned(step("look"), step("plane", "look")), amended(step("train", "look")), "By train.")
    cast = Cast(stage, leader)
    done = await cast.run()
    assert list(cast.helpers.tasks) == ["look", "train"]
    assert "- look: done\n- plane: to do, after look" in leader.notes[1]
    assert statuses(done) == {"look": "done", "train": "done"}


async def test_a_step_that_fails_goes_to_the_planner_which_goes_on_otherwise(stage):
    broken = [{"error": {"kind": "authentication", "message": "no such key"}}]
    leader = Leader(
        planned(step("plane"), step("bill", "plane")), amended(step("train"), step("bill", "train")), KEEP, "Ok."
    )
    cast = Cast(stage, leader, Helpers(plane=broken))
    done = await cast.run()
    assert done.result.text == "Ok."
    assert "- plane: failed\n- bill: skipped" in leader.notes[1]
    assert statuses(done) == {"plane": "failed", "train": "done", "bill": "done"}
    assert "no such key" in (done.results[1].message or "")


async def test_a_failing_step_never_wedges_a_plan_that_is_followed_as_it_is(stage):
    broken = [{"error": {"kind": "authentication", "message": "no such key"}}]
    leader = Leader(planned(step("plane"), step("bill", "plane"), step("hotel")), "Half of it.")
    done = await Cast(stage, leader, Helpers(plane=broken), replan=False).run()
    assert (done.result.status, done.result.text) == ("completed", "Half of it.")
    assert statuses(done) == {"plane": "failed", "bill": "skipped", "hotel": "done"}


async def test_what_the_user_says_while_steps_are_under_way_reaches_the_planner(stage, wait, gate):
    leader = Leader(planned(step("a", tools=["wait"]), step("b", "a")), amended(step("c", "a")), "Done.")
    cast = Cast(stage, leader, Helpers(a=[call("wait"), "waited"]), [wait], replan=False)
    handle = await cast.start()
    await gate.begun()
    await handle.say("c, rather than b")
    gate.open.set()
    done = await stage.end(handle)
    assert list(cast.helpers.tasks) == ["a", "c"]
    assert "c, rather than b" in cast.helpers.tasks["c"]
    assert done.result.text == "Done."


async def test_where_the_budget_ends_the_model_answers_with_what_is_known(stage):
    chain = [step(str(at), *([str(at - 1)] if at else [])) for at in range(8)]
    leader = Leader(planned(*chain), KEEP, KEEP, "So far this.")
    limits = ROOMY.model_copy(update={"steps": 8})
    done = await Cast(stage, leader, limits=limits).run()
    assert (done.result.status, done.result.text) == ("budget_exhausted", "So far this.")
    assert done.result.steps <= 8
    assert "0: done" in leader.notes[-1]
    assert "to do, after" in leader.notes[-1]


async def test_cancelling_a_plan_ends_its_steps(stage, wait, gate):
    leader = Leader(planned(step("a", tools=["wait"]), step("b", tools=["wait"]), step("c", "a")))
    waiting = [call("wait"), "waited"]
    handle = await Cast(stage, leader, Helpers(a=waiting, b=waiting), [wait]).start()
    await gate.begun()
    await stage.until(handle, "tool_started", nth=3)
    await handle.cancel("enough")
    done = await stage.end(handle)
    assert done.result.status == "cancelled"
    for child in ("2.1", "2.2"):
        ended = await stage.client.handle(f"{handle.id}/{child}").projection()
        assert ended.ended.status == "cancelled"


async def test_approvals_of_tools_within_steps_are_waited_for_from_the_top(stage, booked, book):
    booking = [call("book", seat="1A"), "booked"]
    cast = Cast(stage, Leader(planned(step("buy", tools=["book"])), "Done."), Helpers(buy=booking), [book])
    handle = await cast.start()
    await stage.until_status(handle, "waiting_approval")
    child = stage.client.handle(f"{handle.id}/2.1")
    assert booked == []
    await child.approve("1.1")
    done = await stage.end(handle)
    assert (done.result.text, booked) == ("Done.", ["1A"])


async def test_parallel_steps_are_lent_as_much_as_each_other(stage, wait, gate):
    wide = [step(name, tools=["wait"]) for name in "abcd"]
    waiting = {name: [call("wait"), "ok"] for name in "abcd"}
    handle = await Cast(stage, Leader(planned(*wide), "Done."), Helpers(**waiting), [wait]).start()
    await stage.until(handle, "tool_started", nth=5)
    leases = (await stage.state(handle)).leases
    lent = [lease.limits.steps for lease in leases.values()]
    assert sum(lent) > 30  # a share of 60, less what is used and kept
    assert max(lent) - min(lent) <= 1
    gate.open.set()
    await stage.end(handle)


async def test_steps_begin_with_the_runs_variables_and_keep_what_they_change(stage):
    class Trip(BaseModel):
        city: str = "Oslo"

    seen = []

    @tool
    def note(ctx: ToolContext) -> str:
        """Note the city."""
        seen.append(ctx.vars.city)
        ctx.vars.city = "Bergen"
        return "noted"

    noting = [call("note"), "noted"]
    plan = planned(step("a", tools=["note"]), step("b", "a", tools=["note"]))
    cast = Cast(stage, Leader(plan, KEEP, "Done."), Helpers(a=noting, b=noting), [note], variables=Trip)
    done = await cast.run(Task(input="Go.", variables={"city": "Rome"}))
    assert seen == ["Rome", "Rome"]
    assert done.result.variables == {"city": "Rome"}


async def test_what_needs_no_plan_is_answered_at_once(stage):
    done = await Cast(stage, Leader("Hello.")).run("Hi!")
    assert (done.result.text, done.result.calls) == ("Hello.", [])


async def test_the_example_plans_amends_and_ends(stage):
    trip = plan_trip.trip
    await stage.serve(trip)
    handle = await stage.start_again(trip, "A weekend in Lisbon, by train if that can be, for 300 euros.")
    await stage.until(handle, "approval_requested")
    await handle.approve("1.1")
    asked = await stage.until(handle, "approval_requested", nth=2)
    assert asked.name == "amend_plan"
    await handle.approve(asked.call)
    done = await stage.end(handle)
    assert "270 euros" in done.result.text
    titles = [span.title for turn in (await handle.trace()).root.spans for span in turn.spans]
    assert [title for title in titles if " step " in title] == [
        "2.1 step train",
        "2.2 step hotel",
        "4.1 step flight",
        "6.1 step sum",
    ]
    assert statuses(done) == {"train": "done", "hotel": "done", "flight": "done", "sum": "done"}


async def test_a_step_may_use_tools_that_a_server_has_listed_at_the_beginning(stage, desk):
    plan = planned(step("ask", tools=["echo"]), step("think"))
    wrong = planned(step("ask", tools=["fly"]))
    helpers = Helpers(ask=[call("echo", text="hi"), "${echo.said}"])
    cast = Cast(stage, Leader(wrong, plan, "Done."), helpers, [desk.server()])
    done = await cast.run()
    assert "- echo:" in cast.leader.requests[0].instructions
    assert "wants the tool 'fly', which there is not. The tools are: echo." in cast.leader.notes[1]
    assert helpers.tools == {"ask": ["echo"], "think": []}
    assert [(one.name, one.content) for one in done.results[2:]] == [("step", "hi"), ("step", "think is done")]
    child = await stage.client.handle(f"{done.handle.id}/3.1").projection()
    assert [event.type for event in child.events if event.type == "tools_listed"] == []


async def test_what_is_private_in_a_result_is_private_to_the_models_of_the_steps_that_need_it(stage):
    phone, rung = "+49 170 5550123", []

    @tool(effect="read")
    def find() -> Annotated[str, Sensitive("phone")]:
        """Find the phone."""
        return phone

    @tool
    def ring(phone: Annotated[str, Sensitive("phone")]) -> str:
        """Ring somebody up."""
        rung.append(phone)
        return "rung"

    plan = planned(step("find", tools=["find"]), step("ring", "find", tools=["ring"]))
    helpers = Helpers(find=[call("find"), "It is ‹phone-1›."], ring=[call("ring", phone="‹phone-1›"), "Rung."])
    cast = Cast(stage, Leader(plan, KEEP, "Done."), helpers, [find, ring], conceal=True)
    await cast.run()
    assert rung == [phone]
    assert "It is ‹phone-1›." in helpers.tasks["ring"]
    asked = [*cast.leader.requests, *(one for script in helpers.scripts.values() for one in script.requests)]
    assert phone not in str([request.messages for request in asked])


async def test_a_plan_that_continues_as_new_knows_how_far_it_is(stage):
    stage.client.settings = stage.client.settings.model_copy(update={"max_history_events": 30})
    chain = [step(f"s{at}", *([f"s{at - 1}"] if at else [])) for at in range(4)]
    cast = Cast(stage, Leader(planned(*chain), "Done."), replan=False)
    done = await cast.run()
    assert done.projection.executions > 1
    assert statuses(done) == dict.fromkeys(("s0", "s1", "s2", "s3"), "done")
    assert list(cast.helpers.tasks) == ["s0", "s1", "s2", "s3"]
    assert len(done.told("run_started")) == 1
