"""The folder of the embedded server: who runs one there, and where it listens.

Two locks, since a killed owner is gone before its server is. `dev.json` is locked by the owner alone: beside
a free lock it is left over from a crash. `dev.lock` is passed down to the server itself: as long as anything
may write to the database file, it is held.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from perdure.messages import Data


class DevRecord(Data):
    """What `dev.json` says of the running server.

    Attributes:
        address: Host and port of its gRPC service.
        ui_url: Address of its Web UI.
        pid: The server's own process.
    """

    address: str
    ui_url: str
    namespace: str
    pid: int


def record_path(folder: Path) -> Path:
    """Return where the record is kept."""
    return folder / "dev.json"


def lock_path(folder: Path) -> Path:
    """Return where the database's lock is kept; the file itself stays for ever."""
    return folder / "dev.lock"


def write_record(folder: Path, record: DevRecord) -> IO[bytes]:
    """Write the record; a reader sees the old one or the new one, never half of it.

    Returns:
        The file that has to stay open for the record to count.
    """
    draft = folder / f"dev.json.{os.getpid()}"
    file = draft.open("wb")
    file.write(record.model_dump_json(indent=2).encode() + b"\n")
    file.flush()
    fcntl.flock(file, fcntl.LOCK_EX)
    draft.replace(record_path(folder))
    return file


def read_record(folder: Path) -> DevRecord | None:
    """Return the record of the server that runs in `folder`, or None; one left by a crash doesn't count."""
    try:
        with record_path(folder).open("rb") as file:
            return DevRecord.model_validate_json(file.read()) if _is_locked(file) else None
    except (OSError, ValidationError):
        return None


def _is_locked(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def try_lock(folder: Path) -> IO[bytes] | None:
    """Return the database's lock, or None if it is taken.

    It is held until the file is closed here and in every process that inherited it.
    """
    file = lock_path(folder).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
