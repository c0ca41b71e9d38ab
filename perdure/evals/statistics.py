"""What a few attempts tell about a rate. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, sqrt

Z = 1.959963984540054
"""Of the normal distribution, for 95 %."""


def wilson(passed: int, of: int) -> tuple[float, float]:
    """Return the bounds of Wilson's 95 % interval for a rate of which `of` attempts were seen; 0 and 1 without any."""
    if not of:
        return 0.0, 1.0
    rate, z2 = passed / of, Z * Z
    centre = (rate + z2 / (2 * of)) / (1 + z2 / of)
    half = Z * sqrt(rate * (1 - rate) / of + z2 / (4 * of * of)) / (1 + z2 / of)
    lower = 0.0 if passed == 0 else max(0.0, centre - half)
    return lower, 1.0 if passed == of else min(1.0, centre + half)


def pass_hat(passed: int, of: int, k: int) -> float:
    """Return how likely `k` attempts in a row all pass, without bias, by `of` ≥ `k` attempts that were seen."""
    return comb(passed, k) / comb(of, k)


def mean_pass_hat(counts: Sequence[tuple[int, int]], k: int) -> float | None:
    """Return the mean of `pass_hat` over cases, by (passed, of) of each; None where one has fewer than `k` attempts."""
    if not counts or any(of < k for _, of in counts):
        return None
    return sum(pass_hat(passed, of, k) for passed, of in counts) / len(counts)
