"""When OpenTelemetry is told of runs, where that goes, and what it imports: nothing, unless it is on."""

import asyncio
import subprocess
import sys
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from perdure.activities.stores import ArchivedRun
from perdure.engine.converter import data_converter
from perdure.errors import PerdureError
from perdure.settings import Settings
from perdure.telemetry import ids, otel, signals
from perdure.telemetry.projection import projected
from perdure.telemetry.spans import Span
from tests.replay.replaying import history_of


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    """An environment that says nothing of it."""
    import os

    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


def wanted(monkeypatch, otel_setting=None, **env):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    asked = otel.wanted(Settings(otel=otel_setting))
    return asked.traces, asked.metrics


def test_it_is_off_unless_somebody_asks(monkeypatch):
    assert wanted(monkeypatch) == ("", "")


@pytest.mark.parametrize(
    ("env", "traces", "metrics"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "http://c:4318", "http://c:4318"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/t"}, "http://c/t", ""),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "http://localhost:4318", ""),
        ({"OTEL_TRACES_EXPORTER": "console"}, "the console", ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, "", "http://c:4318"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, "", ""),
    ],
)
def test_the_standard_variables_say_where_it_goes(monkeypatch, env, traces, metrics):
    assert wanted(monkeypatch, **env) == (traces, metrics)


def test_the_setting_turns_it_on_and_off_whatever_the_variables_say(monkeypatch):
    assert wanted(monkeypatch, True) == ("http://localhost:4318", "http://localhost:4318")
    assert wanted(monkeypatch, False, OTEL_EXPORTER_OTLP_ENDPOINT="http://c:4318") == ("", "")


async def test_asking_for_it_without_its_libraries_is_one_clear_sentence(monkeypatch):
    monkeypatch.setattr(otel, "installed", lambda: False)
    with pytest.raises(PerdureError, match=r"pip install 'perdure\[otel\]'"):
        async with otel.on(Settings(otel=True)):
            pass


async def test_an_environment_that_asks_for_it_does_not_stop_a_worker_without_its_libraries(monkeypatch, caplog):
    monkeypatch.setattr(otel, "installed", lambda: False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318")
    async with otel.on(Settings()) as telemetry:
        assert telemetry is None
    assert "perdure[otel]" in caplog.text


def test_nothing_of_it_is_imported_while_it_is_off():
    code = (
        "import asyncio, sys\n"
        "import perdure.worker\n"
        "from perdure.settings import Settings\n"
        "from perdure.telemetry import otel\n"
        "async def on():\n"
        "    async with otel.on(Settings()) as telemetry: assert telemetry is None\n"
        "asyncio.run(on())\n"
        "found = [name for name in sys.modules if name.split('.')[0] in ('opentelemetry', 'prometheus_client')]\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_what_could_not_be_delivered_is_counted(monkeypatch):
    pytest.importorskip("opentelemetry.sdk")
    from datetime import UTC, datetime

    from prometheus_client import generate_latest

    from perdure.telemetry.spans import Span

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9/v1/traces")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    now = datetime.now(UTC)
    async with otel.on(Settings(metrics_port=0)) as telemetry:
        assert telemetry is not None
        ref = ids.of_run("default", "r", "")
        telemetry.emit([Span("invoke_agent a", ref, None, now, now, {})])
        await telemetry.delivered()
        text = generate_latest().decode()
        assert 'perdure_telemetry_dropped_total{otel_scope_name="perdure"' in text
        assert signals.current() is telemetry.signals
    assert signals.current() is not telemetry.signals


def test_ids_follow_from_what_they_stand_for():
    one = ids.of_attempt("default", "run", "x", "1.1", 1)
    assert one == ids.of_attempt("default", "run", "x", "1.1", 1)
    others = [("default", "run", "x", "1.1", 2), ("default", "run", "y", "1.1", 1), ("other", "run", "x", "1.1", 1)]
    assert len({one.span, *(ids.of_attempt(*other).span for other in others)}) == 4
    assert one.trace == ids.of_run("default", "run", "chain").trace
    assert one.traceparent(sampled=True) == f"00-{one.trace:032x}-{one.span:016x}-01"


class Marks:
    """How far executions were told; as the store has it."""

    def __init__(self) -> None:
        self.event, self.holder = 0, ""

    async def claim(self, namespace: str, run_id: str, execution: str, holder: str, patience: timedelta) -> int | None:
        del namespace, run_id, execution, patience
        if self.holder not in ("", holder):
            return None
        self.holder = holder
        return self.event

    async def told(self, namespace: str, run_id: str, execution: str, holder: str, event: int) -> None:
        del namespace, run_id, execution, holder
        self.event, self.holder = max(self.event, event), ""


async def test_a_copy_of_a_run_that_goes_on_and_that_of_its_end_never_tell_the_same_though_they_meet():
    from perdure.activities.afterwards import Kept
    from perdure.activities.tracing import Tracing

    arriving, told = asyncio.Event(), list[Any]()

    class Slow(otel.Telemetry):
        def __init__(self) -> None:
            self.capture = "off"
            self.signals = signals.Signals()  # type: ignore[assignment]

        def emit(self, spans: Iterable[Span]) -> None:
            told.extend(spans)

        async def delivered(self) -> None:
            await arriving.wait()

    recorded = history_of("tools")
    projection = await projected(recorded.workflow_id, recorded.events, data_converter)
    started = projection.started_at
    assert started
    about: dict[str, Any] = {
        "namespace": "default",
        "run_id": recorded.workflow_id,
        "agent": "a",
        "status": "completed",
    }
    run = ArchivedRun(**about, started_at=started, closed_at=started, result=projection.result())
    half = run.model_copy(update={"result": None, "closed_at": None})
    so_far = Kept(half, "e", projection, recorded.events[:-5], data_converter, goes_on=True)
    whole = Kept(run, "e", projection, recorded.events, data_converter)
    tracing = Tracing(Slow(), Marks())
    copies = [asyncio.create_task(tracing(so_far)), asyncio.create_task(tracing(whole))]
    while not told:
        await asyncio.sleep(0)
    arriving.set()
    await asyncio.gather(*copies)
    assert len({span.ref for span in told}) == len(told)
    assert told[-1].name.startswith("invoke_agent")
