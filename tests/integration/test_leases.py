"""Budgets shared over a tree of runs, on a real engine: bare workflows stand for the other side."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from perdure import Limits, leases, tool
from perdure.leases import Grant, LeaseRequest
from perdure.messages import RunResult
from perdure.policies import AgentSpec
from perdure.state import Amounts, Borrowing, Lease, RunState, begin
from perdure.wire import GRANTED, LEASE, WORKFLOW, RunRequest
from perdure.workflows.leases import Leases

PLENTY: dict[str, Any] = {"input_tokens": None, "output_tokens": None}


@tool(effect="read")
async def look(n: int = 0) -> int:
    """Look."""
    return n


@tool(approval="always")
async def hold() -> None:
    """Hold the run, which waits for a person meanwhile."""


HELD = [{"calls": [{"name": "hold"}]}, "done"]


@workflow.defn(name="BareParent")
class BareParent:
    """A run that does nothing itself: it lends to one child, waits for it, and takes back what is left."""

    @workflow.init
    def __init__(self, queue: str, spec: AgentSpec, limits: Limits, own: Limits) -> None:
        del queue, own
        self.state = begin(workflow.info().workflow_id, spec, "", limits, "e")
        self.leases = Leases(self.state, lambda: None)

    @workflow.run
    async def run(self, queue: str, spec: AgentSpec, limits: Limits, own: Limits) -> RunState:
        """Return the state in which it ends."""
        del limits
        child = f"{self.state.run_id}-child"
        lent = leases.carve(self.state, child, own)
        request = RunRequest(input="go", spec=spec, limits=lent, parent=self.state.run_id)
        result = await workflow.execute_child_workflow(
            WORKFLOW, request, id=child, task_queue=queue, result_type=RunResult
        )
        leases.give_back(self.state, child, result)
        return self.state


@workflow.defn(name="Asker")
class Asker:
    """A child that does nothing but ask for more, each request as often as it is told to."""

    def __init__(self) -> None:
        self.grants: list[Grant] = []

    @workflow.run
    async def run(self, parent: str, requests: list[LeaseRequest], awaited: list[str]) -> list[Grant]:
        """Return what was granted, once those requests are answered."""
        for request in requests:
            await workflow.get_external_workflow_handle(parent).signal(LEASE, request)
        await workflow.wait_condition(lambda: {grant.id for grant in self.grants} >= set(awaited))
        return self.grants

    @workflow.signal(name=GRANTED)
    async def on_granted(self, grant: Grant) -> None:
        """Take an answer."""
        self.grants.append(grant)


@workflow.defn(name="Silent")
class Silent:
    """A parent that answers nothing."""

    @workflow.run
    async def run(self) -> None:
        """Wait for ever."""
        await asyncio.Future()

    @workflow.signal(name=LEASE)
    async def on_lease(self, request: LeaseRequest) -> None:
        """Take a request, and leave it at that."""


@pytest.fixture
async def bare(stage):
    """Serves the bare workflows; returns how one is started."""
    queue, runner = f"bare-{uuid4().hex[:8]}", UnsandboxedWorkflowRunner()
    workflows = [BareParent, Asker, Silent]
    async with Worker(stage.client.temporal, task_queue=queue, workflows=workflows, workflow_runner=runner):

        async def start(kind, *args, run_id=""):
            run_id = run_id or f"w-{uuid4().hex[:8]}"
            return await stage.client.temporal.start_workflow(kind, args=args, id=run_id, task_queue=queue)

        yield start


async def started(stage, agent, run_id=None, **fields):
    """Start a run in a way in which clients don't; it is audited like others."""
    request = RunRequest(input="go", spec=agent.spec, **fields)
    run_id = run_id or f"w-{uuid4().hex[:8]}"
    await stage.client.temporal.start_workflow(WORKFLOW, request, id=run_id, task_queue=stage.queue)
    return watched(stage, run_id)


def watched(stage, run_id):
    handle = stage.client.handle(run_id)
    stage._started.append(handle)
    return handle


def lender(agent, run_id, child, **fields):
    """Return the state of a run that has lent a step and nothing else, about to start."""
    state = begin(run_id, agent.spec, "go", Limits(**PLENTY), "e")
    lease = Lease(limits=Limits(steps=1, **PLENTY))
    return state.model_copy(update={"leases": {child: lease}, **fields})


def looks(times):
    """Return the replies of a model that looks so many times, then answers."""
    return [*({"calls": [{"name": "look", "arguments": {"n": n}}]} for n in range(times)), "seen"]


