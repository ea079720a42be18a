-- Runs have records of their own. Those of before are known by their folders alone.
CREATE TABLE run (
    u           INTEGER PRIMARY KEY,
    run_id      TEXT NOT NULL UNIQUE,
    algorithm   TEXT NOT NULL,
    status      TEXT NOT NULL,
    folder      TEXT,
    create_time REAL NOT NULL,
    body        TEXT NOT NULL,
    crc         INTEGER
) STRICT;
