"""What a provider's failure means."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from perdure.activities.providers.errors import from_answer, from_error_body, retry_after, scrub
from perdure.errors import ModelError


def answered(status: int, message: str = "words", code: str | None = None, type_: str | None = None) -> ModelError:
    return from_answer(status, {}, json.dumps({"error": {"message": message, "code": code, "type": type_}}))


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, None, "bad_request"),
        (401, "invalid_api_key", "authentication"),
        (402, None, "quota"),
        (403, None, "authentication"),
        (404, "model_not_found", "bad_request"),
        (405, None, "bad_request"),
        (408, None, "server"),
        (409, None, "server"),
        (413, None, "context_too_long"),
        (422, None, "bad_request"),
        (429, "rate_limit_exceeded", "rate_limited"),
        (429, "insufficient_quota", "quota"),
        (400, "billing_hard_limit_reached", "quota"),
        (400, "context_length_exceeded", "context_too_long"),
        (400, "content_filter", "content_filtered"),
        (400, "data_inspection_failed", "content_filtered"),
        (500, None, "server"),
        (502, None, "server"),
        (503, None, "overloaded"),
        (529, None, "overloaded"),
        (307, None, "bad_request"),
        (498, "capacity_exceeded", "overloaded"),
        (400, "invalid_api_key", "authentication"),
        (400, "Arrearage", "quota"),
        (429, "1113", "quota"),
        (429, "exceeded_current_quota_error", "quota"),
        (429, "RESOURCE_EXHAUSTED", "rate_limited"),
        (400, "tool_use_failed", "server"),
        (400, "ResponsibleAIPolicyViolation", "content_filtered"),
        (599, None, "server"),
    ],
)
def test_status_and_code_decide_the_kind(status, code, kind):
    assert answered(status, code=code).kind == kind


@pytest.mark.parametrize(
    ("status", "words", "kind"),
    [
        (400, "Your credit balance is too low to access the API.", "quota"),
        (402, "Insufficient Balance", "quota"),
        (400, "API key not valid. Please pass a valid API key.", "authentication"),
        (400, "Content Exists Risk", "content_filtered"),
        (403, "This model requires moderation and your input was flagged for violence.", "content_filtered"),
        (503, "That model is currently overloaded with other requests.", "overloaded"),
        (500, "That model is currently overloaded with other requests.", "overloaded"),
    ],
)
def test_where_there_is_no_code_the_words_decide(status, words, kind):
    assert answered(status, words).kind == kind


def test_an_error_in_an_array_is_found():
    detail = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "17.5s"}
    error = {"code": 429, "message": "Quota.", "status": "RESOURCE_EXHAUSTED", "details": [{"x": 1}, detail]}
    found = from_answer(429, {}, json.dumps([{"error": error}]))
    assert (found.kind, found.message, found.retry_after) == (
        "rate_limited",
        "Quota. (HTTP 429)",
        timedelta(seconds=17.5),
    )


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("Please try again in 6ms.", 0.006),
        ("Please try again in 1.2s. Visit", 1.2),
        ("Please try again in 20s.", 20),
        ("Please try again in 1m30s.", 90),
        ("Please try again in 2h5m.", 7500),
        ("Please try again in 99999h.", 86_400),
        ("Please try again in a moment.", None),
    ],
)
def test_a_wait_in_words_is_one_where_no_header_says_so(words, seconds):
    body = {"error": {"message": words, "code": "rate_limit_exceeded"}}
    wait = None if seconds is None else timedelta(seconds=seconds)
    assert from_answer(429, {}, json.dumps(body)).retry_after == wait
    assert from_error_body(body).retry_after == wait
    assert from_answer(429, {"Retry-After": "7"}, json.dumps(body)).retry_after == timedelta(seconds=7)


def test_the_type_counts_where_there_is_no_code():
    assert answered(429, type_="insufficient_quota").kind == "quota"
    assert answered(429, type_="engine_overloaded_error").kind == "overloaded"


@pytest.mark.parametrize(
    "words",
    [
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.",
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
        "the request exceeds the available context size. try increasing the context size or enable context shift",
        "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "Range of input length should be [1, 30720]",
        "The input token count (40000) exceeds the maximum number of tokens allowed (32768).",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097.",
        "Please reduce the length of the messages or completion.",
    ],
)
def test_every_server_says_too_long_in_its_own_words(words):
    assert answered(400, words).kind == "context_too_long"


@pytest.mark.parametrize(
    ("words", "window"),
    [
        ("This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.", 8192),
        ("The decoder prompt (length 5000) is longer than the maximum model length of 4096.", 4096),
        ("request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it", 4096),
        ("The input (5000 tokens) is longer than the model's context length (4096 tokens).", 4096),
        ("prompt is too long: 210000 tokens > 200,000 maximum", 200_000),
        ("Range of input length should be [1, 30720]", 30_720),
        ("The input token count (40000) exceeds the maximum number of tokens allowed (32768).", 32_768),
        ("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097.", 4097),
        ("Your input exceeds the context window of this model. Please adjust your input and try again.", None),
        ("Please reduce the length of the messages or completion.", None),
        ("maximum context length is 9", None),
    ],
)
def test_how_much_a_model_takes_is_read_from_the_words(words, window):
    assert answered(400, words).window == window
    assert from_error_body({"error": {"message": words, "code": "400"}}).window == window


def test_how_much_a_model_takes_is_read_from_a_field():
    error = {"message": "the request exceeds the available context size", "type": "exceed_context_size_error"}
    assert from_error_body({"error": {**error, "n_prompt_tokens": 5000, "n_ctx": 2048}}).window == 2048


def test_an_error_of_another_kind_says_nothing_of_the_window():
    assert answered(401, "maximum context length is 8192 tokens", code="invalid_api_key").window is None


def test_a_request_that_no_wait_would_let_through_is_too_long():
    words = "Request too large for m on tokens per min (TPM): Limit 30000, Requested 35000. The tokens must be reduced."
    assert answered(429, words, code="rate_limit_exceeded").kind == "context_too_long"
    assert answered(429, "Rate limit reached for gpt-4o: Limit 3, Used 3, Requested 1.").kind == "rate_limited"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"error": {"message": "a b"}}', "a b"),
        ('{"error": "model not found"}', "model not found"),
        ('{"object": "error", "message": "vllm says", "code": 400}', "vllm says"),
        ('{"detail": "Not Found"}', "Not Found"),
        ('{"detail": [{"loc": ["body"], "msg": "field required"}, {"msg": "x"}]}', "field required; x"),
        ('{"detail": [{"loc": ["body", "n", 0], "msg": "not permitted"}]}', "n.0: not permitted"),
        (
            "<html><head><title>t</title></head><body><h1>502 Bad Gateway</h1><hr>nginx</body></html>",
            "502 Bad Gateway nginx",
        ),
        ("plain\n\n words", "plain words"),
        ('{"error": {"mess', '{"error": {"mess'),
        ("[1, 2]", "[1, 2]"),
        ("", ""),
        ("[" * 100_000, "[" * 500 + " …"),
    ],
)
def test_the_providers_own_words_are_found_wherever_they_are(body, words):
    assert from_answer(400, {}, body).message == (f"{words} (HTTP 400)" if words else "HTTP 400")


def test_an_error_with_a_status_of_success_is_an_error():
    assert from_error_body({"error": {"code": 402, "message": "no credit"}}).kind == "quota"
    assert (
        from_error_body({"error": {"code": "x", "type": "invalid_request_error", "message": "m"}}).kind == "bad_request"
    )
    assert from_error_body({"error": {"message": "maximum context length is 9"}}).kind == "context_too_long"
    assert from_error_body({"error": "Overloaded"}).kind == "overloaded"
    assert from_error_body({"error": {"code": 7}}).kind == "server"
    assert from_error_body({"error": {"code": "429"}}).kind == "rate_limited"
    assert from_error_body({"error": {"type": "authentication_error"}}).kind == "authentication"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"retry-after": "0.5"}, 0.5),
        ({"Retry-After": "7", "Retry-After-Ms": "250"}, 0.25),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT", "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30),
        ({"Retry-After": "Wed, 21 Oct 2020 07:28:00 GMT"}, 0),
        ({"Retry-After": "1e99"}, 86_400),
        ({}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-1"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After-Ms": "x", "Retry-After": "2"}, 2),
    ],
)
def test_how_long_to_wait_is_read_in_every_form(headers, seconds):
    assert retry_after(headers) == (None if seconds is None else timedelta(seconds=seconds))


def test_a_key_never_shows():
    body = json.dumps(
        {"error": {"message": "Incorrect API key provided: sk-proj-ab***xyz; or hunter2. Bearer abcdef123"}}
    )
    shown = from_answer(401, {}, body, key="hunter2").message
    assert shown == "Incorrect API key provided: [key]; or [key]. Bearer [key] (HTTP 401)"
    assert scrub("http://user:secret@host/v1 refused") == "http://host/v1 refused"
