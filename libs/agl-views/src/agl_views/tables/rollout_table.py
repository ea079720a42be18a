"""Rollouts by step, run, mode, task and reward: what a store's contract has no question for.

The file of a store answers by its indexes, however large it is. Any other store is read page by
page, and where much is asked of it, only its newest rollouts; what was left out is said.
"""

import json
import math
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from agl.errors import InvalidQueryError
from agl.store.base import LightningStore
from agl.store.queries import PAGE
from agl.types import Rollout
from agl_sqlite.ids import id_begins, number_of
from agl_views.tables.file_store import ask_file

Sort = Literal["time", "reward", "seconds", "ended", "status"]
NEWEST: Final = 20_000
"""Rollouts that are looked at where the store is no file."""
MANY: Final = 10_000
"""So many rollouts are counted one by one."""
_CONDITIONS: Final = {
    "mode": "r.mode = :mode",
    "step": "CASE WHEN json_valid(r.metadata) THEN json_extract(r.metadata, '$.step') END = :step",
    "run": "CASE WHEN json_valid(r.metadata) THEN json_extract(r.metadata, '$.run') END = :run",
    "below": "r.reward < :below",
    "above": "r.reward > :above",
}
"""Expressions are as in the schema of the store, or the indexes are not used."""
_SORTED: Final = {
    "time": "r.n",
    "reward": "r.reward",
    "seconds": "r.end_time - r.start_time",
    "ended": "coalesce(r.end_time, 9e999)",
    "status": "r.status",
}
"""Order -> what is sorted by, as its index has it."""
_ORDERS: Final = {
    "reward": "INDEXED BY rollout_reward",
    "ended": "INDEXED BY rollout_end",
    "status": "INDEXED BY rollout_status",
}


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
    """By reward only those that have one are wanted, by seconds those that have ended."""
    most: int | None = None
    """So many of the newest, of the highest rewards, of the longest; None for all."""
    is_least: bool = False
    """So many of the oldest, of the lowest rewards, of the shortest instead."""
    beginning: str = ""
    """Of their ids, with or without ``ro-``."""
    after: str | None = None
    """Only those behind this one, in their order."""

    @property
    def has_reward(self) -> bool:
        """Whether only those are wanted that have a reward."""
        return self.sort == "reward" or not self.below is self.above is None

    @property
    def begins(self) -> str:
        """The beginning of their ids."""
        is_whole = "ro-".startswith(self.beginning) or self.beginning.startswith("ro-")
        return self.beginning if is_whole else f"ro-{self.beginning}"

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
            and (self.sort != "seconds" or rollout.end_time is not None)
            and rollout.rollout_id.startswith(self.begins)
        )


@dataclass(frozen=True)
class Listed:
    """What was found."""

    ids: list[str]
    """In their order."""
    rollouts: list[Rollout]
    """Of these ids, but for those that are damaged."""
    total: int | None
    """How many there are; None where nobody has counted them."""
    note: str = ""
    """Among which they and their total were found, where that is not all."""


async def listed(store: LightningStore, wanted: Wanted) -> Listed:
    """The rollouts of a store that are wanted: the most first, or with ``is_least`` the least.

    Raises:
        InvalidQueryError: They are looked for by reward, and none can have one that counts.
    """
    if wanted.has_reward and wanted.statuses and "succeeded" not in wanted.statuses:
        raise InvalidQueryError(
            f"rollouts that are {' or '.join(wanted.statuses)} have no reward: a reward counts "
            "where the rollout succeeded. Leave out the order by reward and its limits"
        )
    found = await ask_file(store, lambda connection: ids_in(connection, wanted))
    if found is None:
        return await _by_contract(store, wanted)
    ids, total = found
    by_id: dict[str, Rollout] = {}
    for begin in range(0, len(ids), PAGE):
        page = await store.query_rollouts(rollout_id_in=ids[begin : begin + PAGE])
        by_id |= {one.rollout_id: one for one in page}
    return Listed(ids, [by_id[one] for one in ids if one in by_id], total)


def ids_in(connection: sqlite3.Connection, wanted: Wanted) -> tuple[list[str], int | None]:
    """Ids of rollouts in a store's file.

    Returns:
        The ids in their order; and how many rollouts are wanted in all, None where they are many,
        and no index counts them.
    """
    index = _index(connection, wanted)
    total: int | None = None
    if wanted.task is None:  # a text is looked for in every task
        total = _count(connection, wanted, index, MANY + 1)
    is_many = total is None or total > MANY
    by_index = index
    if is_many and wanted.step is None:  # most of what the index of the order has is wanted
        by_index = _ORDERS.get(wanted.sort, index)
    keys = [_SORTED[wanted.sort], *(() if wanted.sort == "time" else ("r.n",))]
    where, values = _where(wanted)
    if wanted.after is not None:
        place = ", ".join(keys)
        of_it = f"(SELECT {place} FROM rollout r WHERE r.n = :after)"
        where += f" AND ({place}) {'>' if wanted.is_least else '<'} {of_it}"
        values["after"] = number_of(wanted.after)
    values["most"] = -1 if wanted.most is None else wanted.most
    direction = "ASC" if wanted.is_least else "DESC"
    order = ", ".join(f"{one} {direction}" for one in keys)
    sql = f"FROM rollout r {by_index} WHERE {where} ORDER BY {order} LIMIT :most"
    if wanted.sort == "time":  # first the numbers, which an index has
        sql = f"FROM rollout r WHERE r.n IN (SELECT r.n {sql}) ORDER BY r.n {direction}"
    ids = [row[0] for row in connection.execute(f"SELECT r.rollout_id {sql}", values)]
    if total is not None and total > MANY:
        is_counted = wanted.step is None and not wanted.beginning
        others = (wanted.statuses, wanted.mode, wanted.run)
        is_counted &= wanted.run is None if wanted.has_reward else others.count(None) > 1
        total = _count(connection, wanted, index) if is_counted else None
    return ids, total


