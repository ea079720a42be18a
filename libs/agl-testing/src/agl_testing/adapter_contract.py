"""What every trace adapter must do, as a pytest class; see ``agl_testing.contract``.

A fixture ``spans`` may give what the adapter can read, where that is not ours.
"""

import copy
import random
from collections.abc import Sequence
from typing import Any

import pytest

from agl.algorithm.adapter import TraceAdapter
from agl.errors import AdapterError
from agl.types import Span
from agl_testing.contract import Contract
from agl_testing.traces import Trace


def example_trace() -> list[Span]:
    """One attempt: an agent's span around model calls with token ids, then a reward.

    Each prompt begins with the tokens of the call before it. Spans are numbered from 1.
    """
    trace = Trace()
    agent = trace.span("agent.node", {"agent.name": "writer"}, end_time=trace.start + 5)
    tokens = [1, 2]
    for number in range(3):
        sampled = [10 + number, 3]
        asked = [{"role": "user", "content": f"turn {number}"}]
        call = f"chatcmpl-{number}"
        trace.gateway(
            list(tokens), sampled, response_id=call, messages=asked, parent_id=agent.span_id
        )
        tokens += [*sampled, 5]
    trace.reward(0.5)
    return trace.spans


class AdapterContract(Contract):
    """Claims about a ``TraceAdapter``; its results must have a length, and compare by value."""

    kind = "adapter"
    expected_type = TraceAdapter

    @pytest.fixture
    def adapter(self) -> TraceAdapter[Any]:
        """The adapter to test."""
        return self.build()

    @pytest.fixture
    def spans(self) -> Sequence[Span]:
        """Spans that the adapter can read; override for an adapter with a source of its own."""
        return example_trace()

    def test_no_spans_give_nothing_or_an_adapter_error(self, adapter: TraceAdapter[Any]) -> None:
        """An adapter documents which of the two; nothing else happens."""
        try:
            result = adapter.adapt([])
        except AdapterError:
            return
        assert len(result) == 0

    def test_spans_are_not_changed(self, adapter: TraceAdapter[Any], spans: Sequence[Span]) -> None:
        """Neither the list nor a span in it."""
        source = list(spans)
        before = [span.model_dump_json() for span in source]
        adapter.adapt(source)
        assert [span.model_dump_json() for span in source] == before

    def test_result_is_not_empty(self, adapter: TraceAdapter[Any], spans: Sequence[Span]) -> None:
        """The example holds what adapters are for."""
        assert len(adapter.adapt(spans)) > 0

    def test_result_is_repeatable(self, adapter: TraceAdapter[Any], spans: Sequence[Span]) -> None:
        """No randomness, no clock, no memory of earlier calls."""
        copies = [Span.model_validate_json(span.model_dump_json()) for span in spans]
        # A list that grows from call to call is equal to itself, so what is compared is a copy.
        first = copy.deepcopy(adapter.adapt(spans))
        assert first == adapter.adapt(copies)

    def test_calling_is_adapting(self, adapter: TraceAdapter[Any], spans: Sequence[Span]) -> None:
        """Adapters are callable."""
        assert adapter(spans) == adapter.adapt(spans)

    @pytest.mark.parametrize("seed", range(5))
    def test_numbered_spans_may_come_in_any_order(
        self, adapter: TraceAdapter[Any], spans: Sequence[Span], seed: int
    ) -> None:
        """The numbers decide, not the order in which a store happens to return them."""
        shuffled = list(spans)
        random.Random(seed).shuffle(shuffled)
        assert adapter.adapt(shuffled) == adapter.adapt(spans)
