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
from typing import TYPE_CHECKING, Any, Protocol, cast

from perdure.cli.output import as_json, one_line, safe
from perdure.errors import DecisionRejected

if TYPE_CHECKING:
    from perdure.client import RunHandle
    from perdure.events import ApprovalRequested


class Screen(Protocol):
    """Where questions are asked: what else is said meanwhile goes above the open `question`."""

    question: str

    def say(self, text: str) -> None:
        """Print lines that stay."""
        ...


async def answer(handle: RunHandle, event: ApprovalRequested, screen: Screen) -> bool:
    """Ask about one request until it is answered; return False if the person wants to be asked no more."""
    arguments: dict[str, Any] | None = None
    while True:
        shown = f"Approve {event.call} {safe(event.name)}? [y]es, [n]o, [e]dit, [l]ater: "
        word = (await read_line(shown, screen)).strip().lower()
        try:
            match word:
                case "y" | "yes":
                    await handle.approve(event.call, arguments=arguments, hash=event.hash)
                    return True
                case "n" | "no":
                    await handle.deny(event.call, reason=(await read_line("Why (for the model): ", screen)).strip())
                    return True
                case "e" | "edit":
                    arguments = await _edited(arguments or event.arguments, screen)
                    screen.say(as_json(arguments, indent=2))
                case "l" | "later" | "\x04":
                    return False
                case _:
                    pass
        except (DecisionRejected, ValueError) as error:
            screen.say(one_line(str(error), 1000))
            if isinstance(error, DecisionRejected) and error.reason != "invalid_edit":
                return True


async def read_line(question: str, screen: Screen) -> str:
    r"""Return a line typed at the terminal; `\x04` at its end (Ctrl-D)."""
    screen.question = question
    sys.stderr.write(question)
    sys.stderr.flush()
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def ready() -> None:
        if not line.done():
            line.set_result(os.read(sys.stdin.fileno(), 65536).decode("utf-8", "replace") or "\x04")

    loop.add_reader(sys.stdin.fileno(), ready)
    try:
        return await line
    finally:
        screen.question = ""
        loop.remove_reader(sys.stdin.fileno())


async def _edited(arguments: dict[str, Any], screen: Screen) -> dict[str, Any]:
    """Return the arguments as the person changed them, in their editor, else typed as JSON.

    Raises:
        ValueError: If what they leave is no JSON object.
    """
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if editor:
        text = await asyncio.to_thread(_in_editor, editor, json.dumps(arguments, ensure_ascii=False, indent=2))
    else:
        text = await read_line("Arguments as JSON, on one line: ", screen)
    try:
        changed: Any = json.loads(text)
    except ValueError as error:
        raise ValueError(f"That is no JSON: {error}.") from error
    if not isinstance(changed, dict):
        raise ValueError("Arguments are a JSON object.")  # noqa: TRY004 - of the text, not of the program
    return cast("dict[str, Any]", changed)


def _in_editor(editor: str, text: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "arguments.json"
        file.write_text(text, encoding="utf-8")
        subprocess.run([*shlex.split(editor), str(file)], check=False)
        return file.read_text(encoding="utf-8")
