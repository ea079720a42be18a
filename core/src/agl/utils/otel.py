"""Tags of spans and links between them; agentlightning.utils.otel has the other helpers of 0.3."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from agl.semconv import LightningSpanAttributes
from agl.types import Attributes, SpanContext, SpanLike
from agl.types.records import Record
from agl.utils.attributes import (
    attributes_under,
    filter_attributes as filter_attributes,
    to_attribute_value,
)

SpanT = TypeVar("SpanT")


class LinkMatch(Record):
    """One condition of a link: the other span has ``value_match`` under ``key_match``."""

    key_match: str
    """An attribute key, or ``trace_id`` or ``span_id`` for the ids of the span itself."""
    value_match: str | bool | int | float


# --- tags


def make_tag_attributes(tags: Sequence[str]) -> Attributes:
    """Attributes that hold these tags: ``agentlightning.tag.<i>``."""
    if isinstance(tags, str):
        raise ValueError(f"tags={tags!r}: expected a list of strings, got one string")
    return {f"{LightningSpanAttributes.TAG.value}.{i}": tag for i, tag in enumerate(tags)}


def extract_tags_from_attributes(attributes: Mapping[str, Any]) -> list[str]:
    """The tags in these attributes, in order."""
    found = attributes_under(attributes, LightningSpanAttributes.TAG)
    return [str(found[key]) for key in _indices(found)]


# --- links


def make_link_attributes(links: Mapping[str, str | bool | int | float]) -> Attributes:
    """Attributes that point to the span(s) which match all these keys and values.

    Args:
        links: Attribute key -> value; the keys ``trace_id`` and ``span_id`` (hex) address a span
            by its ids.
    """
    prefix = LightningSpanAttributes.LINK.value
    attributes: Attributes = {}
    for index, (key, value) in enumerate(links.items()):
        attributes[f"{prefix}.{index}.key_match"] = key
        attributes[f"{prefix}.{index}.value_match"] = to_attribute_value(
            value, key=f"{prefix}.{index}.value_match", strict=True
        )
    return attributes


def extract_links_from_attributes(attributes: Mapping[str, Any]) -> list[LinkMatch]:
    """The links in these attributes, in order.

    Raises:
        ValueError: A link lacks its key or its value.
    """
    found = attributes_under(attributes, LightningSpanAttributes.LINK)
    links: list[LinkMatch] = []
    for index in _indices(key.partition(".")[0] for key in found):
        key, value = found.get(f"{index}.key_match"), found.get(f"{index}.value_match")
        if key is None or value is None:
            raise ValueError(
                f"link {index} needs both key_match and value_match; "
                f"got key_match={key!r}, value_match={value!r}"
            )
        links.append(LinkMatch(key_match=key, value_match=value))
    return links


def query_linked_spans(spans: Sequence[SpanT], links: Sequence[LinkMatch]) -> list[SpanT]:
    """The spans (``Span`` or OpenTelemetry's) that match every link; none when there is no link."""
    if not links:
        return []
    return [span for span in spans if all(_matches(span, link) for link in links)]


def _matches(span: SpanLike, link: LinkMatch) -> bool:
    if link.key_match in ("trace_id", "span_id"):
        ids = span if hasattr(span, "trace_id") else SpanContext.from_opentelemetry(span.context)
        return getattr(ids, link.key_match) == link.value_match
    attributes = cast(Mapping[str, Any], span.attributes or {})
    return link.key_match in attributes and attributes[link.key_match] == link.value_match


def _indices(keys: Iterable[str]) -> list[str]:
    return sorted({key for key in keys if key.isdigit()}, key=int)
