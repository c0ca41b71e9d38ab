"""What a suite is made of, in YAML and in Python alike. Pure but for the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal as Number
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from perdure.declarations import LimitsEntry
from perdure.declared import Declared, ModelName
from perdure.messages import JSON, RunStatus

_PATH = re.compile(r"[^:\s]+:[A-Za-z_][\w.]*")


def _listed(value: Any) -> Any:
    return cast("Any", value) if isinstance(value, list | tuple) else [value]


def _function(value: Any) -> Any:
    if callable(value) or (isinstance(value, str) and _PATH.fullmatch(value)):
        return value
    raise PydanticCustomError("import_path", "has to be the import path of a function: module:name, or file.py:name")


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        words = "has to be a regular expression: {why}"
        raise PydanticCustomError("pattern", words, {"why": str(error)}) from error
    return text


def _json_schema(schema: dict[str, JSON]) -> dict[str, JSON]:
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        words = "has to be a JSON Schema: {why}"
        raise PydanticCustomError("json_schema", words, {"why": error.message}) from error
    return schema


def _tool(value: Any) -> Any:
    return {"tool": value} if isinstance(value, str) else value


def _decision(value: Any) -> Any:
    match value:
        case "approve":
            return {"approve": True}
        case "deny":
            return {"deny": ""}
        case str():
            words = "has to be approve, deny, or one of the mappings edit: {{…}}, deny: WHY, answer: TEXT"
            raise PydanticCustomError("decision", words)
        case _:
            return value


Function = Annotated[Any, BeforeValidator(_function)]
"""A function, or its import path; paths are looked for beside the suite's file first."""
Texts = Annotated[list[str], BeforeValidator(_listed)]
"""A text, or a list of texts."""


class Decision(Declared):
    """What a person of the script says, one of these.

    Attributes:
        approve: The call is approved as it is.
        edit: It is approved with these arguments in place of those of the same names.
        deny: It is denied, with this reason; "" for none.
        answer: The answer to a question.
    """

    approve: bool = False
    edit: dict[str, JSON] | None = None
    deny: str | None = None
    answer: str | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _one(self) -> Decision:
        if len(self.model_fields_set) != 1 or (self.model_fields_set == {"approve"} and not self.approve):
            raise PydanticCustomError("decision", "needs one of approve: true, edit: {…}, deny: WHY, answer: TEXT")
        return self


Decisions = Annotated[
    list[Annotated[Decision, BeforeValidator(_decision)]], BeforeValidator(_listed), Field(min_length=1)
]
"""One decision after the other; the last one again and again."""


class Called(Declared):
    """A call that has to have been made.

    Attributes:
        tool: Whose.
        times: So often; None: at least once.
        arguments: What its arguments have to hold, at whatever depth; there may be more of them.
        status: How it has to have ended, such as `ok`, `error` or `denied`.
    """

    tool: str
    times: int | None = Field(default=None, ge=0)
    arguments: dict[str, JSON] = Field(default_factory=dict)
    status: str = "ok"


class Expect(Declared):
    """What has to be true of a run; each entry is a check for itself.

    Attributes:
        status: How it has to end.
        contains: Texts that the answer holds.
        lacks: Texts that it does not hold.
        matches: Regular expressions that are found in it.
        json_schema: What the agent's output, or else the answer read as JSON, has to fit.
        output: What the output has to hold, at whatever depth.
        judged: Rubrics: a model reads task, calls and answer, and says whether each is met.
        called: Tools, or calls in detail.
        not_called: Tools that are not called, with whatever result.
        order: Tools whose first calls come in this order; others may come between.
        variables: What the run's variables have to be at its end.
        functions: Functions of an `Evidence`: True, None or "" passes; False, a text or a failed `assert` does not.
        max_cost_usd: At most so much; a cost that is not known fails.
        max_steps: At most so many turns of the model.
        max_duration: From start to end.
    """

    status: RunStatus | None = None
    contains: Texts = Field(default_factory=list)
    lacks: Texts = Field(default_factory=list)
    matches: Annotated[list[str], BeforeValidator(_listed)] = Field(default_factory=list)
    json_schema: dict[str, JSON] | None = None
    output: dict[str, JSON] | None = None
    judged: Texts = Field(default_factory=list)
    called: Annotated[list[Annotated[Called, BeforeValidator(_tool)]], BeforeValidator(_listed)] = Field(
        default_factory=list[Called]
    )
    not_called: Texts = Field(default_factory=list)
    order: list[str] = Field(default_factory=list)
    variables: dict[str, JSON] = Field(default_factory=dict)
    functions: Annotated[list[Function], BeforeValidator(_listed)] = Field(default_factory=list[Any])
    max_cost_usd: Number | None = Field(default=None, ge=0)
    max_steps: int | None = Field(default=None, ge=1)
    max_duration: timedelta | None = Field(default=None, gt=timedelta())

    @field_validator("matches")
    @classmethod
    def _patterns(cls, patterns: list[str]) -> list[str]:
        return [_pattern(text) for text in patterns]

    @field_validator("json_schema")
    @classmethod
    def _schema(cls, schema: dict[str, JSON] | None) -> dict[str, JSON] | None:
        return schema and _json_schema(schema)


