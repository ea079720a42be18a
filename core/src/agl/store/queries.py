"""Filtering, sorting and paging of records: what a query may ask.

``make_query`` refuses what makes no sense; a store answers by the fields of ``Query``.
"""

import math
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin

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


_STATUSES: Final = {
    "rollouts": get_args(RolloutStatus),
    "workers": get_args(WorkerStatus),
}


def check_statuses(kind: str, statuses: Sequence[str] | None) -> None:
    """Refuse to look for what no record can have.

    Raises:
        InvalidQueryError: One is no status of this kind of record.
    """
    for status in statuses or ():
        if status not in _STATUSES[kind]:
            raise InvalidQueryError(
                f"{kind}: no status {status!r}; expected one of {', '.join(_STATUSES[kind])}."
                f"{did_you_mean(status, _STATUSES[kind])}"
            )


def make_query(
    kind: str,
    filters: Sequence[Filter] = (),
    *,
    filter_logic: str = "and",
    sort_by: str | None = None,
    sort_order: str = "asc",
    limit: int = -1,
    offset: int = 0,
    after: str | None = None,
) -> Query:
    """Check a query.

    Args:
        kind: A key of ``SORTABLE``.
        filters: What must hold.
        filter_logic: ``and`` or ``or``.
        sort_by: A field, or None for the order of creation.
        sort_order: ``asc`` or ``desc``.
        limit: At most so many; -1 for all.
        offset: So many are skipped.
        after: Only what is behind the record of this id.

    Raises:
        InvalidQueryError: A sort field or order, limit, offset, logic or status that there is not.
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
    for one in filters:
        if one.field == "status":
            check_statuses(kind, one.value)
        if isinstance(one.value, int) and abs(one.value) > _MOST:
            raise InvalidQueryError(f"{kind}: {one.field} {one.value}; expected at most {_MOST}")
    return Query(
        tuple(filters), filter_logic == "and", sort_by, sort_order == "desc", limit, offset, after
    )


def check_seconds(name: str, seconds: float | None) -> None:
    """Refuse a time to wait that is no finite number; None is one without limit."""
    if seconds is not None and not math.isfinite(seconds):
        raise InvalidQueryError(f"{name} {seconds}: expected a finite number of seconds")


def _where(field: str, kind: FilterKind, value: Any) -> tuple[Filter, ...]:
    if value is None:
        return ()
    return (Filter(field, kind, tuple(value) if kind == "within" else value),)


def rollout_query(
    *,
    status_in: Sequence[str] | None = None,
    rollout_id_in: Sequence[str] | None = None,
    rollout_id_contains: str | None = None,
    mode: str | None = None,
    run: str | None = None,
    reward_below: float | None = None,
    reward_above: float | None = None,
    status: Sequence[str] | None = None,
    rollout_ids: Sequence[str] | None = None,
    **page: Any,
) -> Query:
    """What ``query_rollouts`` asks for; see there, and ``make_query`` for ``page``."""
    filters = (
        *_where("status", "within", status if status_in is None else status_in),
        *_where("rollout_id", "within", rollout_ids if rollout_id_in is None else rollout_id_in),
        *_where("rollout_id", "contains", rollout_id_contains),
        *_where("mode", "exact", mode),
        *_where("run", "exact", run),
        *_where("reward", "below", reward_below),
        *_where("reward", "above", reward_above),
    )
    return make_query("rollouts", filters, **page)


def attempt_query(*, sort_by: str | None = "sequence_id", **page: Any) -> Query:
    """What ``query_attempts`` asks for."""
    return make_query("attempts", sort_by=sort_by, **page)


def span_query(
    *,
    trace_id: str | None = None,
    trace_id_contains: str | None = None,
    span_id: str | None = None,
    span_id_contains: str | None = None,
    parent_id: str | None = None,
    parent_id_contains: str | None = None,
    name: str | None = None,
    name_contains: str | None = None,
    sort_by: str | None = "sequence_id",
    **page: Any,
) -> Query:
    """What ``query_spans`` asks for, beside the two ids."""
    filters = (
        *_where("trace_id", "exact", trace_id),
        *_where("trace_id", "contains", trace_id_contains),
        *_where("span_id", "exact", span_id),
        *_where("span_id", "contains", span_id_contains),
        *_where("parent_id", "exact", parent_id),
        *_where("parent_id", "contains", parent_id_contains),
        *_where("name", "exact", name),
        *_where("name", "contains", name_contains),
    )
    return make_query("spans", filters, sort_by=sort_by, **page)


def resources_query(
    *, resources_id: str | None = None, resources_id_contains: str | None = None, **page: Any
) -> Query:
    """What ``query_resources`` asks for."""
    filters = (
        *_where("resources_id", "exact", resources_id),
        *_where("resources_id", "contains", resources_id_contains),
    )
    return make_query("resources", filters, **page)


def worker_query(
    *, status_in: Sequence[str] | None = None, worker_id_contains: str | None = None, **page: Any
) -> Query:
    """What ``query_workers`` asks for."""
    filters = (
        *_where("status", "within", status_in),
        *_where("worker_id", "contains", worker_id_contains),
    )
    return make_query("workers", filters, **page)


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
