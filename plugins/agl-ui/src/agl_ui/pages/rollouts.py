"""The table of rollouts: filtered, sorted and paged by the store."""

import asyncio
import math
from dataclasses import dataclass, replace
from typing import Any, get_args

from starlette.exceptions import HTTPException
from starlette.requests import Request

from agl.emitter import find_final_reward
from agl.errors import DamagedRecordError
from agl.semconv import AGL_ANNOTATION, AGL_REWARD
from agl.store.queries import check_statuses
from agl.types import Attempt, AttemptedRollout, Rollout, RolloutMode
from agl_learning.listing import MANY, Wanted, ids_in, page_in
from agl_ui.pages.page import Page, whole_number
from agl_ui.places import Place, Places

SIZES = (25, 50, 100, 200)
SORTS = {
    "newest": ("Newest first", None, "desc"),
    "oldest": ("Oldest first", None, "asc"),
    "ended": ("Last ended first", "end_time", "desc"),
    "status": ("By status", "status", "asc"),
    "reward": ("Highest reward, of a step", None, "asc"),
}
"""Name in the address -> label, field, order."""
STATUSES = ("queuing", "preparing", "running", "succeeded", "failed", "cancelled", "requeuing")
DAMAGED: Any = "damaged"
"""Status of one that cannot be read."""
MOST_OF_A_STEP = 2_000
"""Rollouts of one step that are read, to be sorted by their rewards."""
LAST_SPANS, SPANS_LOOKED_AT = 8, 50
"""The last spans of a rollout, and its last ones of a name, among which its reward is."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    rollout: Rollout
    attempt: Attempt | None
    reward: float | None
    problem: str = ""

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


async def write(request: Request, places: Places) -> Page:
    """The table, as the address says."""
    place = places.get(request.path_params["key"])
    state = await place.state()
    given = request.query_params
    chosen: dict[str, Any] = {
        "status": [one for one in given.getlist("status") if one],
        "mode": given.get("mode", ""),
        "id": given.get("id", "").strip(),
        "step": given.get("step", "").strip(),
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
    if chosen["sort"] == "reward" and step is None:
        raise HTTPException(
            400, "sorting by reward needs a step: rewards lie in spans, which no index orders"
        )
    found, total = await _query(place, chosen, size, step)
    rows = await rows_of(place, found)
    if chosen["sort"] == "reward":
        rows.sort(key=lambda row: -math.inf if row.reward is None else row.reward, reverse=True)
        rows = rows[:size]
    values = {
        "title": "Rollouts",
        "rows": rows,
        "total": total,
        "many": MANY,
        "size": size,
        "chosen": chosen,
        "sorts": SORTS,
        "sizes": sorted({*SIZES, size}),
        "statuses": STATUSES,
        "modes": get_args(RolloutMode),
        "next": rows[-1].rollout.rollout_id if len(rows) == size else "",
        "is_first": not chosen["after"],
    }
    return Page("rollouts.html", values, place, "rollouts", state=state)


async def _query(
    place: Place, chosen: dict[str, Any], size: int, step: int | None
) -> tuple[list[Rollout], int | None]:
    """The rollouts of the page, and how many there are; None for more than ``MANY``."""
    _, field, order = SORTS[chosen["sort"]]
    beginning = f"ro-{chosen['id'].removeprefix('ro-')}" if chosen["id"] else ""
    wanted = Wanted(chosen["status"] or None, chosen["mode"] or None, step=step, most=size)
    if place.asked is not None and chosen["sort"] == "reward" and not beginning:
        best = replace(wanted, sort="reward")
        ids, total = await place.asked.ask(lambda found: ids_in(found, best))
        return await _in_order(place, ids), total
    if place.asked is not None and field is None and chosen["sort"] != "reward":
        about = {"after": chosen["after"] or None, "oldest_first": order == "asc"}
        ids, total = await place.asked.ask(
            lambda found: page_in(found, wanted, beginning=beginning, **about)
        )
        return await _in_order(place, ids), total
    filters: dict[str, Any] = {
        "status_in": wanted.statuses,
        "mode": wanted.mode,
        "rollout_id_contains": beginning or None,
        "sort_by": field,
        "sort_order": order,
        "limit": size,
        "after": chosen["after"] or None,
    }
    if step is not None:
        parts = await place.store.query_ledger_parts(step=step, limit=MOST_OF_A_STEP)
        filters["rollout_id_in"] = [part.rollout_id for part in parts]
    if chosen["sort"] == "reward":
        filters |= {"limit": MOST_OF_A_STEP, "after": None}
    used = {name: value for name, value in filters.items() if value is not None}
    page = await place.store.query_rollouts(**used)
    return list(page), page.total


async def _in_order(place: Place, ids: list[str]) -> list[Rollout]:
    found = {one.rollout_id: one for one in await place.store.query_rollouts(rollout_id_in=ids)}
    return [found.get(one) or _unread(one) for one in ids]


def _unread(rollout_id: str) -> Rollout:
    """Stands in the place of one that is damaged, which the page has said."""
    return Rollout.model_construct(rollout_id=rollout_id, input="", start_time=0, status=DAMAGED)


async def rows_of(place: Place, rollouts: Any) -> list[Row]:
    """Lines of rollouts, with their final rewards."""
    return list(await asyncio.gather(*(_row(place, one) for one in rollouts)))


async def _row(place: Place, rollout: Rollout) -> Row:
    if rollout.status == DAMAGED:
        return Row(rollout, None, None, "this record is damaged; see above")
    attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    if attempt is None or rollout.status in ("queuing", "preparing"):
        return Row(rollout, attempt, None)
    try:
        return Row(rollout, attempt, await reward_of(place, attempt))
    except DamagedRecordError as damage:  # of this one; the others are to be listed
        return Row(rollout, attempt, None, str(damage))


async def reward_of(place: Place, attempt: Attempt) -> float | None:
    """The final reward of an attempt."""
    return await reward_of_ids(place, attempt.rollout_id, attempt.attempt_id)


async def reward_of_ids(place: Place, rollout_id: str, attempt_id: str) -> float | None:
    """The same, from as few of its spans as have it: as a rule it is among the last ones."""
    of = (rollout_id, attempt_id)
    last = await place.store.query_spans(*of, sort_order="desc", limit=LAST_SPANS)
    reward = find_final_reward(last[::-1])
    is_late = any(one.late for one in last)  # before these there may be the one that counts
    if last.total <= LAST_SPANS or (reward is not None and not is_late):
        return reward
    newest = {"sort_order": "desc", "limit": SPANS_LOOKED_AT}
    for name in (AGL_ANNOTATION, AGL_REWARD, None):
        named = {} if name is None else {"name": name}
        spans = await place.store.query_spans(*of, **named, **newest)
        reward = find_final_reward(spans[::-1])
        if reward is not None:
            return reward
    return None
