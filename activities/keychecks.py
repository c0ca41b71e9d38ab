"""A worker without the right key does not begin."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

from perdure.activities.stores import Store
from perdure.activities.stores.patience import patiently
from perdure.errors import ConnectionFailed, KeyMissing
from perdure.keychecks import check_of, is_new, refusal
from perdure.sealing import Keyring

_log = logging.getLogger("perdure.worker")
_PATIENCE = timedelta(seconds=5)
"""How long a store may be away: what a worker without the right key does, fails by itself, one task after the other."""


async def admit(store: Store, namespace: str, keys: Keyring) -> None:
    """Let a worker begin, and note in the store by which key it encrypts.

    Raises:
        KeyMissing: If the namespace is encrypted with another key than these.
    """
    try:
        await patiently(lambda: _admitted(store, namespace, keys), _PATIENCE, "a worker waits for the store")
    except ConnectionFailed as error:
        _log.warning("whether the key is the right one is not known: %s", error)


async def _admitted(store: Store, namespace: str, keys: Keyring) -> None:
    checks = await store.key_checks(namespace)
    if why := refusal(keys, namespace, checks):
        raise KeyMissing(why)
    if not is_new(keys, checks):
        return
    was_plain = not checks and bool(await store.agents(namespace))
    await store.keep_key_check(namespace, check_of(keys, namespace, datetime.now(UTC)))
    if was_plain:
        _log.warning(
            "namespace %r is encrypted with key %s from now on; what is there already stays readable without it",
            namespace,
            keys.ids[0],
        )
