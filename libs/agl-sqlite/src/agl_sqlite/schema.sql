-- Version 9. Integers inside; the text ids carry them (ids.py), so no text is indexed.
-- JSON stands in TEXT columns; instants are unix seconds.

CREATE TABLE rollout (
    n            INTEGER PRIMARY KEY,
    rollout_id   TEXT NOT NULL,
    status       TEXT NOT NULL,
    mode         TEXT,
    resources_id TEXT,
    start_time   REAL NOT NULL,
    end_time     REAL,
    position     INTEGER,          -- place in the queue; NULL when not in it
    input        TEXT NOT NULL,
    config       TEXT NOT NULL,
    metadata     TEXT,
    key          TEXT,             -- by which the same task is not queued twice
    reward       REAL              -- of one that succeeded
) STRICT;
CREATE UNIQUE INDEX rollout_key ON rollout (key) WHERE key IS NOT NULL;
CREATE INDEX rollout_queue ON rollout (position) WHERE position IS NOT NULL;
CREATE INDEX rollout_status ON rollout (status, n);
CREATE INDEX rollout_resources ON rollout (resources_id);
-- What people look for. Who asks has to write these expressions as they stand here.
CREATE INDEX rollout_mode ON rollout (mode);
CREATE INDEX rollout_end ON rollout (coalesce(end_time, 9e999));
CREATE INDEX rollout_step ON rollout (
    CASE WHEN json_valid(metadata) THEN json_extract(metadata, '$.step') END,
    CASE WHEN json_valid(metadata) THEN json_extract(metadata, '$.run') END, mode);
CREATE INDEX rollout_run ON rollout (
    CASE WHEN json_valid(metadata) THEN json_extract(metadata, '$.run') END);
CREATE INDEX rollout_task ON rollout (substr(input, 1, 100));
CREATE INDEX rollout_reward ON rollout (reward, n, mode) WHERE reward IS NOT NULL;

-- key is that of the request that made it, which may be repeated; reward_place is that of the span
-- with its reward, see utils/rewards.py.
CREATE TABLE attempt (
    a                   INTEGER PRIMARY KEY,
    n                   INTEGER NOT NULL REFERENCES rollout (n),
    attempt_id          TEXT NOT NULL,
    sequence_id         INTEGER NOT NULL,
    status              TEXT NOT NULL,
    worker_id           TEXT,
    start_time          REAL NOT NULL,
    end_time            REAL,
    last_heartbeat_time REAL,
    deadline            REAL,      -- when the watchdog must look; NULL for never
    next_sequence       INTEGER NOT NULL,
    metadata            TEXT,
    error               TEXT,
    key                 TEXT,
    reward              REAL,
    reward_place        INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX attempt_rollout ON attempt (n);
CREATE INDEX attempt_deadline ON attempt (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX attempt_open ON attempt (worker_id) WHERE status IN ('preparing', 'running');

-- Append only. The columns beside body are those that queries filter and sort by. The number of a
-- span is that of its column; in the body it may be 0 (see agl/store/packed_span.py).
CREATE TABLE span (
    k           INTEGER PRIMARY KEY,
    a           INTEGER NOT NULL REFERENCES attempt (a),
    sequence_id INTEGER NOT NULL,
    span_id     TEXT NOT NULL,
    trace_id    TEXT NOT NULL,
    parent_id   TEXT,
    name        TEXT NOT NULL,
    start_time  REAL,
    end_time    REAL,
    body        TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX span_identity ON span (a, span_id);

-- What libraries and plugins keep, apart from what agents write; n is the rollout that it is about.
CREATE TABLE document (
    d          INTEGER PRIMARY KEY,
    kind       TEXT NOT NULL,
    key        TEXT NOT NULL,
    version    INTEGER NOT NULL,
    n          INTEGER REFERENCES rollout (n),
    rollout_id TEXT,
    body       TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX document_identity ON document (kind, key);
CREATE INDEX document_rollout ON document (n) WHERE n IS NOT NULL;

CREATE TABLE resources (
    r            INTEGER PRIMARY KEY,
    resources_id TEXT NOT NULL UNIQUE,
    create_time  REAL NOT NULL,
    update_time  REAL NOT NULL,
    version      INTEGER NOT NULL,
    touched      INTEGER NOT NULL UNIQUE,  -- the highest is the latest snapshot
    body         TEXT NOT NULL
) STRICT;

CREATE TABLE worker (
    w                   INTEGER PRIMARY KEY,
    worker_id           TEXT NOT NULL UNIQUE,
    status              TEXT NOT NULL,
    heartbeat_stats     TEXT,
    last_heartbeat_time REAL,
    last_dequeue_time   REAL,
    last_busy_time      REAL,
    last_idle_time      REAL,
    current_rollout_id  TEXT,
    current_attempt_id  TEXT
) STRICT;
