"""What a run came to: what ``Trainer.fit`` and ``Trainer.dev`` return, and what is said of it."""

import json
import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from agl.emitter import find_final_reward
from agl.errors import AglError, MissingPluginError
from agl.plugins.registry import load_from_library
from agl.runs.folders import known_run
from agl.store.base import LightningStore
from agl.store.queries import each_record
from agl.types import AttemptedRollout, Failure, Rollout, Run, public_failure
from agl.utils.text import printable
from agl.utils.tracebacks import place_of

logger = logging.getLogger(__name__)

SUMMARY: Final = "summary.json"
"""In a run's folder: what a training says of itself at its end."""
NOTE: Final = "agl.note"
"""In the metadata of a rollout that is none: an algorithm keeps a note of its own so."""


@dataclass(frozen=True)
class FailureCause:
    """Why attempts failed, and how many of them."""

    boundary: str
    type: str
    place: str = ""
    """``file:line`` of the agent's own code, where a traceback has one."""
    number: int = 1
    message: str = ""
    """Of the first of them: messages differ by ids and values."""
    rollout_id: str = ""
    """Of the first of them, for ``agl show``."""

    def __str__(self) -> str:
        at = f" at {self.place}" if self.place else ""
        text = f"{self.number} x {self.boundary}: {self.type}{at}, as in: {self.message}"
        return printable(" ".join(text.split()))


