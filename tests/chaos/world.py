"""A real server, real worker processes, and clients: what the crash tests break and look at."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

from perdure import Client, Settings
from perdure.activities.stores import Store, store_of
from perdure.engine.server import DevServer
from perdure.errors import ConnectionFailed
from perdure.loading import load_agents, task_queue
from perdure.testing.crash.processes import WorkerProcess
from tests.conftest import environment

CAST = Path(__file__).with_name("cast.py")
WORKER = [sys.executable, "-m", "perdure.starter", "worker", str(CAST)]


class World:
    """One server with its home folder, the workers started on it, and two clients."""

    def __init__(self, home, stage, server, store, environment):
        self.stage = stage
        self.server = server
        self.store: Store = store
        agent = load_agents(str(CAST))[0]
        self.spec = agent.spec
        self.queue = task_queue(agent.source, Settings())
        self.clients: list[Client] = []
        self._home = home
        self._environment = environment
        self._workers: list[WorkerProcess] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, home, stage, heartbeat=2, events=None, store=None, **more):
        """Start the server in `home`; at the end, kill what is left of workers and server.

        Args:
            heartbeat: A worker silent for so many seconds is taken for lost.
            events: Runs continue as new after so many events of their history.
            store: Address of the store; default: that of `home`.
            more: Environment variables of workers.
        """
        patience = timedelta(seconds=heartbeat)
        settings = Settings(home=home, heartbeat_timeout=patience, max_history_events=events, store=store)
        ours = {"PERDURE_GRACE": "PT1S", "PERDURE_CANCEL_GRACE": "PT0.3S", "CHAOS_STAGE": stage.address, **more}
        async with await DevServer.start(settings) as server, contextlib.aclosing(store_of(settings)) as kept:
            world = cls(home, stage, server, kept, environment(home, **ours))
            try:
                world.clients = [await Client.connect(settings), await Client.connect(settings)]
                yield world
            finally:
                world.kill_workers()

    @property
    def client(self):
        return self.clients[0]

    def worker(self, **more: str) -> WorkerProcess:
        """Start another worker process, with these environment variables besides."""
        log = self._home / f"worker-{len(self._workers)}.log"
        worker = WorkerProcess(WORKER, log, self._environment | more)
        self._workers.append(worker)
        return worker

    async def output_of(self, *command: str) -> str:
        """Return what a command of the project prints, in a process of its own, up to its end."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "perdure.starter", *command),
            cwd=self._home,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        return said.decode()

    async def polled_by(self, worker):
        """Return once the server holds polls of that worker for activities."""
        queue = TaskQueue(name=self.queue)
        request = DescribeTaskQueueRequest(
            namespace="default", task_queue=queue, task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
        )
        while True:
            described = await self.client.temporal.workflow_service.describe_task_queue(request)
            if any(f" {worker.pid}@" in poller.identity for poller in described.pollers):
                return
            await asyncio.sleep(0.05)

    async def handed_to(self, worker, run):
        """Return once the server has handed a call of that run to that worker."""
        while True:
            described = await self.client.temporal.get_workflow_handle(run).describe()
            pending = described.raw_description.pending_activities
            if any(f" {worker.pid}@" in one.last_worker_identity for one in pending):
                return
            await asyncio.sleep(0.05)

    def limit(self, seconds, name=""):
        """Give the tools, or that one, of runs that are started from now on another timeout."""
        timeout = {"timeout": timedelta(seconds=seconds)}
        tools = [tool.model_copy(update=timeout if name in ("", tool.name) else {}) for tool in self.spec.tools]
        self.spec = self.spec.model_copy(update={"tools": tools})

    def kill_workers(self):
        """Kill all that are left."""
        for worker in self._workers:
            worker.kill()

    async def start(self, run, task):
        """Start a run twice at once, as two strangers do; again while no server answers."""

        async def begin(client):
            while True:
                with contextlib.suppress(ConnectionFailed):
                    await client.start(self.spec, task, id=run, task_queue=self.queue)
                    return

        await asyncio.gather(*(begin(client) for client in self.clients))

    def kill_server(self):
        """SIGKILL the server; it is started again on the same database file."""
        os.kill(self.server.record.pid, signal.SIGKILL)
