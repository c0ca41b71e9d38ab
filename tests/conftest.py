"""What many tests share: one engine for the whole session, and a client of it."""

import asyncio
import io
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck

from perdure.client import Client
from perdure.settings import Settings

pytest_plugins = ["perdure.testing.plugin"]  # for a source tree that is not installed
ROOT = Path(__file__).parents[1]

# Whatever this machine is set up for, tests neither see nor touch it.
for name in [name for name in os.environ if name.startswith(("TEMPORAL_", "PERDURE_"))]:
    if not name.startswith(("PERDURE_TEST_", "PERDURE_CHAOS_")):
        del os.environ[name]
os.environ["TEMPORAL_CONFIG_FILE"] = os.devnull

# A shell has what it starts in the background ignore Ctrl-C, and so would every process that a test sends it to.
signal.signal(signal.SIGINT, signal.default_int_handler)

# However slow the machine: a test has its timeout, not each of its examples.
hypothesis.settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis.settings.load_profile("any-machine")


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return the environment of a process that uses the engine and the store in `home`."""
    return {**os.environ, "PERDURE_HOME": str(home), "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **more}


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings whose home has a running engine, the same for all tests: give runs and agents names of their own."""
    with running_engine(tmp_path_factory.mktemp("engine")) as settings:
        yield settings


@contextmanager
def running_engine(home: Path) -> Generator[Settings]:
    """Run an engine in that home."""
    command = [sys.executable, "-m", "perdure.starter", "dev", "--json"]
    with subprocess.Popen(command, cwd=home, env=environment(home), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline(), "the engine did not start"
        yield Settings(home=home)
        process.terminate()


@pytest.fixture
async def client(engine: Settings) -> Client:
    """A client of that engine."""
    return await Client.connect(engine)


CLOCK = pytest.StashKey[Any]()


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, Any, Any]:
    """Have a test that is ended for its length tell where it was; by itself it would name the loop alone."""
    item.stash[CLOCK] = settings
    armed = yield
    fail = signal.getsignal(signal.SIGALRM)

    def tell(number: int, frame: FrameType | None) -> None:
        item.add_report_section("call", "tasks and threads at the timeout", whereabouts())
        signal.setitimer(signal.ITIMER_REAL, 30)  # once more: what hung may hang the end of its fixtures as well
        assert callable(fail)
        fail(number, frame)

    signal.signal(signal.SIGALRM, tell)
    return armed


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Wind the clock up again, which a failure has stopped: what hung may hang the end of its fixtures as well."""
    if CLOCK in item.stash:
        item.config.hook.pytest_timeout_set_timer(item=item, settings=item.stash[CLOCK])


def whereabouts() -> str:
    """Return where all tasks of the running loop, and all other threads, are just now."""
    text = io.StringIO()
    for task in asyncio.all_tasks() if asyncio._get_running_loop() else ():
        task.print_stack(file=text)
    for thread, frame in sys._current_frames().items():
        if thread != threading.get_ident():  # the failure itself shows that one
            text.write(f"Thread {thread}:\n{''.join(traceback.format_stack(frame))}")
    return text.getvalue()
