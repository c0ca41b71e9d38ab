"""A small real HTTP server that speaks OpenAI's Chat Completions and Responses, and follows a script.

    python -m perdure.testing.model_server SCRIPT.json --port 8098

prints `{"base_url": "http://127.0.0.1:8098/v1"}` on a line of its own once it answers. It streams where it is asked
to. It refuses what OpenAI would refuse: a call without its result, a name or a schema out of bounds. `GET
{base_url}/requests` gives what it was asked, oldest first: `path`, `body`, and `at`, in seconds of a steady clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Literal, Self, cast

from perdure.errors import ModelError, ModelErrorKind
from perdure.messages import JSON
from perdure.testing.openai_stream import Body, event
from perdure.testing.openai_wire import CHAT, RESPONSES, Api
from perdure.testing.script import ScriptedError, ScriptedReply, Seen, Troubles, fill, load_script, parse_reply

_APIS: dict[str, Api] = {"/chat/completions": CHAT, "/responses": RESPONSES}

_ERRORS: dict[ModelErrorKind, tuple[int, str | None]] = {
    "rate_limited": (429, "rate_limit_exceeded"),
    "quota": (429, "insufficient_quota"),
    "overloaded": (503, None),
    "server": (500, None),
    "authentication": (401, "invalid_api_key"),
    "context_too_long": (400, "context_length_exceeded"),
    "content_filtered": (400, "content_filter"),
    "bad_request": (400, None),
}
"""Status and code of each kind; a connection is dropped and a timeout hangs."""


_REFUSED = range(400, 500)
_PIECES = 10
"""Of a whole body, for trouble in the middle of it."""

_PING = 0.02


@dataclass(frozen=True)
class Received:
    """One request as it came in; header names in lower case, `at` in seconds of the server's own steady clock.

    Attributes:
        usage: What the answer said was used, once all of it was sent; else empty.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    raw: bytes
    at: float
    usage: list[Body] = field(default_factory=list["Body"])


@dataclass
class _Answer:
    """What is sent: a head, then pieces of a body, of which some may be missing."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    pieces: list[bytes] = field(default_factory=list[bytes])
    pause: float = 0
    then: Literal["end", "hang", "drop", "ping"] = "end"
    length: int | None = None
    usage: Body | None = None

    @property
    def events(self) -> bool:
        return self.length is None

    def halve(self) -> None:
        """Keep the first half of the body, which says nothing of how it ends."""
        del self.pieces[(len(self.pieces) - 1) // 2 :]


class ModelServer:
    """The server, as an async context manager; `ModelServerProcess` is the same in a process of its own.

    Args:
        replies: The script, see `perdure.testing.script`.
        port: Default: any free one.
        check: Whether to refuse what OpenAI would refuse.
        streams: False: it sends whole replies also where pieces are asked for.
        schemas: False: it refuses to be held to a schema, as many servers do.

    Attributes:
        requests: Every request for a reply, in order.
    """

    def __init__(
        self,
        replies: Sequence[ScriptedReply | Mapping[str, JSON] | str],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        check: bool = True,
        streams: bool = True,
        schemas: bool = True,
    ) -> None:
        self.follow(replies)
        self._troubles = Troubles()
        self._host, self._port, self._check, self._streams = host, port, check, streams
        self._schemas = schemas
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.requests: list[Received] = []

    @property
    def base_url(self) -> str:
        """The address to give to a client, once started."""
        return f"http://{self._host}:{self._port}/v1"

    def follow(self, replies: Sequence[ScriptedReply | Mapping[str, JSON] | str]) -> None:
        """Go by another script from the next request on."""
        self._replies = [parse_reply(reply) for reply in replies]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self._host, self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._server:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._server:
            await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._connections.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                request = await _read(reader)
                if answer := await self._answer(request):
                    await _send(answer, writer)
                    request.usage.extend([answer.usage] if answer.usage and answer.then == "end" else [])
        except asyncio.CancelledError:
            pass  # the server stops while a script hangs: nothing to report
        finally:
            self._connections.discard(task)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, request: Received) -> _Answer | None:
        """Return what to answer, None to drop the connection."""
        if request.method == "GET" and request.path.endswith("/models"):
            return _plain({"object": "list", "data": [{"id": "scripted", "object": "model"}]})
        if request.method == "GET" and request.path.endswith("/requests"):
            return _plain([_told(request) for request in self.requests])
        api = next((api for path, api in _APIS.items() if request.path.endswith(path)), None)
        if api is None or request.method != "POST":
            return _error(404, f"There is no {request.method} {request.path} here.")
        self.requests.append(request)
        try:
            refusal = api.refuse(request.body) if self._check else None
            if not self._schemas and ("response_format" in request.body or "format" in request.body.get("text", {})):
                refusal = "This response_format type is unavailable now."
            seen = api.seen(request.body)
        except (KeyError, TypeError, AttributeError) as error:
            return _error(400, f"The request can't be understood: {type(error).__name__} {error}.")
        if refusal:
            return _error(400, refusal)
        reply = self._troubles.next(self._replies, seen.replies)
        await asyncio.sleep(reply.delay)
        return await self._give(api, request.body, reply, seen)

    async def _give(self, api: Api, body: Body, reply: ScriptedReply, seen: Seen) -> _Answer | None:
        if reply.hang is True or (reply.error and reply.error.kind == "timeout"):
            await asyncio.Event().wait()
        if reply.drop is True or (reply.error and reply.error.kind == "connection"):
            return None
        streamed = bool(body.get("stream")) and self._streams
        if reply.http:
            return _plain(reply.http.body, reply.http.status, reply.http.headers)
        if reply.error and not (streamed and reply.error.streamed):
            return _refusal(reply.error)
        try:
            whole = api.answer(body, fill(reply, seen), seen)
        except ModelError as error:
            return _error(400, error.message)
        answer = _stream(api.events(whole, body)) if streamed else _plain(whole)
        answer.usage = whole.get("usage")
        return _spoilt(answer, reply)


# -- what is answered --------------------------------------------------------------------------------------


def _told(request: Received) -> Body:
    usage = request.usage[0] if request.usage else None
    return {"path": request.path, "body": request.body, "at": request.at, "usage": usage}


def _plain(body: JSON, status: int = 200, headers: Mapping[str, str] | None = None) -> _Answer:
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    data = text.encode("utf-8", "surrogatepass")
    size = max(1, -(-len(data) // _PIECES))
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    return _Answer(status, {"Content-Type": "application/json", **(headers or {})}, pieces, length=len(data))


def _stream(events: Iterable[bytes]) -> _Answer:
    return _Answer(headers={"Content-Type": "text/event-stream"}, pieces=list(events))


def _spoilt(answer: _Answer, reply: ScriptedReply) -> _Answer:
    """Return `answer` with the reply's trouble done to it."""
    answer.pause = reply.drip
    if reply.malformed or reply.drop or reply.hang == "body" or reply.error:
        answer.halve()
    if reply.error:
        answer.pieces.append(event({"type": "error", **_error_body(*_words(reply.error))}))
    if reply.malformed and answer.events:
        answer.pieces.append(b'data: {"choices": [{"del\n\n')
    elif reply.malformed:
        answer.length = sum(map(len, answer.pieces))
    if reply.hang == "ping":
        answer.pieces.clear()
    answer.then = "drop" if reply.drop else "hang" if reply.hang == "body" else "ping" if reply.hang else "end"
    return answer


