"""The store as the tracer of one attempt sees it: its last spans wait for the attempt's end."""

from collections.abc import Sequence

from agl.store.base import LightningStore, LightningStoreCapabilities
from agl.store.forwarding import ForwardingStore
from agl.store.packed import check_span
from agl.types import Span


class HeldSpans(ForwardingStore):
    """Passes everything on, until ``hold``: then spans are kept, to go with the final status.

    Args:
        store: The store.
    """

    def __init__(self, store: LightningStore) -> None:
        self._store = store
        self._holding = False
        self.spans: list[Span] = []
        """Those that are to be stored yet, in their order."""

    def hold(self) -> None:
        """Keep the spans that come from now on."""
        self._holding = True

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        if not self._holding:
            return await self._store.add_many_spans(spans)
        for span in spans:
            check_span(span)  # while it can still be told which boundary it crossed
        self.spans += spans
        return spans

    add_span = LightningStore.add_span
    add_otel_span = LightningStore.add_otel_span

    @property
    def target(self) -> LightningStore:
        return self._store

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self._store.capabilities

    def otlp_traces_endpoint(self) -> str:
        return self._store.otlp_traces_endpoint()
