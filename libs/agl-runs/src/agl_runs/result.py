"""What a run came to, read from its store and its folder."""

import json
import logging
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from agl.algorithm.run_result import FailureCause, RunResult
from agl.errors import AglError, PluginError
from agl.plugins.hooks import HookCaller
from agl.store.base import LightningStore
from agl.store.queries import each_record
from agl.types import AttemptedRollout, Failure, Rollout, public_failure
from agl_runs.folders import known_run
from agl_runs.records import Run
from agl_runs.user_code import place_of

logger = logging.getLogger("agl.runs")

SUMMARY: Final = "summary.json"
"""In a run's folder: what a training says of itself at its end."""


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
        statuses[rollout.status] += 1
        for error in await _errors_of(rollout, store) if rollout.status != "cancelled" else ():
            key = error.boundary, error.type, place_of(error.traceback)
            said = public_failure(error).message
            known = causes.get(key, FailureCause(*key, 0, said, rollout.rollout_id))
            causes[key] = replace(known, number=known.number + 1)
        reward = None if result.steps else rollout.reward
        if reward is not None:
            rewards[rollout.rollout_id] = reward
    return replace(
        result,
        rollouts=dict(statuses.most_common()),
        rewards=rewards,
        failures=sorted(causes.values(), key=lambda cause: -cause.number),
    )


async def _errors_of(rollout: Rollout, store: LightningStore) -> list[Failure]:
    if not isinstance(rollout, AttemptedRollout):
        return []
    is_first = rollout.attempt.sequence_id == 1
    attempts = [rollout.attempt] if is_first else await store.query_attempts(rollout.rollout_id)
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


async def sum_up(
    store: LightningStore, run_id: str, folder: Path, record: Run | None, hooks: HookCaller
) -> RunResult:
    """What a run came to, which has ended, with what plugins say of it.

    It does not fail by what is wrong with the store, with the folder, or with a plugin.
    """
    try:
        result = await result_of(store, run_id, folder, record)
    except AglError as error:
        logger.warning("the store cannot be read, to sum up run %s: %s", run_id, error)
        result = known_of(run_id, folder, record)
    lines = [str(result)]
    try:
        await hooks.call("run_summary", store=store, result=result, lines=lines)
    except PluginError as error:  # what was trained must not be lost for what is said of it
        logger.warning("%s", error)
    return replace(result, summary="\n".join(lines))


def failure_text(error: Failure | None) -> str:
    """Boundary, type and message of a failure, and its place in the agent's code; "" for none."""
    if error is None:
        return ""
    place = place_of(error.traceback)
    text = f"{error.boundary}: {error.type}: {error.message}"
    return f"{text} ({place})" if place else text