def _words(error: ScriptedError) -> tuple[int, str, str | None]:
    status, code = _ERRORS[error.kind]
    return status, error.message, code


def _refusal(error: ScriptedError) -> _Answer:
    return _error(*_words(error), {} if error.retry_after is None else _wait(error.retry_after, error.retry_after_as))


def _wait(seconds: float, form: Literal["seconds", "date", "ms"]) -> dict[str, str]:
    if form == "seconds":
        return {"Retry-After": f"{seconds:g}"}
    if form == "ms":
        return {"retry-after-ms": f"{seconds * 1000:g}"}
    now = int(time.time())
    return {"Date": formatdate(now, usegmt=True), "Retry-After": formatdate(now + math.ceil(seconds), usegmt=True)}


def _error(status: int, message: str, code: str | None = None, headers: Mapping[str, str] | None = None) -> _Answer:
    return _plain(_error_body(status, message, code), status, headers)


def _error_body(status: int, message: str, code: str | None) -> Body:
    kind = code or ("invalid_request_error" if status in _REFUSED else "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


# -- HTTP --------------------------------------------------------------------------------------------------


async def _read(reader: asyncio.StreamReader) -> Received:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, *_ = [*lines[0].split(" "), "", ""]
    pairs = [line.split(":", 1) for line in lines[1:] if ":" in line]
    headers = {name.strip().lower(): value.strip() for name, value in pairs}
    raw = await reader.readexactly(int(headers.get("content-length", "0") or 0))
    try:
        body = json.loads(raw or b"{}")
    except ValueError:
        body = {}
    fields = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
    return Received(method, path.partition("?")[0].rstrip("/"), headers, fields, raw, time.monotonic())


async def _send(answer: _Answer, writer: asyncio.StreamWriter) -> None:
    writer.write(_head(answer))
    for piece in answer.pieces:
        await _write(answer, writer, piece)
        await asyncio.sleep(answer.pause)
    while answer.then == "ping":
        await _write(answer, writer, b": ping\n\n" if answer.events else b" ")
        await asyncio.sleep(_PING)
    if answer.then == "hang":
        await asyncio.Event().wait()
    if answer.then == "end" and answer.events:
        writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _write(answer: _Answer, writer: asyncio.StreamWriter, piece: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if answer.events else piece)
    await writer.drain()


def _head(answer: _Answer) -> bytes:
    body = {"Transfer-Encoding": "chunked"} if answer.events else {"Content-Length": str(answer.length)}
    headers = {**body, "Connection": "close", **answer.headers}
    phrase = HTTPStatus(answer.status).phrase if answer.status in set(HTTPStatus) else "Unassigned"
    lines = [f"HTTP/1.1 {answer.status} {phrase}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


# -- the command -------------------------------------------------------------------------------------------


async def _run(replies: Sequence[ScriptedReply], options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with ModelServer(replies, host=options.host, port=options.port, streams=options.streams) as server:
        print(json.dumps({"base_url": server.base_url}), flush=True)  # noqa: T201 - the command's output
        await stop.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve a script until SIGINT or SIGTERM. Returns the exit code: 2 for a bad script or a taken port."""
    parser = argparse.ArgumentParser(prog="python -m perdure.testing.model_server", description="Serve a script.")
    parser.add_argument("script", help="JSON file, see perdure.testing.script")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="default: any free one")
    parser.add_argument("--no-stream", dest="streams", action="store_false", help="send whole replies always")
    options = parser.parse_args(arguments)
    try:
        asyncio.run(_run(load_script(options.script), options))
    except (ModelError, OSError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - the command's complaint
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
