"""The secrets of a run on their way into the vault, before the run is started."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from temporalio.exceptions import WorkflowAlreadyStartedError

from perdure.sensitive import Vaulted

if TYPE_CHECKING:
    from perdure.client import Client
    from perdure.wire import RunRequest


@asynccontextmanager
async def deposited(client: Client, run_id: str, values: Mapping[str, str]) -> AsyncGenerator[Vaulted | None]:
    """Put secrets into the vault for a run that the block starts; they go again if that run was there already.

    Where the block fails otherwise they stay, as the run may have been started: they go with it, or, where it is not
    there, an hour later.

    Raises:
        PerdureError: If one can't be a secret, or there is no key to seal them with.
        ConnectionFailed: If the store is down.
    """
    if not values:
        yield None
        return
    from perdure.activities.secrets import Safe

    async with client.store() as store:
        vaulted = await Safe(store, client.settings).keep(client.temporal.namespace, run_id, values)
        try:
            yield vaulted
        except WorkflowAlreadyStartedError:
            await store.drop_secrets(vaulted.id)
            raise


def without_values(request: RunRequest, values: Mapping[str, str], vaulted: Vaulted | None) -> RunRequest:
    """Return a request that says where the secrets are, and holds none of them, should the user have written one."""
    if vaulted is None:
        return request
    from perdure.activities.unlocked import Unlocked

    given = Unlocked(values).json(request.model_dump(include={"input", "variables"}))
    cleaned = type(request).model_validate({**given, "spec": request.spec})
    return request.model_copy(
        update={"input": cleaned.input, "variables": cleaned.variables, "secrets": vaulted},
    )
