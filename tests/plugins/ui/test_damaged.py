"""One damaged record is named, and hides no other."""

import shutil
import sqlite3

import pytest

from .stores import read

BROKEN = '{"broken'
DAMAGE = {
    "a span": ("span", "body"),
    "resources": ("resources", "body"),
    "an error": ("attempt", "error"),
    "a status": ("rollout", "status"),
    "a runner": ("worker", "heartbeat_stats"),
}


@pytest.fixture(params=DAMAGE)
def damaged(request, failures, tmp_path):
    """A copy of the store in which one record is damaged: its kind, its file, ids of rollouts."""
    file = tmp_path / "damaged.db"
    shutil.copy(failures, file)
    table, column = DAMAGE[request.param]
    with sqlite3.connect(file) as store:
        first = f"(SELECT min(rowid) FROM {table})"
        store.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = {first}", (BROKEN,))
        found = store.execute("SELECT rollout_id FROM rollout ORDER BY n").fetchall()
    return request.param, file, [one for (one,) in found]


def test_no_page_but_its_own_and_no_row_is_lost_to_a_damaged_record(serve, damaged):
    kind, file, ids = damaged
    address = f"{serve(file)}/s/damaged"
    own = {f"rollouts/{ids[0]}", f"task?rollout={ids[0]}"} if kind != "a span" else set()
    paths = ["run/failures", "rollouts", "rollouts?status=failed", "resources", "runners"]
    paths += ["settings", "prompts", *(f"rollouts/{one}" for one in ids[:3])]
    paths += [f"task?rollout={one}" for one in ids[:3]]
    said = []
    for path in paths:
        status, text = read(f"{address}/{path}")
        assert status == 200 or (path in own and status == 503), (path, text)
        said.append("cannot be read" in text)
        if path == "rollouts":
            assert all(f"rollouts/{one}" in text for one in ids)
    # A runner reports again: it counts as new, and the log says so.
    assert any(said) == (kind != "a runner")


def test_a_rollout_with_a_damaged_span_shows_the_others_and_says_what_may_be_wrong(serve, failures):
    file = failures.with_name("one.db")
    shutil.copy(failures, file)
    with sqlite3.connect(file) as store:
        (rollout_id,) = store.execute("SELECT rollout_id FROM rollout LIMIT 1").fetchone()
        store.execute("UPDATE span SET body = ? WHERE name = 'agent.solve'", (BROKEN,))
    _, text = read(f"{serve(file)}/s/one/rollouts/{rollout_id}")
    assert "I do not know" in text
    assert "a record cannot be read" in text
    assert "need not be what counted" in text
