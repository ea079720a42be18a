"""Attributes of spans, tags, and links between spans."""

from agentlightning.semconv import (
    LinkAttributes as LinkAttributes,
    LinkPydanticModel as LinkPydanticModel,
)
from agentlightning.utils._attributes import (
    check_attributes_sanity as check_attributes_sanity,
    filter_and_unflatten_attributes as filter_and_unflatten_attributes,
    flatten_attributes as flatten_attributes,
    format_exception_attributes as format_exception_attributes,
    full_qualified_name as full_qualified_name,
    get_tracer as get_tracer,
    get_tracer_provider as get_tracer_provider,
    sanitize_attribute_value as sanitize_attribute_value,
    sanitize_attributes as sanitize_attributes,
    sanitize_list_attribute_sanity as sanitize_list_attribute_sanity,
    unflatten_attributes as unflatten_attributes,
)
from agl.utils.otel import (
    extract_links_from_attributes as extract_links_from_attributes,
    extract_tags_from_attributes as extract_tags_from_attributes,
    filter_attributes as filter_attributes,
    make_link_attributes as make_link_attributes,
    make_tag_attributes as make_tag_attributes,
    query_linked_spans as query_linked_spans,
)

__all__ = [
    "LinkAttributes",
    "LinkPydanticModel",
    "check_attributes_sanity",
    "extract_links_from_attributes",
    "extract_tags_from_attributes",
    "filter_and_unflatten_attributes",
    "filter_attributes",
    "flatten_attributes",
    "format_exception_attributes",
    "full_qualified_name",
    "get_tracer",
    "get_tracer_provider",
    "make_link_attributes",
    "make_tag_attributes",
    "query_linked_spans",
    "sanitize_attribute_value",
    "sanitize_attributes",
    "sanitize_list_attribute_sanity",
    "unflatten_attributes",
]
