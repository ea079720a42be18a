-- The accounts of rollouts have a table of their own. They were spans, and metadata of rollouts that
-- no attempt was made of; what of those can be read is taken over.
CREATE TABLE ledger_part (
    p          INTEGER PRIMARY KEY,
    n          INTEGER NOT NULL REFERENCES rollout (n),
    rollout_id TEXT NOT NULL,
    run        TEXT,
    algorithm  TEXT,
    step       INTEGER,
    mode       TEXT,
    generation INTEGER NOT NULL,
    lost       INTEGER NOT NULL,
    body       TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX ledger_part_identity
    ON ledger_part (n, coalesce(run, ''), coalesce(algorithm, ''), coalesce(step, -1));

INSERT OR IGNORE INTO ledger_part (n, rollout_id, algorithm, step, mode, generation, lost, body)
SELECT n,
       (SELECT rollout_id FROM rollout r WHERE r.n = parts.n),
       CAST(json_extract(part, '$.algorithm') AS TEXT),
       CAST(json_extract(part, '$.step') AS INTEGER),
       CAST(json_extract(part, '$.mode') AS TEXT),
       0, 0, part
FROM (
    SELECT n, part FROM (
        SELECT t.n AS n,
               json_extract(s.body, '$.attributes."agentlightning.ledger.part"') AS part
        FROM span s JOIN attempt t ON t.a = s.a
        WHERE s.name = 'agentlightning.ledger' AND json_valid(s.body)
        UNION ALL
        SELECT n, json_extract(metadata, '$.ledger') AS part
        FROM rollout WHERE metadata IS NOT NULL AND json_valid(metadata)
    )
    WHERE typeof(part) = 'text' AND json_valid(part) AND json_type(part) = 'object'
) AS parts
ORDER BY n;
DELETE FROM span WHERE name = 'agentlightning.ledger';
