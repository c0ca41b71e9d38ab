"""Private values planted wherever a run takes them are found in no diagnostics, secrets nowhere at all.

A worker is killed on the way. What is looked for, and where, is in `canaries.py`: a new place is one function there.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import shlex
import subprocess
import sys
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from perdure.client import Client as Starter
from perdure.settings import Settings
from perdure.testing import ModelServerProcess
from tests.acceptance.canaries import (
    CARD,
    DIAGNOSTICS,
    EMAIL,
    IDENTITY,
    LATIN,
    NAME,
    PHONE,
    PRIVATE,
    RECORDS,
    SECRET,
    SECRETS,
    TOKEN,
    World,
    hits,
    search,
    told_in_history,
    visibility,
)
from tests.acceptance.conftest import PATIENCE, Cli
from tests.otlp import Endpoint
from tests.receiving import Receiver

pytestmark = pytest.mark.timeout(300)  # one long play, of which all tests look at what it left behind

AGENTS = f'''
import logging
import time
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel

from perdure import Agent, ModelSettings, Secret, Sensitive, ToolContext, ToolError, tool

HERE = Path(__file__).parent
ALL = "{PHONE} {IDENTITY} {CARD} {EMAIL} {NAME} {LATIN}"


class Guest(BaseModel):
    name: Annotated[str, Sensitive("name")]
    phone: Annotated[str, Sensitive("phone")]
    note: str = ALL


@tool(effect="read")
def find_guests(room: int) -> list[Guest]:
    """Find guests."""
    return [Guest(name="{NAME}", phone="{PHONE}"), Guest(name="{LATIN}", phone="+1 202 555 0123")]


@tool(effect="idempotent", timeout=120)
def charge(card: Annotated[str, Sensitive("card")], pin: Annotated[str, Secret("pin")], ctx: ToolContext) -> str:
    """Charge a card."""
    if ctx.attempt == 1 and not (HERE / "charging").exists():
        (HERE / "charging").touch()
        time.sleep(600)
    logging.getLogger("desk").warning("attempt %s for %s, pin %s", ctx.attempt, ALL, pin)
    if ctx.attempt == 2:
        raise RuntimeError(f"declined: {{ALL}} {{pin}}")
    return f"charged {{card}} with {{pin}} for {NAME}"


@tool(effect="read")
def look_up(who: str, pin: Annotated[str, Secret("pin")]) -> str:
    """Look somebody up."""
    raise ToolError(f"nobody is called {{who}}: {{ALL}} {{pin}}", suggestion=f"ask {{ALL}}")


@tool(approval="always")
def text(phone: Annotated[str, Sensitive("phone")], words: str) -> str:
    """Send a text message."""
    return f"sent to {{phone}}: {{words}}"


@tool
def wire(to: str, pin: Annotated[str, Secret("pin")]) -> str:
    """Send money."""
    raise OSError(f"connection to {{to}} lost: {{ALL}} {{pin}}")


TOOLS = [find_guests, charge, look_up, text, wire]
desk = Agent("desk", "openai:desk", tools=TOOLS, settings=ModelSettings(attempts=5))
refused = Agent("refused", f"scripted:{{HERE / 'refused.json'}}")
'''

ALL = f"{PHONE} {IDENTITY} {CARD} {EMAIL} {NAME} {LATIN}"
UPSTREAM = {"status": 500, "body": {"error": {"message": f"upstream failed for {ALL}, key {TOKEN}"}}}
SCRIPT: list[Any] = [
    {"calls": [{"name": "find_guests", "arguments": {"room": 4}}]},
    {
        "http": UPSTREAM,
        "times": 2,
        "text": f"I charge {NAME}.",
        "calls": [
            {"name": "charge", "arguments": {"card": CARD}},
            {"name": "look_up", "arguments": {"who": NAME}},
            {"name": "charge", "arguments": {"kard": CARD, "name": NAME}},
        ],
    },
    {"calls": [{"name": "text", "arguments": {"phone": PHONE, "words": f"Dear {NAME}, {EMAIL}, {IDENTITY}"}}]},
    {"calls": [{"name": "wire", "arguments": {"to": LATIN}}]},
    f"Done for {ALL}.",
]
REFUSED = [{"error": {"kind": "authentication", "message": f"Incorrect API key provided: {TOKEN}, for {PHONE}"}}]
KEY = base64.b64encode(b"a key of a test, 32 bytes of it.").decode()


class Play:
    """One run of everything, as a user would go about it."""

    def __init__(self, folder: Path, stack: ExitStack, *, keys: bool) -> None:
        (folder / "agents.py").write_text(AGENTS)
        (folder / "refused.json").write_text(json.dumps(REFUSED))
        (folder / "pin.txt").write_text(SECRET)
        self.folder, self._stack, self.keys, self.shown = folder, stack, keys, ""
        self.cli = Cli(folder, folder / "home")
        model = stack.enter_context(ModelServerProcess(SCRIPT))
        self.cli.env |= {"OPENAI_API_KEY": TOKEN, "OPENAI_BASE_URL": model.base_url}
        if keys:
            self.cli.env["PERDURE_ENCRYPTION_KEY"] = KEY
        self.endpoint = stack.enter_context(Endpoint.open())
        self.cli.env |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint.address,
            "PERDURE_CAPTURE_CONTENT": "redacted",
            "PERDURE_EVENT_LOG": str(folder / "events.txt"),
            "PERDURE_METRICS_PORT": "0",
        }
        self.receiver = Receiver()
        stack.callback(self.receiver.close)
        noticing = [sys.executable, "-c", "import sys; open('noticed.txt', 'a').write(sys.stdin.read() + chr(10))"]
        self.cli.env |= {"PERDURE_NOTIFY_URL": self.receiver.url, "PERDURE_NOTIFY_COMMAND": shlex.join(noticing)}
        self.logs: dict[str, Path] = {"cli": folder / "cli.txt", "events": folder / "events.txt"}
        self._said = stack.enter_context((folder / "cli.txt").open("a"))
        self.address = self.start("dev")[1]["address"]
        self.world = World(folder / "home", self.address, self.logs)

    def start(self, name: str, *words: str) -> tuple[subprocess.Popen[str], Any]:
        """Start a command that stays, what it says in a file; return it, and what it prints when it is ready."""
        file = self.folder / f"{name}-{len(self.logs)}.txt"
        self.logs[file.stem] = file
        command = [sys.executable, "-m", "perdure.starter", name, *words, "--json"]
        with file.open("w") as said:
            process = subprocess.Popen(
                command, cwd=self.folder, env=self.cli.env, text=True, stdout=subprocess.PIPE, stderr=said
            )
        self._stack.callback(_end, process)
        assert process.stdout
        return process, json.loads(process.stdout.readline())

    def say(self, *words: str, code: int = 0) -> str:
        """Run a command; what it says is kept, what it prints is the user's."""
        done = self.cli(*words, code=code)
        self._said.write(done.stderr)
        self._said.flush()
        return done.stdout

    async def until(self, run_id: str, wanted: str) -> None:
        """Wait for an event of a run."""
        key = SecretStr(KEY) if self.keys else None
        client = await Starter.connect(Settings(home=self.world.home, encryption_key=key))
        async with asyncio.timeout(PATIENCE):
            async for event in client.handle(run_id).events():
                if event.type == wanted:
                    return

    async def look(self, name: str) -> None:
        """Keep what the engine shows of runs at this moment, with calls under way."""
        seen = b"\n".join([data async for _, data in visibility(self.world)])
        self.world.more[name] = lambda: seen

    async def collect(self, metrics: str) -> None:
        """Keep what further sinks have been told, once they have been told all."""
        with urllib.request.urlopen(f"{metrics}/metrics") as answer:
            told = answer.read()
        page = self.folder / "trace.html"
        self.say("trace", "canary", "--redacted", "--html", str(page))
        data = self.say("trace", "canary", "--redacted", "--json").encode()
        costs = self.say("cost", "--json").encode()
        await asyncio.to_thread(self.endpoint.of_run, "canary")
        noticed = ("run.waiting", "run.waiting", "run.ended")  # for approval, and in doubt
        await self.receiver.until("canary", *noticed)
        self.world.more |= {
            "metrics": lambda: told,
            "trace --html": page.read_bytes,
            "trace --json": lambda: data,
            "cost": lambda: costs,
            "notices": lambda: b"\n".join(self.receiver.bodies),
            "noticed": (self.folder / "noticed.txt").read_bytes,
            "otlp": lambda: b"\n".join(self.endpoint.bodies),
        }


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.wait(PATIENCE)
    if process.stdout:
        process.stdout.close()


