"""What the engine's client does beside its work: where it logs, and how it ends."""

import subprocess
import sys

from temporalio.runtime import Runtime, TelemetryConfig

from perdure.engine.runtime import prepare
from perdure.settings import Settings
from tests.conftest import environment

FAULTY = """
import asyncio

from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from perdure import Client


@workflow.defn
class Known:
    @workflow.run
    async def run(self) -> None: ...


async def main() -> None:
    client, name = (await Client.connect()).temporal, "a-fault-of-the-core"
    async with Worker(client, task_queue=name, workflows=[Known], workflow_runner=UnsandboxedWorkflowRunner()):
        handle = await client.start_workflow("Unknown", id=name, task_queue=name)
        async for event in handle.fetch_history_events(wait_new_event=True):
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
                break
        await handle.terminate()


asyncio.run(main())
"""

LEFT = """
import asyncio

from perdure import Client


async def main() -> list[asyncio.Task]:
    client = (await Client.connect()).temporal
    return [asyncio.ensure_future(client.count_workflows()) for _ in range(150)]


loop = asyncio.new_event_loop()
under_way = loop.run_until_complete(main())
loop.run_until_complete(asyncio.sleep(0))
"""


def test_what_the_core_logs_goes_to_pythons_logging_not_to_stdout(engine: Settings):
    command, env = [sys.executable, "-c", FAULTY], environment(engine.folder)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == ""
    assert "Failing workflow task" in done.stderr


def test_a_program_that_leaves_calls_under_way_ends_as_any_other(engine: Settings):
    command, env = [sys.executable, "-c", LEFT], environment(engine.folder)
    programs = [subprocess.Popen(command, env=env, stderr=subprocess.PIPE) for _ in range(3)]
    ends = [(program.communicate(timeout=60)[1].decode(), program.returncode) for program in programs]
    assert [code for _, code in ends] == [0] * 3, ends


def test_a_runtime_that_the_program_has_set_is_kept():
    before = Runtime.default()
    mine = Runtime(telemetry=TelemetryConfig())
    Runtime.set_default(mine, error_if_already_set=False)
    try:
        prepare()
        assert Runtime.default() is mine
    finally:
        Runtime.set_default(before, error_if_already_set=False)
