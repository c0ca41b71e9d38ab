"""How data is written into histories: JSON by pydantic, fields equal to their default left out."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import PydanticSerializationError, SchemaSerializer
from pydantic_core.core_schema import any_schema
from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter
from temporalio.converter import CompositePayloadConverter, DataConverter, DefaultPayloadConverter

_SERIALIZER = SchemaSerializer(any_schema())


class LeanJSONConverter(PydanticJSONPlainPayloadConverter):
    """Writes JSON without defaults; reads what `temporalio.contrib.pydantic` reads."""

    def to_payload(self, value: Any) -> Payload | None:
        """Return `value` as JSON. A lone surrogate, which UTF-8 can't hold, becomes `?`."""
        try:
            data = _SERIALIZER.to_json(value, exclude_defaults=True)
        except PydanticSerializationError:
            # Models cut emoji in half. An error here would fail the same task again and again.
            plain = _SERIALIZER.to_python(value, mode="json", exclude_defaults=True)
            data = json.dumps(plain, ensure_ascii=False).encode("utf-8", "replace")
        return Payload(metadata={"encoding": self.encoding.encode()}, data=data)


_LEAN = LeanJSONConverter()
_CONVERTERS = tuple(
    _LEAN if converter.encoding == _LEAN.encoding else converter
    for converter in DefaultPayloadConverter.default_encoding_payload_converters
)


class PayloadConverter(CompositePayloadConverter):
    """Temporal's default payload converters, the JSON one replaced."""

    def __init__(self) -> None:
        # All share these: the SDK makes a new one for every workflow task, and what pydantic has compiled would go.
        super().__init__(*_CONVERTERS)


data_converter = DataConverter(payload_converter_class=PayloadConverter)
"""What every client and worker of Perdure uses."""