async def play(folder: Path, stack: ExitStack, *, keys: bool) -> Play:
    """Have a run meet all that there is, a killed worker included."""
    it = Play(folder, stack, keys=keys)
    first, _ = it.start("worker", "agents.py")
    secret = ("--secret", "pin=@pin.txt")
    it.say("run", "agents.py:desk", f"Charge {ALL}.", "--id", "canary", "--user", "ann", *secret, "--detach")
    await _there(folder / "charging")
    await it.look("while charging")
    first.kill()
    _, ready = it.start("worker", "agents.py")
    await it.until("canary", "approval_requested")
    await it.look("while waiting")
    it.say("approve", "canary", "--reason", f"for {ALL}")
    await it.until("canary", "in_doubt")
    it.say("settle", "canary", "4.1", "done", "--result", json.dumps({"sent to": LATIN}), "--reason", ALL)
    it.shown = it.say("watch", "canary", "--json")
    it.say("run", "agents.py:refused", ALL, "--id", "refused", code=1)
    it.say("run", "agents.py:desk", f"Charge {ALL}.", "--id", "second", *secret, "--detach")
    await it.until("second", "approval_requested")
    it.say("cancel", "second", "--reason", f"{ALL} says so")
    await it.until("second", "run_finished")
    it.say("show", "nothing-of-this-name", code=1)
    await it.collect(ready["metrics"])
    return it


