"""The store as the tracer of one attempt sees it: spans go there in order with its model calls."""

from collections.abc import Awaitable, Callable, Sequence

from agl.semconv import LightningSpanAttributes as Key
from agl.store.base import LightningStore
from agl.store.forwarding import StandInStore
from agl.types import Span


class HeldSpans(StandInStore):
    """Passes everything on, until ``hold``: then spans are kept, to go with the final status.

    Args:
        store: The store.
        place: See ``GatewayClient.place``.
    """

    def __init__(
        self, store: LightningStore, place: Callable[[Sequence[Span]], Awaitable[tuple[int, bool]]]
    ) -> None:
        super().__init__(store)
        self._place = place
        self.spans: list[Span] = []
        """Those that are to be stored yet, in their order."""
        self.received: list[Span] = []
        """Those that came from a sandbox; no tracer of this process knows them."""

    def hold(self) -> None:
        """Keep the spans that come from now on."""
        self.is_holding = True

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        spans = [one if one.writer else one.changed(writer="agent") for one in spans]
        if self.is_holding:
            self.spans += spans
            return spans
        added: list[Span] = []
        while spans:
            count, in_order = await self._place(spans)
            added += await self._store.add_many_spans(placed(spans[:count], in_order))
            spans = spans[count:]
        return added

    add_span = LightningStore.add_span
    add_otel_span = LightningStore.add_otel_span


def placed(spans: list[Span], in_order: bool) -> list[Span]:
    """The spans; if their place among the calls is not known, their rewards say so."""
    return spans if in_order else [_unordered(span) for span in spans]


def _unordered(span: Span) -> Span:
    if not any(name.startswith(f"{Key.REWARD}.") for name in span.attributes):
        return span
    return span.model_copy(update={"attributes": {**span.attributes, Key.UNORDERED: True}})
