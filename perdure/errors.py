"""Everything that Perdure raises.

PerdureError
├── AgentError            the agent file has to change
│   ├── ToolDefinitionError
│   ├── AgentNotFound
│   └── ExtensionError    what another package adds is not there, or not what it says
├── ConnectionFailed      the engine, a store or a model endpoint has to be reached first
├── KeyMissing            something is encrypted, and its key is not here
├── RunNotFound           no such run
├── FactNotFound          nothing is remembered under that id
├── SessionError          a session can't be used so: another agent's, or a turn is under way
│   ├── SessionNotFound
│   └── SessionNameError
├── ScheduleError         a schedule can't be so; says why
│   └── ScheduleNotFound
├── DecisionRejected      an approval or settlement did not take; says why
├── VariableError         a value does not fit a variable; says which, and what would
├── RunFailed             a run ended `failed`; carries the partial result
└── RunCancelled          a run ended `cancelled`; likewise

ToolError                 raised by a tool's author: it failed, and nothing was done
ModelError                raised by a model adapter: carries what may be done about it
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from perdure.messages import RunResult, Usage

ModelErrorKind = Literal[
    "connection",
    "timeout",
    "rate_limited",
    "overloaded",
    "server",
    "authentication",
    "quota",
    "bad_request",
    "context_too_long",
    "content_filtered",
]

TRANSIENT: frozenset[str] = frozenset({"connection", "timeout", "rate_limited", "overloaded", "server"})
"""The kinds of `ModelError` that may pass by themselves."""


class PerdureError(Exception):
    """Base of what a caller may want to catch; its text is one sentence for a person."""

    kind = "error"


class AgentError(PerdureError):
    """The declaration of an agent or of a tool is wrong; the text says where."""

    kind = "agent"


class ToolDefinitionError(AgentError):
    """A function can't become a tool: no description, a type without a JSON Schema, a bad option."""


class AgentNotFound(AgentError):
    """No agent of that name in the file, or announced by any worker; the text lists those known."""

    kind = "not_found"


class ExtensionError(AgentError):
    """What an installed package adds is not there, can't be loaded or is not what it says; the text names both."""

    kind = "extension"


class ConnectionFailed(PerdureError):
    """Something that has to answer did not: the text names it, its address and what to do."""

    kind = "connection"


class KeyMissing(PerdureError):
    """Something is encrypted with a key that is not set here; the text says which one."""

    kind = "key_missing"


class RunNotFound(PerdureError):
    """No run has that id on this server and namespace."""

    kind = "not_found"


class ForkError(PerdureError):
    """A run can't be forked there; the text says where it can."""

    kind = "usage"


class FactNotFound(PerdureError):
    """Nothing is remembered under that id, or not any more."""

    kind = "not_found"


class SessionError(PerdureError):
    """A session can't be used so: it is another agent's or user's, or one of its turns is under way."""

    kind = "session"


class SessionNotFound(SessionError):
    """No session has that name in this store and namespace."""

    kind = "not_found"


class SessionNameError(SessionError):
    """No session can have that name."""

    kind = "usage"


class ScheduleError(PerdureError):
    """A schedule can't be so: its id is taken, its times or rules are none, or it is not ours."""

    kind = "usage"


class ScheduleNotFound(ScheduleError):
    """No schedule has that id on this server and namespace."""

    kind = "not_found"


class RecordingError(PerdureError):
    """What was recorded of a run can't be read, can't be played, or is not where it was to be."""

    kind = "usage"


class VariableError(PerdureError, ValueError):
    """A variable is unknown or missing, its value does not fit its type, or all are too large to be kept."""

    kind = "usage"


class DecisionRejected(PerdureError):
    """What somebody said to a run did not take: a decision, a message, a pause.

    Args:
        message: Why, for a person.
        reason: `already_decided`, `unknown_call`, `stale_hash`, `invalid_edit`, `not_waiting`, `not_in_doubt`
            `not_paused`, `already_paused`, `already_cancelled`, `closing`, `no_session`, `empty` or `closed`.
    """

    kind = "rejected"

    def __init__(self, message: str, reason: str = "rejected") -> None:
        super().__init__(message)
        self.reason = reason


class RunEnded(PerdureError):
    """A run ended otherwise than `completed` or `budget_exhausted`; `result` holds its partial work."""

    def __init__(self, message: str, result: RunResult) -> None:
        super().__init__(message)
        self.result = result


class RunFailed(RunEnded):
    """A run ended `failed`. `result.reason` has the sentence, `result.failure` the kind."""

    kind = "failed"


class RunCancelled(RunEnded):
    """A run was cancelled by a person or a program."""

    kind = "cancelled"


class ToolError(Exception):
    """Raise it in a tool when it failed *and* its effect did not happen.

    The model gets it as an error result and goes on. Any other exception of a tool with an effect is an
    unknown outcome, unless its type is listed in the tool's `not_done=`.

    Args:
        message: What went wrong, for the model.
        suggestion: What the model could do instead, or None.
        error_type: A short word for programs, such as `sold_out`. Default: `tool_error`.
    """

    # Also those of a subclass that does not call __init__.
    message: str = "It failed, and nothing was done."
    suggestion: str | None = None
    error_type: str = "tool_error"

    def __init__(self, message: str, *, suggestion: str | None = None, error_type: str = "tool_error") -> None:
        super().__init__(message)
        self.message = message
        self.suggestion = suggestion
        self.error_type = error_type


class ModelError(Exception):
    """A model call failed. Adapters raise it; only `activities/` decides about retries.

    Args:
        kind: What failed, see `ModelErrorKind`.
        message: The provider's own words, without credentials.
        retry_after: How long the provider asks to wait, or None where it does not say.
        usage: What the call used before it failed, an estimate; None where nothing of a reply came.
        window: For `context_too_long`: tokens that the model can take, where the provider says so.
    """

    def __init__(
        self,
        kind: ModelErrorKind,
        message: str,
        *,
        retry_after: timedelta | None = None,
        usage: Usage | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__(message)
        self.window = window
        self.kind: ModelErrorKind = kind
        self.message = message
        self.retry_after = retry_after
        self.usage = usage

    @property
    def transient(self) -> bool:
        """Whether the same call may succeed later."""
        return self.kind in TRANSIENT
