"""Queries that the store's contract lacks: ids by their beginning, rollouts by their task.

SQL answers them in a store's file, however large it is. In any other store these functions read
only the newest rollouts, page by page.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from agl.store.base import LightningStore
from agl.store.queries import PAGE
from agl.types import AttemptedRollout, Rollout, Span
from agl_learning.collect.task_order import digest
from agl_sqlite.file import open_to_read
from agl_sqlite.ids import id_begins
from agl_sqlite.sql_lookups import read_statements
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

Kind = Literal["rollout", "attempt", "span", "task", "run"]


@dataclass(frozen=True)
class Subject:
    """What is to be shown."""

    kind: Kind
    name: str
    """Its id."""
    rollout_id: str = ""
    attempt_id: str = ""
    span_id: str = ""
    task: Any = None

    @classmethod
    def of_span(cls, rollout_id: str, attempt_id: str, span_id: str) -> "Subject":
        """A span."""
        return cls("span", span_id, rollout_id, attempt_id, span_id)

    @classmethod
    def of_task(cls, task: Any) -> "Subject":
        """A task."""
        return cls("task", task_id(task), task=task)

    @property
    def text(self) -> str:
        """For a list of candidates."""
        of = f" of {self.rollout_id}" if self.kind in ("attempt", "span") else ""
        what = "call or span" if self.kind == "span" else self.kind
        return f"{what} {self.name}{of}"


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


class Reading:
    """Questions to any store about the beginnings of ids.

    Each answers with ``MOST`` at most, oldest first.
    """

    def __init__(self, store: LightningStore) -> None:
        self.looked_at: list[str] = []
        """Where the answers so far may lack something: what alone was looked at for them."""
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
            self.note(f"the newest {offset:,} of {total:,} rollouts")

    def note(self, what: str) -> None:
        """Say what alone was looked at."""
        if what not in self.looked_at:
            self.looked_at.append(what)

    async def rollouts(self, beginning: str) -> list[Subject]:
        """Rollouts."""
        # Ids have these letters at their beginning, and nowhere else.
        found = await self._store.query_rollouts(rollout_id_contains=beginning, limit=MOST)
        return [Subject("rollout", one.rollout_id, one.rollout_id) for one in found]

    async def attempts(self, beginning: str) -> list[Subject]:
        """Attempts."""
        found: list[Subject] = []
        async for rollout in self._newest():
            if isinstance(rollout, AttemptedRollout):
                own = [rollout.attempt]
                if rollout.attempt.sequence_id > 1:
                    own = list(await self._store.query_attempts(rollout.rollout_id))
                ids = [one.attempt_id for one in own if one.attempt_id.startswith(beginning)]
                found += [Subject("attempt", one, rollout.rollout_id, one) for one in ids]
        return found[:MOST]

    async def spans(self, beginning: str) -> list[Subject]:
        """Spans of the newest attempts whose id begins so."""
        return await self._spans(
            lambda span: span.span_id.startswith(beginning), span_id_contains=beginning
        )

    async def responses(self, beginning: str) -> list[Subject]:
        """Spans of the newest calls whose answer has a response id that begins so."""
        return await self._spans(
            lambda span: str(span.attributes.get("gen_ai.response.id", "")).startswith(beginning)
        )

    async def _spans(self, fits: Callable[[Span], bool], **filters: Any) -> list[Subject]:
        found: list[Subject] = []
        async for rollout in self._newest():
            spans = filter(fits, await self._store.query_spans(rollout.rollout_id, **filters))
            found += [Subject.of_span(one.rollout_id, one.attempt_id, one.span_id) for one in spans]
            if len(found) >= MOST:
                break
        return found[:MOST]

    async def task(self, name: str) -> list[Subject]:
        """A task whose id this is, whole; none where a quick look finds none."""
        async for rollout in self._newest():
            if is_named(rollout.input, name, whole=True):
                return [Subject.of_task(rollout.input)]
        return []

    async def tasks(self, beginning: str) -> list[Subject]:
        """Tasks whose id begins so."""
        found: list[Any] = []
        async for rollout in self._newest():
            if is_named(rollout.input, beginning) and rollout.input not in found:
                found.append(rollout.input)
        return list(map(Subject.of_task, found[:MOST]))

    async def rollouts_of(self, task: Any) -> list[str]:
        """Ids of the rollouts of a task, oldest first; ``looked_at`` says where some may lack."""
        ids = [one.rollout_id async for one in self._newest() if one.input == task]
        return ids[::-1]


class FileReading(Reading):
    """The same of a store's file, which may be open, in SQL."""

    def __init__(self, store: LightningStore, file: Path) -> None:
        super().__init__(store)
        self._file = file
        self._sql = read_statements("agl_inspect.show", "id_queries.sql")

    def ask(self, name: str, ranges: str = "", **values: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement of ``id_queries.sql``."""
        sql = self._sql[name].replace("{ranges}", ranges)
        with closing(open_to_read(self._file)) as connection:
            return connection.execute(sql, values).fetchall()

    async def rollouts(self, beginning: str) -> list[Subject]:
        rows = self.ask("ids_of_rollouts", id_begins("n", "rollout_id", beginning), most=MOST)
        return [Subject("rollout", row[0], row[0]) for row in rows]

    async def attempts(self, beginning: str) -> list[Subject]:
        rows = self.ask("ids_of_attempts", id_begins("t.a", "t.attempt_id", beginning), most=MOST)
        return [Subject("attempt", row[1], row[0], row[1]) for row in rows]

    async def spans(self, beginning: str) -> list[Subject]:
        values = {"beginning": beginning, "length": len(beginning), "most": MOST}
        if self.ask("number_of_attempts")[0][0] > NEWEST_ATTEMPTS:
            self.note(f"spans of the newest {NEWEST_ATTEMPTS:,} attempts")
        rows = self.ask("spans_by_id", newest=NEWEST_ATTEMPTS, **values)
        return [Subject.of_span(*row) for row in rows]

    async def responses(self, beginning: str) -> list[Subject]:
        response = f'"gen_ai.response.id":"{beginning}'
        if self.ask("number_of_spans")[0][0] > NEWEST_SPANS:
            self.note(f"response ids in the newest {NEWEST_SPANS:,} spans")
        rows = self.ask("spans_by_response", response=response, newest=NEWEST_SPANS, most=MOST)
        return [Subject.of_span(*row) for row in rows]

    async def task(self, name: str) -> list[Subject]:
        rows = self.ask("one_task_of_each_beginning", most=BEGINNINGS)
        found = (Subject.of_task(one) for one in _valid(rows) if is_named(one, name, whole=True))
        return list(islice(found, 1))

    async def tasks(self, beginning: str) -> list[Subject]:
        rows = self.ask("tasks")
        found = (Subject.of_task(one) for one in _valid(rows) if is_named(one, beginning))
        return list(islice(found, MOST))

    async def rollouts_of(self, task: Any) -> list[str]:
        from agl.utils.json_values import json_of

        text = json_of(task, "the task")
        rows = self.ask("rollouts_of_task", task=text, most=NEWEST_OF_TASK + 1)
        ids = [row[0] for row in rows]
        if len(ids) > NEWEST_OF_TASK:
            self.note(f"the newest {NEWEST_OF_TASK:,} of this task")
        return ids[:NEWEST_OF_TASK][::-1]


def _valid(rows: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    from pydantic_core import from_json

    for (text,) in rows:
        with suppress(ValueError):  # damaged; nobody can say what it was
            yield from_json(text)


def reading_of(store: LightningStore) -> Reading:
    """How to ask this store."""
    path = file_of(store)
    return Reading(store) if path is None else FileReading(store, path)
