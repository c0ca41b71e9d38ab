import io
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.cli import output
from perdure.errors import PerdureError
from perdure.settings import Settings
from perdure.telemetry import hooks, redaction
from perdure.telemetry.logs import Redacted, protect
from perdure.telemetry.redaction import Detector, Redactor
from tests.conftest import environment

PHONE, SHOWN = "13812341234", "138****1234"


@pytest.fixture
def said() -> Iterator[io.StringIO]:
    """What an application's own handler prints, whatever its formatter is."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    root, factory = logging.getLogger(), logging.getLogRecordFactory()
    root.addHandler(handler)
    protect()
    protect()
    yield text
    root.removeHandler(handler)
    logging.setLogRecordFactory(factory)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """What other tests of this process have told the redactor is not known here."""
    before = redaction.current()
    redaction.use(Redactor())
    yield
    redaction.use(before)


def fail() -> None:
    try:
        _ = dict[str, str]()[f"phone {PHONE}"]
    except KeyError as error:
        raise ValueError(f"no seat for {PHONE}") from error


@pytest.mark.parametrize("name", ["perdure", "perdure.worker", "temporalio.activity", "temporalio.worker._workflow"])
def test_what_we_log_is_redacted_for_every_handler_with_its_exceptions_and_their_causes(said, name):
    log = logging.getLogger(name)
    log.warning("call %s", PHONE)
    log.warning("call %(phone)s", {"phone": PHONE})
    try:
        fail()
    except ValueError:
        log.exception("failed: %s", PHONE, stack_info=True)
    log.warning("does not fit %s %s", PHONE)  # noqa: PLE1206
    assert PHONE not in said.getvalue()
    assert said.getvalue().count(f"call {SHOWN}") == 2
    assert f"ValueError: no seat for {SHOWN}" in said.getvalue()
    assert f"KeyError: 'phone {SHOWN}'" in said.getvalue()
    assert "Traceback (most recent call last):" in said.getvalue()


@pytest.mark.usefixtures("said")
def test_records_that_others_make_themselves_are_left_alone():
    assert logging.makeLogRecord({"name": "myapp", "msg": PHONE}).getMessage() == PHONE


def test_other_loggers_are_left_alone(said):
    logging.getLogger("myapp").warning("call %s", PHONE)
    logging.getLogger("perdurex").warning("call %s", PHONE)
    assert said.getvalue().count(PHONE) == 2


def test_an_exception_that_cant_say_what_it_is_is_logged_all_the_same(said):
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    logging.getLogger("perdure.worker").error("failed", exc_info=Mute())
    assert "Mute" in said.getvalue()


def test_a_handler_of_ours_redacts_whoever_has_logged():
    record = logging.LogRecord("myapp", logging.WARNING, "", 0, "call %s", (PHONE,), None)
    assert Redacted(logging.Formatter("%(message)s")).format(record) == f"call {SHOWN}"


UNCAUGHT = """
import sys, threading, warnings
from perdure.cli.processes import _log_to_stderr

_log_to_stderr()
warnings.warn("careful 13812341234")


def fail():
    raise ValueError("13812341234")


class Unraisable:
    def __del__(self):
        raise ValueError("13812341234")


thread = threading.Thread(target=fail)
thread.start()
thread.join()
Unraisable()
raise ValueError("uncaught 13812341234")
"""


def test_what_nobody_catches_in_a_worker_is_logged_and_redacted(tmp_path: Path):
    (tmp_path / "script.py").write_text(UNCAUGHT)
    command, env = [sys.executable, "script.py"], environment(tmp_path)
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert PHONE not in ended.stderr
    assert ended.stderr.count(f"ValueError: {SHOWN}") == 2
    assert f"uncaught {SHOWN}" in ended.stderr
    assert f"careful {SHOWN}" in ended.stderr


def test_what_a_command_complains_of_is_redacted(capsys: pytest.CaptureFixture[str]):
    def broken() -> None:
        raise PerdureError(f"Call {PHONE} can't be read.")

    assert output.guarded(broken, []) == 1
    assert output.guarded(broken, ["--json"]) == 1
    captured = capsys.readouterr()
    assert PHONE not in captured.out + captured.err
    assert SHOWN in captured.err
    assert SHOWN in captured.out


MODULE = """
import re
from perdure.telemetry.redaction import Detector

booking = Detector("booking", re.compile(r"BK-[0-9]{6}"))
several = [booking, lambda text: text.replace("Atlantis", "[place]")]
wrong = 5
"""


def test_detectors_of_ones_own_are_named_in_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "privacy_hooks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    redaction.use(Redactor())
    redaction.current().known.learn("Zhang Wei", "name")
    monkeypatch.setenv("PERDURE_REDACTORS", "privacy_hooks:several, privacy_hooks:booking")
    hooks.use_settings(Settings())
    hooks.use_settings(Settings())
    assert redaction.current().text(f"BK-123456 to Atlantis, Zhang Wei {PHONE}") == f"**** to [place], Z.W. {SHOWN}"
    assert [type(hook) is Detector for hook in redaction.current().own] == [True, False, True]


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("nothing", "'nothing' is no detector: PERDURE_REDACTORS names them as MODULE:NAME"),
        ("no_such_module:x", "Detector 'no_such_module:x' can't be loaded: ModuleNotFoundError"),
        ("re:no_such", "can't be loaded: AttributeError"),
        ("sys:maxsize", "is no detector, but int"),
    ],
)
def test_what_is_no_detector_is_refused(reference, why):
    with pytest.raises(PerdureError, match=re.escape(why)):
        hooks.load(reference)


def test_of_a_text_without_end_the_beginning_and_the_end_are_logged_and_no_word_is_cut_in_two(said):
    log = logging.getLogger("perdure.worker")
    for before in range(20):
        log.error("%s %s", "x" * before, f"{PHONE} " * 200_000)
    log.error("failed", exc_info=ValueError("字" * 3_000_000))
    lines = said.getvalue().splitlines()
    assert max(map(len, lines)) < 25_000
    assert {line.split()[-1] for line in lines[:20]} == {SHOWN}
    assert not re.search(r"1381234|2341234", said.getvalue())
    assert "ValueError" in said.getvalue()
