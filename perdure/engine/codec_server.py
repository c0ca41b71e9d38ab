"""A small HTTP server that decrypts payloads for the Web UI and Temporal's own command line, for those with a token.

It speaks Temporal's codec protocol: `POST …/decode` and `…/encode` with payloads as JSON. The token comes as
`Authorization: Bearer TOKEN`, or as the first part of the path, which is the only way that a Web UI without accounts
has of sending one.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Collection
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from google.protobuf import json_format
from temporalio.api.common.v1 import Payloads

from perdure.engine.codec import Encryption
from perdure.errors import KeyMissing

LARGEST = 32 * 1024 * 1024
"""Bytes of a request."""
PATIENCE = 10
"""Seconds that a client gets to send its request."""


class CodecServer(ThreadingHTTPServer):
    """The server; `serve_forever` and `shutdown` are those of `socketserver`.

    Args:
        address: Host and port; port 0 is any free one.
        codec: Decrypts and encrypts.
        token: What whoever asks has to know.
        origins: Of Web UIs whose pages may ask, such as `http://127.0.0.1:8233`.

    Raises:
        OSError: If the port is taken.
    """

    daemon_threads = True

    def __init__(self, address: tuple[str, int], codec: Encryption, token: str, origins: Collection[str]) -> None:
        super().__init__(address, _Handler)
        self.codec = codec
        self.token = token
        self.origins = frozenset(origin.rstrip("/") for origin in origins)

    @property
    def endpoint(self) -> str:
        """The address to give to a Web UI."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/{self.token}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "perdure", ""
    timeout = PATIENCE

    @property
    def _codecs(self) -> CodecServer:
        return cast("CodecServer", self.server)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a path may hold the token."""

    def do_OPTIONS(self) -> None:
        """Answer a browser that asks whether it may ask."""
        self._answer(HTTPStatus.NO_CONTENT)

    def do_POST(self) -> None:
        """Decrypt or encrypt."""
        *before, action = self.path.partition("?")[0].strip("/").split("/")
        given = self.headers.get("Content-Length", "")
        length = int(given) if given.isdecimal() and len(given) < len(str(LARGEST)) + 1 else LARGEST + 1
        if length > LARGEST:
            self.close_connection = True
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "It is too large, or does not say how large it is.")
            return
        body = self.rfile.read(length)
        if not self._knows_token(before):
            self._answer(HTTPStatus.UNAUTHORIZED, "The token is missing, or is another one.")
        elif action not in ("decode", "encode"):
            self._answer(HTTPStatus.NOT_FOUND, "There are /decode and /encode here.")
        else:
            self._code(action, body)

    def _knows_token(self, path: list[str]) -> bool:
        given = self.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        return any(_same(one, self._codecs.token) for one in (given, *path[:1]))

    def _code(self, action: str, body: bytes) -> None:
        try:
            payloads = json_format.Parse(body, Payloads()).payloads
            act = self._codecs.codec.decode if action == "decode" else self._codecs.codec.encode
            answer = Payloads(payloads=asyncio.run(act(payloads)))
        except KeyMissing as error:
            self._answer(HTTPStatus.BAD_REQUEST, str(error))
        except Exception:  # noqa: BLE001 - whatever is not understood of what somebody has sent
            self._answer(HTTPStatus.BAD_REQUEST, "The request holds no payloads as JSON.")
        else:
            self._answer(HTTPStatus.OK, json_format.MessageToJson(answer, indent=None), "application/json")

    def _answer(self, status: HTTPStatus, text: str = "", kind: str = "text/plain; charset=utf-8") -> None:
        data = text.encode()
        self.send_response(status)
        origin = self.headers.get("Origin", "")
        if origin in self._codecs.origins:
            self.send_header("Access-Control-Allow-Origin", origin)
            self.send_header("Access-Control-Allow-Methods", "POST, OPTIONS")
            self.send_header("Access-Control-Allow-Headers", "content-type, x-namespace, authorization")
            self.send_header("Access-Control-Allow-Credentials", "true")
            self.send_header("Vary", "Origin")
        if status is not HTTPStatus.NO_CONTENT:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(data)


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())
