"""The table of rollouts: filtered, sorted and paged by the store."""

import contextlib
import math
import sqlite3
from dataclasses import dataclass
from typing import Any, get_args

from starlette.exceptions import HTTPException
from starlette.requests import Request

from agl.errors import DamagedRecordError
from agl.store.queries import check_statuses, each_record
from agl.types import Attempt, AttemptedRollout, Rollout, RolloutMode
from agl_records.final_rewards import FinalReward, final_reward
from agl_ui.counts import STATUSES
from agl_ui.data_sources import DataSource, DataSources
from agl_ui.pages.page import Page, number_of, whole_number
from agl_views.tables.paging import page_behind
from agl_views.tables.rollout_table import (
    MANY,
    NEWEST,
    Listed,
    Wanted,
    check_order,
    ordered_in,
    page_in,
)

SIZES = (25, 50, 100, 200)
SORTS = {
    "newest": ("Newest first", None, "desc"),
    "oldest": ("Oldest first", None, "asc"),
    "ended": ("Not ended, then last ended", "end_time", "desc"),
    "status": ("By status", "status", "asc"),
    "reward": ("Highest rewards first", "reward", "desc"),
    "lowest": ("Lowest rewards first", "reward", "asc"),
}
"""Name in the address -> label, field, order."""
DAMAGED: Any = "damaged"
"""Status of one that cannot be read."""
NONE = FinalReward()


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    rollout: Rollout
    attempt: Attempt | None
    given: FinalReward = NONE
    problem: str = ""
    """Why it cannot be read."""

    @property
    def reward(self) -> float | None:
        """What counts."""
        return self.given.reward

    @property
    def step(self) -> Any:
        """Of the algorithm."""
        return (self.rollout.metadata or {}).get("step")

    @property
    def seconds(self) -> float | None:
        """How long its last attempt took."""
        if self.attempt is None or self.attempt.end_time is None:
            return None
        return self.attempt.end_time - self.attempt.start_time


async def write(request: Request, sources: DataSources) -> Page:
    """The table, as the address says."""
    source = sources.get(request.path_params["key"])
    state = await source.state()
    given = request.query_params
    chosen: dict[str, Any] = {
        "status": [one for one in given.getlist("status") if one],
        "mode": given.get("mode", ""),
        "id": given.get("id", "").strip(),
        "step": given.get("step", "").strip(),
        "run": given.get("run", ""),
        "above": given.get("above", "").strip(),
        "below": given.get("below", "").strip(),
        "sort": given.get("sort", "newest"),
        "size": given.get("size", "50"),
        "after": given.get("after", ""),
    }
    for name, allowed in (("mode", get_args(RolloutMode)), ("sort", SORTS)):
        if chosen[name] and chosen[name] not in allowed:
            raise HTTPException(400, f"{name}={chosen[name][:50]!r}: there is no such {name}")
    check_statuses("rollouts", chosen["status"])
    size = min(whole_number(request, "size", 50) or 50, SIZES[-1])
    step = whole_number(request, "step")
    beginning = chosen["id"]
    if beginning and chosen["sort"] not in ("newest", "oldest"):
        raise HTTPException(
            400,
            f"sort={chosen['sort']} with id={beginning[:50]!r}: no index has both. Leave the order "
            "or the beginning of an id away",
        )
    if chosen["after"]:
        await _check_after(source, chosen["after"])
    statuses = [*chosen["status"]] or None
    # One more than is shown, to know whether there is a next page.
    wanted = Wanted(
        statuses,
        chosen["mode"] or None,
        chosen["run"] or None,
        step,
        below=number_of(request, "below"),
        above=number_of(request, "above"),
        sort="reward" if SORTS[chosen["sort"]][1] == "reward" else "time",
        most=size + 1,
    )
    check_order(wanted)
    ask = _by_index if source.asked is not None else _by_contract
    found = await ask(source, wanted, chosen["sort"], beginning, chosen["after"] or None)
    is_more = len(found.rollouts) > size
    rows = await rows_of(source, found.rollouts[:size])
    values = {
        "title": "Rollouts",
        "rows": rows,
        "total": found.total,
        "note": found.note,
        "many": MANY,
        "size": size,
        "chosen": chosen,
        "sorts": SORTS,
        "sizes": sorted({*SIZES, size}),
        "statuses": STATUSES,
        "modes": get_args(RolloutMode),
        "next": rows[-1].rollout.rollout_id if is_more else "",
        "is_first": not chosen["after"],
    }
    return Page("rollouts.html", values, source, "rollouts", state=state)


