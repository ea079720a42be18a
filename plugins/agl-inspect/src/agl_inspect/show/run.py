"""A run: what its end says of learning, and its newest rollouts, a line per step."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from agl.cli.shared import table_text
from agl.errors import ConfigError
from agl.store.base import LightningStore
from agl.types import Rollout
from agl_inspect.figures import number
from agl_inspect.runs.facts import RunFacts, run_facts
from agl_runs.finding import placed
from agl_runs.folders import shown_status
from agl_runs.records import Run
from agl_runs.store import get_run
from agl_views.tables.file_store import file_of
from agl_views.tables.rollout_table import Wanted, listed

MOST = 500
"""Rollouts that are read, the newest of the run."""


@dataclass
class StepLine:
    """Rollouts of one step and mode."""

    step: int | None
    mode: str | None
    rollouts: list[str] = field(default_factory=list[str])
    failed: int = 0
    cancelled: int = 0
    rewards: list[float] = field(default_factory=list[float])
    """Of those that succeeded: no other's counts."""
    is_whole: bool = True
    """Whether all rollouts of the step were read."""


@dataclass(frozen=True)
class ShownRun:
    """What is shown of a run."""

    run: Run
    facts: RunFacts
    """Without those that only all rollouts say."""
    steps: list[StepLine]
    is_cut: bool
    """Whether earlier rollouts were left out."""
    note: str
    """What was not looked at."""

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.run.model_dump(mode="json"),
            "curve": self.facts.curve,
            "held_out": [asdict(one) for one in self.facts.held_out],
            "steps": [asdict(step) for step in self.steps],
            "earlier_left_out": self.is_cut,
        }


async def show_run(store: LightningStore, run_id: str) -> ShownRun:
    """Read the newest rollouts of a run; a ``ConfigError`` if there is no such run."""
    run = await get_run(store, run_id)
    if run is None:
        raise ConfigError(f"the store has no run {run_id!r}. See: agl runs")
    if (file := file_of(store)) is not None:
        run = placed(run, file)
    newest = await listed(store, Wanted(run=run_id, most=MOST))
    rollouts = newest.rollouts[::-1]
    lines: dict[tuple[int | None, str | None], StepLine] = {}
    for rollout in rollouts:
        step = (rollout.metadata or {}).get("step")
        line = lines.setdefault((step, rollout.mode), StepLine(step, rollout.mode))
        line.rollouts.append(rollout.rollout_id)
        line.failed += rollout.status == "failed"
        line.cancelled += rollout.status == "cancelled"
        line.rewards += [] if rollout.reward is None else [rollout.reward]
    is_cut = newest.total is None or newest.total > len(rollouts)
    if is_cut:
        for step in {line.step for line in lines.values()}:
            same = [line for line in lines.values() if line.step == step]
            read = sum(len(line.rollouts) for line in same)
            is_whole = await _number_of(store, rollouts, run_id, step) == read
            for line in same:
                line.is_whole = is_whole
    facts = await run_facts(store, run=run, is_quick=True)
    return ShownRun(run, facts, list(lines.values()), is_cut, newest.note)


async def _number_of(
    store: LightningStore, newest: Sequence[Rollout], run_id: str, step: int | None
) -> int | None:
    """How many rollouts a step has; None where nobody can say, and it may have more than were read.

    Where not all are looked at, the step of the first one that was read may go on before.
    """
    if step is not None:
        found = await listed(store, Wanted(run=run_id, step=step, most=1))
        if not found.note:
            return found.total
    steps = [(rollout.metadata or {}).get("step") for rollout in newest]
    return None if step in (None, steps[0]) else steps.count(step)


def run_lines(shown: ShownRun, learned: str) -> Iterator[str]:
    """For people; ``learned`` is what the end of the run said of that."""
    run = shown.run
    yield f"run      {run.run_id}: {run.algorithm}, {shown_status(run)}"
    if run.folder:
        yield f"folder   {run.folder}"
    if run.problem:
        yield f"problem  {run.problem}"
    if learned:
        yield from ("", learned.strip("\n"))
    whole = [line for line in shown.steps if line.is_whole]
    if shown.is_cut:
        what = "whole steps among the" if whole else "the"
        yield ""
        yield f"rollouts {what} newest {MOST}; those of one step:"
        yield f"         agl rollouts {run.run_id} --step N"
    if shown.note:
        yield f"         {shown.note}"
    yield ""
    steps = whole or shown.steps
    # A column of what seldom is would take the room of the others.
    rare = ["cancelled"] if any(one.cancelled for one in steps) else []
    counts = ["failed", *rare]
    columns = ["step", "mode", "rollouts", *counts, "reward", "lowest", "highest", "first rollout"]
    rows = [
        [
            *(line.step, line.mode, len(line.rollouts)),
            *(getattr(line, name) or "" for name in counts),
            *(number(of(line.rewards)) if line.rewards else "" for of in (fmean, min, max)),
            line.rollouts[0],
        ]
        for line in steps
    ]
    yield table_text(columns, rows)
    yield "options, code and starts: agl runs show " + run.run_id
