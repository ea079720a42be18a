-- The rollouts of the task of rollout :n, of those that were queued around it, the nearest first.
SELECT r.rollout_id FROM rollout r JOIN rollout one ON one.n = :n
WHERE r.n BETWEEN :n - :around AND :n + :around AND r.input = one.input AND r.mode IS one.mode
ORDER BY abs(r.n - :n) LIMIT :most;
