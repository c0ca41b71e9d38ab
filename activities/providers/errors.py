"""What went wrong with a model call, as a `ModelError`: by the type of the exception, the status and the body."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from perdure.activities.providers.wire import arr, decode, number, obj, text
from perdure.errors import ModelError, ModelErrorKind
from perdure.messages import JSON

_WORDS = 500
"""Characters of a provider's words that are kept."""

_LONGEST_WAIT = timedelta(days=1)

_CLIENT, _SERVER = range(400, 500), range(500, 600)
_BY_STATUS: dict[int, ModelErrorKind] = {
    401: "authentication",
    402: "quota",
    403: "authentication",
    408: "server",
    409: "server",
    413: "context_too_long",
    425: "server",
    429: "rate_limited",
    498: "overloaded",
    503: "overloaded",
    529: "overloaded",
}
_STATUS_OF_MARK = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "rate_limit_reached_error": 429,
    "too_many_requests": 429,
    "resource_exhausted": 429,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "request_too_large": 413,
    "invalid_request_error": 400,
    "invalid_prompt": 400,
}
"""For errors inside an answer whose status is a success: what the status would have been."""

_QUOTA = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_not_active",
        "insufficient_balance",
        "exceeded_current_quota_error",  # Moonshot
        "arrearage",  # Alibaba
        "1113",  # Zhipu
    }
)
_QUOTA_WORDS = re.compile(r"credit balance is too low|insufficient (balance|credits|funds)")
_FILTERED = frozenset(
    {
        "content_filter",
        "content_policy_violation",
        "invalid_prompt",
        "data_inspection_failed",
        "responsible_ai_policy",
        "responsibleaipolicyviolation",
        "1301",  # Zhipu
    }
)
_AUTHENTICATION = frozenset({"invalid_api_key", "authentication_error"})
_AUTHENTICATION_WORDS = re.compile(r"api key not valid|invalid api key|incorrect api key")
_MALFORMED = frozenset({"tool_use_failed"})
"""Groq's word for a reply whose calls it could not read: the next one may be better."""
_FILTERED_WORDS = re.compile(
    r"content management policy|content exists risk|flagged as potentially violating|your input was flagged"
)
_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size"
    r"|maximum context length|maximum model length|context window|context size|context length"
    r"|prompt is too long|prompt too long|range of input length|input token count .* exceeds"
    r"|reduce the length of the (messages|prompt|input)|tokens must be reduced"
    r"|inputs?`? tokens \+ `?max_new_tokens"
)


def from_exception(error: Exception, *, address: str, key: str = "", begun: bool = False) -> ModelError:
    """Return the `ModelError` for what a client of the openai package raised.

    Args:
        error: An exception of that package, or of its HTTP client.
        address: Where the request went, for the text.
        key: The API key, which never shows in the result.
        begun: Whether a part of the reply had come.
    """
    import httpx2
    import openai

    cause = error.__cause__ or error
    detail = str(cause) or type(cause).__name__
    if isinstance(error, openai.APIStatusError):
        response = error.response
        return from_answer(response.status_code, response.headers, response.text, key=key)
    if isinstance(cause, httpx2.ConnectTimeout):
        return ModelError("connection", scrub(f"{address} could not be reached in time.", key))
    if isinstance(error, openai.APITimeoutError | TimeoutError | httpx2.TimeoutException):
        return ModelError("timeout", f"{address} did not answer in time.")
    if isinstance(error, openai.APIConnectionError | httpx2.RequestError):
        broke = "broke in the middle of the reply" if begun else "failed"
        return ModelError("connection", scrub(f"The connection to {address} {broke}: {detail}", key))
    return ModelError("bad_request", scrub(f"The request to {address} could not be made: {detail}", key))


def from_answer(status: int, headers: Mapping[str, str], answer: str, *, key: str = "") -> ModelError:
    """Return the `ModelError` for an HTTP answer that is not a success; `answer` may be of any form."""
    body = _json(answer)
    words = _words(body) or _plain(answer)
    sentence = f"{words} (HTTP {status})" if words else f"HTTP {status}"
    wait = retry_after(headers)
    wait = _wait_in(body) if wait is None else wait
    kind = _kind(status, _marks(body), words.lower())
    return ModelError(kind, scrub(sentence, key), retry_after=wait, window=_window(kind, body, words))


def from_error_body(body: Mapping[str, JSON], *, key: str = "") -> ModelError:
    """Return the `ModelError` for an error that came with a status of success, as in a stream."""
    code, marks, words = obj(body.get("error")).get("code"), _marks(body), _words(body)
    status = int(str(code)) if re.fullmatch(r"[45]\d\d", str(code)) else None
    status = status or next((_STATUS_OF_MARK[mark] for mark in sorted(marks) if mark in _STATUS_OF_MARK), None)
    if status is None:
        status = 400 if marks & _FILTERED or _TOO_LONG.search(words.lower()) else 500
    sentence = scrub(words or "The provider reports an error.", key)
    kind = _kind(status, marks, words.lower())
    return ModelError(kind, sentence, retry_after=_wait_in(body), window=_window(kind, body, words))


def not_understood(answer: str, what: str, *, key: str = "") -> ModelError:
    """Return the `ModelError` for a success whose body is not `what`; it may be better next time."""
    shown = _plain(answer)
    return ModelError("server", scrub(f"The answer is not {what}: {shown or 'it is empty'}", key))


