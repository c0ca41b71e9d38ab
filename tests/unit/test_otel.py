"""When OpenTelemetry is told of runs, where that goes, and what it imports: nothing, unless it is on."""

import subprocess
import sys

import pytest

from perdure.errors import PerdureError
from perdure.settings import Settings
from perdure.telemetry import ids, otel, signals


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
