"""An MCP server over stdio, without any library, so that it starts at once: `plain.py FOLDER`.

What it offers is in FOLDER/tools.json; what it was asked, with its process id, in FOLDER/journal. With `-` as the
folder, it offers the same always, and writes nothing.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
folder = Path(sys.argv[1])
lock = threading.Lock()


def offered():
    if str(folder) != "-":
        return json.loads((folder / "tools.json").read_text())
    schema = {"type": "object"}
    return [{"name": name, "description": name, "inputSchema": schema} for name in ("echo", "fail", "break")]


def note(*words):
    if str(folder) == "-":
        return
    with lock, (folder / "journal").open("a") as journal:
        journal.write(" ".join(map(str, (os.getpid(), *words))) + "\n")


def send(message):
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def text(said, **more):
    return {"content": [{"type": "text", "text": said}], **more}


def hold(arguments, params):
    """Wait until FOLDER/go is there; tell how far it is before."""
    token = params.get("_meta", {}).get("progressToken")
    if token is not None:
        progress = {"progressToken": token, "progress": 1, "total": 4, "message": "a quarter"}
        send({"method": "notifications/progress", "params": progress})
    note("holds", arguments.get("name", ""))
    waiting = threading.Event()
    while not (folder / "go").exists():
        waiting.wait(0.02)
    note("lets go", arguments.get("name", ""))
    return text("held")


def echo(arguments, _params):
    said = {"said": arguments.get("text", "")}
    return text(json.dumps(said), structuredContent=said)


def see(_arguments, _params):
    return {
        "content": [
            {"type": "text", "text": "a pixel"},
            {"type": "image", "data": PIXEL, "mimeType": "image/png"},
            {"type": "resource_link", "uri": "file:///a.txt", "name": "a", "mimeType": "text/plain"},
            {"type": "resource", "resource": {"uri": "file:///b.txt", "text": "all of b"}},
            {"type": "audio", "data": PIXEL, "mimeType": "audio/wav"},
        ]
    }


BODIES = {
    "echo": echo,
    "key": lambda arguments, params: text(params["_meta"]["perdure/idempotencyKey"]),
    "environment": lambda arguments, params: text(json.dumps(dict(os.environ))),
    "fail": lambda arguments, params: text("no such seat", isError=True),
    "hold": hold,
    "see": see,
}


def call(id_, params):
    name, arguments = params["name"], params.get("arguments") or {}
    note("call", name)
    if name not in [tool["name"] for tool in offered()]:
        send({"id": id_, "error": {"code": -32602, "message": f"Unknown tool: {name}"}})
    elif name == "break":
        send({"id": id_, "error": {"code": -32603, "message": "something broke"}})
    elif name == "ask":
        params = {"messages": [], "maxTokens": 1}
        asking[1000] = lambda answer: send({"id": id_, "result": text(json.dumps(answer))})
        send({"id": 1000, "method": "sampling/createMessage", "params": params})
    else:
        send({"id": id_, "result": BODIES.get(name, BODIES["echo"])(arguments, params)})


asking: dict[int, Callable[[object], None]] = {}


def answer(message):
    method, params = message.get("method"), message.get("params") or {}
    if method == "initialize":
        info = {"name": "plain", "version": "1"}
        version = params["protocolVersion"]
        send(
            {
                "id": message["id"],
                "result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info},
            }
        )
    elif method == "tools/list":
        note("list")
        send({"id": message["id"], "result": {"tools": offered()}})
    elif method == "tools/call":
        threading.Thread(target=call, args=(message["id"], params), daemon=True).start()
    elif method is None and message.get("id") in asking:
        asking.pop(message["id"])(message.get("error") or message.get("result"))
    elif "id" in message:
        send({"id": message["id"], "error": {"code": -32601, "message": f"{method} is not known"}})


note("starts", os.getppid())
sys.stderr.write("plain server starts\n")
for line in sys.stdin:
    answer(json.loads(line))
note("ends")