async def lent(stage, bare, replies, *, steps):
    """Run a child that begins with 3 of its parent's `steps`; return how the parent and the child ended."""
    agent = stage.agent(replies, [look])
    await stage.serve(agent)
    limits = [Limits(steps=steps, **PLENTY), Limits(steps=3, **PLENTY)]
    parent = await bare(BareParent.run, stage.queue, agent.spec, *limits)
    state = await asyncio.wait_for(parent.result(), 20)
    return state, await stage.end(watched(stage, f"{parent.id}-child"))


async def test_child_asks_its_parent_for_more_and_the_rest_comes_back(stage, bare):
    state, child = await lent(stage, bare, looks(5), steps=20)
    assert (child.result.status, child.result.text, child.result.steps) == ("completed", "seen", 6)
    lease = state.leases[child.handle.id]
    assert lease.limits.steps == child.state.limits.steps > 6
    assert (lease.bill.steps, lease.bill.usage) == (6, child.result.usage)
    assert len(lease.answered) == child.state.borrowing.asked > 1
    assert not child.told("decision_refused")
    assert not child.notes, "it was told that its limit is reached"


@pytest.mark.reported(35)
async def test_child_ends_as_exhausted_where_its_parent_has_no_more(stage, bare):
    state, child = await lent(stage, bare, looks(50), steps=10)
    assert child.result.status == "budget_exhausted"
    assert child.result.steps == state.leases[child.handle.id].bill.steps == 8, "two are the parent's own"


async def test_run_whose_parent_is_gone_goes_on_without_it(stage):
    agent = stage.agent(looks(50), [look])
    await stage.serve(agent)
    done = await stage.end(await started(stage, agent, limits=Limits(steps=3, **PLENTY), parent="nobody"))
    assert (done.result.status, done.result.steps) == ("budget_exhausted", 3)
    assert done.state.borrowing.asked == 1


async def test_run_whose_parent_does_not_answer_goes_on_without_it(stage, bare, monkeypatch):
    monkeypatch.setattr(leases, "PATIENCE", timedelta(seconds=0.2))
    agent = stage.agent(looks(50), [look])
    await stage.serve(agent)
    silent = await bare(Silent.run)
    done = await stage.end(await started(stage, agent, limits=Limits(steps=3, **PLENTY), parent=silent.id))
    assert (done.result.status, done.result.steps) == ("budget_exhausted", 3)
    assert done.state.borrowing.over
    await silent.terminate()


async def test_request_that_comes_twice_is_answered_once_and_is_no_decision(stage, bare):
    agent = stage.agent(HELD, [hold])
    await stage.serve(agent)
    child, parent = f"w-{uuid4().hex[:8]}", f"w-{uuid4().hex[:8]}"
    handle = await started(stage, agent, parent, carried=lender(agent, parent, child))
    asked = [LeaseRequest(id=name, child=child, wanted=Amounts(steps=2)) for name in ("a", "a", "b")]
    strange = LeaseRequest(id="c", child="stranger", wanted=Amounts(steps=2))
    grants = await (await bare(Asker.run, parent, [strange, *asked], ["a", "b"], run_id=child)).result()
    assert [(grant.id, grant.amounts.steps) for grant in grants] == [("a", 2), ("b", 2)]
    await stage.signal(handle, LEASE, "what?")
    await stage.signal(handle, GRANTED)
    await handle.deny("1.1")
    done = await stage.end(handle)
    assert done.state.leases[child].limits.steps == 5
    assert [event.name for event in done.told("decision_refused")] == [LEASE, GRANTED]


async def test_parent_passes_on_to_its_own_what_it_does_not_have(stage, bare):
    agent = stage.agent(HELD, [hold])
    await stage.serve(agent)
    leaf, mid, root = (f"w-{uuid4().hex[:8]}" for _ in range(3))
    below = lender(
        agent, mid, leaf, limits=Limits.model_validate({"steps": 5, **PLENTY}), borrowing=Borrowing(parent=root)
    )
    above = await started(stage, agent, root, carried=lender(agent, root, mid))
    between = await started(stage, agent, mid, carried=below)
    for handle in (above, between):
        await stage.until(handle, "approval_requested")
    asked = [LeaseRequest(id="a", child=leaf, wanted=Amounts(steps=6))]
    grants = await (await bare(Asker.run, mid, asked, ["a"], run_id=leaf)).result()
    assert grants == [Grant(id="a", amounts=Amounts(steps=6))]
    await above.deny("1.1")
    await between.deny("1.1")
    done = await stage.end(between)
    assert (done.state.limits.steps, done.state.leases[leaf].limits.steps) == (10, 7)
    assert (await stage.end(above)).state.leases[mid].limits.steps == 1 + 5
