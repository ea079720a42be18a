"""verl's run is killed amid a step and goes on, or loses what it needs.

Minutes each: ``nox -s verl-cpu -- --long``.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter

import psutil
import pytest
from tests.stores import opened
from tests.waiting import free_port

pytest.importorskip("verl")

from running import HERE, MARK, check, end_all, marked, run

import agl
from agl.errors import StoreUnavailableError
from agl_records.ledger.documents import each_part

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

STEPS = 3


@pytest.mark.parametrize("victim", ["train.py", "AglTaskRunner"])
def test_a_killed_run_goes_on_with_what_the_store_has(tmp_path, monkeypatch, victim):
    monkeypatch.setenv("AGL_SERVER_TOKEN", uuid.uuid4().hex)  # for the look into its store
    options = {
        **{"out": str(tmp_path), "port": free_port(), "keeps": True},
        **{"steps": STEPS, "seconds": 1.0},
        "cpu": {"trainer": {"save_freq": 1, "resume_mode": "auto"}},
    }
    finished = kill_amid_step_two(tmp_path, options, victim)
    ended = run(tmp_path, **{name: value for name, value in options.items() if name != "out"})
    check(ended, [2, 3])
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    rollouts, counting = asyncio.run(read(tmp_path))
    assert {one.status for one in rollouts.values()} <= {"succeeded", "failed", "cancelled"}
    used = {part.rollout_id for part in counting}
    assert finished <= used, "rollouts that the killed start had finished were run again"
    of_step_two = [one for one in rollouts.values() if one.metadata["step"] == 2]
    starts = Counter(one.metadata["generation"] for one in of_step_two)
    assert starts[2] == starts[1] - len(finished)
    trained = Counter(item.key for part in counting for item in part.trained if item.kind == "call")
    assert max(trained.values()) == 1
    assert sum(trained.values()) == ended.summary["calls_trained"]


def test_a_run_that_is_asked_to_stop_ends_after_its_step_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("AGL_SERVER_TOKEN", uuid.uuid4().hex)
    options = {
        **{"out": str(tmp_path), "port": free_port(), "keeps": True},
        **{"steps": STEPS, "seconds": 1.0},
        "cpu": {"trainer": {"save_freq": 100, "resume_mode": "auto"}},
    }
    with amid_step(2, tmp_path, options) as (process, _):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to all of them
        assert process.wait(1500) == 1
    log = (tmp_path / "log-broken-off.txt").read_text()
    assert "as it was asked to, after step 2; its newest checkpoint is of step 2" in log
    ended = run(tmp_path, **{name: value for name, value in options.items() if name != "out"})
    check(ended, [3])
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]


def test_a_dead_rollout_server_ends_the_run_and_does_not_hang_it(tmp_path, monkeypatch):
    monkeypatch.setenv("AGL_SERVER_TOKEN", uuid.uuid4().hex)
    options = {"out": str(tmp_path), "port": free_port(), "steps": 500, "seconds": 1.0}
    with amid_step(2, tmp_path, options) as (process, mark):
        (server,) = (number for number, line in marked(mark).items() if "InferenceServer" in line)
        os.kill(server, signal.SIGKILL)
        assert process.wait(600) != 0
        assert end_all(mark) == []
    log = (tmp_path / "log-broken-off.txt").read_text()
    assert "verl failed: ActorDiedError" in log or "groups in a row gave nothing" in log
    summary = json.loads((tmp_path / "summary.json").read_text())
    excluded = sum(summary["calls_excluded"].values())
    assert summary["calls"] == summary["calls_trained"] + excluded > 0


def test_a_run_in_which_every_rollout_fails_ends_and_says_why(tmp_path):
    ended = run(tmp_path, steps=3, crash=1.0)
    assert ended.code != 0
    assert ended.left == []
    assert "groups in a row gave nothing to train on" in ended.log
    assert "agent: RuntimeError" in ended.log
    assert ended.summary["rollouts"] == ended.summary["rollouts_failed"] > 0


def kill_amid_step_two(out, options, victim):
    """Start it, kill it with some rollouts of step 2 finished; the ids of those that had."""
    with amid_step(2, out, options) as (process, mark):
        for number, command in marked(mark).items():
            if victim in command:
                psutil.Process(number).kill()
        process.wait(120)
    rollouts, _ = asyncio.run(read(out))
    return {number for number, one in rollouts.items() if is_finished(one, 2)}


@contextlib.contextmanager
def amid_step(step, out, options):
    """The process of a run that has finished the first rollout of a step, and its mark."""
    out.mkdir(exist_ok=True)
    mark = uuid.uuid4().hex
    path = out / "log-broken-off.txt"
    with path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", HERE / "train.py", json.dumps(options)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {MARK: mark},
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{options['port']}"
        while not asyncio.run(has_finished(url, step)):
            assert process.poll() is None, path.read_text()[-4000:]
            time.sleep(0.2)
        yield process, mark
    finally:
        process.kill()
        end_all(mark)


def is_finished(rollout, step):
    return rollout.metadata["step"] == step and rollout.status == "succeeded"


async def has_finished(url, step):
    """Whether a rollout of the step has succeeded, in the store that the run serves."""
    client = agl.LightningStoreClient(url)
    try:
        return any(is_finished(one, step) for one in await client.query_rollouts())
    except StoreUnavailableError:
        return False  # it has not begun
    finally:
        await client.close()


async def read(out):
    """Rollouts by id, and the accounts that count."""
    async with opened(out / "store.db") as store:
        rollouts = {one.rollout_id: one for one in await store.query_rollouts()}
        return rollouts, [part async for part in each_part(store, lost=False)]
