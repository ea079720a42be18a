-- What the store in PostgreSQL asks besides the statements of agl_sqlite/statements.sql, by name.
-- An operation asks for records by their ids; these find those of many operations at once.

-- name: lock
SELECT pg_advisory_xact_lock(n) FROM unnest(?::bigint[]) AS n;

-- name: key
SELECT key, rollout_id FROM rollout WHERE key = ANY(?);

-- name: claim
SELECT t.key, r.rollout_id, t.attempt_id FROM attempt t JOIN rollout r ON r.n = t.n
WHERE t.key = ANY(?) AND t.status = 'preparing' ORDER BY t.a;

-- name: queue
SELECT {rollout} FROM rollout r WHERE r.position >= ? AND r.n <> ALL(?)
ORDER BY r.position LIMIT ? FOR UPDATE SKIP LOCKED;

-- name: lock_rollouts
SELECT n FROM rollout WHERE n = ANY(?) ORDER BY n FOR UPDATE;

-- name: rollouts
SELECT {rollout} FROM rollout r WHERE r.n = ANY(?);

-- name: attempts
SELECT {attempt}, t.next_sequence, t.reward_place FROM attempt t JOIN rollout r ON r.n = t.n
WHERE t.n = ANY(?) ORDER BY t.sequence_id;

-- name: overdue_since
SELECT r.rollout_id, t.attempt_id, t.deadline, t.a FROM attempt t JOIN rollout r ON r.n = t.n
WHERE t.deadline < ? AND (t.deadline, t.a) > (?, ?) ORDER BY t.deadline, t.a LIMIT ?;

-- name: workers
SELECT {worker} FROM worker WHERE worker_id = ANY(?);

-- name: open
SELECT {attempt}, t.next_sequence, t.reward_place FROM attempt t JOIN rollout r ON r.n = t.n
WHERE t.worker_id = ANY(?) AND t.status IN ('preparing', 'running');

-- name: spans
SELECT a, span_id FROM span JOIN unnest(?::bigint[], ?::text[]) AS v(a, span_id)
USING (a, span_id);

-- name: versions
SELECT kind, key, version FROM document JOIN unnest(?::text[], ?::text[]) AS v(kind, key)
USING (kind, key);

-- name: snapshots
SELECT {resources} FROM resources WHERE resources_id = ANY(?);

-- name: rollout_numbers
SELECT nextval('rollouts') FROM generate_series(1, ?);

-- name: position_numbers
SELECT nextval('positions') FROM generate_series(1, ?);

-- name: attempt_numbers
SELECT nextval('attempts') FROM generate_series(1, ?);

-- name: save_resources
INSERT INTO resources (resources_id, create_time, update_time, version, body)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT (resources_id) DO UPDATE
SET update_time = excluded.update_time, version = excluded.version, body = excluded.body,
    touched = nextval('touches');

-- name: lock_all
LOCK TABLE rollout, attempt, span, document, resources, worker IN EXCLUSIVE MODE;

-- name: set_sequences
SELECT setval('rollouts', (SELECT max(n) FROM rollout)),
       setval('attempts', (SELECT max(a) FROM attempt)),
       setval('positions', (SELECT max(position) FROM rollout)),
       setval('touches', (SELECT max(touched) FROM resources)),
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
-- or were deleted
SELECT w.rollout_id FROM unnest(?::bigint[], ?::text[]) AS w(n, rollout_id) LEFT JOIN rollout r
ON r.n = w.n AND r.rollout_id = w.rollout_id
WHERE r.n IS NULL OR r.status IN ('succeeded', 'failed', 'cancelled');
