"""A fork goes on from a step of another run, and does nothing of what that one did again."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import forks
from perdure.earlier import complete
from perdure.errors import ForkError, RunNotFound
from perdure.policies import Limits
from perdure.tools import ToolContext, tool
from perdure.worker import serving
from tests.integration.archiving import archived, executions


class Ledger:
    """Payments, by idempotency key."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    @property
    def tools(self) -> list[Any]:
        @tool
        async def pay(ctx: ToolContext, cents: int) -> str:
            """Pay."""
            self.keys.append(ctx.idempotency_key)
            return f"paid {cents}"

        @tool(effect="read")
        async def look(q: str = "") -> str:
            """Look."""
            return f"seen {q}"

        return [pay, look]


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"text": f"I {name}.", "calls": [{"name": name, "arguments": arguments}]}


PAYING = [call("look", q="price"), call("pay", cents=5), call("look", q="receipt"), "done", "You are welcome."]


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


async def paid(stage: Any, ledger: Ledger, **options: Any) -> Any:
    """A run that has paid."""
    finished = await stage.run(PAYING, ledger.tools, **options)
    assert (finished.result.status, len(ledger.keys)) == ("completed", 1)
    return finished


async def forked(stage: Any, handle: Any, at: int, **changes: Any) -> Any:
    """A fork, to be audited like any run."""
    fork = await handle.fork(at, **changes)
    stage.audit(fork)
    return fork


async def entries_of(stage: Any, finished: Any) -> list[Any]:
    """The whole transcript of a run, with what was put away."""
    projection = await finished.handle.projection()
    assert await complete(stage.client.settings, projection) is None
    entries: list[Any] = projection.entries
    return entries


@pytest.mark.reported(46)
async def test_a_fork_begins_with_the_steps_as_they_were_recorded_and_repeats_none(stage: Any, ledger: Ledger) -> None:
    source = await paid(stage, ledger)
    fork = await stage.end(await forked(stage, source.handle, 3))
    assert fork.result.status == "completed"
    assert len(ledger.keys) == 1
    assert await entries_of(stage, fork) == source.projection.entries
    assert [record.position for record in fork.result.calls] == ["1.1", "2.1", "3.1"]
    assert (fork.result.steps, fork.result.text) == (4, "done")


@pytest.mark.parametrize("at", range(4))
async def test_a_fork_at_any_step_asks_the_model_what_it_was_asked_there(stage: Any, ledger: Ledger, at: int) -> None:
    source = await paid(stage, ledger)
    before = len(stage.model.requests)
    fork = await forked(stage, source.handle, at)
    if at < 2:
        await stage.until(fork, "approval_requested")
        await fork.deny()
    await stage.end(fork)
    assert stage.model.requests[before].messages == stage.model.requests[at].messages


async def test_an_effect_after_the_fork_is_asked_about_and_has_a_key_of_its_own(stage: Any, ledger: Ledger) -> None:
    source = await paid(stage, ledger)
    fork = await forked(stage, source.handle, 1)
    asked = await stage.until(fork, "approval_requested")
    assert f"forked from {source.handle.id} at step 1" in asked.why
    assert len(ledger.keys) == 1, "it was repeated before anybody was asked"
    await fork.approve(asked.call, hash=asked.hash)
    finished = await stage.end(fork)
    assert finished.result.status == "completed"
    assert len(set(ledger.keys)) == 2
    assert fork.id in ledger.keys[1]


async def test_a_fork_tells_where_it_comes_from(stage: Any, ledger: Ledger) -> None:
    source = await paid(stage, ledger)
    fork = await stage.end(await forked(stage, source.handle, 3, id=f"{source.handle.id}-again"))
    assert fork.handle.id == f"{source.handle.id}-again"
    started = fork.projection.events[0]
    assert (started.forked_from.run_id, started.forked_from.step, started.resumed) == (source.handle.id, 3, False)
    assert (await fork.handle.memo())["forked_from"] == source.handle.id


async def test_a_fork_of_a_fork_goes_on_from_what_that_one_was(stage: Any, ledger: Ledger) -> None:
    source = await paid(stage, ledger)
    first = await stage.end(await forked(stage, source.handle, 2))
    second = await stage.end(await forked(stage, first.handle, 3))
    third = await stage.end(await forked(stage, second.handle, 4, say="Thank you."))
    assert await entries_of(stage, second) == source.projection.entries
    assert second.state.forked_from.run_id == first.handle.id
    assert (await entries_of(stage, third))[:-2] == source.projection.entries
    with pytest.raises(ForkError, match=f"first 3 as run {first.handle.id}: fork it at 3 to 4, or that one before"):
        await second.handle.fork(2)
    assert len(ledger.keys) == 1


