"""The table of rollouts: filtered, sorted and paged by the store."""

import contextlib
from dataclasses import dataclass
from typing import Any, get_args

from starlette.exceptions import HTTPException
from starlette.requests import Request

from agl.errors import DamagedRecordError
from agl.store.queries import check_statuses
from agl.types import Attempt, AttemptedRollout, Rollout, RolloutMode
from agl_records.final_rewards import FinalReward, final_reward
from agl_ui.counts import STATUSES
from agl_ui.data_sources import DataSource
from agl_ui.pages.page import Page, number_of, whole_number
from agl_views.tables.rollout_table import MANY, Sort, Wanted, listed

SIZES = (25, 50, 100, 200)
SORTS: dict[str, tuple[str, Sort, bool]] = {
    "newest": ("Newest first", "time", False),
    "oldest": ("Oldest first", "time", True),
    "ended": ("Not ended, then last ended", "ended", False),
    "status": ("By status", "status", True),
    "reward": ("Highest rewards first", "reward", False),
    "lowest": ("Lowest rewards first", "reward", True),
}
"""Name in the address -> label, order, whether the least comes first."""
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


async def write(request: Request, source: DataSource) -> Page:
    """The table, as the address says."""
    state = await source.state()
    given = request.query_params
    chosen: dict[str, Any] = {"status": [one for one in given.getlist("status") if one]}
    for name in ("mode", "id", "step", "run", "above", "below"):
        chosen[name] = given.get(name, "").strip()
    chosen |= {"sort": given.get("sort", "newest"), "size": given.get("size", "50")}
    chosen["after"] = given.get("after", "")
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
        with contextlib.suppress(DamagedRecordError):  # it is there
            if await source.store.get_rollout_by_id(chosen["after"]) is None:
                text = f"after={chosen['after'][:50]!r}: the store has no such rollout"
                raise HTTPException(400, text)
    statuses = [*chosen["status"]] or None
    _, sort, is_least = SORTS[chosen["sort"]]
    # One more than is shown, to know whether there is a next page.
    wanted = Wanted(
        statuses,
        chosen["mode"] or None,
        chosen["run"] or None,
        step,
        below=number_of(request, "below"),
        above=number_of(request, "above"),
        sort=sort,
        most=size + 1,
        is_least=is_least,
        beginning=beginning,
        after=chosen["after"] or None,
    )
    found = await listed(source.store, wanted)
    is_more = len(found.ids) > size
    by_id = {one.rollout_id: one for one in found.rollouts}
    rows = [row_of(by_id.get(one) or _unread(one)) for one in found.ids[:size]]
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


def _unread(rollout_id: str) -> Rollout:
    """Stands in the place of one that is damaged, which the page has said."""
    return Rollout.model_construct(rollout_id=rollout_id, input="", start_time=0, status=DAMAGED)


def row_of(rollout: Rollout) -> Row:
    """The line of a rollout, with its final reward."""
    if rollout.status == DAMAGED:
        return Row(rollout, None, problem="this record is damaged; see above")
    attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    return Row(rollout, attempt, final_reward(rollout))
