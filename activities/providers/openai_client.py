"""One OpenAI-compatible address and its key, on the openai package with its own retries off."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from perdure.activities.providers.errors import from_exception, scrub
from perdure.activities.providers.patience import Patience
from perdure.activities.providers.streams import Assembly, Incoming
from perdure.activities.providers.wire import encode
from perdure.errors import ModelError
from perdure.messages import JSON
from perdure.models import ModelReply, ModelRequest
from perdure.models.dialect import usage_of_part
from perdure.policies import ModelSettings
from perdure.telemetry import signals

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

_HOME = "https://api.openai.com/v1"
_OFFICIAL = (".openai.com", ".openai.azure.com")
_CONNECT_SECONDS = 10.0


def base_url(settings: ModelSettings) -> str:
    """Return the address that the settings mean, as it was written."""
    return (settings.base_url or os.environ.get("OPENAI_BASE_URL") or _HOME).strip()


class Endpoint:
    """Where requests go.

    Args:
        settings: `base_url` (else `OPENAI_BASE_URL`, else OpenAI's own), `api_key_env`, and how long to wait.

    Attributes:
        address: The base address, without credentials.
        custom: True for any server but OpenAI's own (and Azure's), which knows fewer parameters.

    Raises:
        ModelError: `authentication` if OpenAI's own server is meant and there is no key, or the key can't be
            one; `bad_request` if the address can't be one.
    """

    def __init__(self, settings: ModelSettings) -> None:
        self._base_url = base_url(settings)
        host = _host(self._base_url)
        self.address = scrub(self._base_url)
        self.custom = not f".{host}".endswith(_OFFICIAL)
        self._key = _key(settings.api_key_env, optional=self.custom)
        self._settings = settings
        self._refused: set[str] = set()
        self._client: AsyncOpenAI | None = None

    async def ask(
        self,
        path: str,
        body: Mapping[str, JSON],
        request: ModelRequest,
        assembly: type[Assembly],
        read: Callable[[Mapping[str, JSON], ModelRequest], ModelReply],
    ) -> ModelReply:
        """Return what `read` makes of the server's reply.

        Args:
            assembly: Puts the reply together where it comes in pieces.

        Raises:
            ModelError: If it does not answer, or with an error, or with something else. Its `usage` is an
                estimate where a part of a reply had come.
        """
        asking = self._asking(assembly) if self._settings.stream else {}
        incoming = Incoming(assembly(request.on_text) if asking else None, self._secret)
        try:
            return read(await self._exchange(path, {**asking, **body}, incoming), request)
        except ModelError as error:
            error.message = scrub(error.message, self._secret)
            error.usage = None if incoming.part is None else usage_of_part(request, incoming.part)
            if not self._blames(error, asking):
                raise
        return await self.ask(path, body, request, assembly, read)

    def _asking(self, assembly: type[Assembly]) -> dict[str, JSON]:
        """Return what asks for pieces, without what this server has refused."""
        if "stream" in self._refused:
            return {}
        return {key: value for key, value in assembly.asking.items() if key not in self._refused}

    def _blames(self, error: ModelError, asking: Mapping[str, JSON]) -> bool:
        """Remember what of `asking` a server does not want; no list of names says which do."""
        words = error.message.lower() if error.kind == "bad_request" else ""
        found = next((key for key in ("stream_options", "stream") if key in asking and key in words), None)
        self._refused |= {found} if found else set()
        return found is not None

    async def _exchange(self, path: str, body: Mapping[str, JSON], incoming: Incoming) -> dict[str, JSON]:
        """Send a request and return the body of the reply, put together."""
        import httpx2
        import openai

        client = self._connect()  # before time counts: the first one imports and loads a lot
        patience = Patience(self._settings, streamed=incoming.expects_events)
        try:
            async with patience.total, patience.silence:
                await _receive(await self._post(client, path, body), incoming, patience)
        except (openai.OpenAIError, httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, ValueError, TypeError) as error:
            if not incoming.complete:
                # Not chained: the cause may hold the key, and causes are kept in histories.
                raise self._failure(error, incoming, patience) from None
        return incoming.whole()

    async def _post(self, client: AsyncOpenAI, path: str, body: Mapping[str, JSON]) -> httpx2.Response:
        """Return the server's answer, of which only the head has come."""
        import httpx2
        from openai import AsyncStream

        # Bytes of our own and a raw response: the package neither reorders what is sent, nor makes objects of
        # what is not a completion.
        answer = await client.post(
            path,
            cast_to=httpx2.Response,
            content=encode(body),
            options={"headers": {"Content-Type": "application/json", **signals.current().headers()}},
            stream=True,
            stream_cls=AsyncStream[object],
        )
        return cast("httpx2.Response", answer)

    def _failure(self, error: Exception, incoming: Incoming, patience: Patience) -> ModelError:
        if late := patience.story():
            return ModelError("timeout", f"{self.address} {late}")
        begun = incoming.part is not None
        return from_exception(error, address=self.address, key=self._secret, begun=begun)

    @property
    def _secret(self) -> str:
        return self._key or ""

    async def prepare(self) -> None:
        """Load what requests need, beside the event loop: the first time takes a while, and others want to work."""
        if self._client is None:
            await asyncio.to_thread(self._connect)

    def _connect(self) -> AsyncOpenAI:
        if self._client is None:
            from openai import AsyncOpenAI, DefaultAsyncHttpx2Client, Timeout

            timeout = Timeout(None, connect=_CONNECT_SECONDS)  # the others are `Patience`'s
            key = self._key or "none"
            http = DefaultAsyncHttpx2Client(verify=_certificates())
            self._client = AsyncOpenAI(
                base_url=self._base_url, api_key=key, max_retries=0, timeout=timeout, http_client=http
            )
        return self._client

    async def aclose(self) -> None:
        """Close the connections; the next request opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()


@cache
def _certificates() -> ssl.SSLContext:
    """Return what connections are checked with: once for all clients, since it takes 40 ms to load."""
    import httpx2

    return httpx2.create_ssl_context()


async def _receive(response: httpx2.Response, incoming: Incoming, patience: Patience) -> None:
    try:
        incoming.streams = response.headers.get("content-type", "").startswith("text/event-stream")
        async for chunk in response.aiter_bytes():
            patience.after(incoming.feed(chunk))
        incoming.feed(b"", last=True)
    finally:
        await response.aclose()


def _host(address: str) -> str:
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if not host or parts.scheme not in ("http", "https"):
        raise ModelError("bad_request", f"{scrub(address)!r} is no address of a model server, which begins with http.")
    return host


def _key(variable: str, *, optional: bool) -> str | None:
    key = os.environ.get(variable, "").strip()
    if not key and not optional:
        raise ModelError("authentication", f"There is no API key: set {variable} where the worker runs.")
    if not key.isascii() or not key.isprintable():
        raise ModelError("authentication", f"{variable} holds characters that an API key can't have.")
    return key or None
