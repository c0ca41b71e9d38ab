"""In the worker: says where it is, before and after each await, and dies where it is told to.

`CrashPoints` is a plugin for any Temporal worker. It tells of each activity when it starts, and when it has returned
but is not yet reported; of each thing that a workflow is woken for (a result, a signal, an update, a timer, its start)
before it is acted on, and when it is decided what follows (continue-as-new and the end included), not yet reported.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections import Counter
from typing import Any

from temporalio import activity
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    UnsandboxedWorkflowRunner,
    WorkerConfig,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowRunner,
)
from temporalio.worker import Plugin as WorkerPlugin

STAGE = "PERDURE_CRASH_STAGE"
"""Environment variable with the address of who listens; without it, points are nothing."""

_QUIET = {"query_workflow", "remove_from_cache", "notify_has_patch", "update_random_seed"}
"""Jobs of a workflow task that change nothing."""

_LAST: dict[str | None, str] = {
    "continue_as_new_workflow_execution": "continues as new",
    "complete_workflow_execution": "ends",
    "fail_workflow_execution": "fails",
}


def point(name: str) -> None:
    """Say in a tool that it is at a point of its own, such as between its effect and its answer; else nothing happens.

    It takes a millisecond under the crash kit, which kills the worker there as well, and no time without.
    """
    if STAGE in os.environ and activity.in_activity():
        info = activity.info()
        tell(info.workflow_id, info.workflow_run_id, f"activity {info.activity_type} {info.activity_id} {name}")


def tell(workflow: str | None, execution: str | None, name: str, call: str = "", moment: str = "") -> None:
    """Say where the worker is, and die if that is the answer. Who listens may be gone."""
    host, _, port = os.environ.get(STAGE, "").rpartition(":")
    if not workflow or not port:
        return
    said = {"workflow": workflow, "execution": execution, "name": name, "call": call, "moment": moment}
    try:
        with socket.create_connection((host, int(port))) as connection, connection.makefile("rwb") as stream:
            stream.write(json.dumps(said).encode() + b"\n")
            stream.flush()
            answer = json.loads(stream.readline() or b"{}")
    except OSError:
        return
    if answer.get("die"):
        os.kill(os.getpid(), signal.SIGKILL)


class CrashPoints(WorkerPlugin):
    """Plugin of a Temporal worker that is to be killed: `Worker(…, plugins=[CrashPoints()])`."""

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Stand around activities and workflow tasks."""
        given: dict[str, Any] = {**config}
        runner = given.get("workflow_runner") or UnsandboxedWorkflowRunner()
        config["workflow_runner"] = _Runner(runner)
        config["interceptors"] = [_Activities(), *(given.get("interceptors") or [])]
        return config

    async def run_worker(self, worker: Any, next: Any) -> None:
        """Run it as it is."""
        await next(worker)

    def configure_replayer(self, config: Any) -> Any:
        """Leave a replayer alone."""
        return config

    def run_replayer(self, replayer: Any, histories: Any, next: Any) -> Any:
        """Leave a replayer alone."""
        return next(replayer, histories)


class _Activities(Interceptor):
    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Activity(next)


class _Activity(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        name, call = f"activity {info.activity_type} {info.activity_id}", info.activity_id
        said = (info.workflow_id, info.workflow_run_id)
        await asyncio.to_thread(tell, *said, f"{name} starts", call, "start")
        result = await self.next.execute_activity(input)
        await asyncio.to_thread(tell, *said, f"{name} has returned", call, "done")
        return result


class _Runner(WorkflowRunner):
    def __init__(self, runner: WorkflowRunner) -> None:
        self._runner = runner

    def prepare_workflow(self, defn: Any) -> None:
        self._runner.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return _Instance(self._runner.create_instance(det))

    def set_worker_level_failure_exception_types(self, types: Any) -> None:
        self._runner.set_worker_level_failure_exception_types(types)


class _Instance(WorkflowInstance):
    def __init__(self, instance: WorkflowInstance) -> None:
        self._instance = instance
        self._counts = Counter[str]()

    def activate(self, act: Any) -> Any:
        names = [name for job in act.jobs if (name := self._name(job))]
        info = self._instance.get_info()
        said = (info.workflow_id, info.run_id)
        fresh = not act.is_replaying
        for name in names if fresh else ():
            tell(*said, f"{name} arrives")
        completion = self._instance.activate(act)
        for name in names if fresh else ():
            tell(*said, f"{name} is acted on")
        for command in completion.successful.commands if fresh else ():
            if last := _LAST.get(command.WhichOneof("variant")):
                tell(*said, f"workflow {last}")
        return completion

    def _name(self, job: Any) -> str:
        """Return what the workflow is woken for, the same in each execution of the same course; "" for nothing."""
        kind = job.WhichOneof("variant")
        if kind in _QUIET:
            return ""
        what = getattr(job, kind)
        named = {"signal_workflow": "signal", "do_update": "update", "fire_timer": "timer"}.get(
            kind, kind.replace("_", " ")
        )
        detail = getattr(what, "signal_name", "") or (what.name if kind == "do_update" else "")
        told = f"{named} {detail}".strip()
        self._counts[told] += 1
        return f"{told} {self._counts[told]}"

    def get_serialization_context(self, command_info: Any) -> Any:
        return self._instance.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> Any:
        return self._instance.get_external_store_context(command_info)

    def get_info(self) -> Any:
        return self._instance.get_info()

    def get_thread_id(self) -> int | None:
        return self._instance.get_thread_id()
