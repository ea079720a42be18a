"""Filtering, sorting and paging of records: what a query may ask.

``make_query`` refuses what makes no sense; a store answers by the fields of ``Query``.
"""

import math
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel

from agl.errors import InvalidQueryError
from agl.types import (
    Attempt,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutStatus,
    Span,
    Worker,
    WorkerStatus,
)
from agl.utils.text import did_you_mean

T = TypeVar("T")
PAGE = 500
"""Records that are read from a store at once, where all are read."""


def _ordered(record: type[BaseModel]) -> tuple[str, ...]:
    """The fields of a record that are one text or number."""

    def is_one(hint: Any) -> bool:
        if get_origin(hint) in (Union, types.UnionType):
            return all(map(is_one, get_args(hint)))
        return hint in (str, int, float, types.NoneType) or get_origin(hint) is Literal

    return tuple(name for name, field in record.model_fields.items() if is_one(field.annotation))


SORTABLE: Final[dict[str, tuple[str, ...]]] = {
    "rollouts": _ordered(Rollout),
    "attempts": _ordered(Attempt),
    "spans": _ordered(Span),
    "documents": (),
    "resources": _ordered(ResourcesUpdate),
    "workers": _ordered(Worker),
}
"""Per kind of record, the fields it can be sorted by."""
_MOST: Final = 1 << 53
"""No store has more records; databases have no larger numbers."""


FilterKind = Literal["exact", "within", "contains", "below", "above"]


@dataclass(frozen=True, slots=True)
class Filter:
    """One condition on one field; a field that is None matches nothing."""

    field: str
    kind: FilterKind
    value: Any


@dataclass(frozen=True, slots=True)
class Query:
    """A checked query.

    The order is that of creation, also among equal ``sort_by``; ``descending`` reverses it. None is
    positive infinity in a time and the empty string elsewhere; by reward, None is left out.
    """

    filters: tuple[Filter, ...] = ()
    match_all: bool = True
    """Whether all filters must hold, or any one of them; without filters, every record matches."""
    sort_by: str | None = None
    descending: bool = False
    limit: int = -1
    offset: int = 0
    after: str | None = None
    """Id of a record; only those behind it in the order. Where a contract offers it: rollouts."""


class DocumentQuery(NamedTuple):
    """The arguments of ``query_documents``; see there."""

    kind: str
    key_in: Sequence[str] | None = None
    key_prefix: str = ""
    rollout_id_in: Sequence[str] | None = None
    after: str | None = None
    limit: int = -1


FILTERS: Final[dict[str, dict[str, tuple[str, FilterKind]]]] = {
    "rollouts": {
        "status_in": ("status", "within"),
        "rollout_id_in": ("rollout_id", "within"),
        "rollout_id_contains": ("rollout_id", "contains"),
        "mode": ("mode", "exact"),
        "run": ("run", "exact"),
        "reward_below": ("reward", "below"),
        "reward_above": ("reward", "above"),
    },
    "attempts": {},
    "spans": {
        "trace_id": ("trace_id", "exact"),
        "trace_id_contains": ("trace_id", "contains"),
        "span_id": ("span_id", "exact"),
        "span_id_contains": ("span_id", "contains"),
        "parent_id": ("parent_id", "exact"),
        "parent_id_contains": ("parent_id", "contains"),
        "name": ("name", "exact"),
        "name_contains": ("name", "contains"),
    },
    "documents": {},
    "resources": {
        "resources_id": ("resources_id", "exact"),
        "resources_id_contains": ("resources_id", "contains"),
    },
    "workers": {"status_in": ("status", "within"), "worker_id_contains": ("worker_id", "contains")},
}
"""Per kind of record, the argument of a query -> field and condition."""
_OLDER: Final = {"status": "status_in", "rollout_ids": "rollout_id_in"}
"""0.3's names of arguments, for rollouts."""
_STATUSES: Final = {"rollouts": get_args(RolloutStatus), "workers": get_args(WorkerStatus)}


def check_statuses(kind: str, statuses: Sequence[str] | None) -> None:
    """Raise an ``InvalidQueryError`` for a status that no record of this kind can have."""
    for status in statuses or ():
        if status not in _STATUSES[kind]:
            raise InvalidQueryError(
                f"{kind}: no status {status!r}; expected one of {', '.join(_STATUSES[kind])}."
                f"{did_you_mean(status, _STATUSES[kind])}"
            )


def make_query(
    kind: str,
    *,
    filter_logic: str = "and",
    sort_by: str | None = None,
    sort_order: str = "asc",
    limit: int = -1,
    offset: int = 0,
    after: str | None = None,
    **filters: Any,
) -> Query:
    """Check a query; arguments are those of the contract, ``kind`` is a key of ``FILTERS``.

    Raises:
        InvalidQueryError: A sort field or order, limit, offset, logic or status that there is not.
        TypeError: A filter that there is not.
    """
    if sort_by is not None and sort_by not in SORTABLE[kind]:
        raise InvalidQueryError(
            f"{kind}: cannot sort by {sort_by!r}; expected one of "
            f"{', '.join(SORTABLE[kind])}.{did_you_mean(sort_by, SORTABLE[kind])}"
        )
    if sort_order not in ("asc", "desc"):
        raise InvalidQueryError(f"{kind}: sort_order {sort_order!r}; expected 'asc' or 'desc'")
    if filter_logic not in ("and", "or"):
        raise InvalidQueryError(f"{kind}: filter_logic {filter_logic!r}; expected 'and' or 'or'")
    if limit == 0 or limit < -1 or limit > _MOST:
        raise InvalidQueryError(f"{kind}: limit {limit}; expected -1 for all, or 1 to {_MOST}")
    if offset < 0 or offset > _MOST:
        raise InvalidQueryError(f"{kind}: offset {offset}; expected 0 to {_MOST}")
    for older, name in _OLDER.items() if kind == "rollouts" else ():
        value = filters.pop(older, None)
        if filters.get(name) is None:
            filters[name] = value
    found: list[Filter] = []
    for name, (field, how) in FILTERS[kind].items():
        value = filters.pop(name, None)
        if value is None:
            continue
        if how == "within":
            value = tuple(value)
        if field == "status":
            check_statuses(kind, value)
        if isinstance(value, int) and abs(value) > _MOST:
            raise InvalidQueryError(f"{kind}: {name} {value}; expected at most {_MOST}")
        found.append(Filter(field, how, value))
    if filters:
        raise TypeError(
            f"query_{kind}() got an unexpected keyword argument {next(iter(filters))!r}"
        )
    return Query(
        tuple(found), filter_logic == "and", sort_by, sort_order == "desc", limit, offset, after
    )


def check_seconds(name: str, seconds: float | None) -> None:
    """Refuse a time to wait that is no finite number; None is one without limit."""
    if seconds is not None and not math.isfinite(seconds):
        raise InvalidQueryError(f"{name} {seconds}: expected a finite number of seconds")


def make_page(items: Sequence[T], query: Query, *, total: int) -> PaginatedResult[T]:
    """The page of a query; the records in it are valid already and not looked at again."""
    return PaginatedResult[Any].model_construct(
        items=items, limit=query.limit, offset=query.offset, total=total
    )


async def each_record(
    query: Callable[..., Awaitable[Sequence[T]]], **filters: Any
) -> AsyncGenerator[T]:
    """All that a store's ``query`` finds, read page by page in the order of the query."""
    offset = 0
    while len(page := await query(**filters, limit=PAGE, offset=offset)):
        for record in page:
            yield record
        offset += len(page)