def _index(connection: sqlite3.Connection, wanted: Wanted) -> str:
    """What finds the fewest rollouts among which all that are wanted are."""
    if wanted.beginning:
        return "NOT INDEXED"
    if wanted.step is not None:
        return "INDEXED BY rollout_step"
    each = {"status": Wanted(wanted.statuses), "mode": Wanted(mode=wanted.mode)}
    if wanted.has_reward:
        each = {"reward": Wanted(below=wanted.below, above=wanted.above, sort="reward")}
    each["run"] = Wanted(run=wanted.run)
    by_index = {f"INDEXED BY rollout_{name}": one for name, one in each.items() if one != Wanted()}
    if len(by_index) < 2:
        return next(iter(by_index), "")
    return min(by_index, key=lambda index: _count(connection, by_index[index], index))


def _count(connection: sqlite3.Connection, wanted: Wanted, index: str, most: int = -1) -> int:
    where, values = _where(wanted)
    sql = f"SELECT count(*) FROM (SELECT 1 FROM rollout r {index} WHERE {where} LIMIT :most)"
    return connection.execute(sql, {**values, "most": most}).fetchone()[0]


def _where(wanted: Wanted) -> tuple[str, dict[str, Any]]:
    """Conditions, and what is bound in them."""
    conditions, values = ["1"], dict[str, Any]()
    if wanted.has_reward:  # and so they have succeeded, which is among their statuses
        conditions.append("r.reward IS NOT NULL")
    elif wanted.statuses is not None:
        names = [f"status{n}" for n in range(len(wanted.statuses))]
        values |= dict(zip(names, wanted.statuses, strict=True))
        conditions.append(f"r.status IN ({', '.join(f':{name}' for name in names)})")
    for name, condition in _CONDITIONS.items():
        if (given := getattr(wanted, name)) is not None:
            values[name] = given
            conditions.append(condition)
    if wanted.task is not None:
        values |= {"task": wanted.task, "compact": _compact(wanted.task)}
        conditions.append("(instr(r.input, :task) > 0 OR instr(r.input, :compact) > 0)")
    if wanted.sort == "seconds":
        conditions.append("r.end_time IS NOT NULL")
    if wanted.beginning:
        conditions.append(id_begins("r.n", "r.rollout_id", wanted.begins))
    return " AND ".join(conditions), values


def _compact(text: str) -> str:
    """The text as stored JSON has it: without spaces after colons and commas."""
    return text.replace('": ', '":').replace(", ", ",")


def _is_in(text: str, task: Any) -> bool:
    written = json.dumps(task, ensure_ascii=False, default=str)
    return text in written or _compact(text) in _compact(written)


async def _by_contract(store: LightningStore, wanted: Wanted) -> Listed:
    """The same of a store of which no more can be asked than what every store answers."""
    asked: dict[str, Any] = {
        "status_in": wanted.statuses,
        "mode": wanted.mode,
        "run": wanted.run,
        "reward_below": wanted.below,
        "reward_above": wanted.above,
        "rollout_id_contains": wanted.beginning or None,
    }
    order = "asc" if wanted.is_least else "desc"
    is_plain = (wanted.step, wanted.task, wanted.beginning) == (None, None, "")
    is_plain = is_plain and wanted.sort != "seconds"
    if is_plain and wanted.sort != "time":
        asked["sort_by"] = "end_time" if wanted.sort == "ended" else wanted.sort
    asked["sort_order"] = order if is_plain else "desc"
    most = wanted.most if is_plain else NEWEST if wanted.most is not None else None
    after = wanted.after if is_plain else None
    found: list[Rollout] = []
    total = 0
    while most is None or len(found) < most:
        limit = PAGE if most is None else min(PAGE, most - len(found))
        page = await store.query_rollouts(**asked, after=after, limit=limit)
        total = page.total
        found += page
        if len(page) < limit:
            break
        after = page[-1].rollout_id
    if is_plain:
        return Listed([one.rollout_id for one in found], found, total)
    note = "" if len(found) >= total else f"of the newest {len(found)} of {total} rollouts"
    found = [one for one in found if wanted.fits(one)]
    if wanted.is_least:
        found.reverse()
    if wanted.sort != "time":
        found.sort(key=_KEYS[wanted.sort], reverse=not wanted.is_least)
    ids = [one.rollout_id for one in found]
    begin = ids.index(wanted.after) + 1 if wanted.after in ids else 0
    end = None if wanted.most is None else begin + wanted.most
    return Listed(ids[begin:end], found[begin:end], len(found), note)


_KEYS: Final[dict[str, Callable[[Rollout], Any]]] = {
    "reward": lambda one: one.reward,
    "seconds": lambda one: (one.end_time or 0.0) - one.start_time,
    "ended": lambda one: math.inf if one.end_time is None else one.end_time,
    "status": lambda one: one.status,
}
