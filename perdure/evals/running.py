"""Running a suite: every attempt is a real run, whose id follows from what it is an attempt at."""

from __future__ import annotations

import asyncio
import inspect
import re
import secrets
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.agents import Agent, Task
from perdure.errors import DecisionRejected, PerdureError, RunEnded, RunNotFound
from perdure.evals import checks
from perdure.evals.evidence import Attempt, Evidence, Verdict
from perdure.evals.judging import Judge, judge_agent
from perdure.evals.people import People, Unforeseen, WorkerLost
from perdure.evals.results import Report
from perdure.evals.suites import Case, Decision, Suite
from perdure.forking import changed
from perdure.messages import RunResult, content_hash

if TYPE_CHECKING:
    from perdure.client import Client, RunHandle
    from perdure.policies import AgentSpec
    from perdure.settings import Settings

OnAttempt = Callable[[Attempt], object]
_ID = re.compile(r"[\w.-]{1,40}")
_TRIES = 5
"""So often an attempt is made that crashes spoil."""


def new_evaluation() -> str:
    """Return an id for an evaluation."""
    return secrets.token_hex(3)


@dataclass(frozen=True)
class Trial:
    """An attempt to be made: of a case, with a model, the `repeat`-th."""

    case: Case
    model: str
    repeat: int


def trials(suite: Suite, models: Sequence[str], repeat: int) -> Iterator[Trial]:
    """Yield what is to be tried, in the order of the report."""
    for case in suite.cases:
        for model in models:
            for nth in range(1, repeat + 1):
                yield Trial(case, model, nth)


async def evaluate(
    suite: Suite,
    client: Client,
    *,
    models: Sequence[str] = (),
    repeat: int = 1,
    jobs: int = 4,
    id: str | None = None,
    on_attempt: OnAttempt | None = None,
) -> Report:
    """Try every case of a suite with every model, `repeat` times, and return what was found.

    A worker of this process serves the agent meanwhile. Whatever ends the process, the same `id` again takes up the
    runs that are there, and checks them anew; what is new or was changed since (agent, model, case) is run.

    Args:
        models: PROVIDER:NAME each. Default: the suite's, else the agent's.
        jobs: So many attempts at once.
        id: The evaluation's, 1 to 40 letters, digits and any of `_.-`. Default: made up.
        on_attempt: Told of each as soon as it has been checked.

    Raises:
        PerdureError: If a model is none, or the id can't be one.
        ConnectionFailed: If the server does not answer.
    """
    chosen = id or new_evaluation()
    names = models_of(suite, models)
    check(suite, names, chosen, client.settings)
    plan = list(trials(suite, names, repeat))
    async with _stage(suite, client, chosen) as stage:
        free = asyncio.Semaphore(jobs)

        async def one(trial: Trial) -> Attempt:
            async with free:
                attempt = await stage.attempt(trial)
            if on_attempt:
                on_attempt(attempt)
            return attempt

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(trial)) for trial in plan]
        except* PerdureError as errors:
            raise _first(errors) from None
    found = [task.result() for task in tasks]
    cases = [case.name for case in suite.cases]
    return Report(suite=suite.suite, id=chosen, models=names, cases=cases, repeat=repeat, attempts=found)


def _first(errors: BaseExceptionGroup[PerdureError]) -> PerdureError:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def models_of(suite: Suite, models: Sequence[str]) -> list[str]:
    """Return the models that are compared: those named, each once, else the suite's, else the agent's."""
    return list(dict.fromkeys(models)) or [suite.model or suite.agent.model]


def check(suite: Suite, models: Sequence[str], evaluation: str, settings: Settings) -> None:
    """Return if an evaluation can be called so, and there can be such models.

    Raises:
        PerdureError: If not; one sentence.
    """
    from perdure.activities import providers

    if not _ID.fullmatch(evaluation):
        raise PerdureError(f"An evaluation's id has 1 to 40 letters, digits and any of _.-; {evaluation!r} has not.")
    providers.declare(settings.providers)
    for name in [*models, *([suite.judge] if suite.judge else [])]:
        if problem := providers.strange([name]):
            raise PerdureError(f"Model {name!r}: {problem}")


@asynccontextmanager
async def _stage(suite: Suite, client: Client, evaluation: str) -> AsyncGenerator[_Stage]:
    """Serve what the suite needs while the block runs."""
    from perdure.worker import serving

    queue = f"eval-{suite.suite}-{evaluation}"  # the same after a crash: what was under way goes on
    folder = client.settings.folder / "evals" / f"{suite.suite}-{evaluation}"
    judge = judge_agent(suite.judge) if suite.judge else None
    async with _world(suite, folder) as world:
        agents = [suite.agent, *([judge] if judge else [])]
        async with serving(client.temporal, agents, queue, client.settings):
            yield _Stage(suite, client, evaluation, queue, world, Judge(client, judge, queue) if judge else None)


@asynccontextmanager
async def _world(suite: Suite, folder: Path) -> AsyncGenerator[Any]:
    if suite.environment is None:
        yield None
        return
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    context = suite.environment(folder)
    if hasattr(context, "__aenter__"):
        async with context as world:
            yield world
    else:
        with context as world:
            yield world


