"""Commands about what is declared: the form of agents in YAML."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from perdure.cli.output import data


def schema(
    of: Annotated[Literal["agent"], typer.Argument(metavar="WHAT", help="`agent`: a YAML file that declares agents.")],
) -> None:
    """Print the JSON Schema of what is declared, for editors and other programs."""
    import json

    from perdure.declarations import agent_schema

    schemas = {"agent": agent_schema}
    data(json.dumps(schemas[of](), indent=2, ensure_ascii=False))
