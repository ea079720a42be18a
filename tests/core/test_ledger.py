"""The ledger: everything in exactly one bin, in memory and in the store."""

import pytest

import agl
from agl.errors import LedgerError
from agl.types import Advantage, Credit, Exclusion, Ledger, ModelCall, TrainingRow
from agl.types.reasons import EXCLUSION_REASONS


def call(call_id: str, rollout_id: str = "ro-1", attempt_id: str = "at-1") -> ModelCall:
    return ModelCall(call_id=call_id, rollout_id=rollout_id, attempt_id=attempt_id, sequence_id=1)


def row(*call_ids: str, rollout_id: str = "ro-1", attempt_id: str = "at-1") -> TrainingRow:
    size = len(call_ids)
    return TrainingRow(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        token_ids=[1] * size,
        logprobs=[-1.0] * size,
        call_ids=list(call_ids),
        call_ranges=[(n, n + 1) for n in range(size)],
        credits=[Credit(reward=1.0, rule="final", because="it is so")] * size,
        model_versions=[None] * size,
    )


def exclusion(call_id: str, reason: str = "no_reward", rollout_id: str = "ro-1") -> Exclusion:
    return Exclusion(call_id=call_id, rollout_id=rollout_id, attempt_id="at-1", reason=reason)


def balanced() -> Ledger:
    """One trained call, one excluded call, one used and one unused reward."""
    ledger = Ledger()
    for name in ("a", "b"):
        ledger.add_call(call(name))
        ledger.add_reward("ro-1", "at-1", f"r{name}")
    ledger.train(row("a"), [Advantage(value=0.5, group="", because="1 against 0.5")], number=0)
    ledger.exclude(exclusion("b"))
    ledger.use_reward("ro-1", "at-1", "ra")
    ledger.exclude(
        Exclusion(
            kind="reward",
            rollout_id="ro-1",
            attempt_id="at-1",
            call_id="rb",
            reason="unused_reward",
        )
    )
    return ledger


def test_a_balanced_ledger_says_what_became_of_everything() -> None:
    ledger = balanced()
    ledger.check()
    assert ledger.summary() == {
        "calls": 2,
        "trained": 1,
        "excluded": {"no_reward": 1},
        "rollouts": {"total": 1, "trained": 1, "excluded": {}},
        "rewards": {"total": 2, "used": 1, "excluded": {"unused_reward": 1}},
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ledger: ledger.add_call(call("c")), "3 calls, 1 trained, 1 excluded.*in no bin"),
        (lambda ledger: ledger.exclude(exclusion("a")), r"in several: \[\('ro-1', 'at-1', 'a'\)"),
        (lambda ledger: ledger.exclude(exclusion("z")), r"never announced: \[\('ro-1'"),
        (lambda ledger: ledger.add_rollout("ro-2"), r"2 rollouts.*in no bin: \[\('ro-2'"),
        (
            lambda ledger: ledger.exclude(
                Exclusion(kind="rollout", rollout_id="ro-1", reason="no_calls")
            ),
            r"rollouts.*in several: \[\('ro-1', '', ''\)",
        ),
        (lambda ledger: ledger.add_reward("ro-1", "at-1", "rc"), "3 rewards.*in no bin"),
        (lambda ledger: ledger.use_reward("ro-1", "at-1", "rb"), "rewards.*in several"),
    ],
)
def test_an_imbalance_is_an_error_that_shows_both_sides(change, message) -> None:
    ledger = balanced()
    change(ledger)
    with pytest.raises(LedgerError, match=message):
        ledger.check()


def test_a_rollout_is_excluded_as_most_of_its_calls_are() -> None:
    ledger = Ledger()
    for name, reason in (("a", "no_token_ids"), ("b", "model_error"), ("c", "model_error")):
        ledger.add_call(call(name))
        ledger.exclude(exclusion(name, reason))
    ledger.add_rollout("ro-2")
    ledger.exclude(Exclusion(kind="rollout", rollout_id="ro-2", reason="not_run"))
    ledger.check()
    assert ledger.rollouts() == {"ro-1": "model_error", "ro-2": "not_run"}
    assert ledger.reasons("rollout") == {"model_error": 1, "not_run": 1}


def test_every_code_has_its_meaning() -> None:
    from typing import get_args

    from agl.types import ExclusionReason

    assert set(EXCLUSION_REASONS) == set(get_args(ExclusionReason))
    assert len(set(EXCLUSION_REASONS.values())) == len(EXCLUSION_REASONS)


async def run_one(store: agl.LightningStore) -> tuple[str, str]:
    await store.enqueue_rollout("task", mode="train")
    claimed = await store.dequeue_rollout()
    ids = (claimed.rollout_id, claimed.attempt.attempt_id)
    await store.update_attempt(*ids, status="succeeded")
    return ids


async def test_the_store_keeps_a_ledger_per_step(memory_store) -> None:
    ledgers = []
    for step in (1, 2):
        rollout_id, attempt_id = await run_one(memory_store)
        ledger = Ledger()
        ledger.add_call(call("a", rollout_id, attempt_id))
        ledger.train(
            row("a", rollout_id=rollout_id, attempt_id=attempt_id),
            [Advantage(value=0.5, group="", because="1 against 0.5")],
            number=0,
        )
        rollouts = await memory_store.query_rollouts(rollout_id_in=[rollout_id])
        for _ in range(2):  # a second time changes nothing
            await agl.save_ledger(memory_store, ledger, rollouts, step=step, algorithm="grpo")
        ledgers.append(ledger)
    both = Ledger()
    for ledger in ledgers:
        both.merge(ledger)
    assert await agl.load_ledger(memory_store) == both
    assert await agl.load_ledger(memory_store, step=2) == ledgers[1]
    (part,) = await agl.load_parts(memory_store, step=1)
    assert (part.mode, part.algorithm, part.step) == ("train", "grpo", 1)
    assert part.trained[0].credit.because == "it is so"
    assert part.trained[0].advantage.value == 0.5


async def test_a_rollout_that_never_ran_keeps_its_account_too(memory_store) -> None:
    rollout = await memory_store.enqueue_rollout("task", metadata={"group": 3})
    rollout = await memory_store.update_rollout(rollout.rollout_id, status="cancelled")
    ledger = Ledger()
    ledger.add_rollout(rollout.rollout_id)
    ledger.exclude(Exclusion(kind="rollout", rollout_id=rollout.rollout_id, reason="not_run"))
    await agl.save_ledger(memory_store, ledger, [rollout], step=1)
    assert await agl.load_ledger(memory_store) == ledger
    kept = await memory_store.get_rollout_by_id(rollout.rollout_id)
    assert kept.metadata["group"] == 3


async def test_an_imbalance_is_not_stored(memory_store) -> None:
    rollout_id, attempt_id = await run_one(memory_store)
    ledger = Ledger()
    ledger.add_call(call("a", rollout_id, attempt_id))
    with pytest.raises(LedgerError, match="in no bin"):
        await agl.save_ledger(memory_store, ledger, await memory_store.query_rollouts(), step=1)
    assert not await memory_store.query_ledger_parts()


async def test_a_store_without_a_ledger_gives_an_empty_one(memory_store) -> None:
    await run_one(memory_store)
    assert await agl.load_ledger(memory_store) == Ledger()
