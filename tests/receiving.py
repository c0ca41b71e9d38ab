"""A webhook to be told of runs, which can be made to fail."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Receiver:
    """A webhook that answers with `failures` first.

    Attributes:
        got: What it took: headers and body of each.
        refused: How many it did not take.
    """

    def __init__(self) -> None:
        self.failures: list[int] = []
        self.got: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.bodies: list[bytes] = []
        self.refused = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["content-length"]))
                status = receiver.failures.pop(0) if receiver.failures else 204
                if status < 300:
                    told = {name.lower(): value for name, value in self.headers.items()}
                    receiver.got.append((told, json.loads(content)))
                    receiver.bodies.append(content)
                else:
                    receiver.refused += 1
                self.send_response(status)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?token=private"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    async def until(self, run_id: str, *types: str) -> list[dict[str, Any]]:
        """Return what came of a run, in the order of `types`, once it is that; fail where it is anything else."""
        async with asyncio.timeout(30):
            while len(found := self.of(run_id)) < len(types):
                await asyncio.sleep(0.05)
        assert sorted(one["type"] for one in found) == sorted(types)
        return sorted(found, key=lambda one: types.index(one["type"]))

    def of(self, run_id: str) -> list[dict[str, Any]]:
        """Return what came of a run so far."""
        return [body for _, body in self.got if body["data"]["run_id"] == run_id]

    def close(self) -> None:
        """Listen no more."""
        self.server.shutdown()
        self.server.server_close()
