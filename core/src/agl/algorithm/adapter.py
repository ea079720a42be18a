"""The contracts of what turns spans into learning data: adapters and credit rules."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from agl.types import Credit, ModelCall, Span, Triplet

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


class CreditRule(ABC):
    """Decides which call gets how much of which reward, and with what it is compared."""

    uses_intermediate: ClassVar[bool] = True
    """Whether rewards before the last one count; without it automatic ones (AIR) are refused."""

    @abstractmethod
    def assign(self, calls: Sequence[ModelCall], spans: Sequence[Span]) -> list[Credit]:
        """Credit per call.

        Args:
            calls: The model calls of one attempt, in order of ``sequence_id``; also those that
                cannot be trained, so that a reward does not slip on to another call.
            spans: All spans of that attempt, rewards among them, in the same order.

        Returns:
            One ``Credit`` per call; its ``reward`` is None where no reward reaches the call.
        """


AnyTraceAdapter = TraceAdapter[Any]
