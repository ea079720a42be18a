-- Version 2. Integers inside; the text ids carry them (agl_sqlite/ids.py). JSON stands in text
-- columns where no query looks into it. Texts are compared by their bytes, as all stores compare
-- them. Instants are unix seconds.

CREATE TABLE agl_version AS SELECT 2 AS version;
CREATE SEQUENCE rollouts;
CREATE SEQUENCE attempts;
CREATE SEQUENCE positions;
CREATE SEQUENCE touches;

CREATE TABLE rollout (
    n            bigint PRIMARY KEY,
    rollout_id   text COLLATE "C" NOT NULL,
    status       text COLLATE "C" NOT NULL,
    mode         text COLLATE "C",
    resources_id text COLLATE "C",
    start_time   float8 NOT NULL,
    end_time     float8,
    position     bigint,           -- place in the queue; NULL when not in it
    input        text NOT NULL,
    config       text NOT NULL,
    metadata     text,
    key          text COLLATE "C", -- by which the same task is not queued twice
    reward       float8            -- of one that succeeded
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX ON rollout (key) WHERE key IS NOT NULL;
CREATE INDEX ON rollout (position) WHERE position IS NOT NULL;
CREATE INDEX ON rollout (status, n);
-- Who asks has to write this expression as it stands here. No text of PostgreSQL has a NUL, also not
-- one that is read out of JSON.
CREATE INDEX ON rollout ((replace(replace(metadata, '\\', '\u005c'), '\u0000', '\ufffd')::json ->> 'run'), n);
CREATE INDEX ON rollout (reward, n) WHERE reward IS NOT NULL;

-- key is that of the request that made it, which may be repeated; reward_place is that of the span
-- with its reward, see utils/rewards.py.
CREATE TABLE attempt (
    a                   bigint PRIMARY KEY,
    n                   bigint NOT NULL REFERENCES rollout (n),
    attempt_id          text COLLATE "C" NOT NULL,
    sequence_id         bigint NOT NULL,
    status              text COLLATE "C" NOT NULL,
    worker_id           text COLLATE "C",
    start_time          float8 NOT NULL,
    end_time            float8,
    last_heartbeat_time float8,
    deadline            float8,    -- when the watchdog must look; NULL for never
    next_sequence       bigint NOT NULL,
    metadata            text,
    error               text,
    key                 text COLLATE "C",
    reward              float8,
    reward_place        bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX ON attempt (n, sequence_id);
CREATE INDEX ON attempt (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX ON attempt (worker_id) WHERE status IN ('preparing', 'running');
CREATE INDEX ON attempt (key) WHERE status = 'preparing' AND key IS NOT NULL;

-- Append only. The columns beside body are those that queries filter and sort by. The number of a
-- span is that of its column; in the body it may be 0 (see agl/store/packed_span.py).
CREATE TABLE span (
    k           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    a           bigint NOT NULL REFERENCES attempt (a),
    sequence_id bigint NOT NULL,
    span_id     text COLLATE "C" NOT NULL,
    trace_id    text COLLATE "C" NOT NULL,
    parent_id   text COLLATE "C",
    name        text COLLATE "C" NOT NULL,
    start_time  float8,
    end_time    float8,
    body        text NOT NULL
);
CREATE UNIQUE INDEX ON span (a, span_id);

-- The stores that had this database open, each with the number of its last transaction that was kept.
CREATE TABLE server (id text PRIMARY KEY, number bigint NOT NULL) WITH (fillfactor = 50);

-- What libraries and plugins keep, apart from what agents write; n is the rollout that it is about.
CREATE TABLE document (
    kind       text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    n          bigint REFERENCES rollout (n),
    rollout_id text COLLATE "C",
    body       text NOT NULL,
    PRIMARY KEY (kind, key)
);
CREATE INDEX ON document (n) WHERE n IS NOT NULL;

CREATE TABLE resources (
    r            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    resources_id text COLLATE "C" NOT NULL UNIQUE,
    create_time  float8 NOT NULL,
    update_time  float8 NOT NULL,
    version      bigint NOT NULL,
    touched      bigint NOT NULL UNIQUE DEFAULT nextval('touches'),  -- the highest is the latest
    body         text NOT NULL
);

CREATE TABLE worker (
    w                   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    worker_id           text COLLATE "C" NOT NULL UNIQUE,
    status              text COLLATE "C" NOT NULL,
    heartbeat_stats     text,
    last_heartbeat_time float8,
    last_dequeue_time   float8,
    last_busy_time      float8,
    last_idle_time      float8,
    current_rollout_id  text COLLATE "C",
    current_attempt_id  text COLLATE "C"
) WITH (fillfactor = 50);
