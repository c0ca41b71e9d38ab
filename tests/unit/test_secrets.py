import asyncio
import io
import json
import stat
from typing import Annotated, Any
from urllib.parse import quote

import pytest
from pydantic import SecretStr, ValidationError

from perdure import Secret, Task, ToolError, tool
from perdure.activities.bodies import Ended, Raised, Returned
from perdure.activities.outputs import output_of
from perdure.activities.secrets import Safe, without
from perdure.activities.unlocked import NONE, Unlocked
from perdure.cli.output import Misuse
from perdure.cli.secrets import read_secrets
from perdure.errors import KeyMissing, PerdureError, ToolDefinitionError
from perdure.messages import ToolResult
from perdure.policies import Shaping
from perdure.reports import ToolReport
from perdure.results import words
from perdure.sealing import vault_keys
from perdure.sensitive import Vaulted, spellings
from perdure.settings import Settings
from perdure.wire import ToolInput

VALUE = 's3cr"t/wört\n7'
UNLOCKED = Unlocked({"pin": VALUE, "other": "another one"})
CALL = ToolInput(agent="a", call_id="1", position="1.1", key="k", result_limit=60)


@tool
def book(flight: str, passenger: Annotated[str, Secret("passenger_id")]) -> str:
    """Book.

    Args:
        flight: Its number.
        passenger: Not for the model.
    """
    return f"{flight} {passenger}"


