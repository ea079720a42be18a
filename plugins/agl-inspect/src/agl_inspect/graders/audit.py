"""``agl doctor --graders``: answers that must not be paid, for tasks of a configuration."""

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agl.agent.function import FunctionalLitAgent
from agl.algorithm.base import FastAlgorithm
from agl.errors import ConfigError
from agl.types import LLM, AttemptedRollout, Dataset, Failure, PromptTemplate, RolloutConfig
from agl_inspect.doctor.findings import Finding, finding
from agl_inspect.doctor.trial import takes_model
from agl_inspect.figures import mean
from agl_inspect.graders.answers import WRONG, AnswerServer, solution_of
from agl_inspect.graders.private_files import fit, readable
from agl_records.final_rewards import final_reward
from agl_runs.config.file import CheckedConfig, ConfigFile, check_config

PAID_SHARE = 0.1
"""A wrong answer is paid where it earns more than this part of what the solution earns."""
TIMEOUT_SECONDS = 120.0
"""Of a rollout, unless the file says another: agents may ask a silent model for ever."""


@dataclass
class Paid:
    """What one kind of answer earned."""

    answer: str
    what: str
    rewards: list[float] = field(default_factory=list[float])
    """Of the tasks whose rollouts succeeded and have one."""
    failures: list[Failure] = field(default_factory=list[Failure])
    num_without: int = 0
    """Tasks whose rollouts succeeded and have no reward."""

    @property
    def mean(self) -> float | None:
        return mean(self.rewards)


@dataclass
class Audit:
    """What all of them earned, and what that says."""

    num_tasks: int
    paid: list[Paid]
    findings: list[Finding]

    @property
    def is_sound(self) -> bool:
        return not any(finding.level == "error" for finding in self.findings)


