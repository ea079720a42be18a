"""Writing a filled store: by the store's own writer of records, many to a transaction.

A real store commits what it acknowledges; this one is thrown away when it is not finished, so
nothing is synced before its end.
"""

import asyncio
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from agl.errors import ConfigError
from agl.store.engine.tables import StoredAttempt
from agl.store.packed_span import PackedSpan, span_of
from agl.types import LLM, Attempt, Rollout, RolloutConfig
from agl.utils.rewards import place_of_reward
from agl_records.ledger import documents
from agl_runs.records import RunStart
from agl_runs.store import begin_run, end_run
from agl_sqlite import SqliteLightningStore
from agl_sqlite.ids import make_id, number_of
from agl_sqlite.lookups import SQL
from agl_sqlite.tables import SqliteTables
from filling.accounts import account
from filling.failing import LOST
from filling.scripts import Piece, long_script, task
from filling.templates import fill
from filling.world import Metrics, Shape, Told, told

CONFIG: Final = RolloutConfig(
    timeout_seconds=300.0,
    unresponsive_seconds=60.0,
    max_attempts=2,
    retry_condition=["unresponsive"],
)
QUEUED: Final = 8
"""Rollouts at the end that nobody has run yet."""
_CACHE_KIB: Final = 262_144
Progress = Callable[[int], None]


def fill_store(
    path: Path, shape: Shape, long_trace: int = 0, progress: Progress = lambda done: None
) -> dict[str, Any]:
    """Make a store.

    Args:
        path: The file, which must not be there.
        shape: What is in it.
        long_trace: Spans of one rollout more; 0 for none.
        progress: Told after each step of a run how many rollouts there are.

    Returns:
        ``rollouts``, ``spans``, ``runs``, ``seconds``, ``bytes``, and ``long_rollout``, its id.

    Raises:
        ConfigError: The file is there.
    """
    if path.exists():
        raise ConfigError(f"{path} is there already; give the path of a new file")
    begun, now = time.perf_counter(), time.time()
    first = now - shape.rollouts * 0.4 - 3_600.0
    run_ids = [f"filled-{shape.seed:02d}-{number + 1}" for number in range(shape.runs)]
    asyncio.run(_open_runs(path, path.absolute().parent, run_ids))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for pragma in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{_CACHE_KIB}"):
            connection.execute(f"PRAGMA {pragma}")
        filler = _Filler(connection, shape, run_ids, first, path.absolute().parent)
        filler.begin()
        long_id = filler.add_long(long_trace) if long_trace else None
        for step in told(shape):
            filler.add_step(step)
            progress(filler.num_rollouts)
        filler.add_queued()
        filler.end()
        connection.execute("PRAGMA journal_mode=WAL")
    asyncio.run(_end_runs(path, run_ids))
    return {
        "rollouts": filler.num_rollouts,
        "spans": filler.num_spans,
        "runs": run_ids,
        "seconds": time.perf_counter() - begun,
        "bytes": path.stat().st_size,
        "long_rollout": long_id,
    }


async def _open_runs(path: Path, folder: Path, run_ids: list[str]) -> None:
    store = SqliteLightningStore(path)
    try:
        for run_id in run_ids:
            llm = LLM(endpoint="http://127.0.0.1:1/v1", model="policy")
            await store.update_resources(run_id, {"main_llm": llm})
            config = {"algorithm": {"type": "grpo", "group_size": 8, "learning_rate": 1e-3}}
            start = RunStart(
                run_id=run_id, algorithm="grpo", seed=0, config=config, folder=str(folder / run_id)
            )
            await begin_run(store, start)
    finally:
        await store.close()


async def _end_runs(path: Path, run_ids: list[str]) -> None:
    store = SqliteLightningStore(path)
    try:
        for run_id in run_ids:
            await end_run(store, run_id, 1, "finished")
    finally:
        await store.close()