class Case(Declared):
    """One task, and what is expected of the run.

    Attributes:
        name: Of which there is one in a suite.
        input: What the user says.
        session: What was said before in the same conversation: each a turn of it, and `input` the last.
        user: For whom it works.
        variables: Values for the agent's variables.
        limits: Beat the agent's.
        approvals: What a person says, by the tool that asks; `*` for those that are not named. A request that nothing
            is said about fails the case.
        timeout: After it a run is cancelled, and its case has failed.
        expect: Besides what the suite expects of all.
    """

    name: str = Field(min_length=1, max_length=100)
    input: str = Field(min_length=1)
    session: Texts = Field(default_factory=list)
    user: str = ""
    variables: dict[str, JSON] = Field(default_factory=dict)
    limits: LimitsEntry | None = None
    approvals: dict[str, Decisions] = Field(default_factory=dict[str, list[Decision]])
    timeout: timedelta = Field(default=timedelta(minutes=10), gt=timedelta())
    expect: Expect = Expect()


class Suite(Declared):
    """Cases for an agent.

    Attributes:
        suite: Its name.
        agent: The agent, or `FILE.py:name`, `FILE.yaml:name`, `module:name`.
        model: Asked in place of the agent's, where the command names none. `scripted:FILE` is looked for beside the
            suite's file.
        judge: The model that judges by rubrics.
        environment: A function that is given a folder of the evaluation's own and returns a context manager, open while
            it is under way; what that yields is `Evidence.world`.
        approvals: As for a case, for all of them; a case's own come first.
        expect: Of every run. Default: that it is `completed`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    suite: str = Field(pattern=r"^[\w.-]{1,40}$")
    agent: Any
    model: ModelName | None = None
    judge: ModelName | None = None
    environment: Function | None = None
    approvals: dict[str, Decisions] = Field(default_factory=dict[str, list[Decision]])
    expect: Expect = Expect(status="completed")
    cases: list[Case] = Field(min_length=1)

    @field_validator("agent")
    @classmethod
    def _agent(cls, value: Any) -> Any:
        from perdure.agents import Agent

        if isinstance(value, Agent | str):
            return value
        raise PydanticCustomError("agent", "has to be FILE.py:name, FILE.yaml:name or module:name")

    @field_validator("expect", mode="before")
    @classmethod
    def _completed(cls, value: Any) -> Any:
        """Expect a run to be completed where nothing else is said."""
        if isinstance(value, Mapping):
            return {"status": "completed", **cast("Mapping[str, Any]", value)}
        return value

    @field_validator("cases")
    @classmethod
    def _apart(cls, cases: list[Case]) -> list[Case]:
        names = [case.name for case in cases]
        if twice := next((name for name in names if names.count(name) > 1), None):
            words = "has to have one case of each name; two are named {name}"
            raise PydanticCustomError("twice", words, {"name": twice})
        return cases

    @model_validator(mode="after")
    def _judged(self) -> Suite:
        if self.judge is None and any(one.judged for one in [self.expect, *(case.expect for case in self.cases)]):
            raise PydanticCustomError("judge", "needs the key judge: the model that judges what is `judged`")
        return self

    def of(self, case: Case) -> list[Expect]:
        """Return what is expected of a case: of all first; how it ends only once."""
        common = self.expect if case.expect.status is None else self.expect.model_copy(update={"status": None})
        return [common, case.expect]