def audit(file: ConfigFile, num_tasks: int, key: str | None = None) -> Audit:
    """Run the agent with models that know nothing on tasks, evenly spread, and look at its rewards.

    Agent, grader, runner, isolation and gateway are those of the file; the algorithm is not run,
    and the store is in memory. ``key`` is where a task has its solution, see ``solution_of``. No
    tasks, and an agent that takes no model, are a ``ConfigError``.
    """
    with tempfile.TemporaryDirectory(prefix="agl-doctor-") as folder:
        checked = check_config(file, run_dir=Path(folder), dry=file.config.algorithm is None)
        agent = checked.agent
        if isinstance(agent, FunctionalLitAgent) and not takes_model(agent):
            raise ConfigError(
                f"agl doctor --graders answers in the place of the agent's model, and agent "
                f"{agent.injector.name!r} takes none. Give it a parameter llm: agl.LLM"
            )
        tasks = [*(checked.train or checked.val or ())]
        if not tasks:
            raise ConfigError(f"{checked.file.where('train')}: --graders needs tasks")
        number = min(num_tasks, len(tasks))
        tasks = [tasks[place * len(tasks) // number] for place in range(number)]
        algorithm = _Answered(checked, tasks, key)
        fit(checked, agent, algorithm)
        findings = [*_findings(algorithm.paid), *readable(checked, tasks)]
        return Audit(len(tasks), algorithm.paid, findings)


class _Answered(FastAlgorithm):
    """Has every task answered in every way, eight at once, and keeps the rewards."""

    publishes = (LLM,)

    def __init__(self, checked: CheckedConfig, tasks: Sequence[Any], key: str | None) -> None:
        plan = checked.components.get("algorithm")
        seconds = ((plan.options.get("rollouts") if plan else None) or {}).get("timeout_seconds")
        self._config = RolloutConfig(timeout_seconds=seconds or TIMEOUT_SECONDS)
        self._names = _names_of_models(checked)
        self._tasks = tasks
        self._solutions = [solution_of(task, key) for task in tasks]
        self.paid = [Paid(kind, what) for kind, what in WRONG.items()]
        if any(one is not None for one in self._solutions):
            self.paid.insert(0, Paid("solution", "gives the known solution"))

    async def run(
        self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None
    ) -> None:
        server = AnswerServer(self._solutions)
        answers = [
            (paid.answer, number)
            for paid in self.paid
            for number in range(len(self._tasks))
            if paid.answer != "solution" or self._solutions[number] is not None
        ]
        by_kind = {paid.answer: paid for paid in self.paid}
        async with server.served(self, "agl-probe", answers) as models:
            together = asyncio.Semaphore(8)
            await asyncio.gather(
                *(
                    self._one(by_kind[kind], self._tasks[number], model, together)
                    for (kind, number), model in zip(answers, models, strict=True)
                )
            )

    async def _one(self, paid: Paid, task: Any, model: LLM, together: asyncio.Semaphore) -> None:
        store = self.get_store()
        async with together:
            of_models = dict.fromkeys(self._names, model)  # first, as agents take the first
            resources = {**of_models, **(self.get_initial_resources() or {}), **of_models}
            resources_id = (await self.publish_resources(resources)).resources_id
            queued = await store.enqueue_rollout(
                task, mode="test", resources_id=resources_id, config=self._config
            )
            (ended,) = await store.wait_for_rollouts(rollout_ids=[queued.rollout_id])
        reward = (await final_reward(store, ended)).reward
        if reward is not None:
            paid.rewards.append(reward)
        elif isinstance(ended, AttemptedRollout) and ended.attempt.error is not None:
            paid.failures.append(ended.attempt.error)
        else:
            paid.num_without += 1


def _names_of_models(checked: CheckedConfig) -> list[str]:
    """The agent's models among its resources: what the algorithm trains, or else all there are."""
    plan, given = checked.components.get("algorithm"), checked.resources or {}
    publishes = getattr(plan.target, "publishes", None) or () if plan else ()
    if plan is None or LLM not in publishes or PromptTemplate in publishes:
        return [name for name in given if isinstance(given[name], LLM)] or ["main_llm", "llm"]
    if isinstance(models := plan.options.get("models"), dict):
        return [*models]
    return [str(plan.options.get("resource_name", "main_llm"))]


def _findings(paid: Sequence[Paid]) -> Iterator[Finding]:
    right = next((one for one in paid if one.answer == "solution"), None)
    wrong = [one for one in paid if one.answer != "solution"]
    for one in paid:
        if one.failures:
            first, total = one.failures[0], len(one.failures) + len(one.rewards) + one.num_without
            message = (
                f"{len(one.failures)} of {total} rollouts failed where the model {one.what}; the "
                f"first ({first.boundary}): {first.type}: {first.message}"
            )
            yield finding("warning", f"{one.answer}_fails", message, "answer_fails")
    if all(one.mean is None for one in paid):
        message = "no answer got a reward, so nothing is known of this grader"
        yield finding("error", "no_rewards", message)
        return
    for one in paid:
        if one.num_without:
            message = f"{one.num_without} rollouts got no reward where the model {one.what}"
            yield finding("warning", f"{one.answer}_unrewarded", message, "answer_unrewarded")
    means = [one.mean for one in wrong if one.mean is not None]
    if not means:
        return
    most = None if right is None else right.mean
    # Without a solution nobody knows what a right answer earns: what is above 0 is pay.
    floor = min(*means, 0.0)
    bar = floor if most is None else floor + PAID_SHARE * max(most - floor, 0.0)
    if right is not None and (most is None or most <= floor or most < max(means)):
        what = "gets no reward" if most is None else f"earns {most:.4g} on average"
        message = f"the known solution {what}, a wrong answer {max(means):.4g}"
        yield finding("error", "solution_not_paid", message)
    of = "" if most is None else f", the known solution {most:.4g}"
    for one in wrong:
        if (earned := one.mean) is not None and earned > bar:
            # Guessing earns its share of a choice of few; that of nothing, or of all, is a hole.
            is_as_good = most is not None and earned >= most / 2
            is_hole = is_as_good or one.answer not in ("random", "question")
            message = f"a model that {one.what} earns {earned:.4g} on average{of}"
            level = "error" if is_hole else "warning"
            yield finding(level, f"{one.answer}_paid", message, "answer_paid")
    if right is None:
        message = "no task has a known solution, so nobody knows what a right answer earns"
        yield finding("note", "no_solutions", message)
