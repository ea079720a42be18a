"""Span attributes as agl writes and reads them: nested data, tags, and links between spans."""

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar, cast

from agl.semconv import LightningSpanAttributes
from agl.types import Attributes, AttributeValue, SpanContext, SpanLike
from agl.types.records import Record
from agl.utils.json_values import to_json_text

SpanT = TypeVar("SpanT")
_INT64 = 2**63
DEEPEST_KEY = 200
"""Levels of nested data, at most, that a key stands for."""


# --- nested data in and out of dotted keys


def to_attributes(
    nested: Mapping[str, Any], *, prefix: str = "", strict: bool = False
) -> Attributes:
    """Turn nested mappings and lists into dotted keys with values that a span can hold.

    A list of one primitive type stays a list; any other list gets indexed keys. So
    ``{"a": {"b": 1}, "c": [1, "x"]}`` becomes ``{"a.b": 1, "c.0": 1, "c.1": "x"}``. An empty
    mapping leaves nothing.

    Args:
        strict: Refuse what a span cannot hold (None, objects, non-finite numbers) instead of
            storing its JSON or text.

    Raises:
        ValueError: ``strict``, and there is such a value; or two values get one key.
    """
    flat: Attributes = {}
    for key, value in nested.items():
        _flatten(f"{prefix}.{key}" if prefix else str(key), value, flat, strict)
    return flat


def _flatten(key: str, value: Any, flat: Attributes, strict: bool) -> None:
    if isinstance(value, Mapping):
        for sub_key, sub_value in cast(Mapping[Any, Any], value).items():
            _flatten(f"{key}.{sub_key}", sub_value, flat, strict)
        return
    if isinstance(value, list | tuple):
        items = cast(Sequence[Any], value)
        if len(set(map(type, items))) <= 1 and all(map(_is_plain, items)):
            put(key, list(items), flat)
            return
        for index, item in enumerate(items):
            _flatten(f"{key}.{index}", item, flat, strict)
        return
    put(key, to_attribute_value(value, key=key, strict=strict), flat)


def put(key: str, value: Any, flat: dict[str, Any]) -> None:
    """Set an attribute; a ``ValueError`` if it is set already."""
    if key in flat:
        raise ValueError(
            f"attribute {key!r} is given twice, once nested and once with dots in its name; "
            "rename one of them"
        )
    flat[key] = value


def to_attribute_value(value: Any, *, key: str = "value", strict: bool = False) -> AttributeValue:
    """A finite primitive as it is, else JSON or text of it; a ``ValueError`` if ``strict``."""
    if _is_plain(value):
        return value
    number = _as_number(value)
    if number is not None and _is_plain(number):
        return number
    if strict:
        raise ValueError(
            f"attribute {key!r}: got {value!r} ({type(value).__name__}); expected a string, a "
            "bool, a finite number of at most 64 bits, or lists and dicts of those. Convert it "
            "first, or record it with emit_object"
        )
    if isinstance(value, int | float) or number is not None:
        return str(value)
    return to_json_text(value)


def _is_plain(value: Any) -> bool:
    # Exact types: subclasses (enum members, numpy's float64) are not what a wire format expects.
    kind = cast(type[Any], type(value))
    if kind is float:
        return math.isfinite(value)
    return kind is str or kind is bool or (kind is int and -_INT64 <= value < _INT64)


def _as_number(value: Any) -> bool | int | float | str | None:
    """The primitive inside an enum member, a numpy scalar or another subclass of a primitive."""
    if isinstance(value, Enum):
        return _as_number(value.value)
    for kind in (bool, str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return value.item()
    return None


def from_attributes(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of ``to_attributes``; keys ``0..n-1`` become a list.

    Raises:
        ValueError: A key is both a value and the prefix of another, or of too many names.
    """
    root: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, last = key.split(".")
        if len(parents) > DEEPEST_KEY:
            raise ValueError(f"attribute {key[:80]!r}...: more than {DEEPEST_KEY} names in its key")
        node: Any = root
        for part in parents:
            node = node.setdefault(part, _Node())
            if not isinstance(node, _Node):
                raise ValueError(f"attribute {key!r}: one of its prefixes is an attribute itself")
        if last in node:
            raise ValueError(f"attribute {key!r} is also the prefix of another attribute")
        node[last] = value
    return {key: _lists(value) for key, value in root.items()}


class _Node(dict[str, Any]):
    """A mapping made here, told apart from a mapping that is a value."""


def _lists(value: Any) -> Any:
    if not isinstance(value, _Node):
        return value
    if value and set(value) == {str(index) for index in range(len(value))}:
        return [_lists(value[str(index)]) for index in range(len(value))]
    return {key: _lists(item) for key, item in value.items()}


def filter_attributes(attributes: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The attributes named ``prefix`` or beginning with ``prefix`` and a dot, keys unchanged."""
    within = f"{prefix}."
    return {k: v for k, v in attributes.items() if k == prefix or k.startswith(within)}


def attributes_under(attributes: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The same without the prefix; one named exactly ``prefix`` has the key ''."""
    found = filter_attributes(attributes, prefix)
    return {key[len(prefix) + 1 :]: value for key, value in found.items()}


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


class LinkMatch(Record):
    """One condition of a link: the other span has ``value_match`` under ``key_match``."""

    key_match: str
    """An attribute key, or ``trace_id`` or ``span_id`` for the ids of the span itself."""
    value_match: str | bool | int | float


def make_link_attributes(links: Mapping[str, str | bool | int | float]) -> Attributes:
    """Attributes that point to the span(s) which match all these keys and values.

    Args:
        links: Attribute key -> value; the keys ``trace_id`` and ``span_id`` (hex) address a span
            by its ids.
    """
    found = {
        str(index): {"key_match": key, "value_match": value}
        for index, (key, value) in enumerate(links.items())
    }
    return to_attributes(found, prefix=LightningSpanAttributes.LINK.value, strict=True)


def extract_links_from_attributes(attributes: Mapping[str, Any]) -> list[LinkMatch]:
    """The links in these attributes, in order; a ``ValueError`` if one lacks key or value."""
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
