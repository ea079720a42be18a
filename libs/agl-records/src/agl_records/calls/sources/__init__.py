"""Readers of model-call spans, one module per way in which such spans are written.

``read_call(span)`` gives the same ``ModelCall`` whoever wrote the span.
"""

from agl.errors import AdapterError
from agl.types import Span
from agl_records.calls.sources import flat, litellm, openinference, operation, parts
from agl_records.training_data import ModelCall

_SOURCES = (litellm, openinference, operation, parts, flat)
"""In order of preference: the first that knows a span reads it."""


def read_call(span: Span) -> ModelCall | None:
    """The model call that a span records, or None when it records none.

    Raises:
        AdapterError: It is a model call, and its attributes cannot be read.
    """
    for source in _SOURCES:
        try:
            call = source.read(span)
        except AdapterError:
            raise
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise AdapterError(
                f"span {span.span_id!r} ({span.name!r}) of rollout {span.rollout_id!r}, attempt "
                f"{span.attempt_id!r} is a model call that cannot be read: "
                f"{type(error).__name__}: {error}"
            ) from error
        if call is not None:
            return call
    return None
