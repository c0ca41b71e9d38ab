"""What a person types as JSON."""

from __future__ import annotations

import json
from typing import Any, cast

from perdure.cli.output import Misuse


def read_json(text: str, what: str) -> Any:
    """Return what `text` says as JSON.

    Raises:
        Misuse: If it is none; `what` names it.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise Misuse(f"{what} is no JSON (a text needs double quotes): {error}.") from error


def read_arguments(text: str, what: str = "That") -> dict[str, Any]:
    """Return arguments typed as JSON.

    Raises:
        Misuse: If they are no JSON object.
    """
    arguments: Any = read_json(text, what)
    if not isinstance(arguments, dict):
        raise Misuse('Arguments are a JSON object, such as {"flight": "MU5101"}.')
    return cast("dict[str, Any]", arguments)
