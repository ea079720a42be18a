"""The real verl against everything that an agent may do; see tests/seams."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from tests.interpreter import python
from tests.stores import ask

pytest.importorskip("verl")

sys.path.insert(0, str(Path(__file__).parents[3] / "seams"))

from running import MARK, end_all
from scripted import CASES, COPIES, TABLE, accounts

import agl

pytestmark = pytest.mark.timeout(1800)


def train(folder, cases, **options):
    """Exit status of a run in a process of its own, of which nothing is left."""
    mark, script = uuid.uuid4().hex, str(Path(__file__).parent / "table.py")
    with (folder / "log.txt").open("a") as log:
        kept = {"stdout": log, "stderr": subprocess.STDOUT, "capture_output": False}
        words = ("-W", "ignore", script, folder, cases, json.dumps(options))
        ended = python(*words, env=os.environ | {MARK: mark}, timeout=1500, **kept)
    assert end_all(mark) == [], "processes outlived the run"
    return ended.returncode


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    adapter = {"agent_match": "writer", "truncated": "mask"}
    code = train(folder, ",".join(TABLE), adapter=adapter)
    assert code == 0, (folder / "log.txt").read_text()[-4000:]
    return folder


@pytest.fixture(scope="module")
def counted(ran):
    return ask(ran / "store.db", accounts)


@pytest.mark.parametrize("case", CASES)
def test_each_call_is_in_the_bin_that_a_person_names(counted, case):
    assert counted[case] == TABLE[case]


def test_a_hook_sees_what_an_update_trains(ran):
    parts = ask(ran / "store.db", agl.load_parts)
    calls = [one for part in parts for one in part.trained if one.kind == "call"]
    told = json.loads((ran / "told.json").read_text())
    assert told == {f"{one.rollout_id}/{one.call_id}": one.advantage.value for one in calls}


@pytest.mark.long
def test_credit_per_call_trains_what_its_own_reward_sets_apart(tmp_path):
    code = train(tmp_path, "credit_per_call", adapter={"credit": "per_call"}, steps=2)
    assert code == 0, (tmp_path / "log.txt").read_text()[-4000:]
    # As in test_table_grpo: no reward equals the mean of its group, in any step.
    found = ask(tmp_path / "store.db", accounts)
    assert found == {"credit_per_call": {"trained": 2 * COPIES * 2}}
