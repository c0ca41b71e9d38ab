"""Plans: made by the model, approved or edited by people, done step by step in runs of their own, amended."""

import re
from datetime import timedelta
from typing import Any

from perdure import Agent, Limits
from perdure.models import ModelReply, ModelRequest
from perdure.strategies.plan import Plan
from perdure.strategies.planning import PlanView
from perdure.testing import ScriptedModel

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
