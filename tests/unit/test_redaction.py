import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perdure.checksums import luhn
from perdure.messages import content_hash
from perdure.telemetry.detectors import checksum
from perdure.telemetry.redaction import Detector, Known, Redactor, mask
from perdure.telemetry.streaming import MOST_HELD, Stream

REDACTOR = Redactor()
KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\n-----END RSA PRIVATE KEY-----"
HIDDEN = [
    ("13812341234", "138****1234"),
    ("138 1234 1234", "138****1234"),
    ("+86 138-1234-1234", "+86 138****1234"),
    ("１３８１２３４１２３４", "138****1234"),
    ("+44 20 7946 0958", "+44****0958"),
    ("(415) 555-2671", "41****2671"),
    ("415-555-2671", "41****2671"),
    ("010-62345678", "010****5678"),
    ("01 23 45 67 89", "01****6789"),
    ("tel: 4155552671", "tel: 41****2671"),
    ("11010519491231002X", "110****002X"),
    ("110105 19491231 002x", "110****002X"),
    ("110105491231002", "110****1002"),
    ("078-05-1120", "****1120"),
    ("4111 1111 1111 1111", "****1111"),
    ("6222021234567890128", "****0128"),
    ("378282246310005", "****0005"),
    ("GB82 WEST 1234 5698 7654 32", "GB82****5432"),
    ("zhang.wei+x@mail.example.com", "z***@mail.example.com"),
    ("jörg@müller.de", "j***@müller.de"),
    ("sk-proj-abcdefghijklmnop1234", "sk-proj-****"),
    ("AKIAIOSFODNN7EXAMPLE", "AKIA****"),
    ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "ghp_****"),
    ("Authorization: Bearer abc.def-123", "Authorization: Bearer ****"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "eyJ****"),
    ("postgresql://app:hunter2@db/x", "postgresql://****@db/x"),
    ('{"password": "correct horse"}', '{"password": "****"}'),
    ('{\\"api_key\\": \\"a b c\\"}', '{\\"api_key\\": \\"****\\"}'),
    ("密码：hunter2", "密码：****"),
    ("passenger_name='Zhang Wei'", "passenger_name='Z.W.'"),
    ("乘客姓名：“张伟”", "乘客姓名：“Z.W.”"),
    (KEY, "[private key]"),
]


@pytest.mark.parametrize(("written", "shown"), HIDDEN)
@pytest.mark.parametrize("around", ["{}", "见{}。", "call {}, please", "({})", "x={}\n", "{} {}", "a {} b {} c"])
def test_what_is_personal_or_gives_access_is_hidden_wherever_it_stands(written, shown, around):
    count = around.count("{}")
    assert REDACTOR.text(around.format(*[written] * count)) == around.format(*[shown] * count)


@pytest.mark.parametrize(
    "text",
    [
        "2025-12-01T10:30:00.123+08:00, 01-02-2026 10:30, 01/02/2026, 20251201",
        "MU5101 and CA 1501 at 09:30, gate 23, row 12A, PNR ABC123",
        "¥1,380.00, $12.50, 1,234,567.89, 0.15 %, -42",
        "1700000000, 1700000000000, 1700000000000000, 1700000000000000000",
        "travel-1a2b3c4d, run:3f9ac2e1b0d4:2.1, 550e8400-e29b-41d4-a716-446655440000",
        "da39a3ee5e6b4b0d3255bfef95601890afd80709, sha256:" + "0123456789abcdef" * 4,
        "192.168.100.200:7233, fe80::1, v1.35.0, ISBN 978-3-16-148410-0, PO-2025-000123",
        "max_tokens=4096, 1234 tokens: 12; unexpected token: something; the bearer of bad news; basic information",
        "张伟订了两张票，共 2760 元，第 3 步，call 2.1 (read)",
        "see https://example.com/a?b=c#d and user@localhost",
    ],
)
def test_ordinary_text_survives(text):
    assert REDACTOR.text(text) == text
    assert Stream(REDACTOR).feed(f"{text}\n") == f"{text}\n"


