"""Rollouts by step, run, mode, task and reward: what a store's contract has no question for.

The file of a store answers by its indexes, however large it is. Any other store is read page by
page, and where much is asked of it, only its newest rollouts; what was left out is said.
"""

import re
import sqlite3
from collections.abc import Sequence, Set
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal

from agl.errors import InvalidQueryError
from agl.store.base import LightningStore
from agl.store.queries import PAGE
from agl.types import Rollout
from agl_sqlite.file import open_to_read
from agl_sqlite.ids import number_of
from agl_views.tables.file_store import file_of
from agl_views.tables.paging import page_behind

Sort = Literal["time", "reward", "seconds"]
NEWEST: Final = 20_000
"""Rollouts that are looked at where the store is no file."""
MANY: Final = 10_000
"""So many rollouts are counted one by one."""
MOST_NUMBER: Final = (1 << 40) - 1
"""No store has more rollouts."""
_EXPRESSIONS: Final = {
    "step": "CASE WHEN json_valid(r.metadata) THEN json_extract(r.metadata, '$.step') END",
    "run": "CASE WHEN json_valid(r.metadata) THEN json_extract(r.metadata, '$.run') END",
}
"""As in the schema of the store, or the indexes are not used."""

_SORTED: Final = {"time": "r.n", "reward": "r.reward", "seconds": "r.end_time - r.start_time"}
By = Literal["ended", "status", "reward", "lowest"]
_BY: Final = {
    "ended": ("coalesce(r.end_time, 9e999)", "DESC"),
    "status": ("r.status", "ASC"),
    "reward": ("r.reward", "DESC"),
    "lowest": ("r.reward", "ASC"),
}
"""Order -> what is sorted by, as its index has it, and the direction, which ties follow."""


@dataclass(frozen=True)
class Wanted:
    """Which rollouts, and in which order."""

    statuses: Sequence[str] | None = None
    mode: str | None = None
    run: str | None = None
    step: int | None = None
    task: str | None = None
    """A text that the task has in it, as JSON."""
    below: float | None = None
    """Their rewards are below this one."""
    above: float | None = None
    sort: Sort = "time"
    """By reward only those that have one are wanted."""
    most: int | None = None
    """So many of the newest, of the highest rewards, of the longest; None for all."""
    is_least: bool = False
    """So many of the oldest, of the lowest rewards, of the shortest instead."""

    @property
    def has_reward(self) -> bool:
        """Whether only those are wanted that have a reward."""
        return self.sort == "reward" or not self.below is self.above is None

    def fits(self, rollout: Rollout) -> bool:
        """Whether it is one of them."""
        about = rollout.metadata or {}
        return (
            (self.statuses is None or rollout.status in self.statuses)
            and (self.mode is None or rollout.mode == self.mode)
            and (self.run is None or about.get("run") == self.run)
            and (self.step is None or about.get("step") == self.step)
            and (self.task is None or _is_in(self.task, rollout.input))
            and (not self.has_reward or rollout.reward is not None)
            and (self.below is None or (rollout.reward or 0.0) < self.below)
            and (self.above is None or (rollout.reward or 0.0) > self.above)
        )


@dataclass(frozen=True)
class Listed:
    """What was found."""

    rollouts: list[Rollout]
    """In the order in which they are to be shown, the most last."""
    total: int | None
    """How many there are; None where nobody has counted them."""
    note: str = ""
    """What was not looked at."""


async def listed(store: LightningStore, wanted: Wanted) -> Listed:
    """The rollouts of a store that are wanted.

    Raises:
        InvalidQueryError: They are looked for by reward, and none can have one that counts.
    """
    check_order(wanted)
    if (path := file_of(store)) is not None:
        with closing(open_to_read(path)) as connection:
            ids, total = ids_in(connection, wanted)
        by_id: dict[str, Rollout] = {}
        for begin in range(0, len(ids), PAGE):
            page = await store.query_rollouts(rollout_id_in=ids[begin : begin + PAGE])
            by_id |= {one.rollout_id: one for one in page}
        return Listed([by_id[one] for one in ids if one in by_id], total)
    return await _paged(store, wanted)