async def test_a_run_that_is_completed_goes_on_where_something_is_said(stage: Any, ledger: Ledger) -> None:
    source = await paid(stage, ledger)
    fork = await stage.end(await forked(stage, source.handle, 4, say="Thank you."))
    assert fork.result.text == "You are welcome."
    *earlier, said, _ = await entries_of(stage, fork)
    assert earlier == source.projection.entries
    assert said.content == "Thank you."


async def test_a_fork_may_have_another_model_and_other_instructions(stage: Any, ledger: Ledger) -> None:
    source = await paid(stage, ledger)
    other = stage.agent(["a", "b", "c", "from another model"], name="other")
    await stage.serve(*stage.agents)
    fork = await stage.end(await forked(stage, source.handle, 3, model=other.model, instructions="Be brief."))
    assert fork.result.text == "from another model"
    assert stage.model.requests[-1].instructions == "Be brief."
    spec = fork.state.spec
    assert (spec.name, spec.model, spec.instructions) == ("subject", other.model, "Be brief.")
    assert fork.projection.events[0].spec_hash != source.projection.events[0].spec_hash


async def test_steps_of_a_fork_are_limited_from_where_it_begins(stage: Any, ledger: Ledger) -> None:
    source = await paid(stage, ledger, limits=Limits(steps=5))
    fork = await stage.end(await forked(stage, source.handle, 4, say="Thank you."))
    assert (fork.result.status, fork.result.steps) == ("completed", 5)


async def test_tokens_and_calls_of_the_steps_that_a_fork_begins_with_are_not_charged_to_it(
    stage: Any, ledger: Ledger
) -> None:
    source = await paid(stage, ledger, limits=Limits(calls_per_tool={"look": 1}))
    fork = await stage.end(await forked(stage, source.handle, 2))
    assert [record.status for record in source.result.calls] == ["ok", "ok", "skipped"]
    assert [record.status for record in fork.result.calls] == ["ok", "ok", "ok"]
    own = sum(event.usage.input_tokens for event in fork.told("model_finished"))
    assert fork.result.usage.input_tokens == own < source.result.usage.input_tokens


async def test_an_archived_run_is_forked_as_one_that_the_engine_has(stage: Any, ledger: Ledger, forgetful: Any) -> None:
    source = await paid(stage, ledger)
    await archived(stage, source.handle.id)
    async with serving(forgetful.temporal, stage.agents, stage.queue, forgetful.settings):
        fork = await stage.end(await forgetful.handle(source.handle.id).fork(3))
        assert await entries_of(stage, fork) == source.projection.entries
    assert len(ledger.keys) == 1


async def test_an_open_run_is_forked_without_a_call_that_waits(stage: Any, ledger: Ledger) -> None:
    replies = [call("look", q="price"), call("pay", cents=5), "done"]
    handle = await stage.start(replies, ledger.tools, approval="always")
    await stage.until(handle, "approval_requested")
    await handle.approve()
    await stage.until(handle, lambda event: event.type == "approval_requested" and event.name == "pay")
    with pytest.raises(ForkError, match=r"call 2\.1 \(pay\) has no result yet"):
        await handle.fork(2)
    fork = await forked(stage, handle, 1)
    await stage.until(fork, "approval_requested")
    await fork.deny()
    assert (await stage.end(fork)).result.status == "completed"


async def test_a_fork_that_can_not_be_says_why(stage: Any, ledger: Ledger) -> None:
    source = await paid(stage, ledger)
    with pytest.raises(ForkError, match="has taken 4 steps: fork it at 0 to 4"):
        await source.handle.fork(5)
    with pytest.raises(ForkError, match="nothing is left to do"):
        await source.handle.fork(4)
    with pytest.raises(ForkError, match="PROVIDER:NAME"):
        await source.handle.fork(2, model="gpt")
    with pytest.raises(RunNotFound):
        await stage.client.handle("nobody").fork(0)


async def test_the_same_id_twice_is_one_fork(stage: Any, ledger: Ledger) -> None:
    source = await paid(stage, ledger)
    first, again, other = [await source.handle.fork(at, id="twin") for at in (3, 3, 2)]
    stage.audit(first)
    assert (first.existing, again.existing, again.same_task) == (False, True, True)
    assert (other.existing, other.same_task) == (True, False)


