"""An old transaction that is kept open: what was claimed since lies dead in the queue."""

import json

import psycopg
from tests.waiting import until

from agl.types import EnqueueRolloutRequest
from agl_postgres import store
from agl_postgres.lookups import SQL, ask
from agl_postgres.store import PostgresLightningStore

CLAIMED = """
INSERT INTO rollout (n, rollout_id, status, start_time, position, input, config)
SELECT nextval('rollouts'), 'x' || g, 'queuing', 1.0, nextval('positions'), '1', '{}'
FROM generate_series(1, 20000) AS g;
UPDATE rollout SET status = 'succeeded', position = NULL WHERE position IS NOT NULL;
"""


def pages_read(connection, head):
    """How much a claim looks at that begins there."""
    sql = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {SQL['queue']}"
    ((plan,),) = ask(connection, sql, [head, 5]).fetchall()
    connection.rollback()
    plan = json.loads(plan) if isinstance(plan, str) else plan
    return plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]


async def test_claims_begin_behind_what_was_claimed(url, monkeypatch):
    monkeypatch.setattr(store, "SETTLE_SECONDS", 0.5)
    opened = PostgresLightningStore(url)
    with psycopg.connect(url) as old, psycopg.connect(url) as other:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM rollout")
        other.execute(CLAIMED)
        other.commit()
        await opened.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(10)])
        tables = opened._database.tables
        await until(lambda: tables.head >= 20_000)  # two looks, of one a second
        assert pages_read(other, 0) > 10 * pages_read(other, tables.head)
        claimed = await opened.dequeue_many_rollouts(limit=3)
        assert [one.input for one in claimed] == [0, 1, 2]
        # A position that was taken early, and whose rollout is committed late.
        other.execute("UPDATE rollout SET position = 7 WHERE input = '9'")
        other.commit()
        await until(lambda: tables.head <= 7)
        (late,) = await opened.dequeue_many_rollouts(limit=1)
        assert late.input == 9
    await opened.close()
