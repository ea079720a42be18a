"""The contracts of what turns spans into learning data."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from agl.types import Span, Triplet

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan  # noqa: F401

From = TypeVar("From")
To = TypeVar("To")


class Adapter(ABC, Generic[From, To]):
    """Turns one kind of object into another; also callable."""

    def __call__(self, source: From, /) -> To:
        return self.adapt(source)

    @abstractmethod
    def adapt(self, source: From, /) -> To:
        """Turn ``source`` into what the algorithm learns from.

        Raises:
            AdapterError: ``source`` cannot be read; the message says which span and why.
        """


class TraceAdapter(Adapter[Sequence[Span], To], Generic[To]):
    """An adapter whose source is the spans of one rollout, as the store returns them."""


class OtelTraceAdapter(Adapter["Sequence[ReadableSpan]", To], Generic[To]):
    """An adapter whose source is finished spans of the OpenTelemetry SDK."""


class TraceToTripletBase(TraceAdapter[list[Triplet]]):
    """Base of the adapters that make triplets."""
