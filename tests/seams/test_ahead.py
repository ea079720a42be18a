"""Rollouts of later steps run while a step is trained: nothing is lost, doubled or too old."""

import asyncio
import json
import signal
import subprocess
import threading
from collections import Counter
from pathlib import Path

import pytest
from tests import fork_server
from tests.stores import ask

import agl
from agl_records.ledger.tables import Accounts

pytest.importorskip("torch")

from .table_model import TINY, WORDS, build_model, word_of

SCRIPT = Path(__file__).with_name("grpo_run.py")
TASKS = ["one", "two", "three"]
GROUPS, COPIES = 2, 2
OF_A_STEP = GROUPS * COPIES


@pytest.fixture
def train(tmp_path: Path):
    """A run with ``max_staleness``: its algorithm and its store."""

    def build(kind: type[agl.GRPO] = agl.GRPO, reward=None, **options):
        store = agl.InMemoryLightningStore()

        @agl.rollout
        async def agent(task: str, llm: agl.LLM, rollout: agl.Rollout) -> float:
            word = await word_of(llm, task)
            return float(WORDS.index(word)) if reward is None else await reward(rollout)

        size = {"steps": 5, "groups_per_step": GROUPS, "group_size": COPIES, "max_tokens": 1}
        given = {**TINY, **size, "max_staleness": 1, "run_dir": str(tmp_path / "run"), **options}
        algorithm = kind(**given)
        trainer = agl.Trainer(
            algorithm=algorithm, store=store, strategy="shm", n_runners=1, concurrency=32
        )
        trainer.fit(agent, TASKS, val_dataset=["four"])
        return algorithm, store

    return build


def lines_of(algorithm: agl.GRPO) -> list[dict]:
    text = (Path(algorithm.run_dir) / "metrics.jsonl").read_text()
    return [line for line in map(json.loads, text.splitlines()) if "reward/mean" in line]


async def check_books(store: agl.LightningStore, summary: dict) -> None:
    """Each rollout has one account that counts, and the sums are those of the summary."""
    total = (await Accounts.read(store)).total.as_json()
    calls = total["calls"]
    assert (total["rollouts"]["total"], calls["total"], calls["trained"]) == tuple(
        summary[name] for name in ("rollouts", "calls", "calls_trained")
    )
    parts = Counter(part.rollout_id for part in await agl.load_parts(store))
    assert set(parts.values()) == {1}


async def steps_of(store: agl.LightningStore) -> Counter[int]:
    """Step -> rollouts that succeeded for it."""
    return Counter(
        rollout.metadata["step"]
        for rollout in await store.query_rollouts()
        if rollout.mode == "train" and rollout.status == "succeeded"
    )


def step_2_tells(ended: threading.Event):
    """Rewards that differ; the first rollout of step 2 that ends says so."""

    async def reward(rollout: agl.Rollout) -> float:
        if rollout.metadata["step"] == 2:
            ended.set()
        return int(rollout.rollout_id[-8:], 16) / 2**32

    return reward


def test_rollouts_of_the_next_step_end_while_one_is_trained(train) -> None:
    ended, waited = threading.Event(), []

    class Slow(agl.GRPO):
        def update(self, rows):
            learned = super().update(rows)
            waited.append(ended.wait(20))
            return learned

    _, store = train(Slow, step_2_tells(ended), steps=2)
    assert waited == [True, True]
    assert asyncio.run(steps_of(store)) == {1: OF_A_STEP, 2: OF_A_STEP}


def build_deeper_model():
    """The table, but with layers through which an adapter on them gets gradients."""
    import torch

    torch.manual_seed(0)
    model = build_model()
    for name, weights in model.named_parameters():
        if "layers" in name and "norm" not in name:
            torch.nn.init.normal_(weights, std=0.02)
    return model


