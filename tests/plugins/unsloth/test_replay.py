"""A version of a finished fine-tuning, trained again, and what keeps it from being so."""

import pytest
from tests.digests import digests

import agl
from agl.emitter import reward_attributes
from agl.errors import AlgorithmError, ConfigError
from agl.types import Span
from agl_testing.echo_llm import EchoLLM

pytest.importorskip("agl_adapters")
pytest.importorskip("agl_gateway")

from .looping import Counting, fit, some_number

TASKS = ["one", "two", "three"]


@pytest.fixture
async def replaying(store, tmp_path):
    """Makes the algorithm of a run of two iterations that is there."""

    def make(kind=Counting):
        algorithm = kind("http://nowhere", run_dir=str(tmp_path / "run"))
        algorithm.set_store(store)
        algorithm.set_adapter(agl.TraceToRows())
        return algorithm

    with EchoLLM(some_number) as llm:
        await fit(Counting(llm.url, run_dir=str(tmp_path / "run")), store, TASKS)
    return make


async def test_a_version_is_selected_and_trained_again_from_the_one_before(
    replaying, store, tmp_path
):
    before, algorithm = [digests(tmp_path), await noted(store)], replaying()
    found = await algorithm.replay(2)
    assert algorithm.trained == [("trained-1", 2, 12)]
    assert (algorithm.served, algorithm.cleaned) == ([], 1)
    assert found.first_difference is None
    assert (found.begun_at, found.is_exact) == (1, False)
    compared = {one.what: one.same for one in found.compared}
    assert {"rewards", "rows trained", "reward/mean", "train/lines"} <= compared.keys()
    # Nobody can say what their weights are.
    assert [compared.pop(f"weights after step {step}") for step in (1, 2)] == [None, None]
    assert set(compared.values()) == {True}
    fails = replaying()
    fails.min_reward = 2.0
    with pytest.raises(AlgorithmError, match="no rollout reached"):
        await fails.replay(2)
    assert [digests(tmp_path), await noted(store)] == before


async def noted(store):
    """What the store has of steps and accounts."""
    return [[*await store.query_documents(kind)] for kind in ("step", "ledger")]


async def test_another_reward_and_other_examples_are_named(replaying, store):
    (first, *_) = await store.query_rollouts()
    attempt = await store.get_latest_attempt(first.rollout_id)
    span = Span.from_attributes(name="agl.annotation", attributes=reward_attributes(9.0))
    owner = {"rollout_id": first.rollout_id, "attempt_id": attempt.attempt_id}
    await store.add_span(span.model_copy(update={**owner, "writer": "algorithm"}))
    found = {one.what: one for one in (await replaying().replay(1)).compared}
    assert first.rollout_id in found["rewards"].where
    assert found["reward/mean"].same is False

    class Reversed(Counting):
        def select(self, collected, iteration):
            return super().select(collected, iteration)[::-1]

    found = (await replaying(Reversed).replay(2)).first_difference
    assert (found.what, found.where[:11]) == ("rows trained", "row 0 of 12")


async def test_what_is_missing_is_named(replaying):
    with pytest.raises(ConfigError, match=r"has no step 3 of the run .*has steps 1 to 2"):
        await replaying().replay(3)

    class Lost(Counting):
        def is_whole(self, version):
            return False

    found = await replaying(Lost).replay(2)  # from the beginning
    assert (found.begun_at, found.first_difference) == (0, None)
    other = replaying()
    other.set_store(agl.InMemoryLightningStore())
    with pytest.raises(ConfigError, match="has no step 1 of the run"):
        await other.replay(1)
