import base64
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from perdure.errors import KeyMissing, PerdureError
from perdure.sealing import Key, Keyring, is_sealed, keyring, parse_keys
from perdure.settings import Settings

OLD, NEW = Key("old", b"o" * 32), Key("new", b"n" * 32)
RING = Keyring([NEW, OLD])


@given(st.binary(), st.binary(max_size=9))
def test_what_is_sealed_is_read_with_the_same_key_and_tells_nothing(data, bound):
    sealed = RING.seal("table", data, bound)
    assert is_sealed(sealed)
    assert RING.open("table", sealed, bound) == data
    assert sealed != RING.seal("table", data, bound)
    assert len(data) < 5 or data not in sealed[16:]
    with pytest.raises(KeyMissing, match="can't be decrypted with key new"):
        RING.open("table", sealed, bound + b"!")
    with pytest.raises(KeyMissing):
        RING.open("vault", sealed, bound)


@given(st.binary())
def test_equal_data_can_give_equal_results(data):
    assert RING.seal_alike("blob", data) == RING.seal_alike("blob", data)
    assert RING.open_alike("blob", RING.seal_alike("blob", data)) == data


def test_after_a_rotation_what_the_old_key_has_sealed_is_still_read():
    before = Keyring([OLD])
    assert RING.open("table", before.seal("table", b"x")) == b"x"
    assert RING.open_alike("blob", before.seal_alike("blob", b"x")) == b"x"
    assert set(before.marks("word")) < set(RING.marks("word"))
    assert next(RING.marks("word")) != next(before.marks("word"))


def test_a_key_that_is_not_here_or_is_another_one_is_told_by_its_id():
    sealed = RING.seal("table", b"x")
    with pytest.raises(KeyMissing, match=r"key new, which is not set here \(only old is\)"):
        Keyring([OLD]).open("table", sealed)
    with pytest.raises(KeyMissing, match=r"key new, which is not set here \(none is\)"):
        Keyring().open("table", sealed)
    with pytest.raises(KeyMissing, match="the key of that id was another one"):
        Keyring([Key("new", b"?" * 32)]).open("table", sealed)
    with pytest.raises(KeyMissing):
        RING.open("table", sealed[:20])
    with pytest.raises(KeyMissing):
        RING.open("table", sealed[:9])


def test_keys_are_written_in_base64_or_hex_with_an_id_or_without():
    secret = bytes(range(200, 232))
    plain, url = base64.b64encode(secret).decode(), base64.urlsafe_b64encode(secret).decode().rstrip("=")
    keys = parse_keys(f"{plain}, a:{url}\n# a remark\nb:{secret.hex()}  # another", "SETTING")
    assert [key.secret for key in keys] == [secret] * 3
    assert [key.id for key in keys[1:]] == ["a", "b"]
    assert len(keys[0].id) == 8
    assert str(secret) not in repr(keys)
    assert secret.hex() not in repr(RING)


@pytest.mark.parametrize(
    "word", ["hunter2", "id:hunter2", "a b:" + "00" * 32, "00" * 31, "zz" * 32, "ключ:" + "00" * 32]
)
def test_what_is_no_key_is_refused_without_showing_it(word):
    with pytest.raises(PerdureError, match=r"^SETTING: key") as refused:
        parse_keys(word, "SETTING")
    assert "hunter2" not in str(refused.value)


def test_keys_of_the_setting_come_before_those_of_the_file(tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"# made today\nfile:{'11' * 32}\n")
    settings = Settings(encryption_key=SecretStr(f"one:{'00' * 32}"), encryption_key_file=file)
    assert keyring(settings).ids == ("one", "file")
    assert "00" * 32 not in repr(settings)
    assert not keyring(Settings())


def test_a_file_without_a_key_is_refused(tmp_path):
    with pytest.raises(PerdureError, match="nowhere can't be read: No such file"):
        keyring(Settings(encryption_key_file=tmp_path / "nowhere"))
    (tmp_path / "empty").write_text("# nothing yet\n")
    with pytest.raises(PerdureError, match="empty holds no key"):
        keyring(Settings(encryption_key_file=tmp_path / "empty"))
    (tmp_path / "binary").write_bytes(os.urandom(8) + b"\xff")
    with pytest.raises(PerdureError, match="it is not text"):
        keyring(Settings(encryption_key_file=tmp_path / "binary"))
    with pytest.raises(PerdureError, match="same id"):
        Keyring([OLD, Key("old", b"x" * 32)])
