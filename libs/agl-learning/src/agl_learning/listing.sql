-- Which rollouts a store's file has, by the indexes of its schema, whose expressions these are.
-- {..} is put together in listing.py; values are bound.

-- name: newest
SELECT r.rollout_id FROM rollout r {index} WHERE {where} ORDER BY r.n {order} LIMIT :most;

-- name: newest_of_run
-- All of the index rollout_step is read, once, which is a small part of the table.
WITH found AS MATERIALIZED (SELECT r.n FROM rollout r {index} WHERE {where})
SELECT r.rollout_id, (SELECT count(*) FROM found) FROM rollout r
WHERE r.n IN (SELECT n FROM found ORDER BY n DESC LIMIT :most) ORDER BY r.n DESC;

-- name: by_field
SELECT r.rollout_id FROM rollout r WHERE {where} ORDER BY {field} {order}, r.n LIMIT :most;

-- name: count
SELECT count(*) FROM rollout r {index} WHERE {where};

-- name: count_some
SELECT count(*) FROM (SELECT 1 FROM rollout r WHERE {where} LIMIT :most);

-- name: by_seconds
SELECT r.rollout_id FROM rollout r WHERE {where} AND r.end_time IS NOT NULL
ORDER BY r.end_time - r.start_time {order}, r.n {order} LIMIT :most;

-- name: counts
-- Of an attempt's rewards only this: the grade, else the last one, as find_final_reward has it.
-- The sign before a name: else the index of all rewards would be searched for each attempt.
{rank} IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM span other
    WHERE other.a = s.a AND +other.name IN ('agentlightning.annotation', 'agentlightning.reward')
      AND {other_reward} IS NOT NULL
      AND ({other_rank}, other.sequence_id) > ({rank}, s.sequence_id));

-- name: by_reward
SELECT r.rollout_id
FROM span s CROSS JOIN attempt t ON t.a = s.a CROSS JOIN rollout r ON r.n = t.n
WHERE s.name IN ('agentlightning.annotation', 'agentlightning.reward')
  AND {reward} <= :highest AND +r.status = 'succeeded'
  AND t.a = (SELECT max(a) FROM attempt WHERE n = r.n) AND {where}
  AND {counts}
ORDER BY {reward} {order}, s.a {order} LIMIT :most;

-- name: steps
SELECT {run} AS run, {step} AS step, r.mode, count(*) FROM rollout r
WHERE {run} = :run AND {step} IS NOT NULL GROUP BY {step}, {run}, r.mode;
