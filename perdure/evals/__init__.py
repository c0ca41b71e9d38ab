"""Evals: suites of cases, each a real run, and what has to be true of it. See `docs/guides/evals.md`."""

from __future__ import annotations

from perdure.evals.evidence import Attempt, Evidence, Verdict
from perdure.evals.loading import load_suite
from perdure.evals.results import Report
from perdure.evals.running import evaluate
from perdure.evals.suites import Called, Case, Decision, Expect, Suite

__all__ = [
    "Attempt",
    "Called",
    "Case",
    "Decision",
    "Evidence",
    "Expect",
    "Report",
    "Suite",
    "Verdict",
    "evaluate",
    "load_suite",
]
