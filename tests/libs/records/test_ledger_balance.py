"""The ledger: everything in exactly one bin."""

import pytest

from agl_records.ledger.ledger import Ledger
from agl_records.types import EXCLUSION_REASONS, Exclusion, LedgerError

from .test_ledger import ADVANTAGE, call, row


def exclusion(call_id: str, reason: str = "no_reward", **about: str) -> Exclusion:
    ids = {"rollout_id": "ro-1", "attempt_id": "at-1", "call_id": call_id}
    return Exclusion(**ids, reason=reason, **about)


OF_ROLLOUT = Exclusion(kind="rollout", rollout_id="ro-1", reason="no_calls")


def balanced() -> Ledger:
    """One trained call, one excluded call, one used and one unused reward."""
    ledger = Ledger()
    for name in ("a", "b"):
        ledger.add_call(call(name))
        ledger.add_reward("ro-1", "at-1", f"r{name}")
    ledger.train(row("a"), [ADVANTAGE], number=0)
    ledger.exclude(exclusion("b"))
    ledger.use_reward("ro-1", "at-1", "ra")
    ledger.exclude(exclusion("rb", "unused_reward", kind="reward"))
    return ledger


def test_a_balanced_ledger_says_what_became_of_everything():
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
        (lambda ledger: ledger.exclude(OF_ROLLOUT), r"rollouts.*in several: \[\('ro-1', '', ''\)"),
        (lambda ledger: ledger.add_reward("ro-1", "at-1", "rc"), "3 rewards.*in no bin"),
        (lambda ledger: ledger.use_reward("ro-1", "at-1", "rb"), "rewards.*in several"),
    ],
)
def test_an_imbalance_is_an_error_that_shows_both_sides(change, message):
    ledger = balanced()
    change(ledger)
    with pytest.raises(LedgerError, match=message):
        ledger.check()


def test_a_rollout_is_excluded_as_most_of_its_calls_are():
    ledger = Ledger()
    for name, reason in (("a", "no_token_ids"), ("b", "model_error"), ("c", "model_error")):
        ledger.add_call(call(name))
        ledger.exclude(exclusion(name, reason))
    ledger.add_rollout("ro-2")
    ledger.exclude(Exclusion(kind="rollout", rollout_id="ro-2", reason="not_run"))
    ledger.check()
    assert ledger.rollouts() == {"ro-1": "model_error", "ro-2": "not_run"}
    assert ledger.reasons("rollout") == {"model_error": 1, "not_run": 1}


def test_every_code_has_its_meaning():
    from typing import get_args

    from agl_records.types import ExclusionReason

    assert set(EXCLUSION_REASONS) == set(get_args(ExclusionReason))
    assert len(set(EXCLUSION_REASONS.values())) == len(EXCLUSION_REASONS)
