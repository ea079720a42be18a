"""All rollouts of one task: their rewards, how far these spread, where the conversations part."""

import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from agl.cli.shared import table_text
from agl.emitter import find_final_reward
from agl.store.base import LightningStore
from agl.types import AttemptedRollout
from agl.utils.text import printable
from agl_inspect.figures import mean, rounded
from agl_inspect.show.id_lookup import reading_of, task_id
from agl_inspect.show.rollout import cut, indented
from agl_records.calls.reader import recorded_parts
from agl_records.final_rewards import FinalReward
from agl_records.ledger.ledger import load_parts
from agl_runs.result import failure_text
from agl_views.explanations.rollout_view import text_of
from agl_views.explanations.turns import Turn, num_common, turns

MOST = 50
"""Rollouts whose conversations are read, the newest; the others are counted."""
LONGEST = 200
"""Characters of a turn where rollouts part."""


@dataclass(frozen=True)
class Line:
    """One rollout."""

    rollout_id: str
    status: str
    mode: str | None
    step: int | None
    reward: float | None
    """What counts: of a rollout that succeeded."""
    reward_on_the_way: float | None
    """What was given to another one."""
    advantage: float | None
    """Mean over its calls that were trained, as the last account says."""
    seconds: float | None
    problem: str


@dataclass(frozen=True)
class ShownTask:
    """What is shown of a task."""

    task_id: str
    task: Any
    lines: list[Line]
    num_rollouts: int
    conversations: list[list[Turn]]
    """Of ``lines``."""
    looked_at: str = ""
    """Among what alone rollouts of it were sought; "" for all."""

    @property
    def rewards(self) -> list[float]:
        return [line.reward for line in self.lines if line.reward is not None]

    def spread(self) -> dict[str, float]:
        """Of the rewards; nothing where there are none."""
        found = self.rewards
        if not found:
            return {}
        return {
            "mean": statistics.fmean(found),
            "lowest": min(found),
            "highest": max(found),
            "deviation": statistics.stdev(found) if len(found) > 1 else 0.0,
        }

    def as_json(self) -> dict[str, Any]:
        parts = num_common(self.conversations) if len(self.conversations) > 1 else None
        return {
            "task_id": self.task_id,
            "task": self.task,
            "num_rollouts": self.num_rollouts,
            "looked_at": self.looked_at or None,
            "rollouts": [asdict(line) for line in self.lines],
            "rewards": self.spread(),
            "common_messages": parts,
        }


async def show_task(store: LightningStore, task: Any) -> ShownTask:
    """Read the rollouts of a task."""
    reading = reading_of(store)
    ids = await reading.rollouts_of(task)
    rollouts = list(await store.query_rollouts(rollout_id_in=ids[-MOST:]))
    lines: list[Line] = []
    conversations: list[list[Turn]] = []
    advantages = {
        part.rollout_id: mean(one.advantage.value for one in part.trained if one.advantage)
        for part in await load_parts(store, rollouts)
    }
    for rollout in rollouts:
        spans = list(await store.query_spans(rollout.rollout_id, "latest"))
        error = rollout.attempt.error if isinstance(rollout, AttemptedRollout) else None
        given = FinalReward.of(rollout.status, find_final_reward(spans))
        end = rollout.end_time
        line = Line(
            *(rollout.rollout_id, rollout.status, rollout.mode),
            step=(rollout.metadata or {}).get("step"),
            reward=given.reward,
            reward_on_the_way=given.on_the_way,
            advantage=advantages.get(rollout.rollout_id),
            seconds=None if end is None else end - rollout.start_time,
            problem=failure_text(error),
        )
        lines.append(line)
        calls = [record.call for record in recorded_parts(spans)]
        calls.sort(key=lambda call: (call.sequence_id, call.choice or 0))
        conversations.append(turns(calls))
    looked_at = " and ".join(reading.looked_at)
    return ShownTask(task_id(task), task, lines, len(ids), conversations, looked_at)


def task_lines(shown: ShownTask, *, full: bool = False) -> Iterator[str]:
    """For people; ``full`` cuts nothing."""
    longest = None if full else LONGEST
    yield f"task     {shown.task_id}: {cut(printable(text_of(shown.task)), longest)}"
    if spread := shown.spread():
        yield (
            f"rewards  {len(shown.rewards)} that count: mean {spread['mean']:.4g}, from "
            f"{spread['lowest']:.4g} to {spread['highest']:.4g}, standard deviation "
            f"{spread['deviation']:.4g}"
        )
        if spread["lowest"] == spread["highest"] and len(shown.rewards) > 1:
            yield "         all are equal: there is nothing to learn from comparing them"
    else:
        yield "rewards  none that counts: it takes a rollout that succeeded"
    if shown.num_rollouts > len(shown.lines) or shown.looked_at:
        among = f" found among {shown.looked_at} in the store" if shown.looked_at else ""
        yield f"rollouts the newest {len(shown.lines)} of {shown.num_rollouts}{among}"
    yield ""
    columns = ["rollout_id", "status", "mode", "step", "reward", "advantage", "seconds"]
    rows = [
        rounded(_reward(line) if name == "reward" else getattr(line, name) for name in columns)
        for line in shown.lines
    ]
    yield table_text(columns, rows)
    for line in shown.lines:
        if line.problem:
            yield f"{line.rollout_id}: {cut(printable(' '.join(line.problem.split())), longest)}"
    yield from _parting(shown, longest)


def _parting(shown: ShownTask, longest: int | None) -> Iterator[str]:
    """The first turn that is not the same in all conversations."""
    said = [
        (line, turns) for line, turns in zip(shown.lines, shown.conversations, strict=True) if turns
    ]
    if len(said) < 2:
        return
    same = num_common([turns for _, turns in said])
    yield ""
    yield f"parting  {same} messages are the same in all {len(said)} conversations; then:"
    first: dict[tuple[str, str], list[Line]] = {}
    for line, turns_ in said:
        turn = turns_[same] if same < len(turns_) else None
        key = (turn.role, turn.text) if turn else ("", "(it ends here)")
        first.setdefault(key, []).append(line)
    for (role, text), lines in first.items():
        rewards = ", ".join(_reward(one) or "none" for one in lines)
        ids = ", ".join(one.rollout_id for one in lines[:3])
        more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
        yield f"  {ids}{more}; reward {rewards}"
        yield from indented(role, cut(text, longest))


def _reward(line: Line) -> str:
    return FinalReward(line.reward, line.reward_on_the_way).text()
