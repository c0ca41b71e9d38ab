"""What passes between model and tools, and what a run gives back. Data only.

Every class here is a pydantic model that is kept in histories: a field is only ever added with a default,
and never changes its meaning. Discriminators (`role`, `kind`) have no default, so that payloads can leave
out all defaults.
"""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic_core import to_jsonable_python

T = TypeVar("T")

JSON = Any
"""A value that `json` can write: dict, list, str, int, float, bool or None."""


class Data(BaseModel):
    """Immutable plain data. Unknown fields are ignored, so that older code reads newer histories."""

    model_config = ConfigDict(frozen=True, extra="ignore")


def canonical_json(value: Any) -> str:
    """Return `value` as JSON with sorted keys and no spaces: equal values give equal text."""
    if isinstance(value, BaseModel):
        plain = value.model_dump(mode="json", exclude_defaults=True)
    else:
        plain = to_jsonable_python(value)
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def content_hash(value: Any) -> str:
    """Return the first 16 hex digits of the SHA-256 of `value`'s canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def blob_ref(data: bytes) -> str:
    """Return the reference under which the store keeps `data`: the first 32 hex digits of its SHA-256."""
    return hashlib.sha256(data).hexdigest()[:32]


# -- parts of a message ------------------------------------------------------------------------------------


class TextPart(Data):
    """A piece of text."""

    kind: Literal["text"]
    text: str


class ImagePart(Data):
    """An image, by address or as base64 data.

    `url` may be `https://…` or `data:image/png;base64,…`. `detail` is OpenAI's `low | high | auto`.
    """

    kind: Literal["image"]
    url: str
    detail: Literal["low", "high", "auto"] = "auto"


class FilePart(Data):
    """A file such as a PDF: `data` is base64, or `file_id` names one uploaded to the provider."""

    kind: Literal["file"]
    filename: str
    media_type: str = "application/pdf"
    data: str | None = None
    file_id: str | None = None


Part = Annotated[TextPart | ImagePart | FilePart, Field(discriminator="kind")]
Content = str | list[Part]


# -- tool calls and their results --------------------------------------------------------------------------


class Problem(Data):
    """Why a call is not executed as the model wrote it. Nothing was done."""

    error_type: Literal["invalid_json", "invalid_arguments", "unknown_tool", "cut_off", "denied_by_hook"]
    message: str
    suggestion: str | None = None


class Private(Data):
    """A value that the model is shown a handle of; `kind` is that of its field, such as `phone`."""

    kind: str
    value: JSON


class ToolCall(Data):
    """One call that a model asked for, already parsed, validated and judged.

    Attributes:
        id: The provider's id, levelled to be unique in the run; pairs the call with its result.
        name: The tool's own name (not the provider's spelling), or what the model wrote if unknown.
        arguments: Parsed arguments; `{}` where they could not be parsed (see `problem`).
        problem: Set if the call can't be executed.
        ask: Set if a person has to approve it: the reason shown to them.
        private: Of a call of another agent, what the model has written handles of: that one is shown them likewise.
    """

    id: str
    name: str
    arguments: dict[str, JSON] = Field(default_factory=dict)
    problem: Problem | None = None
    ask: str | None = None
    private: list[Private] = Field(default_factory=list[Private])


class Published(Data):
    """An event that a run has published: `body` fits what its topic says."""

    topic: str
    body: dict[str, JSON] = Field(default_factory=dict)


ResultStatus = Literal["ok", "error", "denied", "in_doubt", "cancelled", "skipped", "staged", "waiting"]


class ToolResult(Data):
    """How one call ended. Every call of a transcript has exactly one.

    Attributes:
        call_id: The `ToolCall.id` that it answers.
        name: The tool's name.
        status: `ok`, `error`, `denied`, `in_doubt`, `cancelled`, `skipped`, `staged`, or `waiting` for one that goes on
            waiting for a person beside the conversation: what becomes of it is told in a message later.
        content: What the tool returned, as text for the model (JSON unless the tool returned a string).
        size: Bytes of the whole content where `content` is a preview of it; None where it is whole.
        ref: Where `content` is a preview: the blob of the store that holds the whole; None where it could not be kept.
        trimmed: What is left out of `content`, in words, where that is no beginning of the whole.
        error_type: For `error`: a short word for programs.
        message: For every status but `ok`: what happened.
        suggestion: What the model could do next.
        note: Something the model has to know besides, such as arguments edited by a person.
        execution_order: Position in the order in which the run's calls were started, from 1; None if the
            call was never started.
        private: What of it the model is shown handles of, where its tool's schema can't tell that of `content`; None
            where nobody has looked.
        shown: Bytes of the whole that `content` stands for, where it has handles in place of values.
        images: What it shows besides its text.
        published: Of a call that is a run: the events that it has published, in order. No model is shown them.
    """

    call_id: str
    name: str
    status: ResultStatus
    content: str = ""
    size: int | None = None
    ref: str | None = None
    trimmed: str | None = None
    error_type: str | None = None
    message: str | None = None
    suggestion: str | None = None
    note: str | None = None
    execution_order: int | None = None
    private: list[Private] | None = None
    shown: int | None = None
    images: list[ImagePart] = Field(default_factory=list[ImagePart])
    published: list[Published] = Field(default_factory=list[Published])


# -- messages ----------------------------------------------------------------------------------------------


class UserMessage(Data):
    """What a person (or, with `source="runtime"`, the runtime) tells the model.

    Attributes:
        result: The result that the runtime tells of, of a call whose place in the transcript says that it waits.
        facts: Ids of the remembered facts that the runtime tells.
        refs: Blobs of the store that the content names as handles. Only in what a model is shown.
        private: What of it the model is shown handles of, as the run did that has written it.
    """

    role: Literal["user"]
    content: Content
    source: Literal["user", "runtime"] = "user"
    result: ToolResult | None = None
    facts: list[str] = Field(default_factory=list)
    refs: list[str] = Field(default_factory=list[str])
    private: list[Private] = Field(default_factory=list[Private])


class AssistantMessage(Data):
    """A model's reply.

    Attributes:
        text: Its text, "" where there is none.
        calls: The calls it asks for, in order.
        reasoning: The provider's reasoning items, untouched: Responses items, or
            `[{"reasoning_content": "…"}]` from Chat Completions servers.
        provider: Which adapter wrote `reasoning` (`openai`, `openai-responses` …): it is carried back only
            to the same one.
        private: What it has written handles of in its text.
        source: `strategy` where no model wrote it, but what leads the run.
        agent: Whose it is, in a run that may pass from one agent to another; else "".
    """

    role: Literal["assistant"]
    text: str = ""
    calls: list[ToolCall] = Field(default_factory=list[ToolCall])
    reasoning: list[dict[str, JSON]] = Field(default_factory=list[dict[str, JSON]])
    provider: str = ""
    private: list[Private] = Field(default_factory=list[Private])
    source: Literal["model", "strategy"] = "model"
    agent: str = ""


class ToolMessage(Data):
    """A call's result, on its way to the model."""

    role: Literal["tool"]
    result: ToolResult


