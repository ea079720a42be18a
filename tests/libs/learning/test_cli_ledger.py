"""The sums per step at the end of ``agl run``."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.run_project import succeeds

Agl = Callable[..., Any]


AGENT = """
import agl

@agl.rollout
def agent(task: dict) -> float:
    return 1.0

class Toy(agl.Algorithm):
    async def run(self, train_dataset=None, val_dataset=None):
        from agl_records.ledger.ledger import save_ledger
        store = self.get_store()
        for step, task in enumerate(train_dataset, start=1):
            rollout = await store.enqueue_rollout(task, mode="train")
            ended = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
            ledger = agl.Ledger()
            ledger.add_rollout(rollout.rollout_id)
            ledger.exclude(agl.Exclusion(
                kind="rollout", rollout_id=rollout.rollout_id, reason="no_calls"))
            await save_ledger(store, ledger, ended, step=step, algorithm="toy")
"""


CONFIG = """
agent: ledger_agent:agent
train: tasks.jsonl
algorithm: ledger_agent:Toy
strategy: shm
run_dir: out
"""


@pytest.fixture
def project(own_modules):
    (own_modules / "ledger_agent.py").write_text(AGENT)
    (own_modules / "tasks.jsonl").write_text('{"x": 1}\n' * 12)
    (own_modules / "agl.yaml").write_text(CONFIG)
    return own_modules


def test_a_run_ends_with_its_ledger(agl, project):
    result = succeeds(agl, "run", "agl.yaml")
    _, _, ledger = result.out.partition("ledger       the last 10 of 12 steps\n")
    lines = [line.split() for line in ledger.splitlines()[2:13]]
    assert lines[0][:4] == ["3", "train", "1", "0"]
    assert lines[-1] == ["total", "12", "0", "0", "0", "0", "rollouts:", "12", "no_calls"]
