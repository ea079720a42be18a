"""The contract of credit rules over ours, and rules that break it."""

import pytest

from agl.errors import AdapterError
from agl.plugins import registry
from agl_records import Credit, CreditRule
from agl_testing.credit_contract import CreditContract

pytest.importorskip("agl_adapters")

pytestmark = pytest.mark.plugins


class Equal(CreditRule):
    """The smallest third-party rule; a subclass breaks a part of it."""

    def assign(self, calls, spans):
        rewarded = any("reward" in span.name for span in spans)
        return [Credit(reward=1.0 if rewarded else None) for _ in calls]


class TestEqual(CreditContract):
    component = Equal


class TestOurs(CreditContract):
    @pytest.fixture(params=["final", "per_call", "per_agent", "discounted", "stepwise"])
    def credit(self, request):
        return registry.load("agl.credits", request.param)()


class OneTooMany(Equal):
    def assign(self, calls, spans):
        return [Credit(reward=None), *super().assign(calls, spans)]


class NoNumber(Equal):
    def assign(self, calls, spans):
        return [Credit.model_construct(reward=float("nan")) for _ in calls]


class Zero(Equal):
    def assign(self, calls, spans):
        return [Credit(reward=0.0) for _ in calls]


class Counts(Equal):
    number = 0.0

    def assign(self, calls, spans):
        self.number += 1
        return [Credit(reward=self.number) for _ in calls]


class Empties(Equal):
    def assign(self, calls, spans):
        credits = super().assign(calls, spans)
        calls.clear()
        return credits


@pytest.mark.parametrize(
    ("claim", "broken"),
    [
        ("each_call_gets_one_finite_credit", OneTooMany),
        ("each_call_gets_one_finite_credit", NoNumber),
        ("without_calls_there_is_no_credit", OneTooMany),
        ("without_a_reward_no_call_has_one", Zero),
        ("credit_is_repeatable_and_calls_are_not_changed", Counts),
        ("credit_is_repeatable_and_calls_are_not_changed", Empties),
    ],
)
def test_a_rule_that_breaks_a_claim_is_caught(claim, broken):
    with pytest.raises((AssertionError, AdapterError)):
        getattr(CreditContract(), f"test_{claim}")(broken())
