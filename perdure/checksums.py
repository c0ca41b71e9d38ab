"""Checks of numbers that carry one. Pure."""

from __future__ import annotations


def luhn(digits: str) -> bool:
    """Return whether the last digit is the right one for the others."""
    doubled = [int(digit) * (2 if at % 2 else 1) for at, digit in enumerate(reversed(digits))]
    return sum(number - 9 if number > 9 else number for number in doubled) % 10 == 0  # noqa: PLR2004
