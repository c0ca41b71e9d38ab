"""Secrets of runs: into the vault, from there into the tool, and out of all that the tool says."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.bodies import Ended, Raised
from perdure.activities.stores import Vault
from perdure.activities.stores.patience import patiently
from perdure.activities.unlocked import NONE, Unlocked
from perdure.errors import PerdureError
from perdure.results import KEEPING
from perdure.sealing import vault_keys
from perdure.sensitive import Vaulted, spellings, unfit
from perdure.settings import Settings
from perdure.telemetry import redaction

T = TypeVar("T")


def without(unlocked: Unlocked, ended: Ended[T]) -> Ended[T]:
    """Return how an attempt ended, without secrets in the words of its error."""
    return Raised(unlocked.error(ended.error)) if isinstance(ended, Raised) else ended


class Safe:
    """The vault and its key.

    Args:
        vault: Where sealed secrets are.
        settings: Where the key is.
        patience: How long the vault may be away while a tool waits for it.
    """

    def __init__(self, vault: Vault, settings: Settings, patience: timedelta = KEEPING) -> None:
        self._vault = vault
        self._settings = settings
        self._patience = patience

    async def keep(self, namespace: str, run_id: str, values: Mapping[str, str]) -> Vaulted:
        """Put the secrets of a run into the vault.

        Raises:
            PerdureError: If one can't be a secret, or there is no key to seal them with.
            ConnectionFailed: If the store is down.
        """
        for name, value in values.items():
            if problem := unfit(name, value):
                raise PerdureError(problem)
        vaulted = Vaulted(id=secrets.token_hex(16), names=sorted(values))
        keys = vault_keys(self._settings, make=True)
        sealed = {name: keys.seal("vault", value.encode(), _bound(vaulted, name)) for name, value in values.items()}
        await self._vault.keep_secrets(namespace, run_id, vaulted.id, sealed)
        return vaulted

    async def unlock(self, vaulted: Vaulted | None) -> Unlocked:
        """Return the secrets of a run; from now on this process shows none of them in anything that tells of it."""
        if vaulted is None:
            return NONE
        try:
            values = await self._values(vaulted)
        except PerdureError as error:
            return Unlocked(problem=f"The secrets of this run can't be read: {error}")
        for name, value in values.items():
            redaction.current().known.learn_secret(name, spellings(value))
        return Unlocked(values)

    async def _values(self, vaulted: Vaulted) -> dict[str, str]:
        keys = vault_keys(self._settings)
        sealed = await patiently(
            lambda: self._vault.secrets(vaulted.id), self._patience, meanwhile="a tool waits for its secrets"
        )
        return {name: keys.open("vault", data, _bound(vaulted, name)).decode() for name, data in sealed.items()}


def _bound(vaulted: Vaulted, name: str) -> bytes:
    """Return what a sealed secret is tied to: it can't be passed off as another one."""
    return f"{vaulted.id}/{name}".encode()


# -- what runs have left behind ----------------------------------------------------------------------------

_EVERY, _YOUNG = timedelta(hours=1), timedelta(hours=1)
"""How often it is looked for; younger secrets may be those of a run that is just being started."""


async def sweep(client: Client, vault: Vault) -> None:
    """Delete, now and every hour, the secrets of runs that ended without what follows an end, or never began."""
    while True:
        with contextlib.suppress(RPCError):
            found = await patiently(lambda: vault.deposits(client.namespace), meanwhile="old secrets wait")
            for deposit in found:
                if datetime.now(UTC) - deposit.kept_at > _YOUNG and await _is_over(client, deposit.run_id):
                    await patiently(partial(vault.drop_secrets, deposit.id), meanwhile="old secrets wait")
        await asyncio.sleep(_EVERY.total_seconds())


async def _is_over(client: Client, run_id: str) -> bool:
    try:
        described = await client.get_workflow_handle(run_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return True
        raise
    return described.status is not WorkflowExecutionStatus.RUNNING
