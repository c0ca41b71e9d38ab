"""Encryption of payloads: everything that a history holds of a run, error texts included."""

from __future__ import annotations

from collections.abc import Sequence

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DefaultFailureConverter, PayloadCodec, PayloadConverter

from perdure.sealing import Keyring

ENCODING = "binary/encrypted"
KEY_ID = "encryption-key-id"
OF_ACTIVITY = "perdure-of-activity"
"""Marks a large payload that an activity takes: it stays in the history. See `external_storage`."""
MARKS = (OF_ACTIVITY,)


class Encryption(PayloadCodec):
    """Encrypts with the first key, decrypts with all; what is not encrypted is read as it is.

    Args:
        keys: One at least.
    """

    def __init__(self, keys: Keyring) -> None:
        self._keys = keys

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return each payload, its metadata included, encrypted. Marks of ours can be seen on the outside as well."""
        metadata = {"encoding": ENCODING.encode(), KEY_ID: self._keys.ids[0].encode()}
        return [
            Payload(
                metadata={**{name: payload.metadata[name] for name in payload.metadata if name in MARKS}, **metadata},
                data=self._keys.seal("payload", payload.SerializeToString()),
            )
            for payload in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return each payload as it was.

        Raises:
            KeyMissing: If one was encrypted with a key that is not here.
        """
        return [self._decoded(payload) for payload in payloads]

    def _decoded(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != ENCODING.encode():
            return payload
        return Payload.FromString(self._keys.open("payload", payload.data))


class Failures(DefaultFailureConverter):
    """Writes errors with what is personal in their words hidden: they are shown to whoever runs the system."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Convert an error; its causes come through here as well."""
        from perdure.telemetry import redaction  # most processes convert none, and it takes a while to load

        super().to_failure(exception, payload_converter, failure)
        redactor = redaction.current()
        failure.message = redactor.text(failure.message)
        failure.stack_trace = redactor.text(failure.stack_trace)


class SealedFailures(Failures):
    """Writes the words of errors where the codec encrypts them."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Convert an error."""
        super().to_failure(exception, payload_converter, failure)
        words = {"message": failure.message, "stack_trace": failure.stack_trace}
        failure.encoded_attributes.CopyFrom(payload_converter.to_payloads([words])[0])
        failure.message, failure.stack_trace = "Encrypted", ""
