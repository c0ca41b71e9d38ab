"""What workers tell OpenTelemetry and Prometheus, in processes of their own, some of which are killed."""

import asyncio
import json
import re
import urllib.error
import urllib.request
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from perdure.client import Client
from perdure.testing import ModelServerProcess
from tests.otlp import Endpoint

pytest.importorskip("opentelemetry.sdk")

AGENTS = """
from pathlib import Path
import time

from perdure import Agent, ModelSettings, tool

HERE = Path(__file__).parent


@tool(effect="read", timeout=60)
def dawdle() -> str:
    "Take long, the first time."
    with (HERE / "begun").open("a") as file:
        file.write("x")
    if (HERE / "begun").read_text() == "x":
        time.sleep(60)
    return "well rested"


agent = Agent("survivor", "openai:tiny", tools=[dawdle], settings=ModelSettings(base_url="{url}"))
"""
SCRIPT: list[dict[str, Any]] = [{"calls": [{"name": "dawdle"}]}, {"text": "Done.", "hang": True, "times": 1}]


@contextmanager
def killed(cli, **env):
    """Serve the file while the block runs; then the worker is killed."""
    with cli.process("worker", "survivor.py", "--json", PERDURE_HEARTBEAT_TIMEOUT="2", **env) as worker:
        assert json.loads(worker.stdout.readline())["event"] == "ready"
        yield
        worker.kill()
        worker.wait()


async def sign_of_life(client, run_id, kind):
    """Wait until the attempt under way of that activity has told that it began."""
    handle = client.temporal.get_workflow_handle(run_id)
    while True:
        described = (await handle.describe()).raw_description.pending_activities
        if any(one.activity_type.name == kind and one.HasField("heartbeat_details") for one in described):
            return
        await asyncio.sleep(0.05)  # the engine can only be asked


async def asked(server, times):
    """Wait until a model server has had so many requests."""
    while True:
        with urllib.request.urlopen(f"{server.base_url}/requests") as answer:
            if len(json.loads(answer.read())) >= times:
                return
        await asyncio.sleep(0.05)  # the server can only be asked


@pytest.mark.timeout(240)
async def test_a_run_whose_workers_were_killed_is_one_tree_with_a_span_for_each_attempt(cli, engine):
    with Endpoint.open() as endpoint, ModelServerProcess(SCRIPT) as server:
        (cli.folder / "survivor.py").write_text(AGENTS.replace("{url}", server.base_url))
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint.address, "OTEL_SERVICE_NAME": "travel-desk"}
        client, run_id, kills = await Client.connect(engine), "often-killed", list[datetime]()
        for kind in ("dawdle", "perdure.model"):
            with killed(cli, **env):
                if not kills:
                    cli("run", "survivor.py", "go", "--id", run_id, "--detach", PERDURE_HEARTBEAT_TIMEOUT="2")
                await asyncio.wait_for(sign_of_life(client, run_id, kind), 60)
                await asyncio.wait_for(asked(server, len(kills) + 1), 60)
                kills.append(datetime.now(UTC))
        with cli.process("worker", "survivor.py", "--json", **env) as worker:
            worker.stdout.readline()
            assert "completed" in cli("watch", run_id).stdout
            spans = await asyncio.to_thread(endpoint.of_run, run_id)
        with urllib.request.urlopen(f"{server.base_url}/requests") as answer:
            requests = len(json.loads(answer.read()))

    chats = [span for span in spans if span.name == "chat tiny"]
    calls = [span for span in spans if span.name == "execute_tool dawdle"]
    (root,) = [span for span in spans if not span.parent]
    assert root.name == "invoke_agent survivor"
    assert {span.parent for span in spans} == {"", root.span}
    assert len({span.trace for span in spans}) == 1
    assert len({span.span for span in spans}) == len(spans) == 1 + len(chats) + len(calls)
    assert len(chats) == requests == 3
    assert len(calls) == len((cli.folder / "begun").read_text()) == 2
    assert {span.service for span in spans} == {"travel-desk"}
    lost = [span for span in spans if span.attributes.get("error.type") == "worker_lost"]
    assert [span.name for span in lost] == ["execute_tool dawdle", "chat tiny"]
    assert all(span.failed and "perdure.estimated" not in span.attributes for span in lost)
    for span, kill in zip(lost, kills, strict=True):  # it lived until it was killed, not until that was noticed
        assert span.seconds > 0
        assert span.began < kill
        assert span.ended <= kill
    assert root.began <= min(span.began for span in spans)
    assert root.ended >= max(span.ended for span in spans)


def fetch(address):
    """Return the status and the text of an answer."""
    try:
        with urllib.request.urlopen(address) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_worker_says_how_it_fares_and_what_it_has_done(cli):
    with cli.process("worker", "agents.py", "--json", "--metrics-port", "0") as worker:
        address = json.loads(worker.stdout.readline())["metrics"]
        run_id = f"counted-{uuid4().hex}"
        cli("run", "agents.py:talker", "go", "--id", run_id)
        assert fetch(f"{address}/healthz") == (200, "ok\n")
        assert fetch(f"{address}/readyz") == (200, "ok\n")
        assert fetch(f"{address}/nothing")[0] == 404
        text = fetch(f"{address}/metrics")[1]
        for name in (
            "gen_ai_client_operation_duration_seconds_count",
            "gen_ai_client_token_usage",
            "gen_ai_execute_tool_duration_seconds_count",
            "perdure_queue_time_seconds_bucket",
            "temporal_workflow_task_execution_latency",
            "process_cpu_seconds_total",
        ):
            assert name in text, name
        (asked,) = re.findall(r"gen_ai_client_operation_duration_seconds_count\{[^}]*\} (\S+)", text)
        assert float(asked) == 2
        assert run_id not in text


def test_a_port_that_is_taken_is_said_in_one_sentence(cli):
    with cli.process("worker", "agents.py", "--json", "--metrics-port", "0") as worker:
        port = json.loads(worker.stdout.readline())["metrics"].rpartition(":")[2]
        told = cli("worker", "agents.py", "--metrics-port", port, code=1).stderr
        assert "choose another --metrics-port" in told


def test_doctor_says_whether_telemetry_is_on_and_where_it_goes(cli):
    assert "telemetry: off" in cli("doctor", code=None).stdout
    told = cli("doctor", code=None, OTEL_EXPORTER_OTLP_ENDPOINT="http://user:secret@collector:4318").stdout
    assert "spans go to http://collector:4318" in told
    assert "secret" not in told
