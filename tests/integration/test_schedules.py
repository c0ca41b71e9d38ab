"""Schedules on a real engine: their runs are runs like any other, and know of the one before."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic import BaseModel, SecretStr

from perdure import RunCancelled, Task, ToolContext, retention, tool
from perdure.errors import ScheduleError, ScheduleNotFound
from perdure.identity import whoami
from perdure.schedules import ScheduleHandle
from perdure.times import Rules, When
from tests.integration.archiving import archived, until

DAILY = When(cron=("0 8 * * *",))
START, END = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 4, tzinfo=UTC)


class Count(BaseModel):
    n: int = 0


@tool
async def count(ctx: ToolContext) -> str:
    """Count on."""
    ctx.vars.n += 1
    return str(ctx.vars.n)


@tool(approval="always")
async def pay() -> str:
    """Pay."""
    return "paid"


@pytest.fixture
async def schedule(stage):
    made: list[ScheduleHandle] = []

    async def make(agent: Any, task: Any, when: When = DAILY, **options: Any) -> ScheduleHandle:
        name = f"s-{uuid4().hex[:8]}"
        made.append(await stage.client.schedule(agent, task, when, id=name, task_queue=stage.queue, **options))
        return made[-1]

    yield make
    for handle in made:
        try:
            await handle.delete()
        except ScheduleNotFound:
            continue


async def begun(stage: Any, handle: ScheduleHandle, number: int) -> list[Any]:
    """Return the handles of the schedule's runs, once there are so many."""

    async def there() -> bool:
        return len((await handle.show()).recent) >= number

    await until(there)
    runs = [stage.client.handle(one.run_id) for one in (await handle.show()).recent]
    for run in runs:
        stage.audit(run)
    return runs


async def test_each_run_knows_of_the_last_one_and_is_a_run_like_any_other(stage, schedule):
    agent = stage.agent([{"calls": [{"name": "count"}]}, "${count} so far"], [count], variables=Count)
    await stage.serve(agent)
    task = Task(input="Before: {{last.text}}, {{last.variables.n}}. Now: {{scheduled_at}}", tenant="acme")
    handle = await schedule(agent, task, keep_variables=True)
    await handle.backfill(START, END)
    runs = await begun(stage, handle, 3)
    assert [run.id for run in runs] == [f"{handle.id}-2026-03-0{day}T08:00:00Z" for day in (1, 2, 3)]
    assert [(await run.result()).text for run in runs] == ["1 so far", "2 so far", "3 so far"]
    told = [(await run.projection()).task for run in runs]
    assert told[0].startswith("Before: (nothing: no run")
    assert told[2] == "Before: 2 so far, 2. Now: 2026-03-03T08:00:00+00:00"
    kept = await archived(stage, runs[2].id)
    assert (kept.tenant, kept.agent, kept.status) == ("acme", agent.name, "completed")
    listed = [run.id for run in await stage.client.list_runs(agent=agent.name, tenant="acme")]
    assert {run.id for run in runs} <= set(listed)


async def test_who_has_created_and_changed_it_is_written_down_and_who_its_runs_come_from(stage, schedule):
    agent = stage.agent(["done"])
    await stage.serve(agent)
    handle = await schedule(agent, "go", paused=True)
    await handle.trigger()
    [run] = await begun(stage, handle, 1)
    await run.result()
    await handle.unpause("from now on")
    await handle.delete()
    audit: list[Any] = []

    async def written() -> bool:
        of = f"schedule {handle.id}"
        audit[:] = [entry for entry in await stage.client.audit() if entry.subject == of]
        return len(audit) == 5  # that of a run is, a moment after its end

    await until(written)
    assert [entry.action for entry in audit] == [
        "schedule_created",
        "schedule_triggered",
        "started",
        "schedule_unpaused",
        "schedule_deleted",
    ]
    assert {entry.by for entry in audit} == {whoami()}
    assert (audit[2].run_id, audit[3].reason) == (run.id, "from now on")
    with pytest.raises(ScheduleNotFound, match=f"There is no schedule '{handle.id}'"):
        await handle.pause()


async def test_a_run_that_fails_pauses_it_where_it_says_so(stage, schedule):
    agent = stage.agent([{"error": {"kind": "authentication", "message": "no key"}}])
    await stage.serve(agent)
    handle = await schedule(agent, "go", rules=Rules(pause_on_failure=True))
    await handle.trigger()

    async def paused() -> bool:
        return bool((await handle.show()).paused)

    await until(paused)


