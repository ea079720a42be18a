-- Which rollouts a store's file has, by the indexes of its schema, whose expressions these are.
-- {..} is put together in listing.py; values are bound.

-- name: newest
-- First the numbers, which an index has.
SELECT rollout_id FROM rollout WHERE n IN
    (SELECT r.n FROM rollout r WHERE {where} ORDER BY {sign}r.n {order} LIMIT :most)
ORDER BY n {order};

-- name: by_field
SELECT r.rollout_id FROM rollout r WHERE {where} ORDER BY {field} {order}, r.n {order} LIMIT :most;

-- name: count
SELECT count(*) FROM rollout r WHERE {where};

-- name: count_some
SELECT count(*) FROM (SELECT 1 FROM rollout r WHERE {where} LIMIT :most);

-- name: steps
SELECT {run} AS run, {step} AS step, r.mode, count(*) FROM rollout r
WHERE {run} = :run AND {step} IS NOT NULL GROUP BY {step}, {run}, r.mode;
