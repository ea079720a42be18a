"""A filled store is one that the store could have written itself; what it says is true."""

import asyncio
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.stores import opened

import agl
from agl.types import EnqueueRolloutRequest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from filling.world import Shape
from filling.writing import fill_store

from agl_records.ledger.documents import put_parts
from agl_records.ledger.ledger import load_parts

SHAPE = Shape(rollouts=60, runs=2, groups=2, group_size=5)


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    path = tmp_path_factory.mktemp("filled") / "store.db"
    made = fill_store(path, SHAPE, long_trace=120)
    assert made["long_rollout"].startswith("ro-1")
    return path


async def read_all(path: Path) -> list[tuple[Any, list[Any], list[Any], list[Any]]]:
    async with opened(path) as store:
        found: list[tuple[Any, list[Any], list[Any], list[Any]]] = []
        for rollout in await store.query_rollouts():
            of = rollout.rollout_id
            attempts, spans = await store.query_attempts(of), await store.query_spans(of)
            parts = await load_parts(store, [of], lost=None)
            found.append((rollout, list(attempts), list(spans), list(parts)))
        return found


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def test_filled_records_are_what_the_store_writes_of_the_same(filled, tmp_path):
    """Each is read, given to an empty store through its contract, and compared as it lies there."""
    records = asyncio.run(read_all(filled))
    again = tmp_path / "again.db"

    async def write_again() -> dict[str, str]:
        ids: dict[str, str] = {}
        async with opened(again) as store:
            for rollout, attempts, spans, parts in records:
                about = {name: getattr(rollout, name) for name in ("mode", "config", "metadata")}
                request = EnqueueRolloutRequest(input=rollout.input, **about)
                (made,) = await store.enqueue_many_rollouts(rollouts=[request])
                ids[rollout.rollout_id] = made.rollout_id
                for attempt in attempts:
                    started = await store.start_attempt(made.rollout_id)
                    ids[attempt.attempt_id] = started.attempt.attempt_id
                    new = {"rollout_id": made.rollout_id, "attempt_id": ids[attempt.attempt_id]}
                    own = [one for one in spans if one.attempt_id == attempt.attempt_id]
                    await store.add_many_spans([one.model_copy(update=new) for one in own])
                    await store.update_attempt(**new, status=attempt.status, error=attempt.error)
                text = json.dumps([one.model_dump() for one in parts])
                for old, fresh in ids.items():
                    text = text.replace(old, fresh)
                parts = [agl.LedgerPart.model_validate(one) for one in json.loads(text)]
                await put_parts(store, parts)
        return ids

    ids = asyncio.run(write_again())
    bodies = {
        "rollout": "SELECT rollout_id, mode, input, config, metadata FROM rollout ORDER BY n",
        "attempt": "SELECT attempt_id, sequence_id, next_sequence, error FROM attempt ORDER BY a",
        "span": "SELECT t.attempt_id, s.sequence_id, s.span_id, s.trace_id, s.parent_id, s.name, "
        "s.start_time, s.end_time, s.body FROM span s JOIN attempt t USING (a) "
        "ORDER BY t.a, s.sequence_id",
        "document": "SELECT kind, key, version, rollout_id, body FROM document "
        "WHERE kind = 'ledger' ORDER BY n",
    }
    for table, sql in bodies.items():
        ours = json.dumps(rows(filled, sql))
        for old, fresh in ids.items():
            ours = ours.replace(old, fresh)
        theirs = json.loads(json.dumps(rows(again, sql)))
        for mine, its in zip(json.loads(ours), theirs, strict=True):
            assert read(mine) == read(its), table


def read(row: list[Any]) -> list[Any]:
    """Bodies as JSON: a span's number counts in its column and not in its body."""
    found: list[Any] = []
    for value in row:
        if isinstance(value, str) and value.startswith("{"):
            value = json.loads(value)
            if "span_id" in value:
                value = {**value, "sequence_id": 0}
        found.append(value)
    return found