async def test_a_run_that_waits_is_cancelled_for_the_next_one_or_keeps_it_away(stage, schedule):
    agent = stage.agent([{"calls": [{"name": "pay"}]}, "paid"], [pay])
    await stage.serve(agent)
    handle = await schedule(agent, "go", rules=Rules("cancel-other"))
    await handle.trigger()
    [first] = await begun(stage, handle, 1)
    await handle.trigger(overlap="skip")

    async def skipped() -> bool:
        return bool((await handle.show()).skipped)

    await until(skipped)
    await handle.backfill(START, START + timedelta(days=1), overlap="cancel-other")
    _, second = await begun(stage, handle, 2)
    with pytest.raises(RunCancelled):
        await first.result()
    await second.cancel()


async def test_its_runs_keep_the_agent_of_its_creation_until_it_is_updated(stage, schedule):
    old = stage.agent(["done"], instructions="Be brief.")
    await stage.serve(old)
    handle = await schedule(old, "go")
    new = stage.agent(["done"], instructions="Be kind.")
    await stage.serve(new)
    await handle.trigger()
    await begun(stage, handle, 1)
    await handle.update(new.spec, input="go on", when=When(every=timedelta(hours=2)), rules=Rules("buffer-one"))
    view = await handle.show()
    assert (view.spec, view.input, view.when.every, view.rules.overlap) == (
        new.spec,
        "go on",
        timedelta(hours=2),
        "buffer-one",
    )
    await handle.trigger()
    runs = await begun(stage, handle, 2)
    specs = []
    for run in runs:
        await run.result()
        state = (await run.projection()).state
        specs.append((state.spec.instructions, state.messages[0].content))
    assert specs == [("Be brief.", "go"), ("Be kind.", "go on")]


async def test_what_a_schedule_can_not_be_is_said_in_one_sentence(stage, schedule):
    agent = stage.agent(["done"])
    handle = await schedule(agent, "go", paused=True)
    again = stage.client.schedule(agent, "go", DAILY, id=handle.id, task_queue=stage.queue)
    with pytest.raises(ScheduleError, match=f"^There is a schedule '{handle.id}' already"):
        await again
    with pytest.raises(ScheduleError, match=r"Hour is not in range"):
        await schedule(agent, "go", When(cron=("0 99 * * *",)))
    with pytest.raises(ScheduleError, match=r"can't be given secrets"):
        await schedule(agent, Task(input="go", secrets={"a": SecretStr("b")}))
    with pytest.raises(ScheduleError, match=r"no turns of a session"):
        await schedule(agent, Task(input="go", session="s"))
    with pytest.raises(ScheduleError, match=r"is no time"):
        await handle.backfill(END, START)
    with pytest.raises(ScheduleError, match=r"have [\d,]+ bytes; a schedule takes at most 262,144"):
        await schedule(agent, "x" * 300_000)
    assert handle.id in [one.id for one in await stage.client.schedules()]


async def test_the_guide_runs_as_it_stands(stage, monkeypatch, capsys):
    names: dict[str, Any] = {}
    guide = Path("docs/guides/schedules.md").read_text()
    exec("\n".join(re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL)), names)
    monkeypatch.setenv("PERDURE_TASK_QUEUE", stage.queue)
    monkeypatch.setattr(stage.client.settings, "task_queue", stage.queue, raising=False)
    names["clerk"] = stage.agent(["nothing"], name="clerk")
    await stage.serve(names["clerk"])
    await names["begin"](stage.client)
    daily = stage.client.schedule_handle("daily")
    runs = await begun(stage, daily, 2)
    assert [run.id for run in runs] == ["daily-2026-03-02T07:00:00Z", "daily-2026-03-03T07:00:00Z"]
    assert [(await run.result()).text for run in runs] == ["nothing", "nothing"]
    await daily.delete()


async def test_what_the_next_run_may_begin_with_is_not_pruned_while_the_schedule_is_there(stage, schedule, tmp_path):
    stage.client.settings = stage.client.settings.model_copy(update={"store": f"sqlite:///{tmp_path / 'store.db'}"})
    agent = stage.agent([f"long {'x' * 300_000}"])
    await stage.serve(agent)
    handle = await schedule(agent, "Before: {{last.run_id}}")
    await handle.trigger()
    [first] = await begun(stage, handle, 1)
    await archived(stage, first.id)
    kept = await retention.prune(stage.client, timedelta(), from_engine=True)
    assert (kept.scheduled, kept.runs) == ([first.id], [])
    await handle.trigger()
    _, second = await begun(stage, handle, 2)
    assert (await second.result()).status == "completed"
    assert (await second.projection()).task == f"Before: {first.id}"
