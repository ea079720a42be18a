"""Writes a whole store as JSON lines, and reads it back with the same ids, spans and documents.

The first line is ``{"store": 1}``. Each other line has a snapshot of resources, a rollout with its
key, attempts and spans, or a document. Workers are left out: they are processes of then.
"""

import asyncio
import itertools
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agl.errors import ConfigError
from agl.store import rules
from agl.store.engine.tables import StoredAttempt
from agl.store.packed_span import span_of
from agl.store.queries import PAGE, each_record, make_query
from agl.types import Attempt, Document, ResourcesUpdate, Rollout, Span
from agl.utils.rewards import place_of_reward
from agl_inspect.exchange.importer import AT_ONCE, Imported
from agl_inspect.exchange.recorded import each_line, parse
from agl_inspect.exchange.writers import Write
from agl_sqlite import SqliteLightningStore
from agl_sqlite.ids import number_of
from agl_sqlite.lookups import SqliteLookups
from agl_sqlite.tables import SqliteTables
from agl_views.tables.file_store import FileStore

FORMAT = 1


async def write_store(store: FileStore, write: Write) -> None:
    """Write all that a store holds, some rollouts at a time."""
    write({"store": FORMAT})
    async for update in each_record(store.query_resources, sort_by="update_time"):
        write({"resources": update.model_dump(mode="json")})
    last = None
    while some := await store.query_rollouts(after=last, limit=AT_ONCE):
        for line in await store.ask(lambda file, some=some: [_line_of(file, one) for one in some]):
            write(line)
        last = some[-1].rollout_id
    sql = "SELECT DISTINCT kind FROM document ORDER BY kind"
    for (kind,) in await store.ask(lambda found: found.execute(sql).fetchall()):
        after = None
        while page := await store.query_documents(_text(kind), after=after, limit=PAGE):
            for document in page:
                write({"document": document.model_dump(mode="json", exclude={"expect"})})
            after = page[-1].key


def _line_of(file: sqlite3.Connection, rollout: Rollout) -> dict[str, Any]:
    found, rollout_id = SqliteLookups(file), rollout.rollout_id
    sql, about = "SELECT key FROM rollout WHERE n = ? AND rollout_id = ?", number_of(rollout_id)
    key = file.execute(sql, (about, rollout_id)).fetchone()
    attempts = found.query_attempts(rollout_id, make_query("attempts", sort_by="sequence_id"))
    query = make_query("spans", sort_by="sequence_id")
    spans = found.query_spans(rollout_id, None, query, span_of)
    return {
        "rollout": rollout.model_dump(mode="json", exclude={"attempt"}),
        "key": _text(key[0]) if key else None,
        "attempts": [one.model_dump(mode="json") for one in attempts],
        "spans": [one.model_dump(mode="json") for one in spans],
    }


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def is_store(path: Path) -> bool:
    """Whether the file is a whole store."""
    try:
        where, line = next(each_line(path))
        return "store" in parse(line, where)
    except (ConfigError, StopIteration):
        return False


async def read_store(
    store: SqliteLightningStore, path: Path, progress: Callable[[Imported], None]
) -> Imported:
    """Put a whole store into an empty one; the file is checked before anything is written.

    A wrong line, and a store that is not empty, are a ``ConfigError``.
    """
    counts = await store.statistics()
    if counts.get("total_rollouts") or counts.get("total_resources"):
        raise ConfigError(f"{path}: a whole store goes into an empty one; give a new --path")
    for _ in _lines(path):
        pass
    done, lines = Imported(), _lines(path)
    while some := list(itertools.islice(lines, AT_ONCE)):
        await asyncio.gather(*(store.restore(line.put) for line in some))
        done.resources += sum(isinstance(line.record, ResourcesUpdate) for line in some)
        done.rollouts += sum(isinstance(line.record, Rollout) for line in some)
        done.spans += sum(len(line.spans) for line in some)
        progress(done)
    return done


@dataclass
class _Line:
    record: ResourcesUpdate | Rollout | Document
    key: str | None
    attempts: list[Attempt]
    spans: list[Span]

    def put(self, tables: SqliteTables, now: float) -> None:
        record = self.record
        if isinstance(record, Document):
            tables.save_document(record)
        elif isinstance(record, ResourcesUpdate):
            tables.save_resources(record)
        else:
            tables.insert_rollout(record, self.key)
            for attempt in self.attempts:
                own = [span for span in self.spans if span.attempt_id == attempt.attempt_id]
                last = max((span.sequence_id for span in own), default=0)
                place = max(map(place_of_reward, own), default=0)
                stored = StoredAttempt(attempt, last + 1, place)
                deadline = rules.deadline(attempt, record.config)
                tables.insert_attempt(stored, deadline)
                tables.save_attempt(stored, deadline)
                tables.insert_spans(attempt.attempt_id, own)


def _lines(path: Path) -> Iterator[_Line]:
    for where, line in each_line(path):
        values = parse(line, where)
        if (version := values.get("store")) is not None:
            if version != FORMAT:
                raise ConfigError(f"{where}: format {version} of a newer agl. Update agl")
            continue
        kinds = {"resources": ResourcesUpdate, "rollout": Rollout, "document": Document}
        kind = next((kind for kind in kinds if kind in values), None)
        if kind is None:
            raise ConfigError(f"{where}: expected one of the keys {', '.join(kinds)}")
        try:
            yield _Line(
                kinds[kind].model_validate(values[kind]),
                values.get("key"),
                [Attempt.model_validate(one) for one in values.get("attempts", ())],
                [Span.model_validate(one) for one in values.get("spans", ())],
            )
        except ValidationError as error:
            raise ConfigError(f"{where}: {kind} cannot be read: {error}") from None
