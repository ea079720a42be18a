"""What a run came to: what ``Trainer.fit`` and ``Trainer.dev`` return."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agl.utils.text import printable


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

    Nothing is known where the algorithm ran elsewhere (role ``runner``), or without agl-runs.
    """

    run_id: str = ""
    algorithm: str = ""
    record: Any = None
    """The run as it ended, an ``agl_runs.records.Run``; None where its store keeps none."""
    folder: Path | None = None
    """Where the run has its files, if it wrote any."""
    rollouts: Mapping[str, int] | None = None
    """Rollout status -> how many; None where nobody has counted."""
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    """Rollout id -> final reward of each succeeded rollout; a training has ``steps`` instead."""
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
        """Mean of ``rewards``; None if there are none."""
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
        said = [f"{n} {status}" for status, n in (self.rollouts or {}).items()]
        said = said or ["rollouts not counted" if self.rollouts is None else "no rollouts"]
        if self.mean_reward is not None:
            said.append(f"mean reward {_shown(self.mean_reward)}")
        if self.held_out_after is not None:
            said.append(f"held-out {_shown(self.held_out[0][1])} -> {_shown(self.held_out_after)}")
        if self.trained is False:
            said.append("nothing trained")
        return f"<{' '.join(filter(None, ['RunResult', about]))}: {', '.join(said)}>"

    def __str__(self) -> str:
        lines = [repr(self)[1:-1], *(f"failed: {failure}" for failure in self.failures[:3])]
        best = self.best_checkpoint or self.checkpoint
        return "\n".join([*lines, *self.warnings, *([f"checkpoint: {best}"] if best else [])])


def _shown(reward: float | None) -> str:
    return "none" if reward is None else f"{reward:.4g}"
