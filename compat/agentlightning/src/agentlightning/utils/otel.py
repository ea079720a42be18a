"""Tags of spans, links between spans, and OpenTelemetry's own objects."""

import logging
from typing import TYPE_CHECKING

from agentlightning.semconv import (
    LinkAttributes as LinkAttributes,
    LinkPydanticModel as LinkPydanticModel,
)
from agl.errors import TracerError
from agl.utils.otel import (
    extract_links_from_attributes as extract_links_from_attributes,
    extract_tags_from_attributes as extract_tags_from_attributes,
    filter_attributes as filter_attributes,
    make_link_attributes as make_link_attributes,
    make_tag_attributes as make_tag_attributes,
    query_linked_spans as query_linked_spans,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

logger = logging.getLogger(__name__)


def get_tracer_provider(inspect: bool = True) -> "TracerProvider":
    """The process's OpenTelemetry provider, which carries spans to their rollouts.

    Args:
        inspect: Whether to log, at DEBUG, which one it is.

    Raises:
        TracerError: There is none yet: no tracer of agl was started in this process.
    """
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        raise TracerError(
            "OpenTelemetry is not set up in this process. Call this from an agent that a runner "
            "runs, or within tracer.lifespan()"
        )
    if inspect:
        logger.debug(
            "OpenTelemetry's provider is %r, of %r", provider, provider.resource.attributes
        )
    return provider


def get_tracer(use_active_span_processor: bool = True) -> "Tracer":
    """OpenTelemetry's tracer of the name ``agentlightning``.

    Args:
        use_active_span_processor: Whether its spans go where all others go; otherwise nowhere.

    Raises:
        TracerError: See ``get_tracer_provider``.
    """
    provider = get_tracer_provider(inspect=False)
    if not use_active_span_processor:
        from opentelemetry.sdk.trace import TracerProvider

        provider = TracerProvider(resource=provider.resource, shutdown_on_exit=False)
    return provider.get_tracer("agentlightning")
