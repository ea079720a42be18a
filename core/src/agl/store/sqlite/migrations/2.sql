-- A claim, or another request that begins an attempt, can be repeated after a lost answer.
ALTER TABLE attempt ADD COLUMN key TEXT;
