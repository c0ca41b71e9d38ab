"""An engine for tests: nothing of it is kept, and the clock of each of its runs can be moved."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temporalio.testing import WorkflowEnvironment

from perdure.client import Client, RunHandle
from perdure.engine import runtime
from perdure.engine.converter import data_converter
from perdure.engine.search_attributes import KEYS, MORE, type_of
from perdure.engine.server import find_binary
from perdure.errors import ConnectionFailed
from perdure.settings import Settings

if TYPE_CHECKING:
    from temporalio.testing import WorkflowEnvironment as _Environment

_OPTIONS = (
    "--output=none",  # stdout is data
    "--dynamic-config-value=frontend.WorkflowTimeSkippingEnabled=true",
    "--dynamic-config-value=history.transferProcessorMaxPollRPS=2000",
    "--dynamic-config-value=history.timerProcessorMaxPollRPS=2000",
    *(f"--search-attribute={key.name}={type_of(key)}" for key in (*KEYS, *MORE)),
)


class Engine:
    """A running engine.

    Attributes:
        client: A client of it; its store is in a folder of its own.
    """

    def __init__(self, client: Client, environment: _Environment) -> None:
        self.client = client
        self._environment = environment

    async def skip(self, run: RunHandle, time: timedelta) -> bool:
        """Move a run's clock on: what is due within that time is due now. The machine's clock stays as it is.

        What a run waits for of other processes takes its own time: a tool that is under way is let end before.

        Returns:
            False if the run has ended meanwhile.
        """
        workflow = self.client.temporal.get_workflow_handle(run.id)
        return await self._environment.fast_forward(workflow, time)


def settings_of_tests(home: Path, **changes: Any) -> Settings:
    """Return settings that nothing outside of a test has a say in: neither the environment nor a `.env` file.

    Args:
        home: Folder of the store.
        changes: Settings that are not to be as usual. What is lost is noticed within 2 s, and nothing is lingered over.
    """
    soon: dict[str, Any] = {"heartbeat_timeout": timedelta(seconds=2), "grace": timedelta(seconds=0.5), "otel": False}
    return Settings.model_construct(None, **{"home": home, **soon, "cancel_grace": timedelta(seconds=0.3), **changes})


@asynccontextmanager
async def engine(home: Path | None = None, **settings: Any) -> AsyncGenerator[Engine]:
    """Run an engine while the block runs. It keeps its runs in memory alone, and has no Web UI.

    Args:
        home: Folder of the store. Default: one that is deleted at the end.
        settings: As for `settings_of_tests`.

    Raises:
        ConnectionFailed: If the `temporal` command is not there, or its server is one that can't skip time.
    """
    runtime.prepare()
    async with AsyncExitStack() as stack:
        if home is None:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="perdure-test-")))
        starting = WorkflowEnvironment.start_time_skipping_v2(
            dev_server_existing_path=find_binary(),
            dev_server_extra_args=_OPTIONS,
            dev_server_log_level="error",
            data_converter=data_converter,
        )
        try:
            environment = await stack.enter_async_context(await starting)
        except (AttributeError, RuntimeError) as error:
            raise ConnectionFailed(f"The engine of tests did not start: {error}") from error
        yield Engine(Client(environment.client, settings_of_tests(home, **settings)), environment)
