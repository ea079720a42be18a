-- What stores in SQL ask, by name, for SQLite and others; words in braces differ. A page's WHERE, ORDER BY and LIMIT are put together in
-- lookups.py out of the columns of schema.sql.

-- name: counts
SELECT (SELECT count(*) FROM rollout) AS total_rollouts,
       (SELECT count(*) FROM attempt) AS total_attempts,
       (SELECT count(*) FROM span) AS total_spans,
       (SELECT count(*) FROM resources) AS total_resources,
       (SELECT count(*) FROM worker) AS total_workers;

-- name: counters
SELECT (SELECT coalesce(max(n), 0) FROM rollout),
       (SELECT coalesce(max(a), 0) FROM attempt),
       (SELECT coalesce(max(position), 0) FROM rollout WHERE position IS NOT NULL);

-- name: num_queued
SELECT count(*) FROM rollout WHERE position IS NOT NULL;

-- name: has_deadlines
SELECT EXISTS (SELECT 1 FROM attempt WHERE deadline IS NOT NULL);

-- name: rollout
SELECT {rollout} FROM rollout r WHERE r.n = ? AND r.rollout_id = ?;

-- name: first_queued
SELECT {rollout}, r.n FROM rollout r WHERE r.position IS NOT NULL ORDER BY r.position LIMIT ?;

-- name: insert_rollout
INSERT INTO rollout (n, rollout_id, status, mode, resources_id, start_time, end_time, position,
                     key, input, config, metadata, reward)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: rollout_id_of_key
SELECT rollout_id FROM rollout WHERE key = ?;

-- name: move_rollout
UPDATE rollout SET status = ?, end_time = ?, position = ?, reward = ? WHERE n = ?;

-- name: edit_rollout
UPDATE rollout SET mode = ?, resources_id = ?, input = ?, config = ?, metadata = ?
WHERE n = ?;

-- name: rollouts_page
SELECT {rollout}, {attempt}
FROM rollout r LEFT JOIN attempt t ON {newest};

-- name: attempts_page
SELECT {attempt} FROM attempt t JOIN rollout r ON r.n = t.n;

-- name: attempt
SELECT {stored_attempt} FROM attempt t JOIN rollout r ON r.n = t.n
WHERE t.a = ? AND t.attempt_id = ? AND t.n = ? AND r.rollout_id = ?;

-- name: latest_attempt
SELECT {stored_attempt} FROM attempt t JOIN rollout r ON r.n = t.n
WHERE t.n = ? AND r.rollout_id = ? ORDER BY t.sequence_id DESC LIMIT 1;

-- name: next_sequence_of_all
SELECT max(next_sequence), max(sequence_id) FROM attempt WHERE n = ?;

-- name: open_attempts_of
SELECT t.attempt_id, r.rollout_id FROM attempt t JOIN rollout r ON r.n = t.n
WHERE t.worker_id = ? AND t.status IN ('preparing', 'running');

-- name: claim_keys
SELECT t.key, r.rollout_id, t.attempt_id FROM attempt t JOIN rollout r ON r.n = t.n
WHERE t.status IN ('preparing', 'running') AND t.status = 'preparing' AND t.key IS NOT NULL;

-- name: overdue
SELECT r.rollout_id, t.attempt_id FROM attempt t JOIN rollout r ON r.n = t.n
WHERE t.deadline < ? ORDER BY t.deadline;

-- name: forget_deadline
UPDATE attempt SET deadline = NULL WHERE a = ?;

-- name: insert_attempt
INSERT INTO attempt (a, n, attempt_id, sequence_id, status, worker_id, start_time, deadline,
                     next_sequence, key)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: save_attempt
UPDATE attempt
SET status = ?, worker_id = ?, end_time = ?, last_heartbeat_time = ?, deadline = ?,
    next_sequence = ?, metadata = ?, error = ?, reward = ?, reward_place = ?
WHERE a = ?;

-- name: known_spans
SELECT span_id FROM span WHERE a = ? AND span_id IN (SELECT value FROM json_each(?));

-- name: insert_span
INSERT INTO span (a, sequence_id, span_id, trace_id, parent_id, name, start_time, end_time, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: span_keys
SELECT s.k FROM rollout r JOIN attempt t ON t.n = r.n JOIN span s ON s.a = t.a;

-- name: spans_page
SELECT k, {body}, sequence_id FROM span;

-- name: documents
SELECT kind, key, body, version, rollout_id FROM document WHERE;

-- name: document_version
SELECT version FROM document WHERE kind = ? AND key = ?;

-- name: save_document
INSERT INTO document (kind, key, version, n, rollout_id, body) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (kind, key) DO UPDATE
SET version = excluded.version, n = excluded.n, rollout_id = excluded.rollout_id,
    body = excluded.body;

-- name: resources
SELECT {resources} FROM resources WHERE resources_id = ?;

-- name: resources_page
SELECT {resources} FROM resources;

-- name: latest_resources
SELECT {resources} FROM resources WHERE substr(resources_id, 1, 9) <> 'imported/'
ORDER BY touched DESC LIMIT 1;

-- name: latest_resources_id
SELECT resources_id FROM resources WHERE substr(resources_id, 1, 9) <> 'imported/'
ORDER BY touched DESC LIMIT 1;

-- name: save_resources
INSERT INTO resources (resources_id, create_time, update_time, version, body, touched)
VALUES (?, ?, ?, ?, ?, (SELECT coalesce(max(touched), 0) + 1 FROM resources))
ON CONFLICT (resources_id) DO UPDATE
SET update_time = excluded.update_time, version = excluded.version, touched = excluded.touched,
    body = excluded.body;

-- name: worker
SELECT {worker} FROM worker WHERE worker_id = ?;

-- name: workers_page
SELECT {worker} FROM worker;

-- name: save_worker
INSERT INTO worker ({worker_fields}) VALUES ({worker_values})
ON CONFLICT (worker_id) DO UPDATE SET {worker_changes};

-- name: lock_all
-- for who copies a store: a file has one owner
SELECT 1;