@given(st.datetimes(), st.decimals(0, 10**7, places=2), st.uuids(), st.binary(max_size=40))
def test_dates_amounts_ids_and_hashes_survive(moment, amount, uuid, data):
    hashed = content_hash(data.hex())
    flight = f"{'MU' if amount % 2 else 'CA'}{int(amount) % 9999}"
    text = f"{moment.isoformat()} {moment.date()} {amount} {amount:,} {uuid} travel-{hashed[:8]} {hashed} {flight}"
    if not re.search(r"(?<![0-9a-f])\d{8}(?![0-9a-f])", str(uuid)):
        assert REDACTOR.text(text) == text


def test_numbers_that_only_look_like_cards_and_identities_survive():
    assert luhn("4111111111111111")
    assert not luhn("4111111111111112")
    assert REDACTOR.text("4111111111111112, 99999919491231002X") == "4111111111111112, 99999919491231002X"
    foreign = "90010519491231002"
    assert REDACTOR.text(foreign + checksum(foreign)) == f"900****002{checksum(foreign)}"


PIECES = st.sampled_from(
    [written for written, _ in HIDDEN]
    + [
        "138",
        "1234",
        " ",
        "  ",
        "-",
        ".",
        "+",
        "(",
        ")",
        "@",
        "a",
        "密",
        "码",
        "密码",
        ":",
        "：",
        "=",
        '"',
        "'",
        "\\",
        "\n",
    ]
    + [
        "-----BEGIN ",
        "RSA PRIVATE KEY-----",
        "-----END",
        "eyJ",
        "token",
        "password",
        "Bearer ",
        "tel",
        "*",
        "****",
        "X",
    ]
    + ["name", "passenger_name", "://", "GB82", "AB12", "“", "”", ",", "hello", "张伟", "４"]
)
HOSTILE = st.lists(PIECES | st.text(max_size=6), max_size=25).map("".join)


@settings(max_examples=400, deadline=None)
@given(HOSTILE)
@example("token=short token=4")
def test_redacting_twice_is_redacting_once(text):
    once = REDACTOR.text(text)
    assert REDACTOR.text(once) == once