def ids_in(connection: sqlite3.Connection, wanted: Wanted) -> tuple[list[str], int | None]:
    """Ids of rollouts in a store's file.

    Args:
        connection: To the file.
        wanted: Which.

    Returns:
        The ids, the most last; and how many there are, None where that was not counted.

    Raises:
        InvalidQueryError: As ``listed`` does.
    """
    check_order(wanted)
    where, values = _where(wanted)
    order = "ASC" if wanted.is_least else "DESC"
    values |= {"most": -1 if wanted.most is None else wanted.most}
    total: int | None = None
    if wanted.task is None:  # a text is looked for in every task
        total = connection.execute(_sql("count", where=where), values).fetchone()[0]
    if wanted.sort == "seconds":
        where += " AND r.end_time IS NOT NULL"
    sql = _sql("by_field", where=where, field=_SORTED[wanted.sort], order=order)
    if wanted.sort == "time":
        sign = "+" if wanted.has_reward else ""
        sql = _sql("newest", where=where, order=order, sign=sign)
    found = connection.execute(sql, values).fetchall()
    ids = [row[0] for row in found]
    return ids if wanted.is_least else ids[::-1], total


def check_order(wanted: Wanted) -> None:
    """Refuse to look by reward for what has none that counts."""
    if wanted.has_reward and wanted.statuses and "succeeded" not in wanted.statuses:
        raise InvalidQueryError(
            f"rollouts that are {' or '.join(wanted.statuses)} have no reward: a reward counts "
            "where the rollout succeeded. Leave out the order by reward and its limits"
        )


def page_in(
    connection: sqlite3.Connection,
    wanted: Wanted,
    *,
    beginning: str = "",
    after: str | None = None,
    oldest_first: bool = False,
) -> tuple[list[str], int | None]:
    """A page of the rollouts in a store's file, by the time at which they were queued.

    Args:
        connection: To the file.
        wanted: Which, and at most how many.
        beginning: Of their ids.
        after: Only those behind this one, in the order of the page.
        oldest_first: Which order that is.

    Returns:
        The ids in this order; and how many rollouts are wanted in all, None where they are many,
        and no index counts them.
    """
    by_range = {"status", "mode", "run", "reward"}
    where, values = _where(wanted, by_range if beginning else _all_but_fewest(connection, wanted))
    sign = "+" if wanted.has_reward and not beginning else ""  # not by the order of the page
    values |= {"beginning": beginning, "after": -1 if after is None else number_of(after)}
    values["most"] = -1 if wanted.most is None else wanted.most
    ids: list[str] = []
    total, ranges = 0, numbers_of(beginning)
    for low, high in ranges if oldest_first else ranges[::-1]:
        within = where
        if beginning:
            within += f" AND r.n BETWEEN {low} AND {high} AND instr(r.rollout_id, :beginning) = 1"
        if total <= MANY:
            sql = _sql("count_some", where=within)
            total += connection.execute(sql, {**values, "most": MANY + 1}).fetchone()[0]
        if after is not None:
            within += f" AND {sign}r.n {'>' if oldest_first else '<'} :after"
        order = "ASC" if oldest_first else "DESC"
        sql = _sql("newest", where=within, order=order, sign=sign)
        ids += [row[0] for row in connection.execute(sql, values)]
    ids = ids if wanted.most is None else ids[: wanted.most]
    return ids, total if total <= MANY else None if beginning else _count_many(connection, wanted)