Message = Annotated[UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]
"""What a model is shown."""


class Verbatim(Data):
    """What of a part of a conversation is kept word for word, where that part is not shown any more.

    Attributes:
        said: What the user has said, oldest first.
        done: Calls of tools with effects, and how they ended, oldest first.
        decided: What people have decided about calls, oldest first.
        waiting: What waited for a person at that moment.
        identifiers: Numbers, dates, amounts … of what was said or done, oldest first.
        seen: Those of what was only read, oldest first.
        handles: Results that can be read again, and the blobs that hold them: `(what, ref)`, oldest first.
    """

    said: list[str] = Field(default_factory=list[str])
    done: list[str] = Field(default_factory=list[str])
    decided: list[str] = Field(default_factory=list[str])
    waiting: list[str] = Field(default_factory=list[str])
    identifiers: list[str] = Field(default_factory=list[str])
    seen: list[str] = Field(default_factory=list[str])
    handles: list[tuple[str, str]] = Field(default_factory=list[tuple[str, str]])


class Compaction(Data):
    """From here on the model is shown less of what was before; the transcript keeps all of it.

    Entries are counted from the first one of the whole transcript.

    Attributes:
        covers: So many entries are replaced by `summary` and `verbatim`.
        keeps: The one of them that is shown nonetheless, counted from 0: the newest message of the user.
        replies: Replies of the model among those that are covered.
        summary: What they said.
        written_by: The model that wrote it, as the agent names it; "" where it was put together without one.
        verbatim: What is kept of them word for word.
        shortened: Long results among the first so many entries are shown as previews.
        limit: Bytes that make a result a long one; a quarter of that is shown.
        cut: Messages of users among them that are longer than so many bytes are shown without their middle; 0: whole.
        refs: Where the whole is of what is shown in short: the place of the entry, and a blob of the store.
    """

    role: Literal["compaction"]
    covers: int = 0
    keeps: int | None = None
    replies: int = 0
    summary: str = ""
    written_by: str = ""
    verbatim: Verbatim = Verbatim()
    shortened: int = 0
    limit: int = 2_000
    cut: int = 0
    refs: dict[int, str] = Field(default_factory=dict[int, str])


DEFAULT_WINDOW = 128_000
"""Tokens: what a model is taken to hold of which nobody knows more."""


class ContextHealth(Data):
    """How full a model's context is.

    Attributes:
        tokens: Of the request, as the provider counted them; estimated where it did not, or was not asked.
        window: Tokens that the model can take, as far as known.
    """

    tokens: int = 0
    window: int = DEFAULT_WINDOW

    @property
    def share(self) -> float:
        """The part of the window that the request fills."""
        return self.tokens / self.window


