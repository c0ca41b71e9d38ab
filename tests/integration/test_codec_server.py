"""What the Web UI and Temporal's own command line see of encrypted runs, for those with the token."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from pydantic import SecretStr
from temporalio.api.common.v1 import Payloads

from perdure.agents import Agent
from perdure.client import Client
from perdure.engine.codec import Encryption
from perdure.engine.codec_server import CodecServer
from perdure.engine.connection import target
from perdure.engine.converter import data_converter_of
from perdure.engine.server import find_binary
from perdure.sealing import Key, Keyring
from perdure.settings import Settings
from tests.conftest import environment

KEYS = Keyring([Key("k1", b"1" * 32)])
TOKEN = "a-token-of-the-test"
UI = "http://ui.example:8233"


@pytest.fixture
def server() -> Iterator[CodecServer]:
    with CodecServer(("127.0.0.1", 0), Encryption(KEYS), TOKEN, [f"{UI}/"]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


Answer = tuple[int, str, dict[str, str]]


def ask(server: CodecServer, path: str, body: Any, method: str = "POST", **headers: str) -> Answer:
    host, port = server.server_address[:2]
    connection = http.client.HTTPConnection(str(host), port, timeout=10)
    connection.request(method, path, json.dumps(body) if isinstance(body, dict) else body, headers)
    response = connection.getresponse()
    answer = response.status, response.read().decode(), dict(response.getheaders())
    connection.close()
    return answer


async def sealed(keys: Keyring = KEYS) -> dict[str, Any]:
    payloads = await data_converter_of(keys).encode([{"phone": "13812341234"}])
    return json_format.MessageToDict(Payloads(payloads=payloads))


@pytest.mark.parametrize(
    ("path", "headers"),
    [(f"/{TOKEN}/decode", {}), ("/decode", {"Authorization": f"Bearer {TOKEN}"}), (f"/{TOKEN}/decode?namespace=x", {})],
)
async def test_payloads_are_decrypted_for_those_with_the_token(server, path, headers):
    status, text, _ = ask(server, path, await sealed(), **headers)
    assert status == 200
    (payload,) = json_format.Parse(text, Payloads()).payloads
    assert json.loads(payload.data) == {"phone": "13812341234"}
    status, again, _ = ask(server, path.replace("decode", "encode"), json.loads(text), **headers)
    assert status == 200
    assert "13812341234" not in again


@pytest.mark.parametrize(
    ("path", "headers"),
    [("/decode", {}), ("/another-token/decode", {}), ("/decode", {"Authorization": "Bearer x"}), ("//decode", {})],
)
async def test_nobody_else_is_told_anything(server, path, headers):
    status, text, _ = ask(server, path, await sealed(), **headers)
    assert (status, text) == (401, "The token is missing, or is another one.")


async def test_pages_of_the_web_ui_may_ask_and_no_others(server):
    path = f"/{TOKEN}/decode"
    status, _, headers = ask(server, path, None, "OPTIONS", Origin=UI)
    assert status == 204
    assert headers["Access-Control-Allow-Origin"] == UI
    assert "x-namespace" in headers["Access-Control-Allow-Headers"]
    for origin in ("http://evil.example", "null", ""):
        _, _, headers = ask(server, path, await sealed(), Origin=origin)
        assert "Access-Control-Allow-Origin" not in headers


async def test_what_cant_be_decrypted_or_understood_is_told(server):
    status, text, _ = ask(server, f"/{TOKEN}/decode", await sealed(Keyring([Key("k2", b"2" * 32)])))
    assert status == 400
    assert "encrypted with key k2" in text
    assert ask(server, f"/{TOKEN}/decode", "nonsense")[:2] == (400, "The request holds no payloads as JSON.")
    assert ask(server, f"/{TOKEN}/other", {})[0] == 404
    assert ask(server, f"/{TOKEN}/decode", None, **{"Content-Length": "99999999999"})[0] == 413


def said(shown: str) -> bytes:
    """Return the input of a run out of what is shown of its history."""
    (payload,) = json.loads(shown)["events"][0]["workflowExecutionStartedEventAttributes"]["input"]["payloads"]
    return base64.b64decode(payload["data"])


async def test_temporals_own_command_line_shows_what_is_encrypted(server: CodecServer, engine: Settings) -> None:
    settings = engine.model_copy(update={"encryption_key": SecretStr(f"k1:{(b'1' * 32).hex()}")})
    client = await Client.connect(settings)
    agent = Agent("sealed", "scripted:nowhere")
    handle = await client.start(agent, "call 13812341234", task_queue="nobody-serves-this")
    command = [find_binary(), "workflow", "show", "--workflow-id", handle.id, "--output", "json"]
    command += ["--address", target(settings).address]
    plain = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    assert b"call 13812341234" not in said(plain.stdout)
    codec = ["--codec-endpoint", server.endpoint.rpartition("/")[0], "--codec-auth", f"Bearer {TOKEN}"]
    shown = await asyncio.to_thread(subprocess.run, [*command, *codec], capture_output=True, text=True, check=True)
    assert b"call 13812341234" in said(shown.stdout)
    await client.temporal.get_workflow_handle(handle.id).terminate()


def test_the_command_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "perdure.starter", "codec-server", "--port", "0", "--origin", UI, "--json"]
    settings = {"PERDURE_ENCRYPTION_KEY": f"k1:{(b'1' * 32).hex()}", "PERDURE_CODEC_TOKEN": TOKEN}
    env = environment(tmp_path, **settings)
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        ready = json.loads(process.stdout.readline())
        assert ready["endpoint"].endswith(f"/{TOKEN}")
        port = int(ready["endpoint"].split(":")[2].partition("/")[0])
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
            connection.request("POST", f"/{TOKEN}/decode", "{}")
            with connection.getresponse() as response:
                assert response.status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "There is no key to decrypt with"),
        ({"PERDURE_ENCRYPTION_KEY": "11" * 32, "PERDURE_CODEC_TOKEN": "short"}, "at least 16 characters"),
    ],
)
def test_a_server_that_could_not_serve_is_refused(tmp_path: Path, settings: dict[str, str], why: str) -> None:
    command = [sys.executable, "-m", "perdure.starter", "codec-server", "--port", "0"]
    env = environment(tmp_path, **settings)
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2
    assert why in ended.stderr
