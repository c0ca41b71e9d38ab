"""Encryption of what is kept: keys by id, of which the first encrypts and all decrypt.

AES-256-GCM (AES-SIV where equal data have to give equal results), each purpose with a key of its own that is derived
from the master key. What is sealed says with which key; what is not sealed is read as it is.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from perdure.errors import KeyMissing, PerdureError
from perdure.settings import Settings

Purpose = Literal["payload", "blob", "table", "index", "vault", "live"]
"""What a key derived from a master key is for."""

KEY_BYTES = 32
_NONCE = 12
_MARK = b"\x93PERDURE\x01"
"""Begins everything sealed; no UTF-8 text, JSON or zlib stream begins so."""
_HOW = "make one with `openssl rand -base64 32`"


@dataclass(frozen=True, slots=True)
class Key:
    """A master key of 32 bytes; its id stands beside all that it has encrypted, and tells nothing about it."""

    id: str
    secret: bytes = field(repr=False)


class Keyring:
    """Keys in the order in which they were given. Without any, nothing is encrypted.

    Raises:
        PerdureError: If two keys have one id.
    """

    def __init__(self, keys: Sequence[Key] = ()) -> None:
        self._keys = {key.id: key for key in keys}
        self.ids = tuple(key.id for key in keys)
        if len(self._keys) < len(self.ids):
            raise PerdureError("Two encryption keys have the same id; give each one of its own.")

    @property
    def keys(self) -> tuple[Key, ...]:
        """All of them, the one that encrypts first."""
        return tuple(self._keys.values())

    def __bool__(self) -> bool:
        """Return whether there is a key to encrypt with."""
        return bool(self.ids)

    def seal(self, purpose: Purpose, data: bytes, bound: bytes = b"") -> bytes:
        """Return `data` encrypted with the first key, so that only the same `bound` decrypts it. A nonce is random."""
        key = self._keys[self.ids[0]]
        nonce = os.urandom(_NONCE)
        head = _head(key.id)
        return head + nonce + bytes(_gcm(key, purpose).encrypt(nonce, data, head + bound))

    def seal_alike(self, purpose: Purpose, data: bytes) -> bytes:
        """Return `data` encrypted with the first key: equal data give equal bytes, which is all that they tell."""
        key = self._keys[self.ids[0]]
        head = _head(key.id)
        return head + bytes(_siv(key, purpose).encrypt(b"\0" + data, [head]))  # it refuses to encrypt nothing

    def open(self, purpose: Purpose, sealed: bytes, bound: bytes = b"") -> bytes:
        """Return what was sealed with `seal`.

        Raises:
            KeyMissing: If its key is not here, is another one of the same id, or the data are damaged.
        """
        key, head = self._key_of(sealed)
        body = sealed[len(head) :]
        with _told(key.id):
            return bytes(_gcm(key, purpose).decrypt(body[:_NONCE], body[_NONCE:], head + bound))

    def open_alike(self, purpose: Purpose, sealed: bytes) -> bytes:
        """Return what was sealed with `seal_alike`. Raises as `open` does."""
        key, head = self._key_of(sealed)
        with _told(key.id):
            return bytes(_siv(key, purpose).decrypt(sealed[len(head) :], [head]))[1:]

    def marks(self, word: str) -> Iterator[str]:
        """Yield what stands for `word` in an index, with each key; the first key's first."""
        for key in self._keys.values():
            yield hmac.new(_derived(key, "index"), word.encode(), hashlib.sha256).hexdigest()[:20]

    def missing(self, id: str) -> KeyMissing:
        """Return the error of something that was encrypted with a key that is not here."""
        have = f"only {', '.join(self.ids)} {'is' if len(self.ids) == 1 else 'are'}" if self.ids else "none is"
        text = f"It is encrypted with key {id}, which is not set here ({have}): add it to PERDURE_ENCRYPTION_KEY."
        return KeyMissing(text)

    def _key_of(self, sealed: bytes) -> tuple[Key, bytes]:
        length = sealed[len(_MARK)] if len(sealed) > len(_MARK) else 0
        head = sealed[: len(_MARK) + 1 + length]
        name = head[len(_MARK) + 1 :].decode("ascii", "replace")
        if name not in self._keys:
            raise self.missing(name)
        return self._keys[name], head


def is_sealed(data: bytes) -> bool:
    """Return whether `data` were sealed."""
    return data.startswith(_MARK)


@contextmanager
def _told(id: str) -> Generator[None]:
    """Say in one sentence that a key does not open it; the library says nothing."""
    try:
        yield
    except Exception:  # noqa: BLE001 - InvalidTag, or ValueError where it was cut off
        why = "the key of that id was another one, or the data are damaged"
        raise KeyMissing(f"It can't be decrypted with key {id}: {why}.") from None


