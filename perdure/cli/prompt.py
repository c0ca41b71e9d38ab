"""Asking the person at the terminal, without holding up anything else."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.cli.output import as_json, one_line, safe
from perdure.errors import DecisionRejected

if TYPE_CHECKING:
    from perdure.client import RunHandle
    from perdure.events import ApprovalRequested


async def answer(handle: RunHandle, event: ApprovalRequested) -> bool:
    """Ask about one request until it is answered; return False if the person wants to be asked no more."""
    arguments: dict[str, Any] | None = None
    while True:
        shown = f"Approve {event.call} {safe(event.name)}? [y]es, [n]o, [e]dit, [l]ater: "
        word = (await read_line(shown)).strip().lower()
        try:
            match word:
                case "y" | "yes":
                    await handle.approve(event.call, arguments=arguments, hash=event.hash)
                    return True
                case "n" | "no":
                    await handle.deny(event.call, reason=(await read_line("Why (for the model): ")).strip())
                    return True
                case "e" | "edit":
                    arguments = await _edited(arguments or event.arguments)
                    _tell(as_json(arguments, indent=2) + "\n")
                case "l" | "later" | "\x04":
                    return False
                case _:
                    pass
        except (DecisionRejected, ValueError) as error:
            _tell(f"{one_line(str(error), 1000)}\n")
            if isinstance(error, DecisionRejected) and error.reason != "invalid_edit":
                return True


async def read_line(question: str) -> str:
    r"""Return a line typed at the terminal; `\x04` at its end (Ctrl-D)."""
    _tell(question)
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def ready() -> None:
        if not line.done():
            line.set_result(os.read(sys.stdin.fileno(), 65536).decode("utf-8", "replace") or "\x04")

    loop.add_reader(sys.stdin.fileno(), ready)
    try:
        return await line
    finally:
        loop.remove_reader(sys.stdin.fileno())


async def _edited(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as the person changed them, in their editor, else typed as JSON.

    Raises:
        ValueError: If what they leave is no JSON object.
    """
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if editor:
        text = await asyncio.to_thread(_in_editor, editor, json.dumps(arguments, ensure_ascii=False, indent=2))
    else:
        text = await read_line("Arguments as JSON, on one line: ")
    try:
        changed = json.loads(text)
    except ValueError as error:
        raise ValueError(f"That is no JSON: {error}.") from error
    if not isinstance(changed, dict):
        raise ValueError("Arguments are a JSON object.")  # noqa: TRY004 - of the text, not of the program
    return changed


def _in_editor(editor: str, text: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "arguments.json"
        file.write_text(text, encoding="utf-8")
        subprocess.run([*shlex.split(editor), str(file)], check=False)
        return file.read_text(encoding="utf-8")


def _tell(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