def _kind(status: int, marks: set[str], words: str) -> ModelErrorKind:
    everything = f"{words} {' '.join(marks)}"
    if marks & _QUOTA or (status in _CLIENT and _QUOTA_WORDS.search(words)):
        return "quota"
    if status in (400, 422, 429, 500) and _TOO_LONG.search(everything):
        return "context_too_long"
    if status in _CLIENT and (marks & _FILTERED or _FILTERED_WORDS.search(words)):
        return "content_filtered"
    if status in _CLIENT and (marks & _AUTHENTICATION or _AUTHENTICATION_WORDS.search(words)):
        return "authentication"
    if marks & _MALFORMED:
        return "server"
    if "overloaded" in everything and status in (429, *_SERVER):
        return "overloaded"
    return _BY_STATUS.get(status, "server" if status in _SERVER else "bad_request")


_SAID = re.compile(
    r"maximum (?:context|model) length (?:is|of) (?P<a>[\d,]{3,12})"  # OpenAI, vLLM, Azure
    r"|(?:context window|context size|context length)[^.\d]{0,40}?(?P<b>[\d,]{3,12})"
    r"|max_new_tokens`? must be <= (?P<c>[\d,]{3,12})"  # Text Generation Inference
    r"|> (?P<e>[\d,]{3,12}) maximum"  # Anthropic
    r"|tokens allowed \((?P<f>[\d,]{3,12})\)"  # Gemini
    r"|input length should be \[\d{1,3}, ?(?P<g>[\d,]{3,12})\]"  # Alibaba
)


def _window(kind: ModelErrorKind, body: Mapping[str, JSON], words: str) -> int | None:
    """Return the tokens that a model can take, where an error says so: llama.cpp in a field, others in words."""
    if kind != "context_too_long":
        return None
    if (said := number(obj(body.get("error")).get("n_ctx"))) is not None:
        return said or None
    found = _SAID.search(words.lower())
    figures = [int(text.replace(",", "") or 0) for text in found.groups() if text] if found else []
    return figures[-1] if figures and figures[-1] >= _LEAST_WINDOW else None


_LEAST_WINDOW = 256


def _json(answer: str) -> dict[str, JSON]:
    try:
        body = decode(answer)
    except ValueError:
        return {}
    return obj(next(iter(arr(body)), None)) or obj(body)  # Gemini answers an array of one


def _marks(body: Mapping[str, JSON]) -> set[str]:
    """Return the short words for programs in an error body."""
    error = obj(body.get("error")) or body
    inner = obj(error.get("innererror"))
    written = (error.get("code"), error.get("type"), error.get("status"), inner.get("code"))
    return {text(part).lower() for part in written} - {""}


def _words(body: Mapping[str, JSON]) -> str:
    """Return the provider's own sentence: `error.message`, or where else servers put it."""
    error, detail = body.get("error"), body.get("detail")
    found = (
        text(obj(error).get("message"))
        or text(error)
        or text(body.get("message"))
        or text(detail)
        or "; ".join(_located(obj(item)) for item in arr(detail))
    )
    return _short(found)


def _located(item: Mapping[str, JSON]) -> str:
    """Return one of FastAPI's complaints, with the field that it is about."""
    where = ".".join(str(step) for step in arr(item.get("loc"))[1:])
    return f"{where}: {text(item.get('msg'))}" if where else text(item.get("msg"))


def _plain(answer: str) -> str:
    """Return what a person would read of `answer`, such as an HTML error page."""
    page = re.sub(r"(?is)<(script|style|head)\b.*?</\1>", " ", answer)
    return _short(re.sub(r"(?s)<[^>]{0,500}>", " ", page))


def _short(words: str) -> str:
    words = " ".join(words.split())
    return words if len(words) <= _WORDS else f"{words[:_WORDS]} …"


def scrub(words: str, key: str = "") -> str:
    """Return `words` without `key` and whatever else looks like a credential."""
    if key:
        words = words.replace(key, "[key]")
    words = re.sub(r"\bsk-[\w*.-]{6,}", "[key]", words)
    words = re.sub(r"(?i)\bbearer\s+(?!\[key\])[\w.~+/=-]{6,}", "Bearer [key]", words)
    return re.sub(r"://[^/\s@]+@", "://", words)


def retry_after(headers: Mapping[str, str]) -> timedelta | None:
    """Return how long a server asks to wait: `Retry-After-Ms`, or `Retry-After` in seconds or as a date.

    A date is measured against the server's own clock (`Date`) where it is given. At most a day.
    """
    own = {name.lower(): value for name, value in headers.items()}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(own[name]) * unit
        except (KeyError, ValueError):
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return timedelta(seconds=min(seconds, _LONGEST_WAIT.total_seconds()))
    until = _date(own.get("retry-after", ""))
    if until is None:
        return None
    return min(max(until - (_date(own.get("date", "")) or datetime.now(UTC)), timedelta()), _LONGEST_WAIT)


_SPELT = re.compile(r"(?i)try again in (?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)(m?s))?")
"""OpenAI's spelling: `6ms`, `1.2s`, `1m30s`, `2h5m`."""


def _wait_in(body: Mapping[str, JSON]) -> timedelta | None:
    """Return how long an error body asks to wait: OpenAI's `try again in 1.2s`, Gemini's `retryDelay`."""
    for detail in arr(obj(body.get("error")).get("details")):
        delay = re.fullmatch(r"([\d.]+)s", text(obj(detail).get("retryDelay")))
        if delay:
            return retry_after({"retry-after": delay[1]})
    found = _SPELT.search(_words(body))
    if not found or not any(found.groups()):
        return None
    hours, minutes, count, unit = found.groups()
    seconds = int(hours or 0) * 3600 + int(minutes or 0) * 60
    rest = retry_after({"retry-after-ms" if unit == "ms" else "retry-after": (count or "0").rstrip(".")})
    return min(timedelta(seconds=min(seconds, 86_400)) + (rest or timedelta()), _LONGEST_WAIT)


def _date(value: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, TypeError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
