"""Imports run one way: starter, client and worker → workflows → activities (by name) → stores; all → vocabulary."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WIRING = {
    *(
        "admission",
        "archive",
        "auditing",
        "cli",
        "client",
        "costing",
        "deposits",
        "earlier",
        "evals",
        "forks",
        "listing",
        "notebook",
        "sessions",
        "speaking",
    ),
    *("handles", "retention", "schedules", "starter", "starting", "times", "traces", "worker"),
    "testing",
    "examples",
}
"""Above all others: they may import anything of Perdure, and no one below may import them."""

FOLDERS = {"activities", "engine", "models", "telemetry", "workflows"}

VOCABULARY = {
    "perdure.strategies",
    *(f"perdure.{path.stem}" for path in (ROOT / "perdure").glob("*.py") if path.stem not in {*WIRING, "__init__"}),
}
"""Every single module of `perdure/` that isn't wiring, and the strategies."""

SCRIPTS = {"perdure.testing.script", "perdure.testing.scripted_model"}
"""The scripted model, a provider like others; the rest of `testing` is above."""

REDACTOR = "perdure.telemetry.redaction"
"""What stands before every diagnostic, wherever it is made."""
SIGNALS = "perdure.telemetry.signals"
"""Says of which span a request to a model is a part."""

ALLOWED: dict[str, set[str]] = {
    "perdure.workflows": {"perdure.workflows", "perdure.engine.search_attributes"},  # the latter: names alone
    "perdure.activities": {"perdure.activities", "perdure.models", "perdure.telemetry"},  # the latter reads histories
    "perdure.activities.providers": {"perdure.activities.providers", "perdure.models", *SCRIPTS, SIGNALS},
    "perdure.activities.stores": {"perdure.activities.stores"},
    "perdure.engine": {"perdure.engine", REDACTOR},
    "perdure.models": {"perdure.models"},
    "perdure.telemetry": {"perdure.telemetry"},
    **{module: {"perdure.activities.providers", "perdure.models", *SCRIPTS} for module in SCRIPTS},
    **{module: set() for module in VOCABULARY},
}
"""What a layer may import of Perdure besides the vocabulary."""

PURE = {"pydantic", "pydantic_core", "pydantic_settings", "typing_extensions"}
"""What of other people's the vocabulary may load when it is imported."""

DETERMINISTIC = {"perdure.workflows", "perdure.failures"}
"""May load Temporal's types as well, and nothing more."""


def modules(prefix: str) -> Iterator[tuple[str, Path]]:
    """Yield the modules of a layer, without those that have a layer of their own."""
    base = ROOT / Path(*prefix.split("."))
    for path in [base.with_suffix(".py")] if base.with_suffix(".py").is_file() else sorted(base.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if max((layer for layer in ALLOWED if under(name, {layer})), key=len) == prefix:
            yield name, path


def imported(path: Path, *, top_only: bool = False) -> set[str]:
    """Return the names that a file imports: modules, and what could be a module in `from package import name`."""
    tree = ast.parse(path.read_text())
    names: set[str] = set()
    for node in tree.body if top_only else ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                names |= {alias.name for alias in aliases}
            case ast.ImportFrom(module=str(module), names=aliases):
                names |= {f"{module}.{alias.name}" for alias in aliases}
            case _:
                pass
    return names


def under(name: str, prefixes: set[str]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


@pytest.mark.parametrize("layer", sorted(ALLOWED))
def test_layer_imports_only_what_is_below_it(layer: str):
    wrong = {
        f"{name} imports {target}"
        for name, path in modules(layer)
        for target in imported(path)
        if under(target, {"perdure"}) and not under(target, VOCABULARY | ALLOWED[layer])
    }
    assert wrong == set()


@pytest.mark.parametrize("layer", sorted(VOCABULARY | DETERMINISTIC))
def test_workflows_and_vocabulary_load_no_library_that_may_decide_otherwise(layer: str):
    libraries = PURE | {"temporalio"} if layer in DETERMINISTIC else PURE
    loaded = {
        f"{name} loads {target}"
        for name, path in modules(layer)
        for target in imported(path, top_only=True)
        if not under(target, {"perdure", *libraries, *sys.stdlib_module_names})
    }
    assert loaded == set()


def test_no_file_is_outside_the_layers():
    entries = {path.stem for path in (ROOT / "perdure").iterdir() if path.suffix in {"", ".py"}}
    known = WIRING | FOLDERS | {module.removeprefix("perdure.") for module in VOCABULARY}
    assert entries - known <= {"__init__", "__pycache__"}