def ordered_in(
    connection: sqlite3.Connection,
    wanted: Wanted,
    by: By,
    *,
    after: str | None = None,
) -> tuple[list[str], int | None]:
    """The same as ``page_in`` by another order: the last ended first, by status, or by reward.

    What has not ended comes first, and what has no reward does not come by reward.
    """
    field, order = _BY[by]
    is_by_reward = by in ("reward", "lowest")
    wanted = replace(wanted, sort="reward") if is_by_reward else wanted
    where, values = _where(wanted, _all_but_fewest(connection, wanted))
    values |= {"most": MANY + 1}
    total = connection.execute(_sql("count_some", where=where), values).fetchone()[0]
    if wanted.step is not None or total <= MANY:
        field = f"+{field}"  # found by what is wanted, and then sorted
    else:  # most of what the index of the order has is wanted
        alone = {"mode", "run"} if by == "status" else {"status", "mode", "run"}
        where, values = _where(wanted, alone if is_by_reward else {*alone, "reward"})
    if after is not None:
        values["after"] = number_of(after)
        of_it = f"(SELECT {field}, r.n FROM rollout r WHERE r.n = :after)"
        where += f" AND ({field}, r.n) {'<' if order == 'DESC' else '>'} {of_it}"
    values["most"] = -1 if wanted.most is None else wanted.most
    sql = _sql("by_field", where=where, field=field, order=order)
    ids = [row[0] for row in connection.execute(sql, values)]
    return ids, total if total <= MANY else _count_many(connection, wanted)


def _all_but_fewest(connection: sqlite3.Connection, wanted: Wanted) -> set[str]:
    """The columns whose indexes are not to be used, as another one finds fewer rollouts."""
    each = {"status": Wanted(wanted.statuses), "mode": Wanted(mode=wanted.mode)}
    if wanted.has_reward:
        each = {"reward": Wanted(below=wanted.below, above=wanted.above, sort="reward")}
    each["run"] = Wanted(run=wanted.run)
    given = [name for name, one in each.items() if one != Wanted()]
    if len(given) < 2 or wanted.step is not None:
        return set()
    return set(sorted(given, key=lambda name: _count(connection, each[name]))[1:])


def _count_many(connection: sqlite3.Connection, wanted: Wanted) -> int | None:
    """How many there are, where an index counts them."""
    plain = replace(wanted, most=None, below=None, above=None, sort="time")
    known = [Wanted(wanted.statuses), Wanted(mode=wanted.mode)]
    known += [Wanted(wanted.statuses, wanted.mode) if wanted.has_reward else Wanted(run=wanted.run)]
    return _count(connection, wanted) if plain in known else None


def _count(connection: sqlite3.Connection, wanted: Wanted) -> int:
    where, values = _where(wanted)
    return connection.execute(_sql("count", where=where, index=""), values).fetchone()[0]


def steps_of(connection: sqlite3.Connection, run: str) -> list[tuple[int, str | None, int]]:
    """The steps of a run in a store's file, oldest first: step, mode, how many rollouts."""
    rows = connection.execute(_sql("steps"), {"run": run})
    return [(step, mode, number) for _, step, mode, number in rows]


def _where(wanted: Wanted, alone: Set[str] = frozenset()) -> tuple[str, dict[str, Any]]:
    """Conditions, and what is bound in them; the columns ``alone`` are looked up by no index."""
    conditions, values = ["1"], dict[str, Any]()
    no_index = alone if wanted.step is None else {"status", "mode", "reward"}  # but that of steps
    if wanted.has_reward:
        reward = f"{'+' if 'reward' in no_index else ''}r.reward"
        no_index = {*no_index, "mode"}
        conditions += [f"{reward} IS NOT NULL"]
        for sign, name in (("<", "below"), (">", "above")):
            if (limit := getattr(wanted, name)) is not None:
                values[name] = limit
                conditions.append(f"{reward} {sign} :{name}")

    def plus(name: str) -> str:
        return f"{'+' if name in no_index else ''}r.{name}"

    if wanted.statuses is not None and wanted.has_reward:  # then it has succeeded
        conditions.append("1" if "succeeded" in wanted.statuses else "0")
    elif wanted.statuses is not None:
        names = [f"status{n}" for n in range(len(wanted.statuses))]
        values |= dict(zip(names, wanted.statuses, strict=True))
        conditions.append(f"{plus('status')} IN ({', '.join(f':{name}' for name in names)})")
    if wanted.mode is not None:
        values["mode"] = wanted.mode
        conditions.append(f"{plus('mode')} = :mode")
    for name in ("step", "run"):
        if (given := getattr(wanted, name)) is not None:
            values[name] = given
            conditions.append(f"{'+' if name in no_index else ''}{_EXPRESSIONS[name]} = :{name}")
    if wanted.task is not None:
        values |= {"task": wanted.task, "compact": _compact(wanted.task)}
        conditions.append("(instr(r.input, :task) > 0 OR instr(r.input, :compact) > 0)")
    return " AND ".join(conditions), values


