-- Rollouts that are none: notes of an algorithm, which no agent ran and which have no mode.
SELECT status, count(*) FROM (
    SELECT status, metadata FROM rollout WHERE mode IS NULL ORDER BY n DESC LIMIT :most
)
WHERE CASE WHEN json_valid(metadata) THEN json_extract(metadata, :note) END IS NOT NULL
GROUP BY status;
