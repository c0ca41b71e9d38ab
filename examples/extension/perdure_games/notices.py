"""A notifier for any worker: `PERDURE_NOTIFY_BY=log`."""

import asyncio
from pathlib import Path

from perdure.messages import JSON


class Log:
    """Writes a line for each notice into `notices.log`, in the worker's folder."""

    async def deliver(self, id: str, told: dict[str, JSON]) -> None:
        """Write it."""
        await asyncio.to_thread(self._write, f"{id}: {told['data']['text']}\n")

    def _write(self, line: str) -> None:
        with Path("notices.log").open("a", encoding="utf-8") as log:
            log.write(line)
