"""What an id, or the beginning of one, names: a rollout, an attempt, a call, a span, a task, a run.

Without any, it is the newest rollout that failed, or else the newest. The store's contract asks
for no beginnings of ids. SQL does in a store's file, however large it is; in any other store only
the newest rollouts are read.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from pydantic_core import from_json

from agl.cli.shared import note
from agl.errors import ConfigError
from agl.store.base import LightningStore
from agl.types import AttemptedRollout, Rollout, RolloutStatus, Span
from agl.utils.json_values import json_of
from agl_learning.collect.task_order import digest
from agl_records.ledger.ledger import load_parts
from agl_runs.store import query_runs
from agl_sqlite.file import open_to_read
from agl_sqlite.ids import id_begins
from agl_sqlite.sql_lookups import read_statements
from agl_views.tables.file_store import file_of
from agl_views.tables.rollout_table import Wanted, listed

SHORTEST = 4
"""Letters of a beginning that is looked for among spans and response ids."""
LONGEST = 1_000
"""Characters of what is looked for; ids are shorter, but that of a task may be anything."""
NEWEST = 500
"""Rollouts among which the newest is looked for that an algorithm has accounted for."""
_LONGEST_NEAR = 24
"""Characters behind ``ro-`` and ``at-``, at most, of a beginning for which near ids are sought."""

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
    rollout_id: str = ""
    attempt_id: str = ""
    span_id: str = ""
    task: Any = None

    @classmethod
    def of_span(cls, rollout_id: str, attempt_id: str, span_id: str) -> "Subject":
        return cls("span", span_id, rollout_id, attempt_id, span_id)

    @classmethod
    def of_task(cls, task: Any) -> "Subject":
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
        self.looked_at: dict[str, None] = {}
        """Where the answers so far may lack something: what alone was looked at for them."""
        self._store = store
        self._found: list[Rollout] | None = None

    async def _newest(self) -> list[Rollout]:
        if self._found is None:
            found = await listed(self._store, Wanted(most=NEWEST_ROLLOUTS))
            self._found, number, total = found.rollouts, len(found.rollouts), found.total or 0
            if total > number:
                self.looked_at[f"the newest {number:,} of {total:,} rollouts"] = None
        return self._found

    async def rollouts(self, beginning: str) -> list[Subject]:
        # Ids have these letters at their beginning, and nowhere else.
        found = await self._store.query_rollouts(rollout_id_contains=beginning, limit=MOST)
        return [Subject("rollout", one.rollout_id, one.rollout_id) for one in found]

    async def attempts(self, beginning: str) -> list[Subject]:
        found: list[Subject] = []
        for rollout in await self._newest():
            if isinstance(rollout, AttemptedRollout):
                own = [rollout.attempt]
                if rollout.attempt.sequence_id > 1:
                    own = list(await self._store.query_attempts(rollout.rollout_id))
                ids = [one.attempt_id for one in own if one.attempt_id.startswith(beginning)]
                found += [Subject("attempt", one, rollout.rollout_id, one) for one in ids]
        return found[:MOST]

    async def spans(self, beginning: str) -> list[Subject]:
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
        for rollout in await self._newest():
            spans = filter(fits, await self._store.query_spans(rollout.rollout_id, **filters))
            found += [Subject.of_span(one.rollout_id, one.attempt_id, one.span_id) for one in spans]
            if len(found) >= MOST:
                break
        return found[:MOST]

    async def task(self, name: str) -> list[Subject]:
        """A task whose id this is, whole; none where a quick look finds none."""
        tasks = [one.input for one in await self._newest()]
        return [Subject.of_task(one) for one in tasks if is_named(one, name, whole=True)][:1]

    async def tasks(self, beginning: str) -> list[Subject]:
        found: list[Any] = []
        for rollout in await self._newest():
            if is_named(rollout.input, beginning) and rollout.input not in found:
                found.append(rollout.input)
        return list(map(Subject.of_task, found[:MOST]))

    async def rollouts_of(self, task: Any) -> list[str]:
        """Ids of the rollouts of a task, oldest first; ``looked_at`` says where some may lack."""
        ids = [one.rollout_id for one in await self._newest() if one.input == task]
        return ids[::-1]


class FileReading(Reading):
    """The same of a store's file, which may be open, in SQL."""

    def __init__(self, store: LightningStore, file: Path) -> None:
        super().__init__(store)
        self._file = file
        self._sql = read_statements("agl_inspect.show", "id_lookup.sql")

    def ask(self, name: str, ranges: str = "", **values: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement of ``id_lookup.sql``."""
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
            self.looked_at[f"spans of the newest {NEWEST_ATTEMPTS:,} attempts"] = None
        rows = self.ask("spans_by_id", newest=NEWEST_ATTEMPTS, **values)
        return [Subject.of_span(*row) for row in rows]

    async def responses(self, beginning: str) -> list[Subject]:
        response = f'"gen_ai.response.id":"{beginning}'
        if self.ask("number_of_spans")[0][0] > NEWEST_SPANS:
            self.looked_at[f"response ids in the newest {NEWEST_SPANS:,} spans"] = None
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
        text = json_of(task, "the task")
        rows = self.ask("rollouts_of_task", task=text, most=NEWEST_OF_TASK + 1)
        ids = [row[0] for row in rows]
        if len(ids) > NEWEST_OF_TASK:
            self.looked_at[f"the newest {NEWEST_OF_TASK:,} of this task"] = None
        return ids[:NEWEST_OF_TASK][::-1]


def _valid(rows: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    for (text,) in rows:
        with suppress(ValueError):  # damaged; nobody can say what it was
            yield from_json(text)


def reading_of(store: LightningStore) -> Reading:
    """How to ask this store."""
    path = file_of(store)
    return Reading(store) if path is None else FileReading(store, path)


async def find(store: LightningStore, beginning: str) -> Subject:
    """What a store has under an id, or under the beginning of one.

    ``ROLLOUT/SPAN`` names a span where several attempts have one of its id. Nothing, and several,
    are a ``ConfigError``, which names them, or near ones.
    """
    if len(beginning) > LONGEST:
        raise ConfigError(
            f"{beginning[:40]!r}... is of {len(beginning):,} characters; an id, or the beginning "
            f"of one, has {LONGEST:,} at most"
        )
    above, slash, below = beginning.rpartition("/")
    reading = reading_of(store)
    if slash and above:
        whole = await find(store, above)
        spans = await store.query_spans(whole.rollout_id, whole.attempt_id or None)
        ids = [(one.rollout_id, one.attempt_id, one.span_id) for one in spans]
        found = [Subject.of_span(*one) for one in ids if one[2].startswith(below)]
    else:
        found = await _matching(store, reading, beginning)
    exact = [one for one in found if beginning in (one.name, one.name.partition("-")[2])]
    if len(exact) == 1:
        return exact[0]
    if len(found) == 1:
        return found[0]
    if found:
        named = ", ".join(one.text for one in found[: MOST - 1])
        more = ", and more" if len(found) >= MOST else ""
        hint = ". ROLLOUT/SPAN says which" if all(one.kind == "span" for one in found) else ""
        raise ConfigError(f"{beginning!r} is the beginning of several: {named}{more}{hint}")
    near = await _near(reading, beginning)
    hint = f"; near it are {', '.join(near)}" if near else ""
    what = f"rollout, attempt, call, span, task or run {beginning!r}"
    if reading.looked_at:
        seen = f"only {' and '.join(reading.looked_at)} were looked at"
        raise ConfigError(f"no {what} was found; {seen}{hint}. See: agl rollouts")
    raise ConfigError(f"the store has no {what}{hint}. See: agl rollouts")


async def attempt_number(store: LightningStore, subject: Subject) -> int | None:
    """The number of the attempt that a subject is, or is of; None for a rollout."""
    if not subject.attempt_id:
        return None
    attempts = await store.query_attempts(subject.rollout_id)
    return {one.attempt_id: one.sequence_id for one in attempts}[subject.attempt_id]


async def newest(store: LightningStore) -> tuple[Subject, str]:
    """The newest rollout that failed, else the newest, and which of the two it is."""
    for failed in (True, False):  # a page also counts all that there are, which takes its time
        status_in: list[RolloutStatus] | None = ["failed"] if failed else None
        found = await store.query_rollouts(status_in=status_in, sort_order="desc", limit=1)
        if len(found):
            rollout_id = found[0].rollout_id
            what = f"the newest rollout{' that failed' if failed else ''}"
            return Subject("rollout", rollout_id, rollout_id), what
    raise ConfigError("the store has no rollout yet")


async def rollout_of(store: LightningStore, name: str | None, *, accounted: bool = False) -> str:
    """The id of the rollout that a name is of, or the beginning of one: of an attempt, or a span.

    Without a name it is the newest, with ``accounted`` the newest from which an update learned, or
    else that an algorithm has accounted for, in training before others. A remark says which.

    Raises:
        ConfigError: There is none, or it is the name of something else.
    """
    if name is None:
        about: dict[str, Any] = {"sort_order": "desc", "limit": NEWEST if accounted else 1}
        of_training = await store.query_rollouts(mode="train", **about) if accounted else ()
        ids = [one.rollout_id for one in of_training or await store.query_rollouts(**about)]
        if not ids:
            raise ConfigError("the store has no rollout yet")
        parts = await load_parts(store, ids) if accounted else ()
        known = {part.rollout_id for part in parts}
        used = {p.rollout_id for p in parts if any(one.kind == "call" for one in p.trained)}
        chosen = max(ids, key=lambda one: (one in used, one in known))  # the first of these
        how = " from which an update learned" if chosen in used else ""
        note(f"{chosen}, the newest rollout{how}; see agl rollouts for others")
        return chosen
    subject = await find(store, name)
    if not subject.rollout_id:
        where = "agl rollouts" if subject.kind == "run" else "agl show"
        raise ConfigError(f"{subject.text} is no rollout. See: {where} {subject.name}")
    return subject.rollout_id


async def _matching(store: LightningStore, reading: Reading, beginning: str) -> list[Subject]:
    """All that it may mean; the cheap questions first, and the others only where they must be."""
    if beginning.startswith("ro-"):
        return await reading.rollouts(beginning)
    if beginning.startswith("at-"):
        return await reading.attempts(beginning)
    if beginning.startswith("task-"):
        return await reading.task(beginning) or await reading.tasks(beginning)
    runs = await query_runs(store)
    found = [Subject("run", one.run_id) for one in runs if one.run_id.startswith(beginning)]
    found += await reading.rollouts(f"ro-{beginning}")
    found += await reading.attempts(f"at-{beginning}")
    is_plain = len(found) == 1 and len(beginning) >= SHORTEST
    if is_plain or any(one.name == beginning for one in found):
        return found
    if not found and (task := await reading.task(beginning)):
        return task
    if len(beginning) >= SHORTEST:
        found += await reading.spans(beginning)
        found = found or await reading.responses(beginning)
    return found or await reading.tasks(beginning) or await reading.tasks(f"task-{beginning}")


async def _near(reading: Reading, beginning: str) -> list[str]:
    """What begins as the longest beginning of it that anything has; at least a digit."""
    asks = {"ro-": reading.rollouts, "at-": reading.attempts}
    if (own := beginning[:3]) in asks:
        asks, beginning = {own: asks[own]}, beginning[3:]
    for length in range(min(len(beginning) - 1, _LONGEST_NEAR), 0, -1):
        for prefix, ask in asks.items():
            if found := await ask(f"{prefix}{beginning[:length]}"):
                return [one.name for one in found[:3]]
    return []
