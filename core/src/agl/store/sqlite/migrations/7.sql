-- The final reward stands beside a rollout and its attempts: see utils/rewards.py, whose rule this is.
ALTER TABLE rollout ADD COLUMN reward REAL;
ALTER TABLE attempt ADD COLUMN reward REAL;
ALTER TABLE attempt ADD COLUMN reward_place INTEGER NOT NULL DEFAULT 0;
DROP INDEX IF EXISTS span_reward;
CREATE INDEX rollout_reward ON rollout (reward, n, mode) WHERE reward IS NOT NULL;

WITH read AS (
    SELECT a, sequence_id, name, CASE WHEN json_valid(body) THEN body ELSE '{}' END AS body
    FROM span WHERE instr(body, 'reward') OR instr(body, 'graded')
), seen AS (
    SELECT a, sequence_id,
        coalesce(json_extract(body, '$.attributes."agentlightning.graded"'), 0)
            AND coalesce(json_extract(body, '$.writer'), 'runner') = 'runner' AS is_grade,
        json_extract(body, '$.attributes."agentlightning.reward.0.value"') AS value,
        coalesce(json_extract(body, '$.attributes."agentops.task.output"'),
                 json_extract(body, '$.attributes."agentops.entity.output"')) AS output,
        CASE WHEN name = 'agentlightning.annotation'
            THEN json_extract(body, '$.attributes.reward') END AS older
    FROM read WHERE NOT coalesce(json_extract(body, '$.late'), 0)
), given AS (
    SELECT a, ((1 + is_grade) << 54) + sequence_id AS place, is_grade, coalesce(
        value,
        CASE WHEN json_valid(output) AND json_extract(output, '$.type') = 'reward'
            THEN json_extract(output, '$.value') END,
        older) AS value
    FROM seen
), final AS (  -- the value is that of the highest place
    SELECT a, max(place) AS place, value FROM given WHERE value IS NOT NULL OR is_grade GROUP BY a
)
UPDATE attempt SET reward_place = final.place, reward = CASE
    WHEN typeof(final.value) IN ('integer', 'real') AND abs(final.value) <= 1e12 THEN final.value END
FROM final WHERE final.a = attempt.a;
UPDATE rollout
SET reward = (SELECT t.reward FROM attempt t WHERE t.n = rollout.n ORDER BY t.a DESC LIMIT 1)
WHERE status = 'succeeded';