Entry = Annotated[UserMessage | AssistantMessage | ToolMessage | Compaction, Field(discriminator="role")]
"""What a transcript is made of."""


class Segment(Data):
    """The earlier part of a transcript, put away in the store: immutable, written once.

    Attributes:
        ref: The blob that holds a `SegmentBody`.
        length: Entries up to its end, those of the segments before it included.
        records: Records of calls, counted likewise.
        head: Chained hash of the transcript up to its end; see `perdure.transcripts`.
        rank: How often what it holds was put together from smaller ones; -1 for one that never is.
        row: So many of that rank follow each other, it being the last.
    """

    ref: str
    length: int
    records: int = 0
    head: str
    rank: int = -1
    row: int = 1


# -- what a run costs and gives back -----------------------------------------------------------------------


class Usage(Data):
    """Tokens of one call or of a whole run.

    Attributes:
        input_tokens: All tokens sent. Cached ones are included.
        cached_tokens: Included in `input_tokens`.
        output_tokens: All tokens received. Reasoning is included.
        reasoning_tokens: Included in `output_tokens`.
        estimated: True where a provider left usage out and it was estimated at 4 bytes a token.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False

    def __add__(self, other: Usage) -> Usage:
        """Return the sum; it is estimated where either side is."""
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            estimated=self.estimated or other.estimated,
        )


class CallRecord(Data):
    """One call as it is kept for audit: what was asked, what was executed, how it ended.

    Attributes:
        wrote: Names of the variables that it has changed.
    """

    position: str
    name: str
    arguments: dict[str, JSON] = Field(default_factory=dict)
    status: ResultStatus | Literal["open"]
    message: str | None = None
    execution_order: int | None = None
    wrote: list[str] = Field(default_factory=list)


class Undone(Data):
    """What became of an effect that was to be undone after its run had been cancelled or had failed.

    Attributes:
        status: `undone`; `failed` (the compensation did not succeed: the effect may still stand) or `not_known` (nobody
            knows whether there was an effect, so nothing was tried).
        message: What the compensation returned, or why it is not undone.
    """

    position: str
    name: str
    status: Literal["undone", "failed", "not_known"]
    message: str | None = None


class SegmentBody(Data):
    """What a segment holds: the entries and records since the one before it."""

    previous: Segment | None = None
    entries: list[Entry] = Field(default_factory=list[Entry])
    records: list[CallRecord] = Field(default_factory=list[CallRecord])


RunStatus = Literal["completed", "budget_exhausted", "failed", "cancelled"]
OpenStatus = Literal["running", "waiting_approval", "waiting_input", "waiting_decision", "paused"]


class RunResult(Data):
    """What a run gave, complete or partial.

    Attributes:
        status: `completed`, `budget_exhausted` (partial answer), `failed` or `cancelled`.
        text: The answer, or the last text the model wrote.
        calls: Every tool call in call order, for audit.
        usage: Tokens of all model calls, those of sub-agents included, as in `steps` and `cost_usd`.
        steps: Model turns taken.
        duration: From start to end, waiting for people included.
        cost_usd: None where the price is not known; never zero for unknown.
        reason: Why it ended so, for a person; None where `completed` by an answer.
        failure: For `failed`: a short word such as `authentication` or `malformed_output`.
        before: Where `calls` of a long run are only the later ones: the segment with the records of those before. A
            handle's `result()` reads them, and leaves it None.
        undone: What was to be undone at the end, in that order, and whether it was; see `Agent(compensate_on=…)`.
        variables: As the run left them; see `Agent(variables=…)`.
        private: What of `text` the model has written handles of, for the run that has called this one, or follows it by
            a schedule.
        output: The answer as plain data, where the agent has an `output_type` and the last reply fits it; else None.
        published: The events that it has published, as a member of a team; see `perdure.strategies.Team`.
    """

    run_id: str
    status: RunStatus
    text: str = ""
    calls: list[CallRecord] = Field(default_factory=list[CallRecord])
    usage: Usage = Usage()
    steps: int = 0
    duration: timedelta = timedelta()
    cost_usd: Decimal | None = None
    reason: str | None = None
    failure: str | None = None
    undone: list[Undone] = Field(default_factory=list[Undone])
    before: Segment | None = None
    variables: dict[str, JSON] = Field(default_factory=dict)
    private: list[Private] = Field(default_factory=list[Private])
    output: JSON = None
    published: list[Published] = Field(default_factory=list[Published])

    def output_as(self, type: type[T]) -> T:
        """Return `output` as an instance of `type`, which is the agent's `output_type`.

        Raises:
            ValueError: If there is no output, or it does not fit `type`; pydantic's `ValidationError` says where.
        """
        if self.output is None and self.status != "completed":
            raise ValueError(f"Run {self.run_id} ended {self.status} and has no output: {self.reason or self.text}")
        adapter: TypeAdapter[T] = TypeAdapter(type)
        return adapter.validate_python(self.output)
