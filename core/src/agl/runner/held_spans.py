"""The store as the tracer of one attempt sees it: its last spans wait for the attempt's end."""

from collections.abc import Awaitable, Callable, Sequence

from agl.semconv import LightningSpanAttributes as Key
from agl.store.base import LightningStore
from agl.store.forwarding import StandInStore
from agl.types import Span


class HeldSpans(StandInStore):
    """Passes everything on, until ``hold``: then spans are kept, to go with the final status.

    Args:
        store: The store.
        before: Awaited before spans are stored: what came before them gets its numbers first. False
            where it cannot say so; then rewards are marked as such.
    """

    def __init__(self, store: LightningStore, before: Callable[[], Awaitable[bool]]) -> None:
        super().__init__(store)
        self._before = before
        self._holding = False
        self.spans: list[Span] = []
        """Those that are to be stored yet, in their order."""
        self.received: list[Span] = []
        """Those that came from a sandbox; no tracer of this process knows them."""

    def hold(self) -> None:
        """Keep the spans that come from now on."""
        self._holding = True

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        spans = [one if one.writer else one.model_copy(update=_BY_AGENT) for one in spans]
        if self._holding:
            self.spans += spans
            return spans
        if not await self._before():
            spans = [_unordered(span) for span in spans]
        return await self._store.add_many_spans(spans)

    add_span = LightningStore.add_span
    add_otel_span = LightningStore.add_otel_span


_BY_AGENT = {"writer": "agent"}


def _unordered(span: Span) -> Span:
    if not any(name.startswith(f"{Key.REWARD}.") for name in span.attributes):
        return span
    return span.model_copy(update={"attributes": {**span.attributes, Key.UNORDERED: True}})
