"""The side channel: what comes beside the events, from workers to whoever watches a run. It may be lost.

Embedded it goes through files in the home folder, one a run; where the store is PostgreSQL, through that.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from perdure.errors import KeyMissing
from perdure.events import TextDelta, ToolProgress
from perdure.sealing import Keyring, is_sealed
from perdure.settings import Settings

Aside = TextDelta | ToolProgress
"""What comes beside the events."""

LONGEST = 600
"""Characters of one piece of text, so that it fits into a notification however it is written."""

STALE = timedelta(days=1)
"""What nobody has written into for so long is of a run that has ended."""


class Outlet(Protocol):
    """Where lines about runs go. Used by one thread."""

    def write(self, name: str, lines: Sequence[bytes], *, begins: bool) -> None:
        """Write lines about the run of that name. Raises an `Exception` where they are lost.

        Args:
            begins: With them begins a reply: what was written of others before is not needed any more.
        """
        ...

    def close(self) -> None:
        """Release what is open."""
        ...


def name_of(namespace: str, run_id: str) -> str:
    """Return what a run is called in the side channel: 32 hex digits, which do not tell its id."""
    return hashlib.sha256(f"{namespace}/{run_id}".encode()).hexdigest()[:32]


def folder_of(settings: Settings) -> Path:
    """Return where the files are."""
    return settings.folder / "live"


def is_postgres(settings: Settings) -> bool:
    """Return whether it goes through the store."""
    return (settings.store or "").startswith("postgres")


def outlet(settings: Settings) -> Outlet:
    """Return where a worker with these settings writes; it opens when it is first used."""
    if is_postgres(settings):
        from perdure.telemetry.live_postgres import Notifications

        return Notifications(settings.store or "")
    from perdure.telemetry.live_files import Files

    return Files(folder_of(settings))


async def listen(settings: Settings, keys: Keyring, namespace: str, run_id: str) -> AsyncGenerator[Aside]:
    """Yield what comes beside a run's events. Never ends, and never fails: what can't be read is skipped."""
    name = name_of(namespace, run_id)
    if is_postgres(settings):
        from perdure.telemetry.live_postgres import heard

        lines = heard(settings.store or "", name)
    else:
        from perdure.telemetry.live_files import tail

        lines = tail(folder_of(settings), name)
    async for line in lines:
        if found := read(line, keys):
            yield found


# -- lines ---------------------------------------------------------------------------------------------------


def written(aside: Aside, keys: Keyring) -> bytes:
    """Return `aside` as a line, sealed if there are keys."""
    line = aside.model_dump_json(exclude_defaults=True).encode("utf-8", "replace")
    return base64.b64encode(keys.seal("live", line)) if keys else line


def read(line: bytes, keys: Keyring) -> Aside | None:
    """Return what a line says; None for the half of one, or where its key is not here."""
    try:
        if not line.startswith(b"{"):
            sealed = base64.b64decode(line, validate=True)
            line = keys.open("live", sealed) if is_sealed(sealed) else line
        found: Aside = _adapter().validate_json(line)
    except (ValueError, KeyMissing):
        return None
    return found


@lru_cache(maxsize=1)
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Aside)
