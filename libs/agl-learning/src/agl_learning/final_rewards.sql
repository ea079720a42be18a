-- The last spans of the last attempt of each rollout: from the last reward under a name of ours on,
-- or from the last grade, which counts before it. Nothing of attempts where these are many. Bodies
-- are looked into only where a reward may be: those of model calls are long.
WITH mine AS MATERIALIZED (
    SELECT r.rollout_id, max(t.a) AS a FROM rollout r JOIN attempt t ON t.n = r.n
    WHERE r.n IN (SELECT value FROM json_each(:numbers)) GROUP BY r.n
), begun AS MATERIALIZED (
    SELECT m.rollout_id, m.a, max(s.sequence_id) AS last,
        max(CASE WHEN instr(s.body, '"agentlightning.graded"') THEN s.sequence_id END) AS graded
    FROM mine m CROSS JOIN span s ON s.a = m.a
    WHERE +s.name IN ('agentlightning.annotation', 'agentlightning.reward')
      AND instr(s.body, 'reward') GROUP BY m.a
), ends AS MATERIALIZED (
    SELECT b.rollout_id, s.k, count(*) OVER (PARTITION BY b.a) AS number
    FROM begun b CROSS JOIN span s ON s.a = b.a AND s.sequence_id >= min(last, coalesce(graded, last))
)
SELECT e.rollout_id, CAST(s.body AS BLOB), s.sequence_id, s.crc, s.a, s.span_id, s.name
FROM ends e JOIN span s ON s.k = e.k WHERE e.number <= :most;
