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
from typing import TYPE_CHECKING, Protocol

from perdure.cli.output import Misuse, as_json, one_line, safe
from perdure.cli.typed import read_arguments, read_json
from perdure.errors import DecisionRejected
from perdure.events import ApprovalRequested, Asked, InDoubt

if TYPE_CHECKING:
    from perdure.client import RunHandle
    from perdure.decisions import Receipt


Open = ApprovalRequested | Asked | InDoubt
"""What a person is asked."""


class Screen(Protocol):
    """Where questions are asked: what else is said meanwhile goes above the open `question`."""

    question: str

    def say(self, text: str) -> None:
        """Print lines that stay."""
        ...


class Asking:
    """One request of a run, and the person who may answer it."""

    def __init__(self, handle: RunHandle, event: Open, screen: Screen) -> None:
        self._handle = handle
        self._event = event
        self._screen = screen
        self._arguments = event.arguments if isinstance(event, ApprovalRequested) else {}

    async def answered(self) -> bool:
        """Ask until the request is answered; return False if the person wants to be asked no more."""
        while True:
            try:
                receipt = await self._asked()
            except EOFError:
                return False
            except (DecisionRejected, Misuse) as error:
                self._screen.say(one_line(str(error), 1000))
                if isinstance(error, DecisionRejected) and error.reason != "invalid_edit":
                    return True
            else:
                if receipt and receipt.reason == "queued":
                    self._screen.say(receipt.message)
                if receipt:
                    return True

    async def _asked(self) -> Receipt | None:
        match self._event:
            case ApprovalRequested():
                return await self._approval(self._event)
            case Asked():
                text = await self._line(f"Answer {self._event.call} (nothing: later): ")
                if not text:
                    raise EOFError
                return await self._handle.answer(text, self._event.call)
            case InDoubt():
                return await self._settlement()

    async def _approval(self, event: ApprovalRequested) -> Receipt | None:
        call, shown = event.call, event.hash
        question = f"Approve {call} {safe(event.name)}? [y]es, [n]o, [e]dit and approve, [l]ater: "
        match await self._choice(question):
            case "y":
                return await self._handle.approve(call, hash=shown)
            case "n":
                return await self._handle.deny(call, reason=await self._line("Why (for the model): "))
            case "e":
                if not await self._edit():
                    return None
                return await self._handle.approve(call, arguments=self._arguments, hash=shown)
            case _:
                return None

    async def _settlement(self) -> Receipt | None:
        call = self._event.call
        question = f"What became of {call} {safe(self._event.name)}? [d]one, [n]ot done, [r]etry, [l]ater: "
        match await self._choice(question):
            case "d":
                text = await self._line("What did it return (JSON; nothing if unknown): ")
                return await self._handle.settle(call, "done", result=read_json(text, "That") if text else None)
            case "n":
                return await self._handle.settle(call, "not-done")
            case "r":
                return await self._handle.settle(call, "retry")
            case _:
                return None

    async def _choice(self, question: str) -> str:
        """Return the first letter of what is typed; `later` ends the asking."""
        letter = (await self._line(question))[:1].lower()
        if letter == "l":
            raise EOFError
        return letter

    async def _line(self, question: str) -> str:
        return (await read_line(question, self._screen)).strip()

    async def _edit(self) -> bool:
        """Let the person change the arguments, in their editor, else typed as JSON; return whether they did."""
        before, editor = self._arguments, os.environ.get("VISUAL") or os.environ.get("EDITOR")
        if editor:
            text = await asyncio.to_thread(_in_editor, editor, json.dumps(before, ensure_ascii=False, indent=2))
        else:
            self._screen.say(as_json(before))
            text = await self._line("Other arguments, as JSON on one line: ")
        self._arguments = read_arguments(text)
        return self._arguments != before


async def read_line(question: str, screen: Screen) -> str:
    """Return a line typed at the terminal.

    Raises:
        EOFError: At its end (Ctrl-D).
    """
    screen.question = question
    sys.stderr.write(question)
    sys.stderr.flush()
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def ready() -> None:
        if not line.done():
            line.set_result(os.read(sys.stdin.fileno(), 65536).decode("utf-8", "replace"))

    loop.add_reader(sys.stdin.fileno(), ready)
    try:
        typed = await line
    finally:
        screen.question = ""
        loop.remove_reader(sys.stdin.fileno())
    if not typed:
        raise EOFError
    return typed


def _in_editor(editor: str, text: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "arguments.json"
        file.write_text(text, encoding="utf-8")
        subprocess.run([*shlex.split(editor), str(file)], check=False)
        return file.read_text(encoding="utf-8")
