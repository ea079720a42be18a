"""The contract of dialects over one of ours, and dialects that break it."""

import pytest

from agl.types import Span
from agl_records import Dialect, make_call
from agl_testing.adapter_contract import example_trace
from agl_testing.dialect_contract import DialectContract

CALLS = (Span.from_attributes(attributes={"asked": "2+2?", "answered": "4"}),)


class Acme(Dialect):
    """The smallest third-party dialect; a subclass breaks a part of it."""

    def read(self, span):
        if "asked" not in span.attributes:
            return None
        question = {"role": "user", "content": span.attributes["asked"]}
        answer = {"role": "assistant", "content": span.attributes["answered"]}
        return make_call(span, messages=[question], response=answer)


class TestAcme(DialectContract):
    component = Acme
    calls = CALLS


class TestGenAI(DialectContract):
    component = "genai"
    calls = tuple(span for span in example_trace() if "gen_ai.input.messages" in span.attributes)
    assert len(calls) == 3


class ReadsAll(Acme):
    def read(self, span):
        return make_call(span, messages=[{"role": "user", "content": span.name}])


class ReadsNothing(Acme):
    def read(self, span):
        return None


class NamesAnother(Acme):
    def read(self, span):
        return super().read(span).model_copy(update={"call_id": "another"})


class SaysNothing(Acme):
    def read(self, span):
        return make_call(span)


class Changes(Acme):
    def read(self, span):
        call = super().read(span)
        span.attributes["seen"] = True
        return call


class Counts(Acme):
    number = 0

    def read(self, span):
        self.number += 1
        return super().read(span).model_copy(update={"model": str(self.number)})


def test_a_dialect_that_reads_what_is_no_call_is_caught():
    with pytest.raises(AssertionError):
        DialectContract().test_span_of_another_kind_is_no_call(ReadsAll())


@pytest.mark.parametrize(
    ("claim", "broken"),
    [
        ("its_calls_are_read", ReadsNothing),
        ("its_calls_are_read", NamesAnother),
        ("its_calls_are_read", SaysNothing),
        ("reading_is_repeatable_and_changes_no_span", Changes),
        ("reading_is_repeatable_and_changes_no_span", Counts),
    ],
)
def test_a_dialect_that_breaks_a_claim_is_caught(claim, broken):
    with pytest.raises((AssertionError, TypeError)):
        getattr(TestAcme(), f"test_{claim}")(broken())
