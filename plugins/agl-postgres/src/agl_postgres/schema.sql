-- Version 3. Texts are compared by their bytes, as all stores compare them.
DO $$BEGIN IF current_schema() IS NULL THEN EXECUTE 'CREATE SCHEMA ' || split_part(current_setting('search_path'), ',', 1); END IF; END$$;
-- Here stand the tables of agl_sqlite/schema.sql, with PostgreSQL's names of types.
CREATE TABLE agl_version AS SELECT 3 AS version;
CREATE SEQUENCE rollouts;
CREATE SEQUENCE attempts;
CREATE SEQUENCE positions;
-- Rows that change are written beside their old ones.
ALTER TABLE rollout SET (fillfactor = 80);
ALTER TABLE attempt SET (fillfactor = 80);
ALTER TABLE worker SET (fillfactor = 50);
ALTER TABLE span ALTER k ADD GENERATED ALWAYS AS IDENTITY;
ALTER TABLE document DROP d, ADD PRIMARY KEY (kind, key);
ALTER TABLE resources ALTER r ADD GENERATED ALWAYS AS IDENTITY;
ALTER TABLE worker ALTER w ADD GENERATED ALWAYS AS IDENTITY;

CREATE UNIQUE INDEX ON rollout (key) WHERE key IS NOT NULL;
CREATE INDEX ON rollout (position) WHERE position IS NOT NULL;
CREATE INDEX ON rollout (status, n);
CREATE INDEX ON rollout (resources_id);
-- Queries write this expression exactly so. A text of PostgreSQL has no NUL, though one in JSON has.
CREATE INDEX ON rollout ((replace(replace(metadata, '\\', '\u005c'), '\u0000', '\ufffd')::json ->> 'run'), n);
CREATE INDEX ON rollout (reward, n) WHERE reward IS NOT NULL;
CREATE UNIQUE INDEX ON attempt (n, sequence_id);
CREATE INDEX ON attempt (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX ON attempt (worker_id) WHERE status IN ('preparing', 'running');
CREATE INDEX ON attempt (key) WHERE status = 'preparing' AND key IS NOT NULL;
CREATE UNIQUE INDEX ON span (a, span_id);
CREATE INDEX ON document (n) WHERE n IS NOT NULL;

-- The stores that had this database open, each with the number of its last transaction that was kept.
CREATE TABLE server (id text, number bigint, PRIMARY KEY (id, number));