class _Stage:
    """Where attempts are made."""

    def __init__(
        self, suite: Suite, client: Client, evaluation: str, task_queue: str, world: Any, judge: Judge | None
    ) -> None:
        self._suite, self._client, self._evaluation = suite, client, evaluation
        self._queue, self._world, self._judge = task_queue, world, judge
        self._agent: Agent = suite.agent

    async def attempt(self, trial: Trial) -> Attempt:
        """Make an attempt, or find it, and check it; one that a crash of this evaluation has spoilt is made again."""
        spec = spec_with(self._agent.spec, trial.model)
        first = run_id = run_id_of(self._suite, spec, trial, self._evaluation)
        handle, problem, spoilt = await self._tried(trial, spec, run_id)
        for nth in range(2, _TRIES + 1):
            if spoilt:
                run_id = f"{first}.{nth}"
                handle, problem, spoilt = await self._tried(trial, spec, run_id)
        problems = [problem] if problem else []
        if handle is None:
            case, status = trial.case.name, "not_started"
            return Attempt(
                case=case, model=trial.model, repeat=trial.repeat, run_id=run_id, status=status, verdicts=problems
            )
        return await self._checked(trial, await _ended(handle), problems)

    async def _tried(self, trial: Trial, spec: AgentSpec, run_id: str) -> tuple[RunHandle | None, Verdict | None, bool]:
        """Make an attempt under that id: return its last run, what went wrong, and whether a crash has spoilt it."""
        nested = bool(self._agent.below) or spec.strategy is not None
        people = People(self._client, people_of(self._suite, trial.case), nested=nested)
        limit = trial.case.timeout.total_seconds()
        handle: RunHandle | None = None
        spoilt = False
        try:
            async with asyncio.timeout(limit), aclosing(self._turns(trial.case, spec, run_id)) as turns:
                async for handle in turns:
                    await people.attend(handle)
        except Unforeseen as error:
            problem = Verdict(check="people", passed=False, reason=str(error))
            spoilt = isinstance(error, WorkerLost)
        except TimeoutError:
            problem = Verdict(check=f"within {limit:g} s", passed=False, reason="it did not end, and was cancelled")
        else:
            return handle, None, False
        if handle:
            with suppress(DecisionRejected, RunNotFound):
                await handle.cancel(problem.reason)
        return handle, problem, spoilt

    async def _turns(self, case: Case, spec: AgentSpec, run_id: str) -> AsyncGenerator[RunHandle]:
        """Yield the runs of a case as they are begun, or found; each has to have ended before the next one is."""
        task = Task(
            input=case.input,
            limits=case.limits,
            user=case.user,
            variables=case.variables,
            labels={"eval": self._evaluation, "suite": self._suite.suite},
        )
        if not case.session:
            yield await self._client.start(spec, task, id=run_id, task_queue=self._queue)
            return
        session = self._client.session(run_id, spec, task_queue=self._queue, user=case.user)
        async with session:
            for turn, said in enumerate([*case.session, case.input], 1):
                handle = session.handle(turn)
                try:
                    await handle.memo()
                except RunNotFound:
                    await session.send(task.model_copy(update={"input": said}))
                yield handle

    async def _checked(self, trial: Trial, result: RunResult, problems: Sequence[Verdict]) -> Attempt:
        evidence = Evidence(trial.case, result, self._world)
        found, judged_for = list(problems), Decimal(0)
        judge_usd: Decimal | None = judged_for
        for expect in self._suite.of(trial.case):
            found += checks.verdicts(expect, evidence)
            found += [await _asked(function, evidence) for function in expect.functions]
            for rubric in expect.judged if self._judge else []:
                assert self._judge is not None  # noqa: S101 - a suite with rubrics has a judge
                verdict, cost = await self._judge.judge(rubric, evidence)
                found.append(verdict)
                judge_usd = None if cost is None or judge_usd is None else judge_usd + cost
        return Attempt(
            case=trial.case.name,
            model=trial.model,
            repeat=trial.repeat,
            run_id=result.run_id,
            status=result.status,
            verdicts=found,
            text=result.text,
            steps=result.steps,
            seconds=result.duration.total_seconds(),
            cost_usd=result.cost_usd,
            judge_usd=judge_usd,
        )


async def _ended(handle: RunHandle) -> RunResult:
    try:
        return await handle.result()
    except RunEnded as error:
        return error.result


async def _asked(function: Callable[[Evidence], Any], evidence: Evidence) -> Verdict:
    """Return what a user's function finds. One that raises has found that something is wrong."""
    name = getattr(function, "__name__", "function")
    try:
        found = function(evidence)
        found = await found if inspect.isawaitable(found) else found
    except AssertionError as error:
        return Verdict(check=name, passed=False, reason=str(error) or "its assertion failed")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is about this attempt alone
        return Verdict(check=name, passed=False, reason=f"{type(error).__name__}: {error}")
    if isinstance(found, str) and found:
        return Verdict(check=name, passed=False, reason=found)
    return Verdict(check=name, passed=found is not False, reason="" if found is not False else "it returned False")


# -- what follows from what ----------------------------------------------------------------------------------


def spec_with(spec: AgentSpec, model: str) -> AgentSpec:
    """Return an agent with that model alone: no other one answers in its place."""
    if model == spec.model:
        return spec
    return changed(spec, model, None).model_copy(update={"fallbacks": []})


def people_of(suite: Suite, case: Case) -> dict[str, list[Decision]]:
    """Return what is said of approvals in a case, by tool."""
    return {**suite.approvals, **case.approvals}


def run_id_of(suite: Suite, spec: AgentSpec, trial: Trial, evaluation: str) -> str:
    """Return the id of a run; something else in suite, agent, case, model, repetition or evaluation is another one."""
    case = trial.case
    said = case.model_dump(mode="json", exclude={"expect", "timeout", "approvals"})
    approvals = {tool: [one.given() for one in each] for tool, each in people_of(suite, case).items()}
    digest = content_hash([suite.suite, content_hash(spec), said, approvals, trial.model])
    slug = re.sub(r"[^A-Za-z0-9]+", "-", case.name).strip("-").lower()[:30] or "case"
    return f"eval.{evaluation}.{slug}.{digest[:10]}.{trial.repeat}"
