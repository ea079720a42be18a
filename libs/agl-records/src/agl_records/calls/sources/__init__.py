"""Readers of model-call spans: a dialect for each way in which such spans are written.

``read_call(span)`` gives the same ``ModelCall`` whoever wrote the span.
"""

import logging
from functools import cache

from agl.errors import AdapterError, PluginError
from agl.plugins.registry import GROUPS, components, load_component
from agl.types import Span
from agl_records.calls.sources.dialect import Dialect
from agl_records.training_data import ModelCall

logger = logging.getLogger("agl.records")


@cache
def dialects() -> tuple[Dialect, ...]:
    """All dialects that are installed, in the order in which they are asked."""
    found: list[Dialect] = []
    for component in components(GROUPS["dialect"]):
        try:
            found.append(load_component(component)())
        except PluginError as error:
            logger.warning("spans of this dialect are not read: %s", error)
    return tuple(sorted(found, key=lambda dialect: dialect.is_standard))


def read_call(span: Span) -> ModelCall | None:
    """The model call that a span records, or None when it records none.

    Raises:
        AdapterError: It is a model call, and its attributes cannot be read.
    """
    for dialect in dialects():
        try:
            call = dialect.read(span)
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
