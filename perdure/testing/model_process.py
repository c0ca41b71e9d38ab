"""The model server in a process of its own, for tests whose worker is one too."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from perdure.errors import ConnectionFailed
from perdure.messages import JSON
from perdure.testing.script import ScriptedReply, parse_reply

_PATIENCE = 10
"""Seconds for it to answer, and to end."""


class ModelServerProcess:
    """`python -m perdure.testing.model_server`, as a context manager.

    Args:
        replies: The script, see `perdure.testing.script`.
        streams: False: it sends whole replies also where pieces are asked for.

    Attributes:
        base_url: The address to give to a client, while the context lasts.

    Raises:
        ConnectionFailed: If it does not start; says why.
    """

    def __init__(self, replies: Sequence[ScriptedReply | Mapping[str, JSON] | str], *, streams: bool = True) -> None:
        self._script = json.dumps([parse_reply(one).model_dump(mode="json", exclude_unset=True) for one in replies])
        self._options = [] if streams else ["--no-stream"]
        self._stack = ExitStack()
        self.base_url = ""

    def __enter__(self) -> Self:
        with self._stack as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            script = Path(folder) / "script.json"
            script.write_text(self._script, encoding="utf-8")
            command = [sys.executable, "-m", "perdure.testing.model_server", str(script), *self._options]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            stack.callback(_end, process)
            first = process.stdout.readline() if process.stdout else ""
            if not first:
                raise ConnectionFailed(f"The model server did not start: {process.communicate()[1].strip()}")
            self.base_url = json.loads(first)["base_url"]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def requests(self) -> list[dict[str, Any]]:
        """Return what it was asked, oldest first: `path`, `body`, and `at`, in seconds of a steady clock.

        `usage` is what the answer said was used, once all of it was sent; else None.
        """
        with urllib.request.urlopen(f"{self.base_url}/requests", timeout=_PATIENCE) as answer:  # noqa: S310 - our own
            found: list[dict[str, Any]] = json.loads(answer.read())
        return found


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
