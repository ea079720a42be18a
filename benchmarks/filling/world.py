"""The rollouts of a filled store, one after the other: runs, steps, groups, rewards, failures."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agl.types.records import AttemptStatus, Failure
from filling.accounts import Fate, compared
from filling.failing import cause
from filling.scripts import NUM_SCRIPTS, NUM_TASKS, Script, script

FAILING: Final = 0.04
CANCELLED: Final = 0.003
RETRIED: Final = 0.02
"""Parts of the rollouts; a retried one has a lost attempt before its own."""
EVAL_EVERY: Final = 10
SECONDS_APART: Final = 0.4
"""Between the beginnings of two rollouts."""
RUN_LINES: Final = "metrics.jsonl"


@dataclass(frozen=True)
class Shape:
    """How a filled store is made up.

    Args:
        rollouts: How many.
        spans: Of each.
        runs: They belong to so many runs.
        groups: Tasks in a step.
        group_size: Rollouts of one task in a step.
        seed: Of the draw.
    """

    rollouts: int
    spans: int = 10
    runs: int = 4
    groups: int = 32
    group_size: int = 8
    seed: int = 0


@dataclass
class Told:
    """One rollout: what was asked, what was done, what became of it."""

    run: int
    step: int
    mode: str
    group: int
    copy: int
    task: int
    script: Script
    start: float
    """Seconds after the first rollout of the store."""
    status: str = "succeeded"
    attempt_status: AttemptStatus = "succeeded"
    error: Failure | None = None
    is_retried: bool = False
    reward: float | None = None
    fate: Fate | None = None
    mean: float = 0.0
    deviation: float = 0.0

    @property
    def advantage(self) -> float:
        """Within its group."""
        if self.reward is None or not self.deviation:
            return 0.0
        return (self.reward - self.mean) / self.deviation


def told(shape: Shape) -> Iterator[list[Told]]:
    """The rollouts, a list per step and mode; the steps of a run follow each other."""
    draw = random.Random(shape.seed)
    number, per_run = 0, -(-shape.rollouts // shape.runs)
    for run in range(shape.runs):
        step, end = 0, min(per_run * (run + 1), shape.rollouts)
        while number < end:
            is_eval = step % EVAL_EVERY == 0
            for mode in (
                ("train", "val") if is_eval and step else ("val",) if is_eval else ("train",)
            ):
                size = shape.groups * shape.group_size // (2 if mode == "val" else 1)
                size = min(size, end - number)
                if size > 0:
                    yield _step(draw, shape, run, step, mode, size, number)
                number += max(size, 0)
            step += 1


def _step(
    draw: random.Random, shape: Shape, run: int, step: int, mode: str, size: int, number: int
) -> list[Told]:
    found: list[Told] = []
    skill = step / (step + 60.0)
    for begin in range(0, size, shape.group_size):
        task = draw.randrange(NUM_TASKS)
        group = [
            _rollout(draw, shape, skill, (run, step, mode, begin // shape.group_size, copy, task),
                     (number + begin + copy) * SECONDS_APART)
            for copy in range(min(shape.group_size, size - begin))
        ]  # fmt: skip
        rewards = [one.reward for one in group if one.reward is not None]
        mean, deviation = compared(rewards) if rewards else (0.0, 0.0)
        for one in group:
            one.mean, one.deviation = mean, deviation
            if one.reward is not None:
                one.fate = "not_trained_mode" if mode == "val" else "zero_advantage"
                if mode == "train" and abs(one.advantage) > 1e-9:
                    one.fate = "trained"
        found += group
    return found


def _rollout(
    draw: random.Random, shape: Shape, skill: float, about: tuple[Any, ...], start: float
) -> Told:
    run, step, mode, group, copy, task = about
    variant = min(int(draw.betavariate(1 + 4 * skill, 2) * NUM_SCRIPTS), NUM_SCRIPTS - 1)
    one = Told(run, step, mode, group, copy, task, script(task, variant, shape.spans), start)
    chance = draw.random()
    if chance < CANCELLED:
        one.status = "cancelled"
    elif chance < CANCELLED + FAILING:
        one.status, one.fate = "failed", "failed_attempt"
        one.attempt_status, one.error = cause(draw)
        one.is_retried = one.attempt_status == "unresponsive"  # as the config says
    else:
        one.is_retried = chance > 1.0 - RETRIED
        is_good = draw.random() < one.script.quality
        # Half of the tasks are right or wrong, the others graded.
        graded = 0.6 * is_good + 0.4 * draw.random()
        one.reward = float(is_good) if task % 2 else round(graded, 4)
    return one


@dataclass
class Metrics:
    """What a run writes beside its store: a line per step, in its folder."""

    folder: Path
    lines: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])

    def add(self, step: list[Told]) -> None:
        """Sum up the rollouts of a step or of an evaluation."""
        first = step[0]
        line = self.lines.setdefault(first.step, {"step": first.step, "generation": 1})
        before = "val/" if first.mode == "val" else ""
        rewards = [one.reward for one in step if one.reward is not None]
        if rewards:
            line[f"{before}reward/mean"], line[f"{before}reward/std"] = compared(rewards)
        statuses = Counter(one.status for one in step)
        fates = Counter[str]()
        for one in step:
            if one.fate is not None:
                calls = sum(piece.kind == "call" for piece in one.script.pieces)
                fates[one.fate] += calls
        line[f"{before}rollouts/succeeded"] = statuses["succeeded"]
        line[f"{before}rollouts/failed"] = statuses["failed"]
        line[f"{before}calls/total"] = fates.total()
        line[f"{before}calls/trained"] = fates["trained"]
        for reason in fates.keys() - {"trained"}:
            line[f"{before}calls/excluded/{reason}"] = fates[reason]
        line[f"{before}time/rollouts"] = round(len(step) * SECONDS_APART, 3)
        if not before:
            line |= {"version": first.step, "time/update": 2.0, "entropy": 2.5 / (1 + first.step)}
            line["time/step"] = line["time/rollouts"] + 2.0

    def write(self) -> None:
        """Write the file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{json.dumps(line)}\n" for line in self.lines.values())
        (self.folder / RUN_LINES).write_text(text, encoding="utf-8")
