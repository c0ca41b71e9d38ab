"""One OpenAI-compatible address and its key, on the openai package with its own retries off."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from perdure.activities.providers.errors import from_error_body, from_exception, not_understood, scrub
from perdure.activities.providers.wire import decode, encode
from perdure.errors import ModelError
from perdure.messages import JSON
from perdure.policies import ModelSettings

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_HOME = "https://api.openai.com/v1"
_OFFICIAL = (".openai.com", ".openai.azure.com")
_CONNECT_SECONDS = 10.0


class Endpoint:
    """Where requests go.

    Args:
        settings: `base_url` (else `OPENAI_BASE_URL`, else OpenAI's own), `api_key_env`, `timeout`.

    Attributes:
        address: The base address, without credentials.
        custom: True for any server but OpenAI's own (and Azure's), which knows fewer parameters.

    Raises:
        ModelError: `authentication` if OpenAI's own server is meant and there is no key, or the key can't be
            one; `bad_request` if the address can't be one.
    """

    def __init__(self, settings: ModelSettings) -> None:
        self._base_url = (settings.base_url or os.environ.get("OPENAI_BASE_URL") or _HOME).strip()
        host = _host(self._base_url)
        self.address = scrub(self._base_url)
        self.custom = not f".{host}".endswith(_OFFICIAL)
        self._key = _key(settings.api_key_env, optional=self.custom)
        self._timeout = settings.timeout.total_seconds()
        self._client: AsyncOpenAI | None = None

    async def post(self, path: str, body: Mapping[str, JSON]) -> dict[str, JSON]:
        """Return the JSON object that the server answers.

        Raises:
            ModelError: If it does not answer, or with an error, or with something else.
        """
        import httpx2
        import openai

        try:
            async with asyncio.timeout(self._timeout):
                # Bytes of our own and a raw response: the package neither reorders what is sent, nor
                # makes objects of what is not a completion.
                response = await self._connect().post(
                    path,
                    cast_to=httpx2.Response,
                    content=encode(body),
                    options={"headers": {"Content-Type": "application/json"}},
                )
        except (openai.OpenAIError, httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, ValueError, TypeError) as error:
            # Not chained: the cause may hold the key, and causes are kept in histories.
            raise from_exception(error, address=self.address, key=self._secret) from None
        return self._read(response.text)

    def _read(self, answer: str) -> dict[str, JSON]:
        try:
            data = decode(answer)
        except ValueError:
            raise not_understood(answer, "JSON", key=self._secret) from None
        if not isinstance(data, dict):
            raise not_understood(answer, "a JSON object", key=self._secret)
        found = cast("dict[str, JSON]", data)
        if isinstance(found.get("error"), dict | str) and found["error"]:
            raise from_error_body(found, key=self._secret)
        return found

    @property
    def _secret(self) -> str:
        return self._key or ""

    def _connect(self) -> AsyncOpenAI:
        if self._client is None:
            from openai import AsyncOpenAI, Timeout

            timeout = Timeout(self._timeout, connect=min(self._timeout, _CONNECT_SECONDS))
            key = self._key or "none"
            self._client = AsyncOpenAI(base_url=self._base_url, api_key=key, max_retries=0, timeout=timeout)
        return self._client

    async def aclose(self) -> None:
        """Close the connections; the next request opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()


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