@settings(max_examples=400, deadline=None)
@given(HOSTILE, st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_a_stream_shows_what_the_whole_text_shows(text, sizes):
    redactor = Redactor()
    redactor.known.learn("张伟", "name")
    redactor.known.learn_secret("pin", ["hello 1234"])
    stream, at, out = Stream(redactor), 0, ""
    while at < len(text):
        size = sizes[at % len(sizes)]
        out += stream.feed(text[at : at + size])
        at += size
    assert out + stream.close() == redactor.text(text)


def test_a_stream_holds_back_only_what_could_go_on():
    stream = Stream(REDACTOR)
    assert stream.feed("I found three fl") == "I found three "
    assert stream.feed("ights; call 138") == "flights; call "
    assert stream.feed(" 1234 12") == ""
    assert stream.feed("34, please ") == "138****1234, please "
    assert stream.feed("好的，您的密") == "好的，您的"
    assert stream.feed("切关注") == "密切关注"
    assert stream.close() == ""


def test_a_stream_shows_no_part_of_a_key_file_or_of_an_endless_word():
    stream = Stream(REDACTOR)
    begin, end = "-----BEGIN PRIVATE KEY-----\n", "-----END PRIVATE KEY-----"
    shown = stream.feed(f"key: {begin}") + "".join(stream.feed("secretline\n") for _ in range(MOST_HELD // 5))
    shown += (
        stream.feed(end[:9])
        + stream.feed(end[9:])
        + stream.feed(f" {'w' * 3 * MOST_HELD}")
        + stream.feed("ww after it ")
    )
    assert "secretline" not in shown
    assert "ww" not in shown
    assert shown.startswith("key: ")
    assert shown.endswith(" after it ")


@pytest.mark.parametrize(
    "unit", ["a", "1 ", "a@b.c", "eyJ.", "4111 ", 'password="', "token: ", "-----BEGIN ", "+1 ", "(", "GB12 "]
)
def test_time_grows_with_the_length_of_hostile_text_and_no_faster(unit):
    def seconds(length: int) -> float:
        text = unit * (length // len(unit))
        begun = time.process_time()
        REDACTOR.text(text)
        return time.process_time() - begun

    shortest = min(seconds(60_000) for _ in range(3))
    assert seconds(600_000) < 40 * shortest + 0.2  # ten times as long; a hundred times the work would be quadratic


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("phone", "13812341234", "138****1234"),
        ("phone", "12345", "****45"),
        ("phone", "none", "****"),
        ("identity", "11010519491231002X", "110****002X"),
        ("identity", "E12345678", "E1****78"),
        ("identity", "1234", "****"),
        ("card", "4111-1111-1111-1111", "****1111"),
        ("email", "a.b@c.d", "a***@c.d"),
        ("name", "张伟", "Z.W."),
        ("name", "欧阳娜娜", "O.Y.N.N."),
        ("name", "曾国藩", "Z.G.F."),
        ("name", "Zhang Wei", "Z.W."),
        ("name", "Mary-Jane O'Neill", "M.J.O.N."),
        ("address", "Long Street 1", "****"),
        ("address", "", ""),
    ],
)
def test_a_field_is_masked_as_what_it_is_declared_to_be(kind, value, shown):
    assert mask(kind, value) == shown
    assert mask(kind, shown) == shown


SCHEMA = {
    "properties": {
        "who": {"anyOf": [{"type": "string", "x-sensitive": "name"}, {"type": "null"}]},
        "legs": {"items": {"properties": {"seat": {"x-sensitive": "private"}}}},
        "pair": {"prefixItems": [{}, {"x-sensitive": "phone"}]},
    },
    "additionalProperties": {"x-sensitive": "address"},
    "patternProperties": {"^x_": {}},
}


def test_json_is_redacted_by_declaration_by_the_names_of_fields_and_by_what_is_found():
    value = {
        "who": "张伟",
        "legs": [{"seat": 12, "flight": "MU5101"}],
        "pair": ["10", 4155552671],
        "x_note": "call 13812341234",
        "else": {"city": "Paris"},
        "x_13812341234": {"contactPhone": 4155552671, "passengerName": "Zhang Wei", "ok": True, "n": None, "i": 5},
    }
    assert REDACTOR.json(value, SCHEMA) == {
        "who": "Z.W.",
        "legs": [{"seat": "****", "flight": "MU5101"}],
        "pair": ["10", "41****2671"],
        "x_note": "call 138****1234",
        "else": {"city": "****"},
        "x_13812341234": {"contactPhone": "41****2671", "passengerName": "Z.W.", "ok": True, "n": None, "i": 5},
    }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | HOSTILE,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(HOSTILE | st.sampled_from(["phone", "who"]), inner, max_size=3)
    ),
    max_leaves=10,
)


@settings(deadline=None)
@given(JSON)
def test_redacting_json_twice_is_redacting_it_once(value):
    once = REDACTOR.json(value, SCHEMA)
    assert REDACTOR.json(once, SCHEMA) == once


def test_json_that_is_nested_without_end_is_cut_off():
    value: object = "x"
    for _ in range(5000):
        value = [value]
    assert "…" in str(REDACTOR.json(value))


def test_detectors_of_ones_own_hide_as_well_and_one_that_fails_shows_nothing():
    booking = Detector("booking", re.compile(r"BK-\d{6}"), lambda _: "BK-****")
    own = Redactor([booking, lambda text: text.replace("Atlantis", "[place]")])
    assert own.text("BK-123456 to Atlantis, 13812341234") == "BK-**** to [place], 138****1234"
    stream = Stream(own)
    text = "booked BK-123456 to Atlantis " * 30
    assert "".join(map(stream.feed, text)) + stream.close() == own.text(text)

    def broken(text: str) -> str:
        raise ValueError(text)

    assert Redactor([broken]).text("13812341234") == "[not shown: a detector failed with ValueError]"


def test_values_that_were_seen_in_declared_fields_are_hidden_wherever_they_occur():
    known = Known(limit=2)
    redactor = Redactor(known=known)
    known.learn("Zhang Wei", "name")
    known.learn("伟", "name")
    assert (
        redactor.text("no seat for Zhang Wei, nor for Zhang Weitong or 伟大")
        == "no seat for Z.W., nor for Zhang Weitong or 伟大"
    )
    known.learn_secret("pin", ["s3cr3t!"])
    known.learn("first", "address")
    known.learn("second", "address")
    assert redactor.text("Zhang Wei, s3cr3t!!, second") == "Zhang Wei, [secret pin]!, ****"
