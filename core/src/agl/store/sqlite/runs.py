"""Operations on runs; see ``operations``, of which this is a part."""

from typing import Final

from agl.errors import UnknownRecordError
from agl.store import run_rules
from agl.store.detached import json_of
from agl.store.sqlite.lookups import SQL
from agl.store.sqlite.tables import Tables
from agl.types import Run, RunOutcome, RunStart

_OF_RUN: Final = "n IN (SELECT value FROM json_each(:rollouts))"
_HELD: Final = {
    "spans": f"span WHERE a IN (SELECT a FROM attempt WHERE {_OF_RUN})",
    "ledger_parts": f"ledger_part WHERE run = :run OR {_OF_RUN}",
    "attempts": f"attempt WHERE {_OF_RUN}",
    "rollouts": f"rollout WHERE {_OF_RUN}",
    "resources": "resources WHERE resources_id IN (SELECT value FROM json_each(:resources))",
}
"""What a run holds, in the order in which it can be deleted."""


def begin_run(tables: Tables, now: float, start: RunStart) -> Run:
    """Add a run or begin its next generation."""
    return _save(tables, run_rules.begin(tables.run(start.run_id), start, now))


def end_run(
    tables: Tables, now: float, run_id: str, generation: int, outcome: RunOutcome, error: str | None
) -> Run:
    """Note how a generation ended."""
    return _save(tables, run_rules.end(_find(tables, run_id), generation, outcome, error, now))


def delete_run(tables: Tables, now: float, run_id: str, only_count: bool) -> dict[str, int]:
    """Delete a run with what it holds."""
    run = _find(tables, run_id)
    connection = tables.connection
    numbers = [row[0] for row in connection.execute(SQL["rollouts_of_run"], (run_id,))]
    values = {"run": run_id, "rollouts": json_of(numbers, "numbers")}
    resources = [row[0] for row in connection.execute(SQL["resources_of_rollouts"], values)]
    values["resources"] = json_of(resources, "ids of resources")
    if only_count:
        counts = {
            kind: connection.execute(f"SELECT count(*) FROM {sql}", values).fetchone()[0]
            for kind, sql in _HELD.items()
        }
    else:
        run_rules.check_deletable(run)
        tables.effects.dequeued += connection.execute(SQL["queued_of"], values).fetchone()[0]
        counts = {
            kind: connection.execute(f"DELETE FROM {sql}", values).rowcount
            for kind, sql in _HELD.items()
        }
        connection.execute(SQL["delete_run"], (run_id,))
        tables.reload()
    return dict(reversed(counts.items()))


def _find(tables: Tables, run_id: str) -> Run:
    run = tables.run(run_id)
    if run is None:
        raise UnknownRecordError(f"no run {run_id!r} in this store")
    return run


def _save(tables: Tables, run: Run) -> Run:
    if not run.problem:  # the body would be lost
        body = json_of(run, f"run {run.run_id!r}")
        about = (run.run_id, run.algorithm, run.status, run.folder, run.create_time)
        tables.written_bytes += len(body)
        tables.connection.execute(SQL["save_run"], (*about, body))
    return run
