"""What every dialect must do, as a pytest class; see ``agl_testing.contract``."""

from collections.abc import Sequence
from typing import ClassVar

import pytest

from agl.types import Span
from agl_records import Dialect
from agl_testing.contract import Contract
from agl_testing.traces import Trace


class DialectContract(Contract):
    """Claims of ``Dialect.read``."""

    kind = "dialect"
    expected_type = Dialect
    calls: ClassVar[Sequence[Span]] = ()
    """Spans of model calls that it reads; without them two claims are skipped."""

    @pytest.fixture
    def dialect(self) -> Dialect:
        """The dialect to test."""
        return self.build()

    def test_span_of_another_kind_is_no_call(self, dialect: Dialect) -> None:
        """Agents, tools, rewards and what nobody knows are left to others."""
        trace = Trace()
        trace.span("agent.node", {"agent.name": "writer"})
        trace.span("execute_tool", {"gen_ai.operation.name": "execute_tool"})
        trace.span("something", {"something": 1})
        trace.reward(0.5)
        assert [span.name for span in trace.spans if dialect.read(span) is not None] == []

    def test_its_calls_are_read(self, dialect: Dialect) -> None:
        """Each names its span, what was asked, and what came of it."""
        for span in self.spans():
            call = dialect.read(span)
            assert call is not None, f"span {span.name!r} was not read"
            assert (call.call_id, call.rollout_id) == (span.span_id, span.rollout_id)
            assert call.messages or call.prompt_token_ids, "nobody knows what was asked"
            assert call.response or call.choices or call.error, "nobody knows what was answered"

    def test_reading_is_repeatable_and_changes_no_span(self, dialect: Dialect) -> None:
        """No randomness, no clock, no memory of earlier spans."""
        before = [span.model_dump_json() for span in self.spans()]
        first = [dialect.read(span) for span in self.calls]
        assert first == [dialect.read(span) for span in self.calls]
        assert [span.model_dump_json() for span in self.calls] == before

    def spans(self) -> Sequence[Span]:
        """Those of ``calls``; there are some, or the test is skipped."""
        return self.calls or pytest.skip(
            "there are no spans to read. Run pytest on a subclass of the suite that sets `calls`"
        )
