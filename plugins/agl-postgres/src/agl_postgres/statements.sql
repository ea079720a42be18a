-- What the store in PostgreSQL asks besides the statements of agl_sqlite/statements.sql, by name.
-- Those that operations ask are run for many values at once; see batched in lookups.py.

-- name: lock
SELECT pg_advisory_xact_lock(n # 'agl_version'::regclass::oid::bigint) FROM unnest(?::bigint[]) AS n;

-- name: queue
SELECT {rollout}, r.position FROM rollout r WHERE r.position >= ?
ORDER BY r.position LIMIT ? FOR UPDATE SKIP LOCKED;

-- name: lock_rollouts
SELECT n FROM rollout WHERE n = ANY(?) ORDER BY n FOR UPDATE;

-- name: rollouts
SELECT {rollout} FROM rollout r WHERE r.n = ?;

-- name: attempts_of_rollout
SELECT {stored_attempt}, t.key FROM attempt t JOIN rollout r ON r.n = t.n WHERE t.n = ?;

-- name: attempts_of_key
SELECT {stored_attempt}, t.key FROM attempt t JOIN rollout r ON r.n = t.n
WHERE t.key = ? AND t.status = 'preparing';

-- name: attempts_of_worker
SELECT {stored_attempt}, t.key FROM attempt t JOIN rollout r ON r.n = t.n
WHERE t.worker_id = ? AND t.status IN ('preparing', 'running');

-- name: overdue_since
SELECT r.rollout_id, t.attempt_id, t.deadline, t.a FROM attempt t JOIN rollout r ON r.n = t.n
WHERE t.deadline < ? AND (t.deadline, t.a) > (?, ?) ORDER BY t.deadline, t.a LIMIT ?;

-- name: span
SELECT FROM span WHERE a = ? AND span_id = ?;

-- name: number
SELECT nextval(?::regclass) WHERE ? > 0;

-- name: lock_all
LOCK TABLE rollout, attempt, span, document, resources, worker IN EXCLUSIVE MODE;

-- name: set_sequences
SELECT setval('rollouts', (SELECT max(n) FROM rollout)),
       setval('attempts', (SELECT max(a) FROM attempt)),
       setval('positions', (SELECT max(position) FROM rollout)),
       setval(pg_get_serial_sequence('span', 'k'), (SELECT max(k) FROM span)),
       setval(pg_get_serial_sequence('resources', 'r'), (SELECT max(r) FROM resources)),
       setval(pg_get_serial_sequence('worker', 'w'), (SELECT max(w) FROM worker));

-- name: kept
SELECT number FROM server WHERE id = ? AND number = ?;

-- name: keep
-- A new row each time: of one that changes, all versions are read as long as an old transaction is open.
WITH before AS (DELETE FROM server WHERE id = ? AND number = ?::bigint - 1)
INSERT INTO server VALUES (?, ?);

-- name: head
SELECT min(position), count(*)
FROM (SELECT position FROM rollout WHERE position >= ? ORDER BY position LIMIT 64) AS queued;

-- name: ended
SELECT w.rollout_id FROM unnest(?::bigint[], ?::text[]) AS w(n, rollout_id) LEFT JOIN rollout r
ON r.n = w.n AND r.rollout_id = w.rollout_id
WHERE r.n IS NULL OR r.status IN ('succeeded', 'failed', 'cancelled');
