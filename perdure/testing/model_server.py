"""A small real HTTP server that speaks OpenAI's Chat Completions and Responses, and follows a script.

    python -m perdure.testing.model_server SCRIPT.json --port 8098

prints `{"base_url": "http://127.0.0.1:8098/v1"}` on a line of its own once it answers. It refuses what OpenAI
would refuse: a call without its result, a name or a schema out of bounds. It does not stream.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Self, cast

from perdure.errors import ModelError, ModelErrorKind
from perdure.messages import JSON
from perdure.testing.openai_wire import CHAT, RESPONSES, Api
from perdure.testing.script import ScriptedHttp, ScriptedReply, Troubles, fill, load_script, parse_reply

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


@dataclass(frozen=True)
class Received:
    """One request as it came in; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    raw: bytes


class ModelServer:
    """The server, as an async context manager.

    Args:
        replies: The script, see `perdure.testing.script`.
        port: Default: any free one.
        check: Whether to refuse what OpenAI would refuse.

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
    ) -> None:
        self.follow(replies)
        self._troubles = Troubles()
        self._host, self._port, self._check = host, port, check
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
                await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass  # the server stops while a script hangs: nothing to report
        finally:
            self._connections.discard(task)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await _read(reader)
        answer = await self._answer(request)
        if answer is None:
            return
        head, body = _http(answer)
        writer.write(head + body)
        await writer.drain()

    async def _answer(self, request: Received) -> ScriptedHttp | None:
        """Return what to answer, None to drop the connection."""
        if request.method == "GET" and request.path.endswith("/models"):
            return ScriptedHttp(body={"object": "list", "data": [{"id": "scripted", "object": "model"}]})
        api = next((api for path, api in _APIS.items() if request.path.endswith(path)), None)
        if api is None or request.method != "POST":
            return _error(404, f"There is no {request.method} {request.path} here.")
        self.requests.append(request)
        if request.body.get("stream"):
            return _error(400, "This server does not stream.")
        try:
            refusal = api.refuse(request.body) if self._check else None
            seen = api.seen(request.body)
        except (KeyError, TypeError, AttributeError) as error:
            return _error(400, f"The request can't be understood: {type(error).__name__} {error}.")
        if refusal:
            return _error(400, refusal)
        reply = self._troubles.next(self._replies, seen.replies)
        await asyncio.sleep(reply.delay)
        if reply.troubled:
            return await _trouble(reply)
        try:
            return ScriptedHttp(body=api.answer(request.body, fill(reply, seen), seen))
        except ModelError as error:
            return _error(400, error.message)


async def _trouble(reply: ScriptedReply) -> ScriptedHttp | None:
    kind = reply.error.kind if reply.error else None
    if reply.hang or kind == "timeout":
        await asyncio.Event().wait()
    if reply.drop == "body":
        return ScriptedHttp(headers={"Content-Length": "1000"}, body='{"id": "cut')
    if reply.drop or kind == "connection":
        return None
    if reply.http:
        return reply.http
    if reply.error is None:
        return None
    status, code = _ERRORS[reply.error.kind]
    wait = reply.error.retry_after
    return _error(status, reply.error.message, code, {} if wait is None else {"Retry-After": f"{wait:g}"})


def _error(
    status: int, message: str, code: str | None = None, headers: Mapping[str, str] | None = None
) -> ScriptedHttp:
    kind = code or ("invalid_request_error" if status in _REFUSED else "server_error")
    error = {"message": message, "type": kind, "param": None, "code": code}
    return ScriptedHttp(status=status, headers=dict(headers or {}), body={"error": error})


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
    return Received(method, path.partition("?")[0].rstrip("/"), headers, fields, raw)


def _http(answer: ScriptedHttp) -> tuple[bytes, bytes]:
    plain = isinstance(answer.body, str)
    body = (answer.body if plain else json.dumps(answer.body, ensure_ascii=False)).encode("utf-8", "surrogatepass")
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
    headers |= answer.headers
    phrase = HTTPStatus(answer.status).phrase if answer.status in set(HTTPStatus) else "Unassigned"
    lines = [f"HTTP/1.1 {answer.status} {phrase}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1"), body


# -- the command -------------------------------------------------------------------------------------------


async def _run(replies: Sequence[ScriptedReply], host: str, port: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with ModelServer(replies, host=host, port=port) as server:
        print(json.dumps({"base_url": server.base_url}), flush=True)  # noqa: T201 - the command's output
        await stop.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve a script until SIGINT or SIGTERM. Returns the exit code: 2 for a bad script or a taken port."""
    parser = argparse.ArgumentParser(prog="python -m perdure.testing.model_server", description="Serve a script.")
    parser.add_argument("script", help="JSON file, see perdure.testing.script")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="default: any free one")
    options = parser.parse_args(arguments)
    try:
        asyncio.run(_run(load_script(options.script), options.host, options.port))
    except (ModelError, OSError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - the command's complaint
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
