-- Steps, modes, tasks and rewards are found by key, in however large a store.
CREATE INDEX IF NOT EXISTS rollout_mode ON rollout (mode);
CREATE INDEX IF NOT EXISTS rollout_end ON rollout (coalesce(end_time, 9e999));
CREATE INDEX IF NOT EXISTS rollout_step ON rollout (
    CASE WHEN json_valid(metadata) THEN json_extract(metadata, '$.step') END,
    CASE WHEN json_valid(metadata) THEN json_extract(metadata, '$.run') END, mode);
CREATE INDEX IF NOT EXISTS rollout_task ON rollout (substr(input, 1, 100));
CREATE INDEX IF NOT EXISTS span_reward ON span (
    CASE WHEN json_valid(body)
    THEN json_extract(body, '$.attributes."agentlightning.reward.0.value"') END, a)
    WHERE name IN ('agentlightning.annotation', 'agentlightning.reward');
CREATE INDEX IF NOT EXISTS ledger_part_step ON ledger_part (step, run);
