"""What a worker answers over HTTP: its metrics in Prometheus's form, whether it lives, and whether it is ready."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

from perdure.errors import PerdureError
from perdure.settings import Settings
from perdure.telemetry import otel

_PATIENCE = 5.0
_LONGEST_HEAD = 16_384
_TEXT = "text/plain; version=0.0.4; charset=utf-8"

Answer = tuple[HTTPStatus, str, str]


class Page:
    """What is answered.

    Attributes:
        ready: Returns why the worker is not ready, or "" where it is.
        address: Where it answers, "" where it does not.
        core: Where the engine's client is expected to tell its own metrics, which are passed on; "" nowhere.
    """

    def __init__(self) -> None:
        self.ready: Callable[[], Awaitable[str]] = _starting
        self.address = ""
        self.core = ""

    @asynccontextmanager
    async def open(self, settings: Settings) -> AsyncGenerator[Page]:
        """Answer while the block runs, if the settings say where. Comes before the engine is connected to.

        Raises:
            PerdureError: If it can't answer there, or what it takes is not installed.
        """
        if settings.metrics_port is None:
            yield self
            return
        if not otel.installed():
            raise PerdureError(otel.LACKING)
        self.core = f"127.0.0.1:{_free_port()}"
        try:
            server = await asyncio.start_server(self._serve, settings.metrics_host, settings.metrics_port)
        except OSError as error:
            where = f"{settings.metrics_host}:{settings.metrics_port}"
            reason = error.strerror or error
            raise PerdureError(f"No metrics at {where}: {reason}; choose another --metrics-port.") from error
        host, port = server.sockets[0].getsockname()[:2]
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        async with server:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _PATIENCE)
            method, _, rest = head[:_LONGEST_HEAD].decode("latin-1").partition(" ")
            status, kind, text = await self._answer(method, rest.partition(" ")[0].partition("?")[0])
            body = text.encode()
            told = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{told}Connection: close\r\n\r\n".encode() + (b"" if method == "HEAD" else body))
            await writer.drain()
        writer.close()

    async def _answer(self, method: str, path: str) -> Answer:
        if method not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, _TEXT, "GET\n"
        match path:
            case "/healthz":
                return HTTPStatus.OK, _TEXT, "ok\n"
            case "/readyz":
                why = await self.ready()
                return HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK, _TEXT, f"{why or 'ok'}\n"
            case "/metrics":
                return HTTPStatus.OK, _TEXT, await self._metrics()
            case _:
                return HTTPStatus.NOT_FOUND, _TEXT, "/metrics, /healthz, /readyz\n"

    async def _metrics(self) -> str:
        from prometheus_client import generate_latest

        return (await asyncio.to_thread(generate_latest)).decode() + await _fetched(self.core)


async def _starting() -> str:
    return "starting"


async def _fetched(address: str) -> str:
    """Return what the engine's client tells of itself, in the same form; "" where it does not answer."""
    host, _, port = address.partition(":")
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
            answer = (await reader.read()).decode()
            writer.close()
            return answer.partition("\r\n\r\n")[2]
    return ""


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
