"""The contracts of what turns spans into learning data."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel, Field

from agl.types import Span

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


class Triplet(BaseModel):
    """One turn as 0.3 shows it: prompt, response, and the reward that the turn got."""

    prompt: Any
    response: Any
    reward: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class TraceToTripletBase(TraceAdapter[list[Triplet]]):
    """Base of the adapters that make triplets."""
