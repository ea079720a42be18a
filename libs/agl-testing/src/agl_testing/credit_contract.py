"""What every credit rule must do, as a pytest class; see ``agl_testing.contract``."""

from collections.abc import Sequence
from typing import ClassVar

import pytest

from agl.emitter import is_reward_span
from agl.types import Span
from agl_records import CreditRule, model_calls
from agl_records.credit import check_credits
from agl_testing.adapter_contract import example_trace
from agl_testing.contract import Contract


class CreditContract(Contract):
    """Claims of ``CreditRule.assign``."""

    kind = "credit"
    expected_type = CreditRule
    spans: ClassVar[Sequence[Span]] = example_trace()
    """Of one attempt, with model calls and a reward; others where the rule cannot read ours."""

    @pytest.fixture
    def credit(self) -> CreditRule:
        """The rule to test."""
        return self.build()

    def test_each_call_gets_one_finite_credit(self, credit: CreditRule) -> None:
        """Those that cannot be trained as well."""
        calls = model_calls(self.spans)
        check_credits(self.kind, credit.assign(calls, self.spans), len(calls), "ro-1")

    def test_without_calls_there_is_no_credit(self, credit: CreditRule) -> None:
        """An agent may earn a reward without a model."""
        assert credit.assign([], [span for span in self.spans if is_reward_span(span)]) == []

    def test_without_a_reward_no_call_has_one(self, credit: CreditRule) -> None:
        """None, as a zero would be learned from."""
        unrewarded = [span for span in self.spans if not is_reward_span(span)]
        credits = credit.assign(model_calls(self.spans), unrewarded)
        assert {one.reward for one in credits} == {None}

    def test_credit_is_repeatable_and_calls_are_not_changed(self, credit: CreditRule) -> None:
        """No randomness, no clock, no memory of earlier attempts."""
        calls = model_calls(self.spans)
        given, before = [*calls], [one.model_dump_json() for one in calls]
        first = [one.model_dump() for one in credit.assign(given, [*self.spans])]
        assert [one.model_dump_json() for one in given] == before
        assert first == [one.model_dump() for one in credit.assign(calls, self.spans)]
