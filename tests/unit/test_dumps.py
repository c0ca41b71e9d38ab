"""A worker that crashes leaves no picture of its memory behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOOK = """
import ctypes, resource, sys
from perdure.telemetry import dumps
resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
dumps.forbid()
print(resource.getrlimit(resource.RLIMIT_CORE), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
"""

CRASH = """
import ctypes, faulthandler
from perdure.telemetry import dumps
dumps.forbid()
faulthandler.enable()
def pay(pin):
    ctypes.string_at(0)
pay("pin-4711-canary")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it is about Linux")
def test_there_is_no_core_dump() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(0, 0) 0"


@pytest.mark.skipif(sys.platform != "linux", reason="it is about Linux")
def test_what_python_says_of_a_crash_names_no_values() -> None:
    done = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True, check=False)
    assert done.returncode < 0
    assert "in pay" in done.stderr
    assert "canary" not in done.stderr
