import asyncio
import os
import socket

import pytest

from perdure.engine import connection
from perdure.engine.connection import Target, connect, target
from perdure.engine.home import DevRecord, record_path, write_record
from perdure.errors import ConnectionFailed
from perdure.settings import Settings

RECORD = DevRecord(address="127.0.0.1:1", ui_url="http://127.0.0.1:2", namespace="default", pid=1)


@pytest.fixture(autouse=True)
def settings(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("TEMPORAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "temporal.toml"))
    monkeypatch.chdir(tmp_path)
    return Settings(home=tmp_path / ".perdure")


@pytest.fixture
def running(settings):
    """A dev server as other processes see it: the record, and that its owner holds it."""
    settings.folder.mkdir()
    with write_record(settings.folder, RECORD) as claim:
        yield claim


def configure(tmp_path, text):
    (tmp_path / "temporal.toml").write_text(text)


def test_without_any_configuration_it_is_where_temporals_dev_server_listens(settings):
    where = target(settings)
    assert (where.address, where.namespace, where.ui_url) == ("127.0.0.1:7233", "default", None)
    assert not where.configured


def test_a_running_dev_server_beats_the_default(settings, running):
    where = target(settings)
    assert (where.address, where.ui_url, where.embedded) == ("127.0.0.1:1", "http://127.0.0.1:2", True)
    assert "dev.json" in where.origin


def test_temporals_address_beats_a_running_dev_server(settings, running, monkeypatch):
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.example:7233")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "trips")
    assert target(settings) == Target("temporal.example:7233", "trips", "from TEMPORAL_ADDRESS")
    assert target(settings).configured


def test_temporals_profile_brings_address_namespace_and_key(settings, running, monkeypatch, tmp_path):
    configure(tmp_path, '[profile.prod]\naddress = "cloud.example:7233"\nnamespace = "n"\napi_key = "secret-key"\n')
    monkeypatch.setenv("TEMPORAL_PROFILE", "prod")
    where = target(settings)
    assert (where.address, where.namespace, where.origin) == (
        "cloud.example:7233",
        "n",
        "from Temporal's profile 'prod'",
    )
    assert (where.options.get("api_key"), where.options.get("tls")) == ("secret-key", True)
    assert "secret-key" not in repr(where)


def test_a_configuration_without_address_leaves_the_dev_server(settings, running, monkeypatch):
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "elsewhere")
    assert (target(settings).address, target(settings).namespace) == ("127.0.0.1:1", "default")


def test_a_namespace_without_address_holds_for_the_default_server(settings, monkeypatch):
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "trips")
    assert target(settings).namespace == "trips"


@pytest.mark.parametrize("text", ["[[[", '[profile.other]\naddress = "a:1"\n'])
def test_an_unusable_configuration_is_one_sentence(settings, monkeypatch, tmp_path, text):
    configure(tmp_path, text)
    monkeypatch.setenv("TEMPORAL_PROFILE", "prod")
    with pytest.raises(ConnectionFailed, match=r"^Temporal's environment configuration can't be used: [^\n]+\.$"):
        target(settings)


def test_a_record_left_by_a_crash_is_not_believed(settings, running):
    running.close()
    assert record_path(settings.folder).exists()
    assert target(settings).address == "127.0.0.1:7233"


@pytest.mark.parametrize("text", ["", "{}", "[1]", "\x00"])
def test_a_broken_record_is_not_believed(settings, running, text):
    record_path(settings.folder).write_text(text)  # the same file, so its owner still holds it
    assert target(settings).address == "127.0.0.1:7233"


def test_looking_for_a_server_makes_no_files(settings):
    target(settings)
    assert not settings.folder.exists()


def test_a_relative_home_is_found_from_folders_below_it(settings, running, monkeypatch, tmp_path):
    below = tmp_path / "src" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert target(Settings()).embedded


def closed_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


async def test_nothing_answering_is_one_sentence_with_address_origin_and_advice(settings, monkeypatch):
    monkeypatch.setattr(connection, "DEFAULT_ADDRESS", f"127.0.0.1:{closed_port()}")
    with pytest.raises(ConnectionFailed) as caught:
        await connect(settings)
    assert str(caught.value) == (
        f"No Temporal server answers at {connection.DEFAULT_ADDRESS} (the default address; no dev server is running "
        "here): connection refused; start one with `perdure dev`."
    )


async def test_a_configured_server_that_is_down_names_the_variable(settings, monkeypatch):
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{closed_port()}")
    with pytest.raises(ConnectionFailed, match=r"\(from TEMPORAL_ADDRESS\): connection refused; correct that address"):
        await connect(settings)


async def test_an_unknown_host_is_one_sentence(settings, monkeypatch):
    monkeypatch.setenv("TEMPORAL_ADDRESS", "nowhere.invalid:7233")
    with pytest.raises(ConnectionFailed, match=r"^No Temporal server answers at nowhere\.invalid:7233 [^\n]+\.$"):
        await connect(settings)


async def test_a_missing_certificate_file_is_one_sentence(settings, monkeypatch):
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("TEMPORAL_TLS_SERVER_CA_CERT_PATH", "/nowhere/ca.pem")
    with pytest.raises(ConnectionFailed, match=r"^Temporal's environment configuration can't be used: .*/nowhere/ca"):
        await connect(settings)


async def test_a_server_that_accepts_and_says_nothing_is_given_up(settings, monkeypatch):
    monkeypatch.setattr(connection, "PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{silent.getsockname()[1]}")
        async with asyncio.timeout(5):
            with pytest.raises(ConnectionFailed, match=r"no reply within 0\.2 s"):
                await connect(settings)


async def test_a_dev_server_that_stays_dead_is_given_up(settings, running, monkeypatch):
    monkeypatch.setattr(connection, "PATIENCE", 0.2)
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1 \(the dev server of .*dev\.json\)"):
        await connect(settings)
