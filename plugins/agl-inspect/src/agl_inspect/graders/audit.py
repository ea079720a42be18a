"""``agl doctor --graders``: answers that must not be paid, and what no agent may read of tasks."""

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agl.agent.function import FunctionalLitAgent, rollout as agent_of
from agl.algorithm.base import FastAlgorithm
from agl.emitter import emit_annotation
from agl.errors import AglError, ConfigError
from agl.plugins.parts import plan_part
from agl.store.memory import InMemoryLightningStore
from agl.trainer import Trainer
from agl.types import (
    LLM,
    AttemptedRollout,
    Dataset,
    Failure,
    PromptTemplate,
    RolloutConfig,
    private_of,
    without_private,
)
from agl_inspect.doctor.findings import Finding, finding
from agl_inspect.doctor.trial import takes_model
from agl_inspect.figures import mean
from agl_inspect.graders.answers import WRONG, AnswerServer, solution_of
from agl_runs.config.file import CheckedConfig, ConfigFile, check_config

PAID_SHARE = 0.1
"""A wrong answer is paid where it earns more than this part of what the solution earns."""
TIMEOUT_SECONDS = 120.0
"""Of a rollout, unless the file says another: agents may ask a silent model for ever."""
NUM_FILES, FILE_BYTES = 5000, 2**24
"""So many files are read in search of what is private, up to so many bytes of each."""
SHORTEST = 8
"""Characters of a text that is no chance find in a file."""


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
        findings = [*_findings(algorithm.paid), *_readable(checked, tasks)]
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
        if ended.reward is not None:
            paid.rewards.append(ended.reward)
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


# --- what is private


def fit(checked: CheckedConfig, agent: Any, algorithm: FastAlgorithm) -> None:
    """Run an algorithm with an agent, as the file has it run but for the store and the hooks."""
    built = checked.build("tracer", "gateway", "strategy")
    plan = checked.components.get("algorithm")
    if built["llm_proxy"] is None and plan and getattr(plan.target, "needs_gateway", False):
        built["llm_proxy"] = plan_part("gateway", None, where="gateway").build()
    options: dict[str, Any] = {"algorithm": algorithm, "max_rollouts": None, "hooks": []}
    trainer: Trainer = checked.trainer(built, InMemoryLightningStore(), **options)
    trainer.fit(agent, None)


def _readable(checked: CheckedConfig, tasks: Sequence[Any]) -> Iterator[Finding]:
    """Whether an agent finds what is private in files that it can read."""
    needles = [texts for task in tasks if (texts := _needles(task))]
    if not needles:
        return
    algorithm = _Reading(needles)
    try:
        fit(checked, agent_of(_read_files), algorithm)
    except AglError as error:
        algorithm.found, algorithm.unknown = [], str(error)
    if algorithm.found:
        message = (
            f"an agent can read what is private of {len(algorithm.found)} of {len(needles)} tasks, "
            f"in {', '.join(sorted({*algorithm.found}))}"
        )
        yield finding("warning", "private_readable", message)
    elif algorithm.unknown:
        message = f"whether an agent can read what is private is not known: {algorithm.unknown}"
        yield finding("warning", "not_read", message)


class _Reading(FastAlgorithm):
    publishes = (LLM,)

    def __init__(self, needles: Sequence[list[str]]) -> None:
        self._needles = needles
        self.found: list[str] = []
        """Of each task that was found: in which file."""
        self.unknown = ""
        """Why of a task it is not known."""

    async def run(
        self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None
    ) -> None:
        store = self.get_store()
        for needles in self._needles:
            task = {"needles": needles, "folder": os.getcwd()}
            queued = await store.enqueue_rollout(task, mode="test")
            (ended,) = await store.wait_for_rollouts(rollout_ids=[queued.rollout_id])
            if isinstance(ended, AttemptedRollout) and ended.attempt.error is not None:
                self.unknown = f"{ended.attempt.error.type}: {ended.attempt.error.message}"
            for span in await store.query_spans(queued.rollout_id):
                if (name := span.attributes.get(_FOUND)) is not None:
                    self.found.append(str(name))
                elif _STOPPED in span.attributes:
                    self.unknown = (
                        f"it is in none of the first {NUM_FILES} files, and there are more"
                    )


_FOUND, _STOPPED = "agl.private_found_in", "agl.private_stopped"


def _read_files(task: dict[str, Any]) -> float:
    """The agent that looks for these texts in files, and says where they stand."""
    number = 0
    for folder, folders, names in os.walk(task["folder"]):
        folders.sort(key=lambda name: name.startswith("."))  # environments and histories come last
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.isfile(path):  # a pipe would never end
                continue
            number += 1
            if number > NUM_FILES:
                emit_annotation({_STOPPED: True})
                return 0.0
            try:
                with open(path, "rb") as file:
                    text = file.read(FILE_BYTES).decode(errors="ignore")
            except OSError:
                continue
            if any(needle in text for needle in task["needles"]):
                emit_annotation({_FOUND: os.path.relpath(path, task["folder"])})
                return 1.0
    return 0.0


def _needles(task: Any) -> list[str]:
    """The longest text of what is private, as it is and as JSON has it."""
    longest = max(_texts(private_of(task)), key=len, default="")
    if len(longest) < SHORTEST or longest in json.dumps(without_private(task), default=str):
        return []
    return [longest, json.dumps(longest)[1:-1]]


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for one in value.values() for text in _texts(one)]
    if isinstance(value, list):
        return [text for one in value for text in _texts(one)]
    return [value] if isinstance(value, str) else []
