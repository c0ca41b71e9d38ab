"""What the documents say has to be so: their snippets, links and commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples/travel/README.md",
    *ROOT.glob("docs/**/*.md"),
]


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document.read_text(), flags=re.DOTALL)


def commands() -> list[tuple[str, str]]:
    found = []
    for document in DOCUMENTS:
        for block in [*blocks(document, "console"), *blocks(document, "sh")]:
            lines = [line.strip() for line in block.splitlines()]
            found += [(document.name, line) for line in lines if line.startswith("perdure ")]
        found += [(document.name, text) for text in re.findall(r"`(perdure [a-z][^`]*)`", document.read_text())]
    return found


def test_the_agent_on_the_first_screen_is_the_quickstart_word_for_word() -> None:
    shown = blocks(ROOT / "README.md", "python")[0]
    real = (ROOT / "examples/quickstart.py").read_text().partition('"""\n\n')[2]
    assert shown == real
    declared = [line for line in shown.splitlines() if line.strip() and not line.startswith(("import", "from"))]
    assert len(declared) <= 15


def test_the_script_shown_is_the_quickstarts_and_is_one() -> None:
    from perdure.testing import load_script

    shown = blocks(ROOT / "README.md", "json")[0]
    assert shown == (ROOT / "examples/quickstart.json").read_text()
    assert len(load_script(ROOT / "examples/quickstart.json")) == 3


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)", document.read_text())
    missing = [target for target in targets if "://" not in target and not (document.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize(("document", "line"), commands())
def test_every_command_shown_is_one_that_the_command_line_takes(document: str, line: str) -> None:
    from perdure.starter import app

    words = shlex.split(line, comments=True)[1:]
    words = words[: next((at for at, word in enumerate(words) if word in ("|", ">", "&", "…")), len(words))]
    group = typer.main.get_command(app)
    command = getattr(group, "commands", {}).get(words[0])
    assert command is not None, f"{document}: there is no `perdure {words[0]}`"
    if len(words) > 1:
        arguments = ["done" if word == "done|not-done|retry" else word for word in words[1:]]
        command.make_context(words[0], arguments)  # raises if it is not taken


def test_the_agents_of_the_guide_to_effects_can_be_declared_as_shown() -> None:
    declared: dict[str, object] = {"__name__": "guide"}
    for block in blocks(ROOT / "docs/guides/effects.md", "python"):
        exec(block, declared)
    assert {"agent", "book", "send", "weather"} <= set(declared)


def test_the_tools_of_the_guide_to_results_show_what_it_says() -> None:
    from perdure.results import output_of_value

    declared: dict[str, Any] = {"__name__": "guide"}
    for block in blocks(ROOT / "docs/guides/results.md", "python"):
        exec(block, declared)
    search, fetch = declared["search"], declared["fetch"]
    result = output_of_value(search("PEK", "SHA"), "c", "t", 1_000, 1, search.spec.shaping).report.result
    assert '"price": {"cny": 700}' in result.content
    assert (result.trimmed, "usd" in result.content) == ("flights: 5 of 40 items", False)
    assert fetch.shape(fetch("/")) == "Trains run every hour. "


@pytest.mark.parametrize(
    ("guide", "names"),
    [("sub-agents", {"booker", "guide"}), ("handoff", {"desk", "refunds"}), ("teams", {"team", "organiser"})],
)
def test_the_agents_of_the_guides_to_several_agents_can_be_declared_as_shown(guide: str, names: set[str]) -> None:
    declared: dict[str, object] = {"__name__": "guide"}
    for block in blocks(ROOT / f"docs/guides/{guide}.md", "python"):
        exec(block, declared)
    assert names <= set(declared)
