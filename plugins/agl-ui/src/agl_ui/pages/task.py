"""A task: its rollouts side by side, the spread of their rewards, and where they part."""

import asyncio
import os.path
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean, pstdev
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from agl.errors import AdapterError, DamagedRecordError, UnknownRecordError
from agl.types import Rollout
from agl_learning.calls.reading import model_calls
from agl_learning.showing import message_text, said
from agl_ui.charts import chart
from agl_ui.pages.page import Page, whole_number
from agl_ui.pages.rollouts import Row, rows_of
from agl_ui.places import Place, Places

AROUND = 1_000
"""Rollouts before and after the one that is asked for, among which those of its task are."""
MOST = 200
"""Of these, those that were queued nearest to it."""
SIDE_BY_SIDE = 8
"""More columns are too narrow to be read."""
LONGEST, MOST_SPANS, MOST_MESSAGES = 4_000, 400, 60
"""Characters of a message; spans of a rollout that are read; messages that are shown."""


@dataclass(frozen=True)
class Message:
    """What somebody said."""

    role: str
    text: str


@dataclass
class Column:
    """One rollout."""

    row: Row
    messages: list[Message]
    same: int = 0
    """Characters of the first message that is not the same in all, up to where they part."""
    problem: str = ""


@dataclass(frozen=True)
class Step:
    """Rollouts of the task in one step."""

    step: int | None
    rows: list[Row]

    @property
    def rewards(self) -> list[float]:
        """Of those that have one."""
        return [row.reward for row in self.rows if row.reward is not None]

    @property
    def mean(self) -> float | None:
        """Of the rewards."""
        return fmean(self.rewards) if self.rewards else None

    @property
    def spread(self) -> float | None:
        """Standard deviation of the rewards; 0 is a group that teaches nothing."""
        return pstdev(self.rewards) if self.rewards else None


async def write(request: Request, places: Places) -> Page:
    """The task of the rollout that the address names."""
    place = places.get(request.path_params["key"])
    state = await place.state()
    rollout_id = request.query_params.get("rollout", "")
    rollout = await place.store.get_rollout_by_id(rollout_id) if rollout_id else None
    if rollout is None:
        raise UnknownRecordError(f"rollout {rollout_id[:100]!r}: the store has none of this id")
    rows = await rows_of(place, await _siblings(place, rollout))
    steps = _steps(rows)
    step = whole_number(request, "step", _step_of(rollout))
    chosen = next((one for one in steps if one.step == step), None)
    if chosen is None:
        raise HTTPException(400, f"step={step}: no rollout of this task is of it")
    shown = sorted(chosen.rows, key=lambda row: -(row.reward if row.reward is not None else -1e308))
    columns = await asyncio.gather(*(_column(place, row) for row in shown[:SIDE_BY_SIDE]))
    shared = _part([one for one in columns if one.messages])
    means = {one.step: one.mean for one in steps if one.step is not None}
    values: dict[str, Any] = {
        "title": "Task",
        "task": rollout.input,
        "of": rollout_id,
        "steps": steps,
        "chosen": chosen,
        "columns": columns,
        "num_hidden": len(shown) - len(columns),
        "shared": shared,
        "around": AROUND,
        "num_found": len(rows),
        "curve": chart(
            "Mean reward of this task by step",
            [("mean", "val", means)],
            height=180.0,
        )
        if len(means) > 1
        else None,
    }
    return Page("task.html", values, place, "rollouts", state=state)


async def _siblings(place: Place, rollout: Rollout) -> list[Rollout]:
    """Rollouts of the same task, as they were queued."""
    before, after = await asyncio.gather(
        *(
            place.store.query_rollouts(after=rollout.rollout_id, sort_order=order, limit=AROUND)
            for order in ("desc", "asc")
        )
    )

    def same(near: Sequence[Rollout]) -> list[Rollout]:
        of_it = (one for one in near if one.input == rollout.input and one.mode == rollout.mode)
        return list(islice(of_it, MOST // 2))

    return [*reversed(same(before.items)), rollout, *same(after.items)]


def _step_of(rollout: Rollout) -> int | None:
    step = (rollout.metadata or {}).get("step")
    return step if isinstance(step, int) else None


def _steps(rows: Sequence[Row]) -> list[Step]:
    found: dict[int | None, list[Row]] = {}
    for row in rows:
        found.setdefault(_step_of(row.rollout), []).append(row)
    return [Step(step, of_it) for step, of_it in found.items()]


async def _column(place: Place, row: Row) -> Column:
    if row.attempt is None:
        return Column(row, [])
    of = (row.attempt.rollout_id, row.attempt.attempt_id)
    try:
        spans = await place.store.query_spans(*of, limit=MOST_SPANS)
        return Column(row, _messages(list(spans)))
    except (AdapterError, DamagedRecordError) as error:
        return Column(row, [], problem=str(error))


def _messages(spans: list[Any]) -> list[Message]:
    """What was said in all calls, each message once."""
    found: list[dict[str, Any]] = []
    for call in model_calls(spans):
        before = list(map(said, call.messages[: len(found)]))
        known = len(found) if before == list(map(said, found)) else 0
        answer = [{"role": "assistant", **call.response}] if call.response else []
        found = [*found, *call.messages[known:], *answer]
    return [Message(*message_text(one)) for one in found[:MOST_MESSAGES]]


def _part(columns: Sequence[Column]) -> list[Message]:
    """The messages that all have in common; notes in each column where the next one parts."""
    if len(columns) < 2:
        return []
    number = 0
    for level in zip(*(one.messages for one in columns), strict=False):
        if any(one != level[0] for one in level):
            break
        number += 1
    shared = columns[0].messages[:number]
    rest = [one.messages[number].text if len(one.messages) > number else "" for one in columns]
    same = len(os.path.commonprefix(rest))  # noqa: RUF071  # of characters it shall be
    for one in columns:
        one.messages, one.same = one.messages[number:], same
    return shared