@dataclass(frozen=True, kw_only=True, repr=False)
class RunResult:
    """What a run came to, all its starts together.

    Where the algorithm ran in another process of its own (role ``runner``), nothing is known here.
    """

    run_id: str = ""
    algorithm: str = ""
    record: Run | None = None
    """The run as it ended; None where its store keeps none."""
    folder: Path | None = None
    """Where the run has its files; None where it wrote none."""
    rollouts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Rollout status -> how many."""
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    """Rollout id -> final reward of each succeeded rollout that has one. A training, which may
    have very many, has ``steps`` instead."""
    steps: list[float | None] = field(default_factory=list[float | None])
    """Mean reward per training step."""
    held_out: list[tuple[int, float | None]] = field(default_factory=list[tuple[int, float | None]])
    """(step, mean reward) per evaluation on the validation tasks; step 0 is before training."""
    failures: list[FailureCause] = field(default_factory=list[FailureCause])
    """Most frequent first."""
    trained: bool | None = None
    """Whether any model call was trained; None where the algorithm is none that trains on them."""
    excluded: Mapping[str, int] = field(default_factory=dict[str, int])
    """Reason -> model calls that trained nothing."""
    checkpoint: str | None = None
    """The newest, or the newest version of the model by name."""
    best_checkpoint: str | None = None
    """That of the highest held-out reward."""
    warnings: list[str] = field(default_factory=list[str])
    """Why nothing, or not much, could be learned."""
    summary: str = ""
    """What is said of it at its end."""

    @property
    def status(self) -> str:
        """``finished``, ``stopped``, ``failed``; "" where the store keeps no runs."""
        return self.record.status if self.record is not None else ""

    @property
    def mean_reward(self) -> float | None:
        """Over ``rewards``."""
        return sum(self.rewards.values()) / len(self.rewards) if self.rewards else None

    @property
    def held_out_before(self) -> float | None:
        """Mean reward on the validation tasks before training; None without that evaluation."""
        return next((reward for step, reward in self.held_out if step == 0), None)

    @property
    def held_out_after(self) -> float | None:
        """That of the last evaluation, which is not the first; None where there is none."""
        return self.held_out[-1][1] if len(self.held_out) > 1 else None

    def __repr__(self) -> str:
        about = " ".join(filter(None, [self.run_id, self.algorithm, self.status]))
        said = [f"{n} {status}" for status, n in self.rollouts.items()] or ["no rollouts"]
        if self.mean_reward is not None:
            said.append(f"mean reward {_shown(self.mean_reward)}")
        if self.held_out_after is not None:
            said.append(f"held-out {_shown(self.held_out[0][1])} -> {_shown(self.held_out_after)}")
        if self.trained is False:
            said.append("nothing trained")
        return f"<RunResult {about or 'of a run elsewhere'}: {', '.join(said)}>"

    def __str__(self) -> str:
        lines = [repr(self)[1:-1], *(f"failed: {failure}" for failure in self.failures[:3])]
        best = self.best_checkpoint or self.checkpoint
        return "\n".join([*lines, *self.warnings, *([f"checkpoint: {best}"] if best else [])])


def _shown(reward: float | None) -> str:
    return "none" if reward is None else f"{reward:.4g}"


async def result_of(
    store: LightningStore, run_id: str, folder: Path | None, record: Run | None = None
) -> RunResult:
    """What a store and a folder have of a run.

    Args:
        store: Of the run; rollouts of other runs in it, and of none, do not count.
        run_id: Of the run; "" counts all rollouts.
        folder: Of the run; one that is not there has nothing.
        record: Of the run.
    """
    result = known_of(run_id, folder, record)
    statuses: Counter[str] = Counter()
    rewards: dict[str, float] = {}
    causes: dict[tuple[str, str, str], FailureCause] = {}
    async for rollout in each_record(store.query_rollouts, run=run_id or None):
        about = rollout.metadata or {}
        if NOTE in about or run_id not in ("", about.get("run")):  # a store of 0.3 has no filter
            continue
        statuses[rollout.status] += 1
        for error in await _errors_of(rollout, store) if rollout.status != "cancelled" else ():
            key = error.boundary, error.type, place_of(error.traceback)
            said = public_failure(error).message
            known = causes.get(key, FailureCause(*key, 0, said, rollout.rollout_id))
            causes[key] = replace(known, number=known.number + 1)
        reward = None if result.steps else (await with_reward(store, rollout)).reward
        if reward is not None:
            rewards[rollout.rollout_id] = reward
    return replace(
        result,
        rollouts=dict(statuses.most_common()),
        rewards=rewards,
        failures=sorted(causes.values(), key=lambda cause: -cause.number),
    )


async def with_reward(store: LightningStore, rollout: Rollout) -> Rollout:
    """The rollout with its reward, which a store of 0.3 has among its spans alone."""
    attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    if attempt is None or "reward" in attempt.model_fields_set:
        return rollout
    given = find_final_reward(await store.query_spans(rollout.rollout_id, attempt.attempt_id))
    counts = given if rollout.status == "succeeded" else None
    return rollout.changed(attempt=attempt.changed(reward=given), reward=counts)


async def _errors_of(rollout: Rollout, store: LightningStore) -> list[Failure]:
    attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    if attempt is None:
        return []
    is_tried_again = attempt.sequence_id > 1
    attempts = await store.query_attempts(rollout.rollout_id) if is_tried_again else [attempt]
    return [one.error for one in attempts if one.error is not None]


def summary_in(folder: Path | None) -> dict[str, Any]:
    """What a training has written into its folder of itself at its end.

    Nothing where its last start has not come to its end, whatever an earlier one has said.
    """
    if folder is None:
        return {}
    try:
        said: dict[str, Any] = json.loads((folder / SUMMARY).read_text("utf-8"))
        known = known_run(folder)
        return said if known is None or said.get("generation") == known[1] else {}
    except (OSError, ValueError, AttributeError):
        return {}


def known_of(run_id: str, folder: Path | None, record: Run | None) -> RunResult:
    """What of a run is known without its rollouts; for the arguments see ``result_of``."""
    folder = folder if folder is not None and folder.is_dir() else None
    algorithm = "" if record is None else record.algorithm
    result = RunResult(run_id=run_id, algorithm=algorithm, record=record, folder=folder)
    said = summary_in(folder)
    with suppress(TypeError, ValueError, AttributeError):  # others may write there, too
        trained: int | None = said.get("calls_trained")
        held_out: list[tuple[int, float | None]] = said.get("val_rewards") or []
        return replace(
            result,
            steps=list(said.get("rewards") or []),
            held_out=[(step, reward) for step, reward in held_out],
            trained=None if trained is None else trained > 0 and said.get("weights_changed", True),
            excluded=dict(said.get("calls_excluded") or {}),
            checkpoint=said.get("checkpoint") or said.get("model"),
            best_checkpoint=said.get("best_checkpoint"),
            warnings=list(said.get("warnings") or []),
        )
    return result


async def sum_up(store: LightningStore, run_id: str, folder: Path, record: Run | None) -> RunResult:
    """What a run came to, which has ended, with agl-inspect's summary and report.

    It does not fail by what is wrong with the store, or with the folder.

    Args:
        store: Of the run.
        run_id: Of the run.
        folder: Of the run; it may not be there.
        record: Of the run.
    """
    try:
        result = await result_of(store, run_id, folder, record)
    except AglError as error:
        logger.warning("the store cannot be read, to sum up run %s: %s", run_id, error)
        result = known_of(run_id, folder, record)
    report = await _made("end_of_run", "agl_inspect.report.ending", store, result)
    ledger = await _made("ledger_summary", "agl_learning.ledger_tables", store)
    return replace(result, summary="\n".join(filter(None, [report or str(result), ledger])))


async def _made(name: str, module: str, *given: Any) -> str | None:
    try:
        return await load_from_library(name, module)(*given)
    except MissingPluginError:
        return None
    except Exception as error:  # what was trained must not be lost for what is said of it
        logger.warning("%s of the run failed: %r", name, error, exc_info=error)
        return None
