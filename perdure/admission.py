"""Whoever has not the key by which a namespace is encrypted starts nothing there, and says nothing to its runs."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from perdure.errors import ConnectionFailed, KeyMissing
from perdure.keychecks import refusal
from perdure.sealing import keyring

if TYPE_CHECKING:
    from perdure.client import Client

_log = logging.getLogger("perdure.client")


class Admission:
    """Asks the store once by which key the client's namespace is encrypted."""

    def __init__(self) -> None:
        self._asking = asyncio.Lock()
        self._asked = False

    async def check(self, client: Client) -> None:
        """Return if runs may be started. A store that can't be used is no reason why not.

        Raises:
            KeyMissing: If the namespace is encrypted with another key than those that are here, or none is.
        """
        async with self._asking:
            if self._asked:
                return
            namespace = client.temporal.namespace
            try:
                async with client.store() as store:
                    checks = await store.key_checks(namespace)
            except ConnectionFailed as error:
                _log.debug("whether namespace %r is encrypted is not known: %s", namespace, error)
                checks = []
            if why := refusal(keyring(client.settings), namespace, checks):
                raise KeyMissing(why)
            self._asked = True
