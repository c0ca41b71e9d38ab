"""What is too large for a history is kept in the store, beside it: the engine's external storage, wrapped.

It is for what a run is given by people and programs, and for what it says of itself: inputs, messages, carried states,
results. What its activities take and return stays in the history, as far as that takes it: they put large things away
by themselves, and wait for the store while they do. A report that could not be written would turn an effect that was
done into one in doubt.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.converter import (
    DataConverter,
    ExternalStorage,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverSelectContext,
    StorageDriverStoreContext,
    StorageDriverWorkflowInfo,
)

from perdure.engine.codec import OF_ACTIVITY
from perdure.errors import PerdureError

THRESHOLD = 256 * 1024
"""Bytes up to which a payload stays in the history, where the Web UI shows it."""

MOST = 1_900_000
"""Bytes up to which it stays there that belongs to an activity: the engine refuses 2 MiB."""

_NAME = "perdure"
"""What histories call our store: a reference is read by the driver of that name."""


class Kept(Protocol):
    """The part of a store that is needed."""

    async def put(self, data: bytes, owner: Any, /) -> str:
        """Keep `data` and return its reference."""
        ...

    async def get(self, ref: str, /) -> bytes:
        """Return what was kept. Raises `LookupError`."""
        ...


Opening = Callable[[], AbstractAsyncContextManager[Kept]]
"""Opens the store, for as long as the block runs."""
Owner = Callable[[str, str], Any]
"""Returns a run, by namespace and id, as the owner of what is kept."""


class Driver(StorageDriver):
    """Keeps payloads in the store for the run that they belong to, and reads them there.

    Args:
        opening: The store is opened when there is something to keep or to read, not before.
        owner: See `Owner`.
    """

    def __init__(self, opening: Opening, owner: Owner) -> None:
        self._opening = opening
        self._owner = owner

    def name(self) -> str:
        """See `StorageDriver`."""
        return _NAME

    def type(self) -> str:
        """See `StorageDriver`."""
        return _NAME

    def select(self, context: StorageDriverSelectContext, payload: Payload) -> StorageDriver | None:
        """Return what keeps a large `payload`; None leaves it in the history."""
        if not isinstance(context.target, StorageDriverWorkflowInfo) or not context.target.id:
            return None  # nobody would own it
        of_activity = OF_ACTIVITY in payload.metadata or activity.in_activity()
        return None if of_activity and len(payload.data) <= MOST else self

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        """See `StorageDriver`. Raises `ConnectionFailed` if the store is down."""
        target = context.target
        assert isinstance(target, StorageDriverWorkflowInfo)  # noqa: S101 - `select` chose no other
        owner = self._owner(target.namespace, target.id or "")
        async with self._opening() as kept:
            refs = [await kept.put(payload.SerializeToString(), owner) for payload in payloads]
        return [StorageDriverClaim({"ref": ref}) for ref in refs]

    async def retrieve(
        self,
        context: StorageDriverRetrieveContext,  # noqa: ARG002
        claims: Sequence[StorageDriverClaim],
    ) -> list[Payload]:
        """See `StorageDriver`.

        Raises:
            ConnectionFailed: If the store is down.
            PerdureError: If it does not have one of them (any more), or is another one than was written to.
        """
        async with self._opening() as kept:
            try:
                return [Payload.FromString(await kept.get(claim.claim_data["ref"])) for claim in claims]
            except LookupError as error:
                text = "Something large that the run has recorded is not in the store that is set here"
                raise PerdureError(f"{text}: {error}") from error


def attached(client: Client, driver: Driver) -> Client:
    """Return `client` with its large payloads kept by `driver`, whatever kept them so far."""
    config = client.config()
    config["data_converter"] = kept_by(driver, config["data_converter"])
    return Client(**config)


def kept_by(driver: Driver, converter: DataConverter) -> DataConverter:
    """Return `converter` with its large payloads kept by `driver`."""
    storage = ExternalStorage(drivers=[driver], driver_selector=driver.select, payload_size_threshold=THRESHOLD)
    return dataclasses.replace(converter, external_storage=storage)
