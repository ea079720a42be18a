"""The real verl against everything that an agent may do, and a kill; see tests/seams."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("verl")

sys.path.insert(0, str(Path(__file__).parents[3] / "seams"))

from running import MARK, end_all, marked
from scripted import CASES, COPIES, TABLE, accounts

import agl
from agl_records.ledger.documents import query_parts
from agl_records.ledger.tables import as_json, read_accounts

pytestmark = pytest.mark.timeout(1800)


STEPS = 4
"""Of the run that is killed in the last of them, with a checkpoint after the second."""


def train(folder, cases, **options):
    """Exit status of a run in a process of its own, of which nothing is left."""
    mark, script = uuid.uuid4().hex, str(Path(__file__).parent / "table.py")
    with (folder / "log.txt").open("a") as log:
        ended = subprocess.run(
            [sys.executable, "-W", "ignore", script, str(folder), cases, json.dumps(options)],
            env=os.environ | {MARK: mark},
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=1500,
            check=False,
        )
    if ended.returncode == -signal.SIGKILL:  # as if the machine had died
        for process_id in marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
    assert end_all(mark) == [], "processes outlived the run"
    return ended.returncode


def in_store(folder, look):
    """What ``look`` finds there."""

    async def read():
        store = agl.SqliteLightningStore(str(folder / "store.db"))
        try:
            return await look(store)
        finally:
            await store.close()

    return asyncio.run(read())


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    adapter = {"agent_match": "writer", "truncated": "mask"}
    code = train(folder, ",".join(TABLE), adapter=adapter)
    assert code == 0, (folder / "log.txt").read_text()[-4000:]
    return folder


@pytest.fixture(scope="module")
def counted(ran):
    return in_store(ran, accounts)


@pytest.mark.parametrize("case", CASES)
def test_each_call_is_in_the_bin_that_a_person_names(counted, case):
    assert counted[case] == TABLE[case]


def test_a_hook_sees_what_an_update_trains(ran):
    parts = in_store(ran, agl.load_parts)
    calls = [one for part in parts for one in part.trained if one.kind == "call"]
    told = json.loads((ran / "told.json").read_text())
    assert told == {f"{one.rollout_id}/{one.call_id}": one.advantage.value for one in calls}


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """The folder of a run that was killed and goes on, with a reward for each call."""
    folder = tmp_path_factory.mktemp("resumed")
    options = {"adapter": {"credit": "per_call"}, "steps": STEPS, "save_freq": 2}
    code = train(folder, "credit_per_call", **options, kill_in=STEPS)
    assert code == -signal.SIGKILL, (folder / "log.txt").read_text()[-4000:]
    code = train(folder, "credit_per_call", **options)
    assert code == 0, (folder / "log.txt").read_text()[-4000:]
    return folder


@pytest.mark.long
def test_credit_per_call_trains_what_its_own_reward_sets_apart(resumed):
    # As in test_table_grpo: no reward equals the mean of its group, in any step.
    assert in_store(resumed, accounts) == {"credit_per_call": {"trained": 2 * COPIES * STEPS}}


@pytest.mark.long
def test_the_ledger_after_kill_and_resume_is_the_summary(resumed):
    found = in_store(resumed, read_accounts)
    summary = json.loads((resumed / "summary.json").read_text())
    total = as_json(found.total)
    assert total["rollouts"]["total"] == summary["rollouts"] == COPIES * STEPS
    assert total["calls"]["total"] == summary["calls"] == 2 * COPIES * STEPS
    assert total["calls"]["trained"] == summary["calls_trained"]
    assert total["calls"]["excluded"] == summary["calls_excluded"]
    assert summary["rollouts_failed"] == 0
    # Step 3 was accounted for, and after the kill it was trained again with the same rollouts.
    assert (found.lost, found.without) == (0, COPIES)

    async def step_3(store):
        parts = await query_parts(store, step=3)
        ids = [part.rollout_id for part in parts]
        return parts, await store.query_rollouts(rollout_id_in=ids)

    parts, rollouts = in_store(resumed, step_3)
    assert [part.generation for part in parts] == [2] * COPIES
    assert [one.metadata["generation"] for one in rollouts] == [1] * COPIES
    assert (summary["steps"], len(summary["rewards"])) == (STEPS, STEPS)


@pytest.mark.long
def test_no_step_stands_twice_in_the_metrics(resumed):
    lines = [json.loads(line) for line in (resumed / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["generation"]) for line in lines] == [
        (1, 1),
        (2, 1),
        (3, 2),
        (4, 2),
    ]


@pytest.mark.long
def test_no_rollout_of_the_killed_start_is_claimed_by_the_next(resumed):
    async def read(store):
        found = []
        for rollout in await store.query_rollouts():
            found.append((rollout, await store.query_attempts(rollout.rollout_id)))
        return found

    found = in_store(resumed, read)
    begun = min(rollout.start_time for rollout, _ in found if rollout.metadata["generation"] == 2)
    dead = [each for each in found if each[0].metadata["generation"] == 1]
    ended = Counter(rollout.status for rollout, _ in dead)
    assert ended["cancelled"] >= COPIES - 1
    assert ended["succeeded"] + ended["cancelled"] == STEPS * COPIES
    assert all(attempt.start_time < begun for _, attempts in dead for attempt in attempts)
