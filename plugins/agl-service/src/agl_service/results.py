"""What jobs of a training server came to."""

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TrainingResult:
    """What a training came to."""

    final_reward: float
    """Mean reward of the last update that has one."""
    train_rewards: list[float]
    """Mean reward of each update; NaN where no rollout had one."""
    test_rewards: list[float]
    """Mean reward of each evaluation, the first before training."""
    checkpoints: list[str]
    """For ``download_model``; folders if there was a ``checkpoint_dir``."""
    total_steps: int
    total_time: float
    """Seconds of updates, over all starts of the job."""
    job: str
    """Its id."""
    run: str
    """The id of its run, in the store of the job."""


@dataclass(frozen=True)
class EvalResult:
    """What an evaluation came to."""

    mean_reward: float
    rewards: list[float]
    """Of rollouts that succeeded, in the order of the tasks."""
    failures: dict[str, int]
    """Cause -> how many rollouts failed by it."""
    checkpoint: str
    """What was evaluated."""
    job: str


def training_of(job: dict[str, Any]) -> TrainingResult:
    """The result of a job that has finished."""
    train, test = (
        [math.nan if one is None else one for one in job[f"{which}_rewards"]]
        for which in ("train", "test")
    )
    return TrainingResult(
        final_reward=next((one for one in reversed(train) if not math.isnan(one)), math.nan),
        train_rewards=train,
        test_rewards=test,
        checkpoints=[f"{job['id']}/{name}" for name in job["checkpoints"]],
        total_steps=job["step"],
        total_time=job["seconds"],
        job=job["id"],
        run=job["run"],
    )


def evaluation_of(job: dict[str, Any]) -> EvalResult:
    """The same of an evaluation."""
    found = job["evaluation"]
    rewards = [reward for task in found["tasks"] for reward in task["rewards"]]
    return EvalResult(
        math.nan if (mean := found["metrics"].get("reward/mean")) is None else mean,
        rewards,
        found["failures"],
        job["checkpoint"],
        job["id"],
    )
