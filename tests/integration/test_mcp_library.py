"""Real MCP servers: one made with the `mcp` package, over stdio and streamable HTTP, and the reference one of npm."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from perdure import MCPServer

LIBRARY = Path(__file__).parents[1] / "mcp_servers" / "library.py"
EVERYTHING = "@modelcontextprotocol/server-everything"


def calling(name, /, **arguments):
    return {"calls": [{"name": name, "arguments": arguments}]}


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


async def until(fits):
    async with asyncio.timeout(60):
        while not fits():
            await asyncio.sleep(0.05)


def listens(port):
    with socket.socket() as probing:
        return probing.connect_ex(("127.0.0.1", port)) == 0


class Shop:
    """A server over HTTP, in a process of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.port = free_port()
        self.process = None

    async def open(self):
        line = [sys.executable, str(LIBRARY), str(self.folder), "--port", str(self.port)]
        self.process = subprocess.Popen(line, stderr=subprocess.DEVNULL)
        await until(lambda: listens(self.port))

    def kill(self):
        if self.process:
            self.process.kill()
            self.process.wait()

    def holds(self):
        file = self.folder / "journal"
        return file.exists() and "holds" in file.read_text()

    def server(self, **options):
        return MCPServer("shop", url=f"http://127.0.0.1:{self.port}/mcp", **options)


@pytest.fixture
async def shop(tmp_path):
    shop = Shop(tmp_path)
    await shop.open()
    yield shop
    shop.kill()


async def test_a_server_made_with_the_package_is_spoken_to_over_stdio(stage, tmp_path):
    server = MCPServer("library", command=[sys.executable, str(LIBRARY), str(tmp_path)])
    script = [calling("add", a=2, b=3), calling("fail"), calling("picture"), calling("add", a="x"), "done"]
    done = await stage.run(script, [server])
    assert [one.status for one in done.results] == ["ok", "error", "ok", "error"]
    assert done.results[0].content == "5"
    assert "fail" in done.results[1].message
    assert done.results[2].images[0].url.startswith("data:image/png;base64,")
    assert done.results[3].error_type == "invalid_arguments"
    assert {one.name: one.effect for one in done.state.spec.tools}["add"] == "read"


async def test_a_server_over_http_gets_headers_and_when_it_is_lost_an_effect_is_in_doubt(stage, shop, monkeypatch):
    monkeypatch.setenv("SHOP_TOKEN", "a-token-nobody-sees")
    headers = {"Authorization": "Bearer ${SHOP_TOKEN}"}
    script = [calling("header", name="authorization"), calling("hold"), calling("add", a=1, b=1), "done"]
    agent = stage.agent(script, [shop.server(headers=headers)])
    await stage.serve(agent)
    handle = await stage.start_again(agent)
    await until(shop.holds)
    shop.kill()
    await stage.until_status(handle, "waiting_decision")
    await shop.open()
    await handle.settle("2.1", "not-done", by="Ann")
    done = await stage.end(handle)
    assert done.results[0].content == "Bearer [secret SHOP_TOKEN]"
    assert [one.status for one in done.results] == ["ok", "error", "ok"]


async def test_an_effect_at_a_server_that_is_away_was_not_done(stage, shop):
    agent = stage.agent([calling("hold"), "done"], [shop.server(approval="always")])
    await stage.serve(agent)
    handle = await stage.start_again(agent)
    await stage.until(handle, "approval_requested")
    shop.kill()
    await handle.approve("1.1", by="Ann")
    done = await stage.end(handle)
    assert [(one.status, one.error_type) for one in done.results] == [("error", "unavailable")]
    assert "Nothing was executed" in done.results[0].message


async def test_a_run_whose_server_is_away_fails_by_name_and_goes_on_when_it_is_back(stage, tmp_path):
    shop = Shop(tmp_path)
    agent = stage.agent([calling("add", a=1, b=2), "done"], [shop.server(list_attempts=2)])
    await stage.serve(agent)
    handle = await stage.start_again(agent)
    done = await stage.end(handle)
    assert (done.result.status, done.result.failure) == ("failed", "mcp_unavailable")
    assert "MCP server 'shop' can't be used" in done.result.reason
    await shop.open()
    try:
        done = await stage.end(await handle.resume())
    finally:
        shop.kill()
    assert (done.result.status, done.results[0].content) == ("completed", "3")


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("npx") is None, reason="npx is not there")
async def test_the_reference_server_of_npm_can_be_used_and_killed(stage):
    everything = MCPServer(
        "everything", command=["npx", "-y", EVERYTHING], start_timeout=240, effects={"get-env": "unsafe"}
    )
    script = [
        calling("echo", message="hi"),
        calling("get-sum", a=2, b=3),
        calling("get-structured-content", location="New York"),
        calling("get-tiny-image"),
        calling("get-resource-links", count=2),
        calling("get-resource-reference", resourceType="Text", resourceId=1),
        calling("trigger-long-running-operation", duration=600, steps=1000),
        calling("get-sum", a=4, b=5),
        "done",
    ]
    agent = stage.agent(script, [everything])
    await stage.serve(agent)
    handle = await stage.start_again(agent)
    await stage.until(handle, lambda event: event.type == "tool_started" and event.call == "7.1")
    effects = {one.name: one.effect for one in (await stage.state(handle)).spec.tools}
    assert (effects["echo"], effects["get-env"]) == ("read", "unsafe")
    for pid in children_with("server-everything"):
        os.kill(pid, signal.SIGKILL)
    done = await asyncio.wait_for(stage.end(handle), 200)
    said = [(one.status, one.content) for one in done.results]
    assert said[0] == ("ok", "Echo: hi")
    assert "5" in said[1][1]
    assert '"temperature"' in said[2][1]
    assert done.results[3].images
    assert "[Resource " in said[4][1]
    assert "[Resource " in said[5][1]
    assert said[6][0] == "error"  # a read, which is asked once more, and takes too long
    assert "9" in said[7][1]


def children_with(word):
    """Return the processes of this one's descent whose command line has a word in it."""
    entries = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and word in _line(entry)]
    return [pid for entry in entries if _descends(pid := int(entry.name))]


def _line(entry):
    try:
        return (entry / "cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _descends(pid):
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False