async def test_what_a_run_undid_afterwards_is_told_to_its_fork(stage: Any) -> None:
    @tool(compensate=lambda ctx, result, room: None)
    async def rent(room: int) -> str:
        """Rent a room."""
        return f"room {room}"

    @tool(approval="always")
    async def move() -> str:
        """Move."""
        return "moved"

    handle = await stage.start([call("rent", room=7), call("move"), "done"], [rent, move], compensate_on=["cancelled"])
    await stage.until(handle, "approval_requested")
    await handle.cancel()
    source = await stage.end(handle)
    assert [one.status for one in source.result.undone] == ["undone"]
    fork = await forked(stage, handle, 1)
    await stage.until(fork, "approval_requested")
    await fork.cancel()
    finished = await stage.end(fork)
    assert any("rent (call 1.1)" in note for note in finished.notes)
    assert finished.result.undone == []


async def test_what_is_staged_is_asked_about_again_with_a_key_of_its_own(stage: Any) -> None:
    keys: list[str] = []

    @tool(defer=True)
    async def wire(ctx: ToolContext) -> str:
        """Wire."""
        keys.append(ctx.idempotency_key)
        return "wired"

    handle = await stage.start([call("wire"), "done"], [wire])
    await stage.until(handle, "approval_requested")
    await handle.approve("staged")
    await stage.end(handle)
    fork = await forked(stage, handle, 1)
    asked = await stage.until(fork, "approval_requested")
    assert "forked from" in asked.why
    assert len(keys) == 1
    await fork.approve("staged")
    await stage.end(fork)
    assert len(set(keys)) == 2


ROOM = Limits(input_tokens=None)


@pytest.fixture
async def long(stage: Any, ledger: Ledger) -> Any:
    """A run over several executions, most of which it has put away, that has paid in its eighth step."""
    stage.client.settings = stage.client.settings.model_copy(update={"max_history_events": 40})

    @tool(effect="read")
    async def browse(page: int) -> str:
        """Browse."""
        return f"page {page} " * 20_000

    pages = [call("browse", page=number) for number in range(10)]
    replies = [*pages[:7], call("pay", cents=5), *pages[7:], "done"]
    finished = await stage.run(replies, [*ledger.tools, browse], limits=ROOM)
    names = [name async for name in executions(stage, finished.handle.id)]
    assert len(names) > 2
    await archived(stage, finished.handle.id, len(names))
    return finished


async def test_a_run_over_several_executions_is_forked_at_any_step_whoever_has_it(
    stage: Any, ledger: Ledger, long: Any, forgetful: Any
) -> None:
    entries = await entries_of(stage, long)
    replies = [at for at, entry in enumerate(entries) if entry.role == "assistant"]
    remembered = stage.client.handle(long.handle.id)
    for at in range(1, 11):
        for source in (remembered, forgetful.handle(long.handle.id)) if at in (1, 6, 10) else (remembered,):
            state = (await forks.read(source._client, long.handle.id, at)).state
            assert state.steps == at
            assert state.length == replies[at]
    fork = await forked(stage, long.handle, 9, say="And?")
    finished = await stage.end(fork)
    assert finished.result.status == "completed"
    assert len(ledger.keys) == 1
    whole = await entries_of(stage, finished)
    assert whole[: replies[9]] == entries[: replies[9]]
    assert whole[replies[9]].content == "And?"
    before = await complete(stage.client.settings, finished.projection)
    assert before is None
    assert [record.position for record in finished.projection.records] == [f"{step}.1" for step in range(1, 12)]
    async with stage.client.store() as store:
        for entry in whole:
            if entry.role == "tool" and entry.result.ref:
                assert len(await store.get(entry.result.ref)) == entry.result.size


@pytest.mark.long
async def test_a_fork_in_an_early_execution_asks_again_about_what_a_later_one_did(
    stage: Any, ledger: Ledger, long: Any, forgetful: Any
) -> None:
    async with serving(forgetful.temporal, stage.agents, stage.queue, forgetful.settings):
        fork = await forgetful.handle(long.handle.id).fork(2)
        asked = await stage.until(fork, "approval_requested")
        assert asked.call == "8.1"
        assert len(ledger.keys) == 1
        await fork.approve(asked.call, hash=asked.hash)
        assert (await stage.end(fork)).result.text == "done"
    assert len(set(ledger.keys)) == 2