async def _check_after(source: DataSource, rollout_id: str) -> None:
    with contextlib.suppress(DamagedRecordError):  # it is there
        if await source.store.get_rollout_by_id(rollout_id) is None:
            raise HTTPException(400, f"after={rollout_id[:50]!r}: the store has no such rollout")


async def _by_index(
    source: DataSource, wanted: Wanted, sort: str, beginning: str, after: str | None
) -> Listed:
    """The rollouts of the page, from a store's file."""

    def look(found: sqlite3.Connection) -> tuple[list[str], int | None]:
        if sort in ("ended", "status", "reward", "lowest"):
            return ordered_in(found, wanted, sort, after=after)
        is_whole = "ro-".startswith(beginning) or beginning.startswith("ro-")
        name = beginning if is_whole else f"ro-{beginning}"
        is_oldest = sort == "oldest"
        return page_in(found, wanted, beginning=name, after=after, oldest_first=is_oldest)

    assert source.asked is not None
    ids, total = await source.asked.ask(look)
    found = {one.rollout_id: one for one in await source.store.query_rollouts(rollout_id_in=ids)}
    return Listed([found.get(one) or _unread(one) for one in ids], total)


async def _by_contract(
    source: DataSource, wanted: Wanted, sort: str, beginning: str, after: str | None
) -> Listed:
    """The same from a store of which no more can be asked than what every store answers."""
    filters = {"status_in": wanted.statuses, "mode": wanted.mode, "run": wanted.run}
    filters |= {"reward_below": wanted.below, "reward_above": wanted.above}
    used: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
    _, field, order = SORTS[sort]
    if wanted.step is None and not beginning:
        how = {"sort_by": field, "sort_order": order, "limit": wanted.most or -1}
        page = await page_behind(source.store, after, None, **used, **how)
        return Listed(list(page), page.total)
    if beginning:
        used["rollout_id_contains"] = beginning
    found: dict[str, Rollout] = {}
    looked_at = 0
    async for one in each_record(source.store.query_rollouts, **used, sort_order="desc"):
        looked_at += 1
        names = (one.rollout_id, one.rollout_id.removeprefix("ro-"))
        if wanted.fits(one) and any(name.startswith(beginning) for name in names):
            found[one.rollout_id] = one
        if looked_at == NEWEST:
            break
    rollouts = list(found.values())
    if order == "asc":
        rollouts.reverse()
    if sort == "ended":
        rollouts.sort(key=lambda one: -math.inf if one.end_time is None else -one.end_time)
    elif field is not None:
        rollouts.sort(key=lambda one: getattr(one, field), reverse=order == "desc")
    total = len(rollouts)
    note = f"of the newest {NEWEST} rollouts" if looked_at == NEWEST else ""
    ids = [one.rollout_id for one in rollouts]
    begin = ids.index(after) + 1 if after in ids else 0
    return Listed(rollouts[begin : begin + (wanted.most or 0)], total, note)


def _unread(rollout_id: str) -> Rollout:
    """Stands in the place of one that is damaged, which the page has said."""
    return Rollout.model_construct(rollout_id=rollout_id, input="", start_time=0, status=DAMAGED)


async def rows_of(source: DataSource, rollouts: Any) -> list[Row]:
    """Lines of rollouts, with their final rewards."""
    return [await _row(source, one) for one in rollouts]


async def _row(source: DataSource, rollout: Rollout) -> Row:
    if rollout.status == DAMAGED:
        return Row(rollout, None, problem="this record is damaged; see above")
    attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    return Row(rollout, attempt, await final_reward(source.store, rollout))
