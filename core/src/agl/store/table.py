"""Records in memory: found by key or by field, sorted, and put back as they were."""

import heapq
import math
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from operator import attrgetter, contains, eq, gt, itemgetter, lt
from typing import Any, Final, Generic, TypeVar

from agl.store.queries import Filter, FilterKind, Query, make_page
from agl.types import PaginatedResult

R = TypeVar("R")
T = TypeVar("T")
Row = tuple[int, R]
"""A record with the number of its creation, by which rows are sorted."""
UndoLog = list[tuple["Table[Any]", Any, "Row[Any] | None"]]
"""Table, key, and the row that a change replaced; the last change is undone first."""

_HOLDS: Final[dict[FilterKind, Callable[[Any, Any], bool]]] = {
    "exact": eq,
    "within": lambda value, values: value in values,
    "contains": contains,
    "below": lt,
    "above": gt,
}


class Table(Generic[R]):
    """Records of one kind.

    Args:
        undo_log: Takes a note of each change; all tables of a store share it.
        key: Fields of a record that are its key. A table without a key has one record.
        indexes: Name of an index -> what it reads of a record; an index does not find None.
    """

    def __init__(self, undo_log: UndoLog, *key: str, **indexes: Callable[[R], Any]) -> None:
        self.rows: dict[Any, Row[R]] = {}
        self._undo_log = undo_log
        self._key = key
        self._key_of: Callable[[R], Any] = attrgetter(*key) if key else lambda _: None
        self._read = indexes
        self._keys = {name: defaultdict[Any, dict[Any, None]](dict) for name in indexes}
        self._numbers = count()

    def get(self, key: Any = None) -> R | None:
        """The record with this key."""
        row = self.rows.get(key)
        return None if row is None else row[1]

    def save(self, record: R) -> None:
        """Add a record, or replace the one with its key."""
        key = self._key_of(record)
        old = self.rows.get(key)
        self._undo_log.append((self, key, old))
        self.put(key, (next(self._numbers) if old is None else old[0], record))

    def delete(self, record: R) -> None:
        """Remove a record that is here."""
        key = self._key_of(record)
        self._undo_log.append((self, key, self.rows[key]))
        self.put(key, None)

    def put(self, key: Any, row: Row[R] | None) -> None:
        """Set or remove a row without a note, as one does to undo a change."""
        old = self.rows.pop(key, None) if row is None else self.rows.get(key)
        if row is not None:
            self.rows[key] = row
        for name, read in self._read.items():
            before = None if old is None else read(old[1])
            after = None if row is None else read(row[1])
            if before == after:
                continue
            keys = self._keys[name]
            if before is not None:
                keys[before].pop(key, None)
                if not keys[before]:
                    del keys[before]
            if after is not None:
                keys[after][key] = None

    def where(self, name: str, *values: Any) -> list[Row[R]]:
        """Rows that have one of these values as their key or in an index, oldest first."""
        return sorted(self._where(name, values))

    def _where(self, name: str, values: Iterable[Any]) -> list[Row[R]]:
        rows, values = self.rows, dict.fromkeys(values)
        if (name,) == self._key:
            return [rows[key] for key in values if key in rows]
        keys = self._keys[name]
        return [rows[key] for value in values for key in keys.get(value, ())]

    def newest(self, name: str, value: Any) -> R | None:
        """The last of the records that have this value in an index."""
        rows = self.where(name, value)
        return rows[-1][1] if rows else None

    def page(self, query: Query, give: Callable[[R], T]) -> PaginatedResult[T]:
        """What a query finds; its fields are those of records, and indexes."""
        rows: Iterable[Row[R]] = self.rows.values()
        last = None if query.after is None else self.rows.get(query.after)
        for one in query.filters if query.match_all else ():
            is_looked_up = (one.field,) == self._key or one.field in self._keys
            if is_looked_up and one.kind in ("exact", "within"):
                rows = self._where(one.field, one.value if one.kind == "within" else (one.value,))
                others = tuple(other for other in query.filters if other is not one)
                query = replace(query, filters=others)
                break
        return page(rows, query, give, self._reader, last)

    def _reader(self, field: str) -> Callable[[R], Any]:
        return self._read.get(field) or attrgetter(field)


class Queue(Table[R]):
    """Records, of which the first one is found at once."""

    def __init__(self, undo_log: UndoLog, key: str) -> None:
        super().__init__(undo_log, key)
        self._heap: list[tuple[int, Any]] = []

    def put(self, key: Any, row: Row[R] | None) -> None:
        super().put(key, row)
        if row is not None:
            heapq.heappush(self._heap, (row[0], key))

    def first(self) -> R | None:
        """The record that has been here longest."""
        while self._heap:
            number, key = self._heap[0]
            row = self.rows.get(key)
            if row is not None and row[0] == number:
                return row[1]
            heapq.heappop(self._heap)  # it is no longer here
        return None


class SortedTable(Table[R]):
    """Records that are also found in the order of their keys."""

    def __init__(self, undo_log: UndoLog, *key: str, **indexes: Callable[[R], Any]) -> None:
        super().__init__(undo_log, *key, **indexes)
        self._sorted: list[Any] = []

    def put(self, key: Any, row: Row[R] | None) -> None:
        was_here = key in self.rows
        super().put(key, row)
        if row is not None and not was_here:
            insort(self._sorted, key)
        elif row is None and was_here:
            del self._sorted[bisect_left(self._sorted, key)]

    def keys(self, first: Any, last: Any) -> list[Any]:
        """The keys from the first to the last of these, in order."""
        return self._sorted[bisect_left(self._sorted, first) : bisect_right(self._sorted, last)]


def page(
    rows: Iterable[Row[R]],
    query: Query,
    give: Callable[[R], T],
    reader: Callable[[str], Callable[[R], Any]] = attrgetter,
    last: Row[R] | None = None,
) -> PaginatedResult[T]:
    """What a query finds in these rows, which may come in any order.

    ``give`` makes of each record what its reader gets, ``reader`` reads a field of a record, and
    ``last`` is the row of ``query.after``.
    """
    conditions = [_condition(reader(one.field), one) for one in query.filters]
    found = list(rows)
    if query.match_all:
        for holds in conditions:
            found = [row for row in found if holds(row[1])]
    elif conditions:
        found = [row for row in found if any(holds(row[1]) for holds in conditions)]
    rank: Callable[[Row[R]], Any] = itemgetter(0)
    if query.sort_by is None:
        found.sort()
    else:
        read = reader(query.sort_by)
        if query.sort_by == "reward":
            found = [row for row in found if read(row[1]) is not None]
        rank = _rank(read, math.inf if query.sort_by.endswith(("_time", "reward")) else "")
        found.sort(key=rank)
    total = len(found)
    if last is not None and query.descending:
        found = found[: bisect_left(found, rank(last), key=rank)]
    elif last is not None:
        found = found[bisect_right(found, rank(last), key=rank) :]
    if query.descending:
        found.reverse()
    found = found[query.offset :][: None if query.limit < 0 else query.limit]
    return make_page([give(record) for _, record in found], query, total=total)


def _condition(read: Callable[[R], Any], one: Filter) -> Callable[[R], bool]:
    holds, wanted = _HOLDS[one.kind], one.value

    def condition(record: R) -> bool:
        value = read(record)
        return value is not None and holds(value, wanted)

    return condition


def _rank(read: Callable[[R], Any], missing: Any) -> Callable[[Row[R]], tuple[Any, int]]:
    def rank(row: Row[R]) -> tuple[Any, int]:
        value = read(row[1])
        return missing if value is None else value, row[0]

    return rank
