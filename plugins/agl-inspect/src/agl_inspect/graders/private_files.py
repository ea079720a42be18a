"""Whether an agent, where it runs, can read what is private of its tasks."""

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from agl.agent.function import rollout as agent_of
from agl.algorithm.base import FastAlgorithm
from agl.errors import AglError
from agl.plugins.parts import plan_part
from agl.store.memory import InMemoryLightningStore
from agl.trainer import Trainer
from agl.types import LLM, AttemptedRollout, Dataset, private_of, without_private
from agl_inspect.doctor.findings import Finding, finding
from agl_runs.config.file import CheckedConfig

NUM_FILES, FILE_BYTES = 5000, 2**24
"""So many files are read in search of what is private, up to so many bytes of each."""
SHORTEST = 8
"""Characters of a text that is no chance find in a file."""


def fit(checked: CheckedConfig, agent: Any, algorithm: FastAlgorithm) -> None:
    """Run an algorithm with an agent, as the file has it run but for the store and the hooks."""
    plans = checked.components
    built = {key: plans[key].build() for key in ("tracer", "gateway", "strategy") if key in plans}
    gateway = built.pop("gateway", None)
    needs_one = "algorithm" in plans and getattr(plans["algorithm"].target, "needs_gateway", False)
    if gateway is None and needs_one:
        gateway = plan_part("gateway", None, where="gateway").build()
    options = {"algorithm": algorithm, "llm_proxy": gateway, "max_rollouts": None, "hooks": []}
    trainer: Trainer = checked.trainer(built, InMemoryLightningStore(), **options)
    trainer.fit(agent, None)


def readable(checked: CheckedConfig, tasks: Sequence[Any]) -> Iterator[Finding]:
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
    from agl import emit_annotation

    number = 0
    for folder, folders, names in os.walk(task["folder"]):
        folders.sort(key=lambda name: name.startswith("."))  # environments and histories come last
        for name in names:
            if not os.path.isfile(os.path.join(folder, name)):  # a pipe would never end
                continue
            number += 1
            if number > NUM_FILES:
                emit_annotation({_STOPPED: True})
                return 0.0
            try:
                with open(os.path.join(folder, name), "rb") as file:
                    text = file.read(FILE_BYTES).decode(errors="ignore")
            except OSError:
                continue
            if any(needle in text for needle in task["needles"]):
                emit_annotation(
                    {_FOUND: os.path.relpath(os.path.join(folder, name), task["folder"])}
                )
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
