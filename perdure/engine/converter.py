"""How data is written into histories: JSON by pydantic, fields equal to their default left out."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import PydanticSerializationError, SchemaSerializer
from pydantic_core.core_schema import any_schema
from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter
from temporalio.converter import (
    ActivitySerializationContext,
    CompositePayloadConverter,
    DataConverter,
    DefaultPayloadConverter,
    EncodingPayloadConverter,
    SerializationContext,
)

from perdure.engine.codec import ENCODING, KEY_ID, OF_ACTIVITY, Encryption, Failures, SealedFailures
from perdure.sealing import Keyring

_SERIALIZER = SchemaSerializer(any_schema())


_LARGE = 100_000
"""Bytes from which on it is marked."""


class LeanJSONConverter(PydanticJSONPlainPayloadConverter):
    """Writes JSON without defaults; reads what `temporalio.contrib.pydantic` reads.

    Args:
        metadata: Of large payloads, besides the encoding.
    """

    def __init__(self, **metadata: bytes) -> None:
        super().__init__()
        self._metadata = metadata

    def to_payload(self, value: Any) -> Payload | None:
        """Return `value` as JSON. A lone surrogate, which UTF-8 can't hold, becomes `?`."""
        try:
            data = _SERIALIZER.to_json(value, exclude_defaults=True)
        except PydanticSerializationError:
            # Models cut emoji in half. An error here would fail the same task again and again.
            plain = _SERIALIZER.to_python(value, mode="json", exclude_defaults=True)
            data = json.dumps(plain, ensure_ascii=False).encode("utf-8", "replace")
        more = self._metadata if len(data) > _LARGE else {}
        return Payload(metadata={"encoding": self.encoding.encode(), **more}, data=data)


class Unreadable(EncodingPayloadConverter):
    """Stands where something is encrypted, and no key is set here to decrypt it."""

    @property
    def encoding(self) -> str:
        """See base class."""
        return ENCODING

    def to_payload(self, value: Any) -> Payload | None:  # noqa: ARG002
        """Return None: nothing is written so."""
        return None

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:  # noqa: ARG002
        """Raise `KeyMissing`, which says which key is needed."""
        raise Keyring().missing(payload.metadata[KEY_ID].decode())


def _converters(lean: LeanJSONConverter) -> tuple[EncodingPayloadConverter, ...]:
    defaults = DefaultPayloadConverter.default_encoding_payload_converters
    return (*(lean if converter.encoding == lean.encoding else converter for converter in defaults), Unreadable())


# All share these: the SDK makes a new converter for every workflow task, and what pydantic has compiled would go.
_CONVERTERS = _converters(LeanJSONConverter())
_ACTIVITY_CONVERTERS = _converters(LeanJSONConverter(**{OF_ACTIVITY: b"true"}))


class PayloadConverter(CompositePayloadConverter):
    """Temporal's default payload converters, the JSON one replaced."""

    def __init__(self) -> None:
        super().__init__(*_CONVERTERS)

    def get_converters_with_context(self, context: SerializationContext) -> list[EncodingPayloadConverter] | None:
        """Return those that mark what an activity takes; None where these do."""
        return list(_ACTIVITY_CONVERTERS) if isinstance(context, ActivitySerializationContext) else None


data_converter = DataConverter(payload_converter_class=PayloadConverter, failure_converter_class=Failures)
"""What every client and worker of Perdure uses where nothing is encrypted."""


def data_converter_of(keys: Keyring) -> DataConverter:
    """Return what every client and worker uses that has these keys."""
    if not keys:
        return data_converter
    return DataConverter(
        payload_converter_class=PayloadConverter,
        failure_converter_class=SealedFailures,
        payload_codec=Encryption(keys),
    )
