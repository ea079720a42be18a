-- What is read of a store's file past its contract, which has no such question. Named as in
-- agl.store.sqlite; {..} is put together in reading.py out of numbers and column names alone.

-- name: ids_of_rollouts
SELECT rollout_id FROM rollout WHERE {ranges} ORDER BY n LIMIT :most;

-- name: ids_of_attempts
SELECT r.rollout_id, t.attempt_id FROM attempt t JOIN rollout r ON r.n = t.n
WHERE {ranges} ORDER BY t.a LIMIT :most;

-- name: spans_by_id
SELECT r.rollout_id, t.attempt_id, s.span_id
FROM (SELECT a, span_id FROM span WHERE substr(span_id, 1, :length) = :beginning LIMIT :most) s
JOIN attempt t ON t.a = s.a JOIN rollout r ON r.n = t.n ORDER BY t.a;

-- name: spans_by_response
SELECT r.rollout_id, t.attempt_id, s.span_id
FROM (SELECT a, span_id FROM span WHERE k > (SELECT max(k) FROM span) - :newest
      AND instr(body, :response) > 0 LIMIT :most) s
JOIN attempt t ON t.a = s.a JOIN rollout r ON r.n = t.n ORDER BY t.a;

-- name: tasks
SELECT DISTINCT CAST(input AS BLOB) FROM rollout;

-- name: rollouts_of_task
SELECT rollout_id FROM rollout WHERE input = :task ORDER BY n;

-- name: newest
SELECT rollout_id FROM rollout r {where} ORDER BY n DESC LIMIT :most;

-- name: count
SELECT count(*) FROM rollout r {where};
