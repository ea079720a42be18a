"""Queries that the store's contract lacks: ids by their beginning, rollouts by their task.

SQL answers them in a store's file, however large it is. In any other store these functions read
only the newest rollouts, page by page.
"""

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from agl.store.base import LightningStore
from agl.store.queries import PAGE
from agl.types import AttemptedRollout, Rollout
from agl_learning.collect.task_order import digest
from agl_sqlite.file import open_to_read
from agl_sqlite.ids import id_begins
from agl_sqlite.lookups import read_statements
from agl_views.tables.file_store import file_of

MOST: Final = 6
"""Candidates that are looked for; what matters is whether there is one."""
NEWEST_ATTEMPTS: Final = 100_000
"""Attempts in which a span is looked for by its id, which is in no index of its own."""
NEWEST_SPANS: Final = 50_000
"""Spans in which a response id is looked for: it stands inside, and in no index."""
BEGINNINGS: Final = 10_000
"""Of tasks, at the first of which it is looked whether it has the very id."""
NEWEST_OF_TASK: Final = 1_000
"""Rollouts of a task that are counted."""
NEWEST_ROLLOUTS: Final = 2_000
"""Rollouts that are looked at where the store is no file."""

Place = tuple[str, str, str]
"""(rollout_id, attempt_id, span_id)."""


def task_id(task: Any) -> str:
    """The id of a task: the same for the same input, whatever the order of its keys."""
    return f"task-{digest([task])[:12]}"


def is_named(task: Any, beginning: str, *, whole: bool = False) -> bool:
    """Whether a task has this beginning of an id: of ours, or the very one that it has itself.

    ``whole``: whether of ours, too, it is to be all.
    """
    own: Any = task if isinstance(task, dict) else {}
    if any(str(own[key]) == beginning for key in ("id", "task_id") if own.get(key)):
        return True
    ours = task_id(task)
    return ours == beginning if whole else ours.startswith(beginning)


class Reading(Protocol):
    """Questions about the beginnings of ids; each answers with ``MOST`` at most, oldest first."""

    looked_at: list[str]
    """Where the answers so far may lack something: what alone was looked at for them."""

    async def rollouts(self, beginning: str) -> list[str]:
        """Ids of rollouts."""
        ...

    async def attempts(self, beginning: str) -> list[tuple[str, str]]:
        """(rollout_id, attempt_id)."""
        ...

    async def spans(self, beginning: str) -> list[Place]:
        """Spans of the newest attempts whose id begins so."""
        ...

    async def responses(self, beginning: str) -> list[Place]:
        """Spans of the newest calls whose answer has a response id that begins so."""
        ...

    async def task(self, name: str) -> Any:
        """A task whose id this is, whole; None where a quick look finds none."""
        ...

    async def tasks(self, beginning: str) -> list[Any]:
        """Tasks whose id begins so."""
        ...

    async def rollouts_of(self, task: Any) -> list[str]:
        """Ids of the rollouts of a task, oldest first; ``looked_at`` says where some may lack."""
        ...


def reading_of(store: LightningStore) -> Reading:
    """How to ask this store."""
    path = file_of(store)
    return PagedReading(store) if path is None else FileReading(path)


