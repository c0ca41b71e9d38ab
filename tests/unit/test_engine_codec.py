import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import ActivitySerializationContext
from temporalio.exceptions import ApplicationError

from perdure.engine.codec import OF_ACTIVITY
from perdure.engine.converter import data_converter, data_converter_of
from perdure.errors import KeyMissing
from perdure.messages import ToolCall
from perdure.sealing import Key, Keyring

PHONE = "13812341234"
OLD, NEW = Key("old", b"o" * 32), Key("new", b"n" * 32)
CALL = ToolCall(id="1", name="book", arguments={"phone": PHONE})


async def test_payloads_are_encrypted_and_say_with_which_key():
    converter = data_converter_of(Keyring([NEW, OLD]))
    (payload,) = await converter.encode([CALL])
    assert payload.metadata == {"encoding": b"binary/encrypted", "encryption-key-id": b"new"}
    assert PHONE.encode() not in payload.SerializeToString()
    assert await converter.decode([payload], [ToolCall]) == [CALL]
    (before,) = await data_converter_of(Keyring([OLD])).encode([CALL])
    assert await converter.decode([before], [ToolCall]) == [CALL]


async def test_that_a_large_payload_is_an_activitys_is_seen_on_the_outside_of_what_is_encrypted():
    converter = data_converter_of(Keyring([NEW]))
    large = CALL.model_copy(update={"arguments": {"text": "x" * 200_000}})
    of_activity = converter.with_context(
        ActivitySerializationContext("default", "2.1", "book", "q", "r1", "W", is_local=False)
    )
    (payload,) = await of_activity.encode([large])
    assert payload.metadata[OF_ACTIVITY] == b"true"
    assert OF_ACTIVITY not in (await converter.encode([large]))[0].metadata
    assert await converter.decode([payload], [ToolCall]) == [large]


async def test_what_was_written_without_a_key_stays_readable():
    plain = await data_converter.encode([CALL])
    assert await data_converter_of(Keyring([NEW])).decode(plain, [ToolCall]) == [CALL]


@pytest.mark.parametrize("keys", [Keyring(), Keyring([OLD])])
async def test_who_has_not_the_key_is_told_which_one_it_is(keys):
    payloads = await data_converter_of(Keyring([NEW])).encode([CALL])
    with pytest.raises(KeyMissing, match="key new, which is not set here"):
        await data_converter_of(keys).decode(payloads, [ToolCall])


async def test_a_damaged_payload_is_told_so():
    converter = data_converter_of(Keyring([NEW]))
    (payload,) = await converter.encode([CALL])
    with pytest.raises(KeyMissing, match="damaged"):
        await converter.decode([Payload(metadata=payload.metadata, data=payload.data[:-1])], [ToolCall])


def _fail() -> None:
    error = ApplicationError(f"call {PHONE}", {"phone": PHONE}, type="sold_out")
    raise error from ValueError(f"no seat for {PHONE}")


def _raised() -> Exception:
    with pytest.raises(ApplicationError) as raised:
        _fail()
    return raised.value


async def test_words_of_errors_are_redacted_those_of_their_causes_too_and_what_they_carry_is_not():
    failure = Failure()
    await data_converter.encode_failure(_raised(), failure)
    assert (failure.message, failure.cause.message) == ("call 138****1234", "no seat for 138****1234")
    assert failure.stack_trace
    back = await data_converter.decode_failure(failure)
    assert isinstance(back, ApplicationError)
    assert back.details == ({"phone": PHONE},)


async def test_with_a_key_words_and_stack_traces_of_errors_are_encrypted():
    converter = data_converter_of(Keyring([NEW]))
    failure = Failure()
    await converter.encode_failure(_raised(), failure)
    assert (failure.message, failure.stack_trace, failure.cause.message) == ("Encrypted", "", "Encrypted")
    assert b"seat" not in failure.SerializeToString()
    assert PHONE.encode() not in failure.SerializeToString()
    back = await converter.decode_failure(failure)
    assert isinstance(back, ApplicationError)
    assert (back.message, str(back.cause)) == ("call 138****1234", "ValueError: no seat for 138****1234")
    again = Failure()
    await converter.encode_failure(back, again)
    assert str(await converter.decode_failure(again)) == str(back)