async def _there(file: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        while not file.exists():
            await asyncio.sleep(0.02)


@pytest.fixture(scope="module", params=["plain", "encrypted"])
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    """All that a run leaves behind, without a key and with one."""
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp(request.param)
        yield asyncio.run(play(folder, stack, keys=request.param == "encrypted"))


async def test_diagnostics_hold_nothing_private(played: Play) -> None:
    assert await search(played.world, DIAGNOSTICS, {**PRIVATE, **SECRETS}) == {}


async def test_each_of_them_was_told_of_the_run(played: Play) -> None:
    sinks = {name: data() for name, data in played.world.more.items()}
    assert {name for name, data in sinks.items() if not data} == set()
    assert b"execute_tool charge" in sinks["otlp"]
    assert b"charge" in sinks["trace --html"]
    for notices in (sinks["notices"], sinks["noticed"]):
        assert b'"wants": "approval"' in notices
        assert b'"wants": "settlement"' in notices
        assert b"run.ended" in notices
    assert b"tool_finished" in played.logs["events"].read_bytes()


async def test_words_of_failures_are_encrypted_too(played: Play) -> None:
    said = [data.decode() async for _, data in told_in_history(played.world) if b'"message"' in data]
    assert said
    if played.keys:
        assert {json.loads(one)["message"] for one in said} <= {"Encrypted", ""}
    else:
        assert any("138****1942" in one for one in said)


async def test_secrets_are_nowhere(played: Play) -> None:
    assert await search(played.world, RECORDS, SECRETS) == {}


async def test_records_are_whole_without_a_key_and_unreadable_with_one(played: Play) -> None:
    found = await search(played.world, RECORDS, PRIVATE)
    if played.keys:
        assert found == {}
    else:
        assert {name: {one.partition(":")[0] for one in found[name]} for name in found} == {
            name: {"histories", "files"} for name in PRIVATE
        }, "what is looked for here has to be found where it may be"


async def test_what_is_private_is_told_in_part_where_it_is_told_at_all(played: Play) -> None:
    said = b"\n".join(file.read_bytes() for file in played.logs.values()).decode()
    for shown in ("138****1942", "110****8822", "****0128", "q***@example.com", "O.Y.Z.H.", "[secret pin]"):
        assert shown in said
    assert PHONE in played.shown, "the user's own command shows what it is asked to"


@pytest.mark.parametrize("key", ["", base64.b64encode(b"x" * 32).decode()], ids=["none", "another"])
def test_a_worker_without_the_key_is_refused_in_one_sentence(played: Play, key: str) -> None:
    if not played.keys:
        return
    refused = played.cli("worker", "agents.py", code=1, PERDURE_ENCRYPTION_KEY=key)
    assert len(refused.stderr.splitlines()) == 1
    assert "The data of namespace 'default' are encrypted with key" in refused.stderr


@pytest.mark.parametrize("key", ["", base64.b64encode(b"x" * 32).decode()], ids=["none", "another"])
@pytest.mark.parametrize(
    "command",
    [
        ["run", "agents.py:desk", "hello", "--id", "unheard", "--detach"],
        ["say", "second", "hello"],
        ["fork", "canary", "--at", "1", "--id", "unheard", "--detach"],
    ],
    ids=lambda command: command[0],
)
def test_nothing_is_started_or_said_without_the_key(played: Play, command: list[str], key: str) -> None:
    if not played.keys:
        return
    refused = played.cli(*command, code=1, PERDURE_ENCRYPTION_KEY=key)
    assert len(refused.stderr.splitlines()) == 1, refused.stderr
    assert "key" in refused.stderr
    played.cli("show", "unheard", code=1)


@pytest.mark.parametrize("value", [PHONE, NAME, SECRET])
def test_the_search_finds_what_is_written_in_other_ways(value: str) -> None:
    text = f'{{"it": "{value}"}}'.encode()
    ways = [
        text,
        json.dumps({"it": value}).encode(),
        *(base64.b64encode(b"x" * shift + text) for shift in range(3)),
        zlib.compress(text),
        gzip.compress(text),
        b'"data": "' + base64.b64encode(zlib.compress(text)) + b'"',
        text.decode().encode("utf-16-le"),
    ]
    assert [hits(data, {"it": value}) for data in ways] == [["it"]] * len(ways)
    assert hits(b"nothing of it", {"it": value}) == []
