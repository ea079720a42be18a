"""How SQLite goes about a page: by keys, so that no body is read that is not given."""

import re
from pathlib import Path
from typing import Any

import pytest

import agl
from agl.store.packed_span import span_of
from agl.store.queries import DocumentQuery, make_query
from agl_sqlite.file import open_to_read
from agl_sqlite.lookups import SqliteLookups


@pytest.fixture
async def file(tmp_path):
    store = agl.SqliteLightningStore(tmp_path / "store.db")
    rollout = await store.start_rollout("task")
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    spans = [agl.Span.from_attributes(name=f"s{n}", attributes={}, **ids) for n in range(9)]
    await store.add_many_spans(spans)
    await store.close()
    return tmp_path / "store.db"


def _plan(file: Path, kind: str, query: Any) -> list[str]:
    connection = open_to_read(file)
    found, asked = SqliteLookups(connection), list[str]()
    connection.set_trace_callback(asked.append)
    asks = DocumentQuery(**query) if kind == "documents" else make_query(kind, limit=2, **query)
    given = ("ro-1", None, asks, span_of) if kind == "spans" else (asks,)
    getattr(found, f"query_{kind}")(*given)
    connection.set_trace_callback(None)
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {asked[0]}")]
    connection.close()
    return plan


@pytest.mark.parametrize(
    ("kind", "query", "first"),
    [
        ("rollouts", {"status_in": ["failed"]}, "r USING INTEGER"),
        ("rollouts", {"sort_by": "start_time"}, "r USING INTEGER"),
        ("spans", {"sort_by": "start_time", "offset": 3}, "s USING INTEGER"),
        ("spans", {"name": "s1"}, "s USING INTEGER"),
    ],
)
def test_a_page_is_looked_up_by_keys(file, kind, query, first):
    plan = _plan(file, kind, query)
    assert re.match(f"SEARCH {first} PRIMARY KEY", plan[0]), plan


def test_documents_of_rollouts_are_looked_up_by_rollout(file):
    plan = _plan(file, "documents", {"kind": "ledger", "rollout_id_in": ["ro-1"]})
    assert plan[0] == "SEARCH document USING INDEX document_rollout (n=?)", plan


LOW, GOOD_VAL = {"reward_below": 1}, {"mode": "val", "status_in": ["succeeded"]}


@pytest.mark.parametrize("more", [{}, {"after": "ro-9"}, {"sort_order": "desc"}])
@pytest.mark.parametrize(
    ("query", "num_sorts"),
    [
        ({"sort_by": "reward"}, 1),
        ({"sort_by": "reward", **GOOD_VAL}, 1),
        (LOW, 2),
        ({**LOW, **GOOD_VAL}, 2),
    ],
)
def test_rewards_are_looked_up_by_their_index(file, query, num_sorts, more):
    plan = _plan(file, "rollouts", {**query, **more})
    within = [step for step in plan if step.startswith(("SEARCH r", "SCAN r"))][1]
    assert within.startswith("SEARCH r USING COVERING INDEX rollout_reward (reward"), plan
    # That of the page itself, and of all that matches only where the order is another one.
    assert sum("TEMP B-TREE" in step for step in plan) == num_sorts, plan
