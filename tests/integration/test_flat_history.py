"""What a run costs in history: each message once, and no more at its end than at its beginning."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from perdure.models import ModelReply, ModelRequest, RawCall
from perdure.policies import Limits
from perdure.settings import Settings
from perdure.tools import Tool, tool

REPLY = "r" * 50


class Looping:
    """A model that calls `fetch` so many times, and remembers what it was shown."""

    provider = "looping"

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self.shown: list[list[str]] = []

    async def generate(self, request: ModelRequest) -> ModelReply:
        done = sum(message.role == "assistant" for message in request.messages)
        self.shown.append([m.result.content[:8] for m in request.messages if m.role == "tool"])
        if done == self._steps:
            return ModelReply(text="done")
        return ModelReply(text=f"{REPLY}{done:04d}", calls=[RawCall(f"c{done}", "fetch", f'{{"n": {done}}}')])

    async def aclose(self) -> None:
        """Nothing is open."""


def fetcher(*, local: bool = False) -> Tool:
    @tool(effect="read", local=local)
    async def fetch(n: int) -> str:
        """Return a thousand characters."""
        return f"{n:08d}" + "x" * 992

    return fetch


async def history_of(stage: Any, steps: int, *, local: bool = False) -> tuple[list[bytes], Looping]:
    model = Looping(steps)
    finished = await stage.run(model, [fetcher(local=local)], limits=Limits(steps=steps + 2))
    assert finished.result.status == "completed"
    workflow = stage.client.temporal.get_workflow_handle(finished.handle.id)
    return [event.SerializeToString() async for event in workflow.fetch_history_events()], model


async def test_a_step_costs_the_same_in_a_long_run_as_in_a_short_one(stage: Any) -> None:
    short, _ = await history_of(stage, 10)
    long, _ = await history_of(stage, 60)
    per_step = (sum(map(len, long)) - sum(map(len, short))) / 50
    assert per_step < 1.1 * sum(map(len, short)) / 10
    assert per_step < 4_000, "a step with a result of 1,000 bytes takes about 3,100"


async def test_each_message_enters_history_once(stage: Any) -> None:
    for local in (False, True):
        events, _ = await history_of(stage, 12, local=local)
        history = b"".join(events)
        for step in range(12):
            assert history.count(f"{step:08d}xxxx".encode()) == 1, "a result is recorded more than once"
            assert history.count(f"{REPLY}{step:04d}".encode()) == 1, "a reply is recorded more than once"


async def test_the_model_sees_the_whole_conversation_though_nothing_of_it_is_sent(stage: Any) -> None:
    _, model = await history_of(stage, 5)
    assert model.shown == [[f"{n:08d}" for n in range(step)] for step in range(6)]


async def test_a_worker_without_the_conversation_asks_the_run_for_it(stage: Any, stage_settings: Settings) -> None:
    forgetful = stage_settings.model_copy(update={"cache_bytes": 1})
    model = Looping(6)
    agent = stage.agent(model, [fetcher()], limits=Limits(steps=10))
    await stage.serve(agent, settings=forgetful)
    finished = await stage.end(await stage.start_again(agent))
    assert finished.result.status == "completed"
    assert model.shown == [[f"{n:08d}" for n in range(step)] for step in range(7)]


async def test_another_worker_goes_on_with_the_same_conversation(stage: Any) -> None:
    @tool(approval="always")
    async def stop() -> str:
        """Wait for a person."""
        return "stopped"

    script = [
        {"calls": [{"name": "fetch", "arguments": {"n": 1}}]},
        {"calls": [{"name": "stop", "arguments": {}}]},
        {"text": "${fetch}"},
    ]
    agent = stage.agent(script, [fetcher(), stop])
    await stage.serve(agent)
    handle = await stage.start_again(agent)
    await stage.until(handle, "approval_requested")
    await stage.serve(agent)  # a new worker, with nothing in memory
    await handle.approve()
    finished = await stage.end(handle)
    assert finished.result.text.startswith("00000001xxx")
    assert finished.result.duration < timedelta(seconds=30)