class _Filler:
    def __init__(
        self,
        connection: sqlite3.Connection,
        shape: Shape,
        run_ids: list[str],
        first: float,
        folder: Path,
    ) -> None:
        self._connection, self._tables = connection, SqliteTables(connection)
        self._shape, self._run_ids, self._first = shape, run_ids, first
        self._draw = random.Random(shape.seed + 1)
        self._metrics = [Metrics(folder / run_id) for run_id in run_ids]
        self._parts: list[tuple[Any, ...]] = []
        self.num_rollouts, self.num_attempts, self.num_spans = 0, 0, 0

    def begin(self) -> None:
        self._connection.execute("BEGIN")

    def end(self) -> None:
        self._flush()
        self._connection.execute("COMMIT")
        for metrics in self._metrics:
            metrics.write()

    def add_step(self, step: list[Told]) -> None:
        for one in step:
            self._add(one)
        self._metrics[step[0].run].add(step)
        self._flush()

    def add_queued(self) -> None:
        """What is not done yet, of the last run."""
        start = self.num_rollouts * 0.4
        for number in range(min(QUEUED, self._shape.group_size)):
            self._insert(self._run_ids[-1], task(number), start, None, "queuing", "train", {})

    def add_long(self, num_spans: int) -> str:
        """One rollout with a trace of so many spans, the first of the store."""
        made = long_script(num_spans)
        one = Told(0, 0, "train", 0, 0, 0, made, -made.seconds - 1.0, reward=0.5)
        one.fate = "zero_advantage"
        self._add(one, named={"pages": num_spans})
        self._flush()
        return self._last_id

    def _add(self, one: Told, named: dict[str, Any] | None = None) -> None:
        run_id, start = self._run_ids[one.run], self._first + one.start
        metadata = {"step": one.step, "version": one.step, "round": 0, "group": one.group}
        seconds = 300.0 if one.attempt_status == "timeout" else one.script.seconds
        end = start + seconds + (60.0 if one.is_retried else 0.0)
        key = None if named else f"{one.mode}-{one.step}/0/{one.group}/{one.copy}"
        rollout_id = self._insert(
            run_id,
            named or task(one.task),
            one.start,
            end,
            one.status,
            one.mode,
            metadata,
            key,
            one.reward if one.status == "succeeded" else None,
        )
        if one.status == "cancelled":
            return
        next_sequence = 1
        if one.is_retried:
            pieces = one.script.pieces[:1]
            at = Attempt(rollout_id=rollout_id, attempt_id="", sequence_id=1, start_time=start,
                         status="unresponsive", end_time=start + 60.0, error=LOST)  # fmt: skip
            next_sequence = self._attempt(at, one, pieces, next_sequence)[1]
            start += 60.0
        pieces = one.script.pieces
        if one.error is not None:  # it broke off after some of them, and nobody gave a reward
            whole = [
                piece for piece in pieces if piece.kind in ("call", "tool") and not piece.parent
            ]
            pieces = tuple(whole[: 1 + self._draw.randrange(max(len(whole), 1))])
        attempt = Attempt(
            rollout_id=rollout_id,
            attempt_id="",
            sequence_id=2 if one.is_retried else 1,
            start_time=start,
            status=one.attempt_status,
            end_time=end,
            error=one.error,
        )
        values, _ = self._attempt(attempt, one, pieces, next_sequence)
        if one.fate is not None:
            self._account(one, run_id, values, pieces)

    def _insert(
        self,
        run_id: str,
        input: Any,
        start: float,
        end: float | None,
        status: Any,
        mode: Any,
        metadata: dict[str, Any],
        key: str | None = None,
        reward: float | None = None,
    ) -> str:
        self.num_rollouts += 1
        self._last_id = rollout_id = make_id("ro", self.num_rollouts)
        about = {"run": run_id, "generation": 1, "algorithm": "grpo", **metadata}
        rollout = Rollout(
            rollout_id=rollout_id,
            input=input,
            start_time=self._first + start,
            end_time=end,
            mode=mode,
            resources_id=run_id,
            status=status,
            config=CONFIG,
            metadata=about,
            reward=reward,
        )
        self._tables.insert_rollout(rollout, f"grpo/{run_id}/{key}" if key else None)
        return rollout_id

    def _attempt(
        self, attempt: Attempt, one: Told, pieces: tuple[Piece, ...], next_sequence: int
    ) -> tuple[dict[str, Any], int]:
        """An attempt with its spans; the values of their holes, and the number after theirs."""
        self.num_attempts += 1
        attempt_id = make_id("at", self.num_attempts)
        end = next_sequence + len(pieces)
        attempt = attempt.changed(
            attempt_id=attempt_id,
            worker_id=f"host-{self.num_attempts % 8}",
            last_heartbeat_time=attempt.end_time,
        )
        stored = StoredAttempt(attempt, end)
        self._tables.insert_attempt(stored, None)
        values: dict[str, Any] = {
            "rollout": attempt.rollout_id,
            "attempt": attempt_id,
            "version": one.step,
            "reward": repr(one.reward),
        }
        bits = self._draw.getrandbits
        trace, root = f"{bits(128):032x}", f"{bits(64):016x}"
        spans: list[PackedSpan] = []
        num_calls, start = 0, attempt.start_time
        for sequence_id, piece in enumerate(pieces, next_sequence):
            span_id = root if piece.kind == "root" else f"{bits(64):016x}"
            begin, finish = start + piece.begin, start + piece.end
            values |= {"span": span_id, "start": repr(begin), "end": repr(finish), "parent": root}
            values["trace"] = trace if piece.writer == "agent" else f"{bits(128):032x}"
            if piece.kind == "call":
                values[f"call{num_calls}"], values["response"] = span_id, f"{bits(96):024x}"
                num_calls += 1
            elif piece.kind == "reward":
                values["reward_id"] = span_id
            body = fill(piece.template, values)
            parent = root if piece.parent else None
            ids = attempt.rollout_id, attempt_id, sequence_id, span_id, values["trace"], parent
            spans.append(PackedSpan(*ids, piece.name, begin, finish, body))
            if piece.kind == "reward":
                place = place_of_reward(span_of(body, sequence_id))
                stored = StoredAttempt(attempt.changed(reward=one.reward), end, place)
        self._tables.insert_spans(attempt_id, spans)
        self._tables.save_attempt(stored, None)
        self.num_spans += len(spans)
        return values, end

    def _account(
        self, one: Told, run_id: str, values: dict[str, Any], pieces: tuple[Piece, ...]
    ) -> None:
        assert one.fate is not None
        shown = "none" if one.reward is None else f"{one.reward:g}"
        arithmetic = f"{shown} against mean {one.mean:.4g}, std {one.deviation:.4g}"
        values |= {
            "run": run_id,
            "step": one.step,
            "mode": one.mode,
            "sampled": max(one.step - 1, 0),
            "shown": shown,
            "advantage": repr(round(one.advantage, 6)),
            "because": f"{arithmetic} of {self._shape.group_size} rollouts",
        }
        cut = tuple(piece.truncated for piece in pieces if piece.kind == "call")
        body = fill(account(one.fate, cut), values)
        rollout_id = values["rollout"]
        key = documents.key_of(run_id, one.step, "grpo", rollout_id)
        about = (documents.KIND, key, 2, number_of(rollout_id), rollout_id)
        self._parts.append((*about, body))

    def _flush(self) -> None:
        self._tables.flush()
        self._connection.executemany(SQL["save_document"], self._parts)
        self._parts.clear()
        self._tables.reload()  # what it keeps of records that have ended
