"""How SQLite goes about a page: by keys, so that no body is read that is not given."""

import re
from pathlib import Path
from typing import Any

import pytest

import agl
from agl.runs.finding import open_to_read
from agl.store.queries import Filter, make_query
from agl.store.sqlite.lookups import SqliteLookups


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    store = agl.SqliteLightningStore(tmp_path / "store.db")
    rollout = await store.start_rollout("task")
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    spans = [agl.Span.from_attributes(name=f"s{n}", attributes={}, **ids) for n in range(9)]
    await store.add_many_spans(spans)
    await store.close()
    return tmp_path / "store.db"


@pytest.mark.parametrize(
    ("kind", "query", "first"),
    [
        ("rollouts", {"filters": [Filter("status", "within", ("failed",))]}, "r USING INTEGER"),
        ("rollouts", {"sort_by": "start_time"}, "r USING INTEGER"),
        ("spans", {"sort_by": "start_time", "offset": 3}, "s USING INTEGER"),
        ("spans", {"filters": [Filter("name", "exact", "s1")]}, "s USING INTEGER"),
    ],
)
def test_a_page_is_looked_up_by_keys(file: Path, kind: Any, query: Any, first: str) -> None:
    connection = open_to_read(file)
    found, asked = SqliteLookups(connection), list[str]()
    connection.set_trace_callback(asked.append)
    of = ("ro-1", None) if kind == "spans" else ()
    getattr(found, f"query_{kind}")(*of, make_query(kind, **{"limit": 2, **query}))
    connection.set_trace_callback(None)
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {asked[0]}")]
    connection.close()
    assert re.match(f"SEARCH {first} PRIMARY KEY", plan[0]), plan
