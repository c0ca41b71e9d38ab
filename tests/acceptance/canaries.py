"""Canaries: private values that are planted wherever a run takes them, and the places where they are looked for."""

from __future__ import annotations

import base64
import gzip
import json
import re
import sqlite3
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToJson
from temporalio.client import Client, WorkflowExecution, WorkflowHandle

from perdure.sensitive import spellings

PHONE, IDENTITY, CARD = "13877051942", "110101199003078822", "6222021234567890128"
EMAIL, NAME, LATIN = "quist.canary@example.com", "欧阳震华", "Wilhelmina Quist"
SECRET, TOKEN = "pin-4711-canary-xyz", "sk-canary0123456789abcdefghijklmnopqr"
PRIVATE = {"phone": PHONE, "identity": IDENTITY, "card": CARD, "email": EMAIL, "name": NAME, "latin": LATIN}
SECRETS = {"secret": SECRET, "token": TOKEN}

Found = dict[str, list[str]]
"""Names of canaries, and where each was found."""


@dataclass
class World:
    """What a run has left behind.

    Attributes:
        home: Folder of the engine and the store.
        address: Of the engine.
        logs: What processes have said on their standard error.
        more: Further diagnostics, by name.
    """

    home: Path
    address: str
    logs: dict[str, Path]
    more: dict[str, Callable[[], bytes]] = field(default_factory=dict)


Places = AsyncIterator[tuple[str, bytes]]
Place = Callable[[World], Places]


# -- looking ---------------------------------------------------------------------------------------------------


def hits(data: bytes, canaries: dict[str, str]) -> list[str]:
    """Return which canaries `data` holds: as they are, in JSON, in addresses, as base64 at any offset, compressed."""
    whole = b"\n".join(_unpacked(data))
    return [name for name, value in canaries.items() if any(one in whole for one in _written(value))]


def _written(value: str) -> list[bytes]:
    written = [one.encode() for one in spellings(value)]
    for shift in range(3):  # within a longer text that was encoded
        inside, size = base64.b64encode(b"\0" * shift + value.encode()), len(value.encode())
        written.append(inside[-(-8 * shift // 6) : 8 * (shift + size) // 6])
    return [*written, value.encode("utf-16-le"), value.encode().hex().encode()]


def _unpacked(data: bytes, depth: int = 3) -> Iterator[bytes]:
    yield data
    if not depth:
        return
    for unpack in (zlib.decompress, gzip.decompress, _from_base64):
        try:
            inner = unpack(data)
        except Exception:  # noqa: BLE001 - it is something else
            continue
        yield from _unpacked(inner, depth - 1)
    for text in re.findall(rb"[A-Za-z0-9+/_-]{24,}={0,2}", data) if depth > 1 else ():
        inner = _from_base64(text)
        if inner[:2] in (b"x\x9c", b"x\x01", b"x\xda", b"\x1f\x8b"):
            yield from _unpacked(inner, depth - 1)


def _from_base64(data: bytes) -> bytes:
    text = data.strip().rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
    return base64.b64decode(text[: len(text) - (len(text) % 4 == 1)] + b"=" * (-len(text) % 4))


async def search(world: World, places: dict[str, Place], canaries: dict[str, str]) -> Found:
    """Return which canaries are in these places."""
    found: Found = {}
    for name, place in places.items():
        async for where, data in place(world):
            for canary in hits(data, canaries):
                found.setdefault(canary, []).append(f"{name}: {where}")
    return found


# -- places ----------------------------------------------------------------------------------------------------


async def logs(world: World) -> Places:
    """What processes have said."""
    for name, file in world.logs.items():
        yield name, file.read_bytes()
    for file in world.home.rglob("*.log*"):
        yield file.name, file.read_bytes()


async def _handles(world: World) -> AsyncIterator[tuple[WorkflowExecution, WorkflowHandle[Any, Any]]]:
    client = await Client.connect(world.address)  # which decrypts nothing
    async for listed in client.list_workflows():
        yield listed, client.get_workflow_handle(listed.id, run_id=listed.run_id)


async def visibility(world: World) -> Places:
    """Search attributes, memos, pending activities with their heartbeats and last failures."""
    async for listed, handle in _handles(world):
        yield listed.id, MessageToJson(listed.raw_info).encode()
        described = await handle.describe()
        yield listed.id, described.raw_description.SerializeToString()


async def details(world: World) -> Places:
    """Current details, as the Web UI asks for them."""
    async for listed, handle in _handles(world):
        if listed.workflow_type == "AgentWorkflow" or "agent" in listed.workflow_type.lower():
            yield listed.id, await _details(handle)


async def _details(handle: WorkflowHandle[Any, Any]) -> bytes:
    try:
        return str(await handle.query("__temporal_workflow_metadata")).encode()
    except Exception as error:  # noqa: BLE001 - no worker has it any more
        return str(error).encode()


async def told_in_history(world: World) -> Places:
    """Of histories, what everybody sees: summaries, words and traces of failures, names of activities and timers."""
    async for listed, handle in _handles(world):
        async for event in handle.fetch_history_events():
            yield f"{listed.id} {event.event_id} summary", event.user_metadata.SerializeToString()
            for failure in _failures(json.loads(MessageToJson(event))):
                yield f"{listed.id} {event.event_id} failure", json.dumps(failure, ensure_ascii=False).encode()


def _failures(node: Any) -> Iterator[Any]:
    """Yield the words of all failures in an event."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("message", "stackTrace", "identity", "activityId") and isinstance(value, str):
                yield {key: value}
            yield from _failures(value)
    elif isinstance(node, list):
        for item in node:
            yield from _failures(item)


async def others(world: World) -> Places:
    """What further sinks have got."""
    for name, data in world.more.items():
        yield name, data()


DIAGNOSTICS: dict[str, Place] = {
    "logs": logs,
    "visibility": visibility,
    "details": details,
    "history": told_in_history,
    "others": others,
}


async def histories(world: World) -> Places:
    """Whole histories, as the engine has them."""
    async for listed, handle in _handles(world):
        async for event in handle.fetch_history_events():
            yield f"{listed.id} {event.event_id}", event.SerializeToString()


async def files(world: World) -> Places:
    """Every file beside the engine and the store, databases with all that their rows hold."""
    for file in sorted(world.home.rglob("*")):
        if not file.is_file() or file.name == "vault.key":
            continue
        yield file.name, file.read_bytes()
        if file.suffix == ".db":
            for where, data in _rows(file):
                yield f"{file.name} {where}", data


def _rows(file: Path) -> Iterator[tuple[str, bytes]]:
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as database:
        database.text_factory = bytes
        tables = [name.decode() for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        for table in tables:
            try:
                rows = database.execute(f'SELECT * FROM "{table}"').fetchall()
            except sqlite3.OperationalError:  # an index of another kind
                continue
            for row in rows:
                for cell in row:
                    yield table, cell if isinstance(cell, bytes) else str(cell).encode()


RECORDS: dict[str, Place] = {"histories": histories, "files": files}
