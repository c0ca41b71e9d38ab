"""What nearly every command begins with: the settings, and a client of the server that they lead to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from perdure.cli.output import Misuse

if TYPE_CHECKING:
    from perdure.activities.stores import CatalogueEntry
    from perdure.client import Client
    from perdure.settings import Settings

T = TypeVar("T")


def settings(**changes: Any) -> Settings:
    """Return the settings of this process; `changes` that are not None beat the environment.

    Raises:
        Misuse: If the environment holds something that can't be.
    """
    from pydantic import ValidationError

    from perdure.settings import Settings

    try:
        return Settings(**{name: value for name, value in changes.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = f"PERDURE_{first['loc'][0]}".upper()
        why = first["msg"].removeprefix("Value error, ")
        raise Misuse(f"{name} is set to {first['input']!r}, which can't be: {why}.") from error


async def connect(chosen: Settings | None = None) -> Client:
    """Return a client of the server that settings and environment lead to."""
    from perdure.client import Client

    return await Client.connect(chosen or settings())


async def catalogue(client: Client) -> list[CatalogueEntry]:
    """Return the agents that workers have announced, and where they are served.

    Raises:
        ConnectionFailed: If the store can't be used.
    """
    async with client.store() as store:
        return await store.agents(client.temporal.namespace)


def finish(work: Coroutine[Any, Any, T], *, logs: bool = False) -> T:
    """Return what `work` returns, in an event loop of its own.

    The log of the engine's client goes nowhere without `logs`: what matters of it comes back as an error.
    """
    logging.getLogger("temporalio.core").disabled = not logs
    return asyncio.run(work)


def web_page(chosen: Settings, run_id: str) -> str | None:
    """Return the address of a run's page in the Web UI, where that is known."""
    from perdure.engine.connection import target

    where = target(chosen)
    if where.ui_url is None:
        return None
    return f"{where.ui_url}/namespaces/{where.namespace}/workflows/{quote(run_id, safe='')}"


def short_path(path: str) -> str:
    """Return `path` as one would type it here."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