class FileReading:
    """Of the file of a store, in SQL.

    Args:
        file: The store's, which may be open.
    """

    def __init__(self, file: Path) -> None:
        self.looked_at: list[str] = []
        self._file = file
        self._sql = read_statements("agl_inspect.show", "id_queries.sql")

    def ask(self, name: str, values: dict[str, Any], **parts: str) -> list[tuple[Any, ...]]:
        """The rows of a statement of ``id_queries.sql``."""
        sql = self._sql[name]
        for part, text in parts.items():
            sql = sql.replace(f"{{{part}}}", text)
        with closing(open_to_read(self._file)) as connection:
            return connection.execute(sql, values).fetchall()

    async def rollouts(self, beginning: str) -> list[str]:
        condition = id_begins("n", "rollout_id", beginning)
        return [row[0] for row in self.ask("ids_of_rollouts", {"most": MOST}, ranges=condition)]

    async def attempts(self, beginning: str) -> list[tuple[str, str]]:
        condition = id_begins("t.a", "t.attempt_id", beginning)
        rows = self.ask("ids_of_attempts", {"most": MOST}, ranges=condition)
        return [(row[0], row[1]) for row in rows]

    async def spans(self, beginning: str) -> list[Place]:
        values = {"beginning": beginning, "length": len(beginning), "most": MOST}
        values["newest"] = NEWEST_ATTEMPTS
        if self.ask("number_of_attempts", {})[0][0] > NEWEST_ATTEMPTS:
            _note(self.looked_at, f"spans of the newest {NEWEST_ATTEMPTS:,} attempts")
        return [(row[0], row[1], row[2]) for row in self.ask("spans_by_id", values)]

    async def responses(self, beginning: str) -> list[Place]:
        response = f'"gen_ai.response.id":"{beginning}'
        values = {"response": response, "newest": NEWEST_SPANS, "most": MOST}
        if self.ask("number_of_spans", {})[0][0] > NEWEST_SPANS:
            _note(self.looked_at, f"response ids in the newest {NEWEST_SPANS:,} spans")
        return [(row[0], row[1], row[2]) for row in self.ask("spans_by_response", values)]

    async def task(self, name: str) -> Any:
        rows = self.ask("one_task_of_each_beginning", {"most": BEGINNINGS})
        return next((task for task in _valid(rows) if is_named(task, name, whole=True)), None)

    async def tasks(self, beginning: str) -> list[Any]:
        found: list[Any] = []
        for task in _valid(self.ask("tasks", {})):
            if is_named(task, beginning):
                found.append(task)
                if len(found) == MOST:
                    break
        return found

    async def rollouts_of(self, task: Any) -> list[str]:
        from agl.utils.json_values import json_of

        values = {"task": json_of(task, "the task"), "most": NEWEST_OF_TASK + 1}
        ids = [row[0] for row in self.ask("rollouts_of_task", values)]
        if len(ids) > NEWEST_OF_TASK:
            _note(self.looked_at, f"the newest {NEWEST_OF_TASK:,} of this task")
        return ids[:NEWEST_OF_TASK][::-1]


def _note(looked_at: list[str], what: str) -> None:
    if what not in looked_at:
        looked_at.append(what)


def _valid(rows: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    from pydantic_core import from_json

    for (text,) in rows:
        with suppress(ValueError):  # damaged; nobody can say what it was
            yield from_json(text)


class PagedReading:
    """Of any store, by its contract.

    Args:
        store: Which.
    """

    def __init__(self, store: LightningStore) -> None:
        self.looked_at: list[str] = []
        self._store = store

    async def _newest(self) -> AsyncGenerator[Rollout]:
        offset = total = 0
        while offset < NEWEST_ROLLOUTS:
            page = await self._store.query_rollouts(sort_order="desc", limit=PAGE, offset=offset)
            for rollout in page:
                yield rollout
            if len(page) < PAGE:
                return
            offset, total = offset + len(page), page.total
        if total > offset:
            _note(self.looked_at, f"the newest {offset:,} of {total:,} rollouts")

    async def rollouts(self, beginning: str) -> list[str]:
        # Ids have these letters at their beginning, and nowhere else.
        found = await self._store.query_rollouts(rollout_id_contains=beginning, limit=MOST)
        return [one.rollout_id for one in found]

    async def attempts(self, beginning: str) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        async for rollout in self._newest():
            if isinstance(rollout, AttemptedRollout):
                own = [rollout.attempt]
                if rollout.attempt.sequence_id > 1:
                    own = list(await self._store.query_attempts(rollout.rollout_id))
                ids = [one.attempt_id for one in own if one.attempt_id.startswith(beginning)]
                found += [(rollout.rollout_id, one) for one in ids]
        return found[:MOST]

    async def spans(self, beginning: str) -> list[Place]:
        def fits(span: Any) -> bool:
            return span.span_id.startswith(beginning)

        return await self._spans(fits, span_id_contains=beginning)

    async def responses(self, beginning: str) -> list[Place]:
        def fits(span: Any) -> bool:
            return str(span.attributes.get("gen_ai.response.id", "")).startswith(beginning)

        return await self._spans(fits)

    async def _spans(self, fits: Any, **filters: Any) -> list[Place]:
        found: list[Place] = []
        async for rollout in self._newest():
            spans = await self._store.query_spans(rollout.rollout_id, **filters)
            found += [(one.rollout_id, one.attempt_id, one.span_id) for one in filter(fits, spans)]
            if len(found) >= MOST:
                break
        return found[:MOST]

    async def task(self, name: str) -> Any:
        async for rollout in self._newest():
            if is_named(rollout.input, name, whole=True):
                return rollout.input
        return None

    async def tasks(self, beginning: str) -> list[Any]:
        found: list[Any] = []
        async for rollout in self._newest():
            if is_named(rollout.input, beginning) and rollout.input not in found:
                found.append(rollout.input)
        return found[:MOST]

    async def rollouts_of(self, task: Any) -> list[str]:
        ids = [one.rollout_id async for one in self._newest() if one.input == task]
        return ids[::-1]
