"""Whether the keys of a process are those by which a namespace is encrypted. Pure.

The store has, for each key that has ever encrypted there, something sealed with it. Who can't open the newest one would
read nothing of what runs hold, and fail each of their tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from perdure.errors import KeyMissing
from perdure.messages import Data
from perdure.sealing import Keyring


class KeyCheck(Data):
    """Something that only one key opens; `since` is when that key was first used in the namespace."""

    id: str
    since: datetime
    sealed: bytes


def check_of(keys: Keyring, namespace: str, since: datetime) -> KeyCheck:
    """Return the check of the key that encrypts."""
    return KeyCheck(id=keys.ids[0], since=since, sealed=keys.seal("table", _TEXT, namespace.encode()))


_TEXT = b"perdure"


def refusal(keys: Keyring, namespace: str, checks: Sequence[KeyCheck]) -> str:
    """Return why a worker with these keys may not serve a namespace, as a sentence; "" where it may.

    Args:
        checks: The oldest first.
    """
    if not checks:
        return ""
    newest, where = checks[-1], f"The data of namespace {namespace!r} are encrypted"
    if not keys:
        return f"{where} with key {newest.id}, and there is no key here: set PERDURE_ENCRYPTION_KEY to it."
    if newest.id not in keys.ids:
        here = ", ".join(keys.ids)
        return f"{where} with key {newest.id}, and here is only {here}: add it to PERDURE_ENCRYPTION_KEY."
    for check in checks:
        if check.id in keys.ids:
            try:
                keys.open("table", check.sealed, namespace.encode())
            except KeyMissing:
                return f"{where} with a key {check.id} that is another one than key {check.id} here: set the right one."
    return ""


def is_new(keys: Keyring, checks: Sequence[KeyCheck]) -> bool:
    """Return whether the key that encrypts is not known in the store."""
    return bool(keys) and keys.ids[0] not in {check.id for check in checks}
