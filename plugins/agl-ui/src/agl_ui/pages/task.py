"""A task: its rollouts side by side, the spread of their rewards, and where they part."""

import asyncio
import os.path
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from statistics import fmean, stdev
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from agl.errors import AdapterError, DamagedRecordError, UnknownRecordError
from agl.semconv import MODEL_CALL_SPAN
from agl.types import Rollout
from agl_records.calls.reader import model_calls
from agl_sqlite.ids import number_of
from agl_ui.charts import chart
from agl_ui.data_sources import DataSource
from agl_ui.pages.page import Page, whole_number
from agl_ui.pages.rollouts import Row, row_of
from agl_views.explanations.turns import Turn, num_common, turns
from agl_views.tables.file_store import ask_file

AROUND = 1_000
"""Rollouts before and after the one that is asked for, among which those of its task are."""
MOST = 200
"""Of these, those that were queued nearest to it."""
SIDE_BY_SIDE = 8
"""More columns are too narrow to be read."""
MOST_SPANS, MOST_MESSAGES = 400, 60
"""Spans of a rollout that are read, of more only its model calls; messages that are shown."""


@dataclass
class Column:
    """One rollout."""

    row: Row
    messages: list[Turn]
    same: int = 0
    """Characters of the first message that is not the same in all, up to where they part."""
    problem: str = ""
    more: int = 0
    """Messages that are left out."""
    unread: int = 0
    """Model calls that were not read."""


@dataclass(frozen=True)
class Step:
    """Rollouts of the task that one step of one run compared with each other."""

    run: str | None
    step: int | None
    group: Any
    rows: list[Row]

    @property
    def rewards(self) -> list[float]:
        """Those that count: of rollouts that succeeded."""
        return [row.reward for row in self.rows if row.reward is not None]

    @property
    def mean(self) -> float | None:
        """Of the rewards."""
        return fmean(self.rewards) if self.rewards else None

    @property
    def spread(self) -> float | None:
        """Standard deviation of the rewards; 0 is a group that teaches nothing."""
        return stdev(self.rewards) if len(self.rewards) > 1 else None


async def write(request: Request, source: DataSource) -> Page:
    """The task of the rollout that the address names."""
    state = await source.state()
    rollout_id = request.query_params.get("rollout", "")
    rollout = await source.store.get_rollout_by_id(rollout_id) if rollout_id else None
    if rollout is None:
        raise UnknownRecordError(f"rollout {rollout_id[:100]!r}: the store has none of this id")
    rows = [row_of(one) for one in await _siblings(source, rollout)]
    # As an algorithm compares them: see ``agl_views.explanations.explanation.group_of``.
    compared: dict[tuple[str, int | None, str], Step] = {}
    for row in rows:
        about = row.rollout.metadata or {}
        # What stands in metadata may be anything.
        run, group, said = (about.get(name) for name in ("run", "group", "step"))
        run = None if run is None else str(run)
        is_step = isinstance(said, int) and not isinstance(said, bool) and said >= 0
        number = said if is_step else None
        key = (repr(run), number, repr((group, said)))
        compared.setdefault(key, Step(run, number, group, [])).rows.append(row)
    steps = list(compared.values())
    own = next(one for one in steps if any(r.rollout.rollout_id == rollout_id for r in one.rows))
    step = whole_number(request, "step", own.step)
    # Its own one first, then others of its run.
    near = sorted(steps, key=lambda one: (one is not own, one.run != own.run))
    chosen = next((one for one in near if one.step == step), None)
    if chosen is None:
        raise HTTPException(400, f"step={step}: no rollout of this task is of it")
    shown = sorted(chosen.rows, key=lambda row: -(row.reward if row.reward is not None else -1e308))
    beside = shown
    if len(shown) > SIDE_BY_SIDE:  # what differs most
        beside = [*shown[: SIDE_BY_SIDE // 2], *shown[-SIDE_BY_SIDE // 2 :]]
    columns = await asyncio.gather(*(_column(source, row) for row in beside))
    shared = _part([one for one in columns if one.messages])
    of_run: dict[int, list[float]] = {}
    for one in steps:
        if one.step is not None and one.run == chosen.run:
            of_run.setdefault(one.step, []).extend(one.rewards)
    means = {number: fmean(given) if given else None for number, given in of_run.items()}
    values: dict[str, Any] = {
        "title": "Task",
        "task": rollout.input,
        "of": rollout_id,
        "steps": steps,
        "has_runs": len({one.run for one in steps}) > 1,
        "has_groups": len({repr(one.group) for one in steps}) > 1,
        "chosen": chosen,
        "columns": columns,
        "num_hidden": len(shown) - len(columns),
        "shared": shared,
        "around": AROUND,
        "num_found": len(rows),
        "curve": chart(
            "Mean reward of this task by step",
            [("mean of those that succeeded", "val", means)],
            height=180.0,
        )
        if len(means) > 1
        else None,
    }
    return Page("task.html", values, source, "rollouts", state=state)


async def _siblings(source: DataSource, rollout: Rollout) -> list[Rollout]:
    """Rollouts of the same task, as they were queued."""
    values = {"n": number_of(rollout.rollout_id), "around": AROUND, "most": MOST}
    sql = files("agl_ui").joinpath("siblings.sql").read_text("utf-8")
    ids = await ask_file(source.store, lambda file: [row[0] for row in file.execute(sql, values)])
    if ids is not None:
        found = await source.store.query_rollouts(rollout_id_in=[*ids, rollout.rollout_id])
        return sorted(found, key=lambda one: number_of(one.rollout_id))
    asked = (
        source.store.query_rollouts(after=rollout.rollout_id, sort_order=one, limit=AROUND)
        for one in ("desc", "asc")
    )
    before, after = await asyncio.gather(*asked)

    def same(near: Sequence[Rollout]) -> list[Rollout]:
        of_it = (one for one in near if one.input == rollout.input and one.mode == rollout.mode)
        return list(islice(of_it, MOST // 2))

    return [*reversed(same(before)), rollout, *same(after)]


async def _column(source: DataSource, row: Row) -> Column:
    if row.attempt is None:
        return Column(row, [])
    of = (row.attempt.rollout_id, row.attempt.attempt_id)
    try:
        spans = await source.store.query_spans(*of, limit=MOST_SPANS)
        unread = 0
        if spans.total > len(spans):
            named = {"name": MODEL_CALL_SPAN, "limit": MOST_SPANS}
            spans = await source.store.query_spans(*of, **named)
            unread = spans.total - len(spans)
        messages = turns(model_calls(list(spans)))
        more = max(0, len(messages) - MOST_MESSAGES)
        return Column(row, messages[:MOST_MESSAGES], more=more, unread=unread)
    except (AdapterError, DamagedRecordError) as error:
        return Column(row, [], problem=str(error))


def _part(columns: Sequence[Column]) -> list[Turn]:
    """The messages that all have in common; notes in each column where the next one parts."""
    if len(columns) < 2:
        return []
    number = num_common([one.messages for one in columns])
    shared = columns[0].messages[:number]
    rest = [one.messages[number].text if len(one.messages) > number else "" for one in columns]
    same = len(os.path.commonprefix(rest))  # noqa: RUF071  # of characters it shall be
    for one in columns:
        one.messages, one.same = one.messages[number:], same
    return shared
