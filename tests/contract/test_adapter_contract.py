from collections.abc import Sequence

import pytest

from agl.algorithm.adapter import TraceAdapter
from agl.types import Span
from agl_testing.adapter_contract import AdapterContract

pytest.importorskip("agl_adapters")

from agl_adapters import LlmProxyTraceToTriplet, TracerTraceToTriplet, TraceToMessages, TraceToRows

pytestmark = pytest.mark.plugins


class SpanNames(TraceAdapter[list[str]]):
    """The smallest third-party adapter."""

    def adapt(self, source: Sequence[Span], /) -> list[str]:
        return [span.name for span in sorted(source, key=lambda span: span.sequence_id)]


class TestAdapters(AdapterContract):
    @pytest.fixture(
        params=[
            TracerTraceToTriplet,
            LlmProxyTraceToTriplet,
            TraceToMessages,
            TraceToRows,
            SpanNames,
        ]
    )
    def adapter(self, request):
        return request.param()


class Stateful(TraceAdapter[list[int]]):
    """Breaks the contract: it remembers."""

    def __init__(self) -> None:
        self.calls = 0

    def adapt(self, source: Sequence[Span], /) -> list[int]:
        self.calls += 1
        return [self.calls]


class Growing(SpanNames):
    """Breaks the contract: one list is every answer, and grows."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def adapt(self, source: Sequence[Span], /) -> list[str]:
        self.names += super().adapt(source)
        return self.names


class OrderBound(TraceAdapter[list[str]]):
    """Breaks the contract: it goes by the order of the list."""

    def adapt(self, source: Sequence[Span], /) -> list[str]:
        return [span.span_id for span in source]


def test_the_suite_refuses_adapters_that_break_the_contract():
    suite, spans = AdapterContract(), AdapterContract.spans.__wrapped__(AdapterContract())
    for remembering in (Stateful(), Growing()):
        with pytest.raises(AssertionError):
            suite.test_result_is_repeatable(remembering, spans)
    with pytest.raises(AssertionError):
        suite.test_no_spans_give_nothing_or_an_adapter_error(Stateful())
    with pytest.raises(AssertionError):
        suite.test_numbered_spans_may_come_in_any_order(OrderBound(), spans, 1)
