-- What is read of a store's file past its contract, which has no such question. Named as in
-- agl_sqlite; {..} is put together in id_lookup.py out of numbers and column names alone.

-- name: ids_of_rollouts
-- The sign before n: else the ranges would be looked for in the whole table, in the order of n.
SELECT rollout_id FROM rollout WHERE {ranges} ORDER BY +n LIMIT :most;

-- name: ids_of_attempts
SELECT r.rollout_id, t.attempt_id FROM attempt t JOIN rollout r ON r.n = t.n
WHERE {ranges} ORDER BY +t.a LIMIT :most;

-- name: spans_by_id
SELECT r.rollout_id, t.attempt_id, s.span_id
FROM (SELECT a, span_id FROM span WHERE a > (SELECT max(a) FROM attempt) - :newest
      AND substr(span_id, 1, :length) = :beginning LIMIT :most) s
JOIN attempt t ON t.a = s.a JOIN rollout r ON r.n = t.n ORDER BY t.a;

-- name: spans_by_response
SELECT r.rollout_id, t.attempt_id, s.span_id
FROM (SELECT a, span_id FROM span WHERE k > (SELECT max(k) FROM span) - :newest
      AND instr(body, :response) > 0 LIMIT :most) s
JOIN attempt t ON t.a = s.a JOIN rollout r ON r.n = t.n ORDER BY t.a;

-- name: number_of_attempts
SELECT coalesce(max(a), 0) FROM attempt;

-- name: number_of_spans
SELECT coalesce(max(k), 0) FROM span;

-- name: tasks
-- Hops from one beginning of a task to the next by the index rollout_task; tasks that begin alike
-- are told apart by a look at each.
WITH RECURSIVE beginning(b) AS (
    SELECT min(substr(input, 1, 100)) FROM rollout
    UNION ALL
    SELECT (SELECT min(substr(input, 1, 100)) FROM rollout WHERE substr(input, 1, 100) > b)
    FROM beginning WHERE b IS NOT NULL
)
SELECT DISTINCT CAST(r.input AS BLOB)
FROM beginning CROSS JOIN rollout r ON substr(r.input, 1, 100) = b
WHERE length(b) = 100 AND b IS NOT NULL
UNION ALL
SELECT CAST(b AS BLOB) FROM beginning WHERE length(b) < 100;

-- name: one_task_of_each_beginning
WITH RECURSIVE beginning(b) AS (
    SELECT min(substr(input, 1, 100)) FROM rollout
    UNION ALL
    SELECT (SELECT min(substr(input, 1, 100)) FROM rollout WHERE substr(input, 1, 100) > b)
    FROM beginning WHERE b IS NOT NULL LIMIT :most
)
SELECT (SELECT CAST(input AS BLOB) FROM rollout WHERE substr(input, 1, 100) = b LIMIT 1)
FROM beginning WHERE b IS NOT NULL;

-- name: rollouts_of_task
SELECT rollout_id FROM rollout
WHERE substr(input, 1, 100) = substr(:task, 1, 100) AND input = :task
ORDER BY n DESC LIMIT :most;
