"""Encryption of what tables hold as JSON: everything of a thing that is not searched for."""

from __future__ import annotations

import base64
import json
from typing import Any, cast

from perdure.messages import JSON
from perdure.sealing import Keyring

_SEALED = "sealed"


def json_of(keys: Keyring) -> dict[str, Any]:
    """Return how a database writes and reads JSON: encrypted, if there are keys."""

    def write(value: JSON) -> str:
        text = json.dumps(value)
        if not keys or value is None:
            return text
        return json.dumps({_SEALED: base64.b64encode(keys.seal("table", text.encode())).decode()})

    def read(text: str) -> JSON:
        value: JSON = json.loads(text)
        sealed = cast("dict[str, str]", value) if isinstance(value, dict) else {}
        if sealed.keys() != {_SEALED}:
            return cast("JSON", value)
        return json.loads(keys.open("table", base64.b64decode(sealed[_SEALED])))

    return {"json_serializer": write, "json_deserializer": read}
