"""The page of the commands is made from the commands (`make docs`)."""

from pathlib import Path

import pytest
import typer

from perdure.starter import app

PAGE = Path(__file__).parents[2] / "docs/reference/cli.md"
COMMANDS = getattr(typer.main.get_command(app), "commands", {})


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_page_has_every_command_and_option(name):
    section = PAGE.read_text().partition(f"## `perdure {name}`")[2].partition("\n## ")[0]
    options = [option for parameter in COMMANDS[name].params for option in parameter.opts if option.startswith("--")]
    assert section, "run `make docs`"
    assert not [option for option in options if f"`{option}" not in section and f", {option}" not in section]
