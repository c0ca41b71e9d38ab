"""The crash kit: runs an agent while its workers are killed at each point, then at random, and checks its ledger.

report = await crash(Workload("agents.py", ["Refund A7"], ledger, model="scripted:refund.json"), kills=50)
report.assert_sound()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.testing.crash.kit import Workload, crash
    from perdure.testing.crash.playing import People
    from perdure.testing.crash.points import CrashPoints, point
    from perdure.testing.crash.report import Counts, Judged, Report

__all__ = ["Counts", "CrashPoints", "Judged", "People", "Report", "Workload", "crash", "point"]

_HOMES = {
    "Counts": "report",
    "CrashPoints": "points",
    "Judged": "report",
    "People": "playing",
    "Report": "report",
    "Workload": "kit",
    "crash": "kit",
    "point": "points",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for only then: an agent's file that has `point` loads nothing else of it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"perdure.testing.crash.{_HOMES[name]}"), name)