def _head(id: str) -> bytes:
    return _MARK + bytes([len(id)]) + id.encode()


@lru_cache(maxsize=64)
def _derived(key: Key, purpose: Purpose) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    length = 2 * KEY_BYTES if purpose == "blob" else KEY_BYTES
    return HKDF(SHA256(), length, salt=None, info=f"perdure {purpose} 1".encode()).derive(key.secret)


@lru_cache(maxsize=64)
def _gcm(key: Key, purpose: Purpose) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(_derived(key, purpose))


@lru_cache(maxsize=16)
def _siv(key: Key, purpose: Purpose) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

    return AESSIV(_derived(key, purpose))


# -- where keys come from ----------------------------------------------------------------------------------

_ID = re.compile(r"[A-Za-z0-9_.-]{1,32}")


def parse_keys(text: str, where: str) -> list[Key]:
    """Return the keys of a setting or file: `KEY` or `ID:KEY`, a key being 32 bytes in base64 or hex.

    Several are separated by commas or stand on lines of their own; `#` begins a remark. Without an id, a key is named
    by the first digits of a hash of it.

    Args:
        where: Named in errors, which never show the text.

    Raises:
        PerdureError: If one of them is no key.
    """
    lines = [line.partition("#")[0] for line in text.splitlines()]
    words = [word for line in lines for word in re.split(r"[\s,]+", line) if word]
    return [_parse_key(word, f"{where}: key {number}") for number, word in enumerate(words, 1)]


def _parse_key(word: str, where: str) -> Key:
    name, colon, written = word.rpartition(":")
    secret = _bytes(written)
    if secret is None:
        raise PerdureError(f"{where} is not 32 bytes in base64 or hex; {_HOW}.")
    if colon and not _ID.fullmatch(name):
        raise PerdureError(f"{where} has an id that is not made of at most 32 letters, digits, '-', '_' and '.'.")
    return Key(name or hashlib.sha256(b"perdure key " + secret).hexdigest()[:8], secret)


def _bytes(written: str) -> bytes | None:
    with suppress(ValueError, binascii.Error):
        if len(written) == 2 * KEY_BYTES:
            return bytes.fromhex(written)
        padded = written.rstrip("=").replace("-", "+").replace("_", "/")
        data = base64.b64decode(padded + "=" * (-len(padded) % 4), validate=True)
        return data if len(data) == KEY_BYTES else None
    return None


def keyring(settings: Settings) -> Keyring:
    """Return the keys that `settings` give: those of the setting, then those of the file.

    Raises:
        PerdureError: If there is no such file, or one of them is no key.
    """
    keys: list[Key] = []
    if settings.encryption_key:
        keys += parse_keys(settings.encryption_key.get_secret_value(), "PERDURE_ENCRYPTION_KEY")
    if settings.encryption_key_file:
        keys += _read(settings.encryption_key_file)
    return Keyring(keys)


def _read(file: os.PathLike[str]) -> list[Key]:
    try:
        with open(file, encoding="utf-8") as opened:  # noqa: PTH123 - whatever kind of path it is
            text = opened.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise PerdureError(f"PERDURE_ENCRYPTION_KEY_FILE: {file} can't be read: {reason}.") from error
    if not (keys := parse_keys(text, str(file))):
        raise PerdureError(f"PERDURE_ENCRYPTION_KEY_FILE: {file} holds no key; {_HOW}.")
    return keys


# -- the key of the vault ----------------------------------------------------------------------------------

_VAULT_KEY = "vault.key"


def vault_keys(settings: Settings, *, make: bool = False) -> Keyring:
    """Return the keys of the vault: those of `settings`, and one in the home folder that nobody else can read.

    Args:
        make: Make that one, where there is no other, and the store is embedded: workers elsewhere would not have it.

    Raises:
        PerdureError: If there is none to be had; the text says what to set.
    """
    keys, file = keyring(settings), settings.folder / _VAULT_KEY
    if make and not keys and not file.exists():
        if settings.store is not None and not settings.store.startswith("sqlite"):
            raise PerdureError(f"Secrets need PERDURE_ENCRYPTION_KEY, here and where workers run; {_HOW}.")
        _make_key(file)
    own = parse_keys(file.read_text(encoding="utf-8"), str(file)) if file.exists() else []
    return Keyring([*(keys.keys), *(key for key in own if key.id not in keys.ids)])


def _make_key(file: Path) -> None:
    """Write a new key, readable for its owner alone; whoever comes second finds that of the first, whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{os.getpid()}-{os.urandom(4).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(
                f"# The key of the secrets in the store beside it. Without it they are lost.\n{os.urandom(32).hex()}\n"
            )
            opened.flush()
            os.fsync(opened.fileno())
        with suppress(FileExistsError):
            os.link(draft, file)
    finally:
        draft.unlink()