class Vault:
    """A vault in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, bytes]] = {}

    async def keep_secrets(self, namespace: str, run_id: str, id: str, sealed: Any) -> None:
        self.kept[id] = dict(sealed)

    async def secrets(self, id: str) -> dict[str, bytes]:
        return self.kept.get(id, {})

    async def deposits(self, namespace: str) -> list[Any]:
        return []

    async def drop_secrets(self, id: str) -> bool:
        return self.kept.pop(id, None) is not None


@pytest.mark.parametrize("spelling", spellings(VALUE))
def test_a_secret_is_taken_out_of_what_a_tool_says_however_it_is_written(spelling):
    assert UNLOCKED.scrubbed(f"<{spelling}>") == "<[secret pin]>"


def test_spellings_are_those_of_json_of_addresses_and_of_base64():
    written = [VALUE, json.dumps(VALUE)[1:-1], quote(VALUE), repr(VALUE)[1:-1]]
    assert set(written) <= set(spellings(VALUE))


def test_a_result_is_scrubbed_before_any_of_it_is_cut_off():
    output = output_of({"filler": "x" * 30, "pin": VALUE, "more": [VALUE]}, book, CALL, Shaping(), UNLOCKED)
    assert output.whole is not None
    both = output.whole.decode() + output.report.result.content
    assert "s3cr" not in both
    assert output.whole.decode().count("[secret pin]") == 2
    assert output_of(VALUE, book, CALL, Shaping()).report.result.content == VALUE
    assert UNLOCKED.cleaned(None) == ""
    assert UNLOCKED.cleaned(f"a {VALUE}") == "a [secret pin]"
    assert UNLOCKED.cleaned({VALUE: 1, "n": None}) == {"[secret pin]": 1, "n": None}


class Odd(ValueError):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)
        self.second = second

    def __str__(self) -> str:
        return f"{self.args[0]} and {self.second}"


@pytest.mark.parametrize(
    "error", [ValueError(VALUE), Odd(VALUE, VALUE), KeyError(VALUE), OSError(2, VALUE), SystemExit(VALUE)]
)
def test_an_error_keeps_its_type_and_loses_the_secret(error):
    ended: Ended[Any] = without(UNLOCKED, Raised(error))
    assert isinstance(ended, Raised)
    assert isinstance(ended.error, type(error))
    assert words(ended.error).startswith(f"{type(error).__name__}: ")
    assert "[secret pin]" in words(ended.error)
    assert "s3cr" not in repr(ended.error) + str(ended.error.args) + words(ended.error)


def test_an_error_that_nothing_can_be_derived_from_is_told_under_its_name():
    with pytest.raises(ValidationError) as raised:
        Task(input=VALUE, priority=9)
    error = UNLOCKED.error(raised.value)
    assert type(error).__name__ == "ValidationError"


def test_what_a_tool_says_was_not_done_stays_so():
    error = UNLOCKED.error(ToolError(f"no {VALUE}", suggestion=f"other than {VALUE}", error_type="sold_out"))
    assert isinstance(error, ToolError)
    assert (error.message, error.suggestion, error.error_type) == (
        "no [secret pin]",
        "other than [secret pin]",
        "sold_out",
    )
    assert without(UNLOCKED, Returned(VALUE)) == Returned(VALUE)


def test_everything_else_in_a_report_is_scrubbed_as_well():
    result = ToolResult(call_id="1", name="book", status="ok", content=VALUE, note=VALUE)
    report = UNLOCKED.model(ToolReport(result=result, wrote={VALUE: [{"a": VALUE}, 5]}))
    assert report.wrote == {"[secret pin]": [{"a": "[secret pin]"}, 5]}
    assert report.result.note == "[secret pin]"


def test_secrets_do_not_show_themselves():
    assert repr(UNLOCKED) == str(UNLOCKED) == "<secrets: pin, other>"
    assert UNLOCKED["pin"] == VALUE
    with pytest.raises(KeyError, match="no_such: this run was not given such a secret"):
        UNLOCKED["no_such"]
    task = Task.model_validate({"input": "x", "secrets": {"pin": VALUE}})
    assert task.secrets["pin"].get_secret_value() == VALUE
    assert "s3cr" not in repr(task) + task.model_dump_json()


async def test_secrets_come_back_from_the_vault_and_are_sealed_in_it(tmp_path):
    vault, settings = Vault(), Settings(home=tmp_path)
    safe = Safe(vault, settings)
    vaulted = await safe.keep("default", "r1", {"pin": VALUE})
    assert vaulted.names == ["pin"]
    assert VALUE.encode() not in vault.kept[vaulted.id]["pin"]
    assert dict(await safe.unlock(vaulted)) == {"pin": VALUE}
    assert await safe.unlock(None) is NONE
    vault.kept["other"] = {"pin": vault.kept[vaulted.id]["pin"]}
    moved = await safe.unlock(Vaulted(id="other", names=["pin"]))
    assert "can't be decrypted" in moved.problem
    gone = await safe.unlock(Vaulted(id="gone", names=["pin"]))
    assert gone.lacks({"argument": "pin"}) == "It needs the secret 'pin', which this run has not (any more)."


async def test_a_worker_without_the_key_says_so_and_calls_nothing(tmp_path):
    vault = Vault()
    here = Settings(home=tmp_path, encryption_key=SecretStr(f"k1:{'11' * 32}"))
    vaulted = await Safe(vault, here).keep("default", "r1", {"pin": VALUE})
    problem = (await Safe(vault, Settings(home=tmp_path)).unlock(vaulted)).lacks({})
    assert problem.startswith("The secrets of this run can't be read: It is encrypted with key k1")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [("pin", "123", "fewer than 4"), ("a b", "12345", "is made of"), ("pin", "x" * 70_000, "more than 65,536")],
)
async def test_what_cant_be_a_secret_is_refused_without_showing_it(tmp_path, name, value, why):
    with pytest.raises(PerdureError, match=why) as refused:
        await Safe(Vault(), Settings(home=tmp_path)).keep("default", "r1", {name: value})
    assert value not in str(refused.value)


def test_the_key_of_an_embedded_vault_is_made_once_for_its_owner_alone(tmp_path):
    settings = Settings(home=tmp_path / "home")
    assert not vault_keys(settings)
    keys = vault_keys(settings, make=True)
    file = tmp_path / "home" / "vault.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert keys.ids == vault_keys(settings, make=True).ids
    assert [one.name for one in file.parent.iterdir()] == ["vault.key"]
    sealed = keys.seal("vault", b"x")
    later = Settings(home=tmp_path / "home", encryption_key=SecretStr(f"k1:{'11' * 32}"))
    assert vault_keys(later).open("vault", sealed) == b"x"
    assert vault_keys(later).ids[0] == "k1"


async def test_processes_that_make_the_key_at_once_have_the_same_one(tmp_path):
    settings = Settings(home=tmp_path)
    made = await asyncio.gather(*(asyncio.to_thread(vault_keys, settings, make=True) for _ in range(8)))
    assert len({keys.ids for keys in made}) == 1
    made[0].open("vault", made[-1].seal("vault", b"x"))


def test_a_store_that_is_a_server_needs_a_key_that_workers_elsewhere_have_too(tmp_path):
    with pytest.raises(PerdureError, match="Secrets need PERDURE_ENCRYPTION_KEY"):
        vault_keys(Settings(home=tmp_path, store="postgresql://a@b/c"), make=True)


def test_an_argument_that_a_secret_fills_in_is_hidden_from_the_model():
    assert list(book.spec.parameters["properties"]) == ["flight"]
    assert "passenger" not in book.spec.model_dump_json()
    assert book.secrets == {"passenger": "passenger_id"}
    assert Unlocked({"passenger_id": "E1234"}).filled(book)(flight="MU1") == "MU1 E1234"


def test_a_secret_is_text_and_has_a_name():
    with pytest.raises(ToolDefinitionError, match="parameter 'pin' has to be a str"):

        @tool
        def pay(pin: Annotated[int, Secret("pin")]) -> None:
            """Pay."""

    with pytest.raises(ValueError, match="A secret's name"):
        Secret("with space")


def test_secrets_are_read_from_files_from_stdin_and_from_the_environment(tmp_path, monkeypatch):
    file = tmp_path / "pin"
    file.write_text("12 34\n\n")
    monkeypatch.setenv("PIN", "from env")
    monkeypatch.setattr("sys.stdin", io.StringIO("from stdin\n"))
    assert read_secrets([f"a=@{file}", "b=env:PIN", "c=-"]) == {"a": "12 34\n", "b": "from env", "c": "from stdin"}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["a"], "is NAME=@FILE"),
        (["=@x"], "is NAME=@FILE"),
        (["a=hunter2"], "can be seen by others"),
        (["a=@/nowhere"], "can't be read: No such file"),
        (["a=env:NO_SUCH"], "there is no variable 'NO_SUCH'"),
        (["a=-", "b=-"], "Only one"),
        (["a=env:PATH", "a=env:PATH"], "given twice"),
        (["a b=env:PATH"], "A secret's name"),
    ],
)
def test_a_secret_that_is_not_understood_is_misuse_and_not_shown(given, why):
    with pytest.raises(Misuse, match=why) as refused:
        read_secrets(given)
    assert "hunter2" not in str(refused.value)


def test_missing_key_is_its_own_kind_of_error():
    assert KeyMissing("x").kind == "key_missing"
