"""Who may serve a namespace that is encrypted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from perdure.keychecks import KeyCheck, check_of, is_new, refusal
from perdure.sealing import Key, Keyring

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
OLD, NEW = Key("old", b"o" * 32), Key("new", b"n" * 32)
OTHER = Key("new", b"x" * 32)


def check(key: Key, hours: int = 0) -> KeyCheck:
    return check_of(Keyring([key]), "default", NOON + timedelta(hours=hours))


ROTATED = [check(OLD), check(NEW, 1)]


@pytest.mark.parametrize(
    ("keys", "checks", "why"),
    [
        ([], [], ""),
        ([NEW], [], ""),
        ([], [check(NEW)], "there is no key here: set PERDURE_ENCRYPTION_KEY"),
        ([OLD], [check(NEW)], "encrypted with key new, and here is only old"),
        ([NEW], [check(NEW)], ""),
        ([OTHER], [check(NEW)], "another one than key new here"),
        ([NEW, OLD], [check(OLD)], ""),
        ([OLD, NEW], ROTATED, ""),
        ([NEW], ROTATED, ""),
        ([OLD], ROTATED, "encrypted with key new"),
    ],
)
def test_a_worker_needs_the_key_that_encrypts_now(keys: list[Key], checks: list[KeyCheck], why: str) -> None:
    said = refusal(Keyring(keys), "default", checks)
    assert why in said
    assert bool(said) is bool(why)
    assert "\n" not in said


def test_a_check_is_of_its_namespace() -> None:
    assert refusal(Keyring([NEW]), "elsewhere", [check(NEW)])


def test_a_key_is_noted_once() -> None:
    assert is_new(Keyring([NEW, OLD]), [check(OLD)])
    assert not is_new(Keyring([OLD, NEW]), ROTATED)
    assert not is_new(Keyring(), [])
