"""MCP over HTTP: what a request that failed says of whether the server has seen it."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import httpx2

from perdure.results import words

NOT_SENT = f"not-sent-{uuid4().hex}"
REFUSED = f"refused-{uuid4().hex}"
"""`data` of errors that are made here, in a server's place; no server can know them."""

_REFUSALS = (401, 403, 407, 429)
"""Answers that say, without a word of JSON-RPC, that nothing was done."""

_CODE = -31_000


def phrase(status: int) -> str:
    """Return an HTTP status with its name, as in `401 Unauthorized`."""
    known = HTTPStatus(status).phrase if status in set(HTTPStatus) else ""
    return f"{status} {known}".strip()


class Wire(httpx2.AsyncHTTPTransport):
    """Connections to one server, which tell of what could not be sent in the server's place.

    Attributes:
        status: Of the last answer, if it was a failure; else 0.
    """

    def __init__(self) -> None:
        super().__init__()
        self.status = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request. One that fails before it is sent is answered here: else it would end all others as well."""
        try:
            response = await super().handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            if request.method != "POST":
                raise
            return _answer(request, 503, f"It can't be reached. {words(error)}", NOT_SENT)
        self.status = response.status_code if response.status_code >= HTTPStatus.BAD_REQUEST else 0
        if request.method != "POST" or response.status_code not in _REFUSALS:
            return response
        await response.aclose()
        return _answer(request, response.status_code, f"It answered {phrase(response.status_code)}.", REFUSED)


def _answer(request: httpx2.Request, status: int, message: str, mark: str) -> httpx2.Response:
    error: dict[str, Any] = {"code": _CODE, "message": message, "data": mark}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    return httpx2.Response(status, headers={"content-type": "application/json"}, content=body, request=request)