def test_an_adapter_is_trained_while_another_one_over_the_same_weights_answers(train) -> None:
    pytest.importorskip("peft")
    ended, behind = threading.Event(), []

    class Slow(agl.GRPO):
        def update(self, rows):
            model, served = self._learner.model, self._server.model
            before = {name: one.clone() for name, one in served.state_dict().items()}
            # Its own copy of the adapter, and of nothing else.
            shared = {one.data_ptr() for one in model.parameters()} & {
                one.data_ptr() for one in served.parameters()
            }
            trained = sum(one.requires_grad for one in model.parameters())
            assert len(shared) == len(list(model.parameters())) - trained
            learned = self._learner.update

            def update(*given):
                result = learned(*given)
                ended.wait(60)  # answers of the next step come, and from the old adapter
                now = served.state_dict()
                assert all(before[name].equal(now[name]) for name in before)
                behind.append(
                    sum(not now[name].equal(one) for name, one in model.state_dict().items())
                )
                return result

            self._learner.update = update
            try:
                measured = super().update(rows)
            finally:
                self._learner.update = learned
            now = served.state_dict()
            assert all(now[name].equal(one) for name, one in model.state_dict().items())
            return measured

    # Copies that answer alike cancel each other's gradient; so many hardly all do.
    options = {"model": build_deeper_model, "lora": 2, "kl": 0.01, "group_size": 8}
    algorithm, store = train(Slow, step_2_tells(ended), steps=3, **options)
    assert len(behind) == 3
    assert min(behind) > 0, behind
    lines = lines_of(algorithm)
    # The first step was sampled from what was trained; later ones from one version before.
    assert lines[0]["logprob_gap"] < 1e-5
    assert lines[0]["version_lag/max"] == 0
    assert max(line["version_lag/max"] for line in lines) == 1
    assert asyncio.run(steps_of(store)) == dict.fromkeys(range(1, 4), GROUPS * 8)
    asyncio.run(check_books(store, algorithm.summary))
    last = Path(algorithm.summary["checkpoint"])
    assert (last / "adapter_model.safetensors").is_file()


@pytest.mark.parametrize("staleness", [1, 3])
def test_no_call_is_older_than_allowed_and_each_step_has_its_own(train, staleness) -> None:
    algorithm, store = train(max_staleness=staleness, evaluation=2)
    lines = lines_of(algorithm)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert all(line["version_lag/max"] <= staleness for line in lines)
    assert all(line["rollouts/stale"] == 0 and line["time/idle"] >= 0 for line in lines)
    assert asyncio.run(steps_of(store)) == dict.fromkeys(range(1, 6), OF_A_STEP)
    asyncio.run(check_books(store, algorithm.summary))


def test_what_is_under_way_as_a_run_ends_early_is_accounted_for(train) -> None:
    algorithm, store = train(stopping={"target_reward": -1.0}, steps=9, max_staleness=2)
    assert len(lines_of(algorithm)) == 3
    asyncio.run(check_books(store, algorithm.summary))
    assert algorithm.summary["rollouts"] == 5 * OF_A_STEP + 2
    accounts = asyncio.run(Accounts.read(store))
    assert accounts.without == 0
    (redrawn,) = [
        one.body["places"]
        for one in asyncio.run(store.query_documents("step"))
        if one.key.endswith("/redrawn")
    ]
    assert redrawn == [2 * 3 + 1]  # the training after three steps, and all that follows


def test_a_run_killed_with_rollouts_of_later_steps_under_way_goes_on(tmp_path) -> None:
    options = {"max_staleness": 2, "checkpoints": 2}

    def run(**more: object) -> subprocess.CompletedProcess[str]:
        return fork_server.run([SCRIPT, tmp_path, json.dumps({**options, **more})])

    killed = run(kill_at=9)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    done = run(resume_from=str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr[-3000:]

    async def look(store: agl.LightningStore) -> None:
        assert await steps_of(store) == dict.fromkeys(range(1, 6), OF_A_STEP)
        await check_books(store, json.loads((tmp_path / "run/summary.json").read_text()))

    ask(tmp_path / "store.db", look)
