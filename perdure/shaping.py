"""What of a tool's result reaches the model, where its declaration says so. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from perdure.messages import JSON
from perdure.policies import Shaping

_MOST_NAMED = 5
"""Lists that are named of those that were shortened."""

Tree = dict[str, "Tree"]
"""Names of fields that are kept, and which of the fields below each; none: all of them."""


def trim(value: JSON, shaping: Shaping) -> tuple[JSON, JSON, str | None]:
    """Return `value` as the model is shown it, as it could read it whole, and what is left out of the former.

    Args:
        value: JSON.
        shaping: `fields` hold for both, `limit` for what is shown; `max_chars` is the caller's.
    """
    whole = _picked(value, _tree(shaping.fields)) if shaping.fields else value
    if shaping.limit is None:
        return whole, whole, None
    cut: dict[str, list[int]] = {}
    shown = _shortened(whole, shaping.limit, "", cut)
    return shown, whole, _told(cut, shaping.limit) if cut else None


def _tree(fields: Sequence[str]) -> Tree:
    tree: Tree = {}
    for path in sorted(fields, key=len, reverse=True):  # `a` after `a.b`: it keeps all of it
        *parents, last = path.split(".")
        at = tree
        for name in parents:
            at = at.setdefault(name, {})
        at[last] = {}
    return tree


def _picked(value: JSON, tree: Tree) -> JSON:
    """Return what of `value` is named in `tree`; of a list, of each of its items."""
    if not tree:
        return value
    if isinstance(value, list):
        return [_picked(item, tree) for item in cast("list[JSON]", value)]
    if not isinstance(value, dict):
        return value
    found = cast("dict[str, JSON]", value)
    return {name: _picked(found[name], below) for name, below in _in_order(found, tree)}


def _in_order(found: dict[str, JSON], tree: Tree) -> Iterator[tuple[str, Tree]]:
    for name in found:
        if name in tree:
            yield name, tree[name]


def _shortened(value: JSON, limit: int, path: str, cut: dict[str, list[int]]) -> JSON:
    """Return `value` with at most `limit` items in each of its lists; `cut` gets the lengths of those that had more."""
    if isinstance(value, list):
        items = cast("list[JSON]", value)
        if len(items) > limit:
            cut.setdefault(path, []).append(len(items))
        return [_shortened(item, limit, path, cut) for item in items[:limit]]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, JSON]", value)
    return {name: _shortened(item, limit, f"{path}.{name}" if path else name, cut) for name, item in fields.items()}


def _told(cut: dict[str, list[int]], limit: int) -> str:
    said: list[str] = []
    for path, lengths in list(cut.items())[:_MOST_NAMED]:
        items = f"{limit} of {lengths[0]} items" if len(lengths) == 1 else f"{limit} of up to {max(lengths)} items each"
        said.append(f"{path}: {items}" if path else items)
    rest = len(cut) - _MOST_NAMED
    return "; ".join([*said, f"and {rest} more lists"] if rest > 0 else said)
