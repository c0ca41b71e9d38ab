"""A connection to one MCP server: made, listened to, and asked. Everything that the `mcp` package does is here."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Self, cast

from perdure.errors import ToolError
from perdure.mcp import MCPServer, Offer
from perdure.results import clean, sentence, short, words

_log = logging.getLogger("perdure.mcp")

KEY = "perdure/idempotencyKey"
"""In a call's `_meta`: the same on every attempt of it, for servers that know what to do with it."""

_LEASH = Path(__file__).with_name("leash.py")
_CONNECT_SECONDS = 10.0
_READ_SECONDS = 3_600.0
"""Of silence on a stream; calls have deadlines of their own."""
_LAST_LINES = 100
_LAST_WORDS = 0.5
"""Seconds for what a server has written to its stderr to be read once it has ended."""
_MOST_PAGES = 100

Progress = Callable[[str, float | None], None]
"""Told of a call's progress: words, and a share from 0 to 1."""


class Unreachable(Exception):
    """A server can't be asked now; nothing was sent to it.

    Attributes:
        lasting: No time mends that.
        crashed: Its process has ended before it was there.
    """

    def __init__(self, message: str, *, lasting: bool = False, crashed: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting
        self.crashed = crashed


class NotSent(Exception):
    """A call that was not sent: nothing happened."""


class Lost(Exception):
    """The connection has ended before the answer came: nobody knows what the call has done."""


@dataclass(frozen=True)
class Values:
    """The values of `env` and `headers`, filled in."""

    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


class Talk:
    """What a server has said beside the protocol: the last lines of its stderr, or its last HTTP status."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.read = threading.Event()
        self.status: Callable[[], int] = lambda: 0

    def __str__(self) -> str:
        """Return it as a sentence, or ""."""
        if status := self.status():
            from perdure.activities.mcp.http import phrase

            return f"It answered {phrase(status)}."
        return last_words(self.lines)

    @property
    def refuses(self) -> bool:
        """Whether it says that asking again will not help."""
        return self.status() in (401, 403, 405, 407, 410)


_ERROR = re.compile(r"(Uncaught )?[A-Za-z_.]*(Error|Exception)\b.*: ")


def last_words(lines: Sequence[str]) -> str:
    """Return what a server's last lines say in a sentence or two, or "".

    It is the last line, as of a traceback; of a stack of Node.js, which ends with its version, the line with the error.
    """
    if not lines:
        return ""
    errors = [line for line in lines if _ERROR.match(line)] if lines[-1].startswith("Node.js v") else []
    more = " The worker's log has the rest." if len(lines) > 1 else ""
    return f"It said: {sentence((errors or lines)[-1])}{more}"


class Connection:
    """A server that is spoken to.

    Attributes:
        ended: Set once nothing can be sent any more.
        worn: An answer got lost: what comes next is better sent by another one.
        idle: Set while it waits for no answer.
    """

    def __init__(self, client: Any, ended: asyncio.Event) -> None:
        self._client = client
        self.ended = ended
        self.worn = False
        self.idle = asyncio.Event()
        self.idle.set()
        self._asked = 0

    @property
    def usable(self) -> bool:
        """Whether something may be sent by it."""
        return not (self.worn or self.ended.is_set())

    async def offers(self) -> list[Offer]:
        """Return the tools that the server offers. Raises what the package raises."""
        found: list[Offer] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = await self._until_ended(self._client.list_tools(cursor=cursor))
            found += [_offer(tool) for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                break
        return found

    async def call(self, name: str, arguments: Mapping[str, Any], key: str, progress: Progress) -> Any:
        """Return a tool's `CallToolResult`.

        Raises:
            NotSent: If it was not sent.
            ToolError: If the server refuses it.
            Lost: If the connection ended meanwhile.
            MCPError: If the server failed in a way that says nothing of what was done.
        """
        from mcp.shared.exceptions import MCPError

        if self.ended.is_set():
            raise NotSent("The server's connection has ended.")
        try:
            return await self._until_ended(self._ask(name, arguments, key, progress))
        except MCPError as error:
            judged = _judged(error, name)
            self.worn = self.worn or isinstance(judged, Lost | NotSent)
            raise judged from error

    async def _ask(self, name: str, arguments: Mapping[str, Any], key: str, progress: Progress) -> Any:
        import mcp_types as types
        from mcp.shared.exceptions import MCPError
        from pydantic import TypeAdapter

        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            share = done / total if total else None
            progress(message or (f"{done:g} of {total:g}" if total else f"{done:g}"), share)

        params = types.CallToolRequestParams(name=name, arguments=dict(arguments), _meta={KEY: key})
        answer: TypeAdapter[Any] = TypeAdapter(types.InputRequiredResult | types.CallToolResult)

        async def send() -> Any:
            # Not `call_tool`: that fails where a result does not fit its schema, although the tool has done its work.
            request = types.CallToolRequest(params=params)
            return await self._client.session.send_request(request, answer, progress_callback=on_progress)

        try:
            return await send()
        except MCPError as error:
            if error.code != types.HEADER_MISMATCH:
                raise
        await self.offers()  # what a tool's arguments have to be sent as, too, is in the list
        return await send()

    async def _until_ended(self, work: Awaitable[Any]) -> Any:
        """Return what `work` gives; the package may leave it hanging where the connection breaks down."""
        asking, ending = asyncio.ensure_future(work), asyncio.ensure_future(self.ended.wait())
        self._count(1)
        try:
            await asyncio.wait({asking, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise Lost("The server was lost before it answered.")
            return asking.result()
        finally:
            self._count(-1)
            ending.cancel()
            if not asking.done():
                asking.cancel()
                await asyncio.wait({asking}, timeout=1)

    def _count(self, by: int) -> None:
        self._asked += by
        if self._asked:
            self.idle.clear()
        else:
            self.idle.set()


def _offer(tool: Any) -> Offer:
    hints = tool.annotations
    title = tool.title or (hints.title if hints else None) or ""
    return Offer(
        name=tool.name,
        description=tool.description or title,
        parameters=tool.input_schema,
        read_only=bool(hints and hints.read_only_hint),
        idempotent=bool(hints and hints.idempotent_hint),
    )


_ASKS = "It asks for a model's or a user's input, which tools of MCP servers do not get here."


def _judged(error: Any, name: str) -> Exception:
    """Return what a JSON-RPC error says of a call: refused, not sent at all, or nothing."""
    import mcp_types as types

    refusals = {
        types.PARSE_ERROR: "invalid_request",
        types.INVALID_REQUEST: "invalid_request",
        types.METHOD_NOT_FOUND: "removed",
        types.INVALID_PARAMS: "invalid_arguments",
        types.HEADER_MISMATCH: "invalid_request",
        types.MISSING_REQUIRED_CLIENT_CAPABILITY: "input_required",
        types.UNSUPPORTED_PROTOCOL_VERSION: "invalid_request",
        types.URL_ELICITATION_REQUIRED: "input_required",
    }
    if isinstance(error.data, str) and error.data:
        from perdure.activities.mcp.http import NOT_SENT, REFUSED

        if error.data == NOT_SENT:
            return NotSent(error.message)
        if error.data == REFUSED:
            return ToolError(f"The server refused it: {error.message}", error_type="refused")
    if error.code == types.CONNECTION_CLOSED:
        return Lost(f"The server was lost before it answered ({error.message}).")
    if error.code == types.INVALID_REQUEST and error.message == "Session terminated":
        return NotSent("The server knows nothing of the connection any more: it was started anew.")
    kind = refusals.get(error.code)
    if kind is None:
        return error if isinstance(error, Exception) else Lost(str(error))
    asks = f" {_ASKS}" if kind == "input_required" else ""
    said = short(f"The server refused it: {clean(error.message)}{asks}")
    return ToolError(said, error_type=kind, suggestion=None if kind != "removed" else f"Do without {name}.")


def asks_for_input(result: Any) -> bool:
    """Return whether a server has answered a call with questions of its own."""
    import mcp_types as types

    return isinstance(result, types.InputRequiredResult)


# -- making one --------------------------------------------------------------------------------------------


@asynccontextmanager
async def connected(server: MCPServer, values: Values) -> AsyncGenerator[Connection]:
    """Yield a connection to `server`, which is started before and ended afterwards if it is a command's.

    Raises:
        Unreachable: If there is none, with the server's own words.
    """
    client_of, described = await asyncio.to_thread(_loaded, server)  # which takes a second or two, once
    ended, talk = asyncio.Event(), Talk()
    about = described(name="perdure", version=_version())
    entered = False
    try:
        async with AsyncExitStack() as stack:
            transport = _heard(await _transport(server, values, talk, stack), ended)
            client = client_of(transport, client_info=about, cache=None)
            await stack.enter_async_context(client)
            entered = True
            yield Connection(client, ended)
    except BaseException as error:
        if entered or isinstance(error, asyncio.CancelledError | GeneratorExit):
            raise
        if server.url:
            raise Unreachable(_why(error, talk, server.url), lasting=talk.refuses) from error
        await asyncio.to_thread(talk.read.wait, _LAST_WORDS)
        raise Unreachable(_why(error, talk, server.url), crashed=_has_ended(_first(error))) from error
    finally:
        ended.set()


def _loaded(server: MCPServer) -> tuple[Any, Any]:
    """Return the package's client, and what describes it to servers; all that a connection needs is loaded then."""
    from mcp.client import Client
    from mcp_types import Implementation

    import_module("mcp.client.streamable_http" if server.url else "mcp.client.stdio")
    return Client, Implementation


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("perdure")
    except PackageNotFoundError:
        return "0"


async def _transport(server: MCPServer, values: Values, talk: Talk, stack: AsyncExitStack) -> Any:
    if server.url:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        from perdure.activities.mcp.http import Wire

        wire, patience = Wire(), httpx2.Timeout(_CONNECT_SECONDS, read=_READ_SECONDS)
        talk.status = lambda: wire.status
        http = httpx2.AsyncClient(headers=dict(values.headers), timeout=patience, transport=wire)
        await stack.enter_async_context(http)
        return streamable_http_client(server.url, http_client=http)
    from mcp.client.stdio import StdioServerParameters, stdio_client

    # Its process group is the leash's: ended with the connection, and by the leash where this worker is killed.
    line = [sys.executable, "-I", "-S", str(_LEASH), *server.line]
    parameters = StdioServerParameters(command=line[0], args=line[1:], env=dict(values.env), cwd=server.cwd)
    return stdio_client(parameters, errlog=stack.enter_context(_stderr(server.name, talk)))


@asynccontextmanager
async def _heard(transport: Any, ended: asyncio.Event) -> AsyncGenerator[tuple[Any, Any]]:
    """Pass a transport on, and tell when the server's side of it has ended."""
    async with transport as (read, write):
        yield _Heard(read, ended), write


class _Heard:
    """A stream of what a server says. Only its end is of interest."""

    def __init__(self, stream: Any, ended: asyncio.Event) -> None:
        self._stream = stream
        self._ended = ended

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        return await self._noting(self._stream.receive())

    async def aclose(self) -> None:
        self._ended.set()
        await self._stream.aclose()

    def __aiter__(self) -> _Heard:
        return self

    async def __anext__(self) -> Any:
        return await self._noting(self._stream.__anext__())

    async def _noting(self, item: Awaitable[Any]) -> Any:
        try:
            return await item
        except BaseException:
            self._ended.set()
            raise

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        self._ended.set()
        return await self._stream.__aexit__(*error)


class _stderr:  # noqa: N801 - a context manager, called like a function
    """A file for a server's stderr: its lines go into the log, and the last ones are kept.

    Args:
        server: The server's name.
        talk: Where they are kept.
    """

    def __init__(self, server: str, talk: Talk) -> None:
        self._server = server
        self._talk = talk

    def __enter__(self) -> Any:
        reading, writing = os.pipe()
        self._file = os.fdopen(writing, "w", encoding="utf-8", errors="replace")
        threading.Thread(target=self._follow, args=(reading,), name="perdure-mcp-stderr", daemon=True).start()
        return self._file

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _follow(self, reading: int) -> None:
        with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if said := short(line.strip()):
                    self._talk.lines.append(said[:500])
                    _log.info("%s: %s", self._server, said)
        self._talk.read.set()


def _why(error: BaseException, talk: Talk, url: str | None) -> str:
    """Return in a sentence why there is no connection."""
    error = _first(error)
    said = str(talk)
    if isinstance(error, TimeoutError):
        return f"It was not there in time. {said}".strip()
    if said:
        return said
    if not url and _has_ended(error):
        return "It ended at its start, without a word."
    return sentence(words(error).removeprefix("MCPError: "))


def _has_ended(error: BaseException) -> bool:
    """Return whether a server could not be spoken to since its side has ended."""
    import mcp_types as types
    from mcp.shared.exceptions import MCPError

    return isinstance(error, MCPError) and error.code == types.CONNECTION_CLOSED


def _first(error: BaseException) -> BaseException:
    """Return the first error of a group, which is what failed; another one is that itself."""
    within: Sequence[BaseException] = cast("Sequence[BaseException]", getattr(error, "exceptions", ()))
    return _first(within[0]) if within else error