def numbers_of(beginning: str) -> list[tuple[int, int]]:
    """The numbers of rollouts whose ids may have this beginning, each from the first to the last.

    An id is ``ro-``, the digits of a number and eight more; see ``agl_sqlite.ids``.
    """
    digits = beginning.removeprefix("ro-")
    if "ro-".startswith(beginning):
        return [(0, MOST_NUMBER)]
    if re.fullmatch("[1-9a-f][0-9a-f]*", digits) is None:
        return []
    found: list[tuple[int, int]] = []
    for length in range(1, len(f"{MOST_NUMBER:x}") + 1):
        known = int(digits[:length], 16)
        left = 4 * max(0, length - len(digits))
        found.append((known << left, ((known + 1) << left) - 1))
    return found


def _compact(text: str) -> str:
    """The text as stored JSON has it: without spaces after colons and commas."""
    return text.replace('": ', '":').replace(", ", ",")


def _is_in(text: str, task: Any) -> bool:
    import json

    written = json.dumps(task, ensure_ascii=False, default=str)
    return text in written or _compact(text) in _compact(written)


@cache
def _statements() -> dict[str, str]:
    text = files("agl_views.tables").joinpath("rollout_table.sql").read_text("utf-8")
    parts = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)
    return {
        name: sql.strip().removesuffix(";")
        for name, sql in zip(parts[1::2], parts[2::2], strict=True)
    }


def _sql(name: str, **parts: str) -> str:
    sql = _statements()[name]
    for part, text in {**parts, **_EXPRESSIONS}.items():
        sql = sql.replace(f"{{{part}}}", text)
    return sql


async def _paged(store: LightningStore, wanted: Wanted) -> Listed:
    """By the contract, the most first."""
    asked: dict[str, Any] = {
        "status_in": wanted.statuses,
        "mode": wanted.mode,
        "run": wanted.run,
        "reward_below": wanted.below,
        "reward_above": wanted.above,
        "sort_by": "reward" if wanted.sort == "reward" else None,
        "sort_order": "asc" if wanted.is_least else "desc",
    }
    asked = {name: value for name, value in asked.items() if value is not None}
    is_plain = (wanted.step, wanted.task) == (None, None)
    is_in_order = wanted.sort != "seconds"
    found: list[Rollout] = []
    looked_at, total, after = 0, 0, None
    while True:
        page = await page_behind(store, after, looked_at, **asked, limit=PAGE)
        total = page.total
        looked_at += len(page)
        found += [one for one in page if wanted.fits(one)]
        is_enough = is_in_order and wanted.most and len(found) >= wanted.most
        if len(page) < PAGE or is_enough or (wanted.most and looked_at >= NEWEST):
            break
        after = page[-1].rollout_id
    note = ""
    if looked_at < total and not (is_plain and is_in_order):
        note = f"of the newest {looked_at} of {total} rollouts"
    number = total if is_plain else len(found) if looked_at >= total else None
    if not is_in_order:
        ended = [one for one in found if one.end_time is not None]
        found = sorted(ended, key=_seconds, reverse=not wanted.is_least)
    found = found[: wanted.most]
    return Listed(found if wanted.is_least else found[::-1], number, note)


def _seconds(rollout: Rollout) -> float:
    return (rollout.end_time or 0.0) - rollout.start_time
