"""Attributes of spans, tags, links between spans, and OpenTelemetry's own objects."""

import json
import logging
import traceback
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from agentlightning.semconv import (
    LinkAttributes as LinkAttributes,
    LinkPydanticModel as LinkPydanticModel,
)
from agl.errors import TracerError
from agl.types import Attributes, AttributeValue
from agl.utils.otel import (
    attributes_under,
    extract_links_from_attributes as extract_links_from_attributes,
    extract_tags_from_attributes as extract_tags_from_attributes,
    filter_attributes as filter_attributes,
    from_attributes,
    make_link_attributes as make_link_attributes,
    make_tag_attributes as make_tag_attributes,
    put,
    query_linked_spans as query_linked_spans,
    to_attribute_value,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

logger = logging.getLogger(__name__)

PRIMITIVES = (str, bool, int, float)


def full_qualified_name(obj: Any) -> str:
    """The name of a class or function with that of its module, unless that is ``builtins``."""
    prefix = "" if obj.__module__ == "builtins" else f"{obj.__module__}."
    return f"{prefix}{obj.__qualname__}"


# --- nested data <-> dotted keys


def flatten_attributes(
    nested_data: Mapping[str, Any] | list[Any], *, expand_leaf_lists: bool = False
) -> dict[str, Any]:
    """Turn nested mappings and lists into dotted keys; the values stay as they are.

    A list of one primitive type is a value, unless it is the root or ``expand_leaf_lists``; any
    other list gets indexed keys. So ``{"a": {"b": 1, "c": [2, 3]}}`` becomes
    ``{"a.b": 1, "a.c": [2, 3]}``. Empty mappings and lists leave nothing.

    Args:
        nested_data: What to flatten.
        expand_leaf_lists: Whether lists of one primitive type get indexed keys, too.

    Returns:
        Dotted keys with whatever values there were, None and objects included; for what a span can
        hold see ``sanitize_attributes``.

    Raises:
        ValueError: A key is no string, or two values get one key.
    """
    flat: dict[str, Any] = {}
    _flatten((), nested_data, flat, expand_leaf_lists)
    return flat


def _flatten(path: tuple[str, ...], value: Any, flat: dict[str, Any], expand: bool) -> None:
    if isinstance(value, Mapping):
        pairs: Iterable[tuple[Any, Any]] = cast(Mapping[Any, Any], value).items()
    elif isinstance(value, list) and (expand or not path or not _is_leaf(cast(list[Any], value))):
        pairs = ((str(index), item) for index, item in enumerate(cast(list[Any], value)))
    else:
        put(".".join(path), value, flat)
        return
    for key, item in pairs:
        if not isinstance(key, str):
            raise ValueError(
                f"attribute keys are strings; got {key!r} ({type(key).__name__}) under "
                f"{'.'.join(path)!r}"
            )
        _flatten((*path, key), item, flat, expand)


def _is_leaf(items: list[Any]) -> bool:
    kinds = {cast(type[Any], type(item)) for item in items}
    return len(kinds) == 1 and kinds <= set(PRIMITIVES)


def unflatten_attributes(flat_data: Mapping[str, Any]) -> dict[str, Any] | list[Any]:
    """The inverse of ``flatten_attributes``; keys ``0..n-1`` become a list, at the root as well.

    Raises:
        ValueError: A key is both a value and the prefix of another.
    """
    try:
        root = from_attributes({f"root.{key}": value for key, value in flat_data.items()})
    except ValueError as error:
        raise ValueError(str(error).replace("'root.", "'", 1)) from None
    return root.get("root", {})


def filter_and_unflatten_attributes(
    attributes: Mapping[str, Any], prefix: str
) -> dict[str, Any] | list[Any]:
    """The attributes under ``prefix``, without it and nested again.

    Raises:
        ValueError: One is named exactly ``prefix``, or a key is both a value and the prefix of
            another.
    """
    found = attributes_under(attributes, prefix)
    if "" in found:
        raise ValueError(
            f"attribute {prefix!r} is a value, so nothing can be nested under it; take it out "
            "first, or use filter_attributes"
        )
    return unflatten_attributes(found)


# --- values


def sanitize_attribute_value(object: Any, force: bool = True) -> AttributeValue:
    """One value as a span can hold it.

    Primitives stay; a list whose items are of one primitive type, or bools and numbers mixed, stays
    a list of the widest of its types; all else becomes JSON. What a span cannot hold although it is
    a number (NaN, infinities, more than 64 bits) becomes text.

    Args:
        object: Any value.
        force: Whether what JSON cannot hold is written as its parts or its text, instead of
            refused.

    Raises:
        ValueError: Not ``force``, and JSON cannot hold it.
    """
    kind = cast(type[Any], type(object))
    if list in kind.__mro__:
        try:
            return sanitize_list_attribute_sanity(object)
        except ValueError as error:
            logger.debug("%s It is stored as JSON", error)
    if force or not set(PRIMITIVES).isdisjoint(kind.__mro__):
        return to_attribute_value(object)
    try:
        return json.dumps(object, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"a {full_qualified_name(kind)} cannot be written as JSON: {error}. Convert it "
            "first, or pass force=True"
        ) from error


def sanitize_attributes(attributes: Mapping[str, Any], force: bool = True) -> Attributes:
    """Each value as a span can hold it; see ``sanitize_attribute_value``.

    Raises:
        ValueError: Not ``force``, and JSON cannot hold one of them.
    """
    return {key: sanitize_attribute_value(value, force) for key, value in attributes.items()}


def sanitize_list_attribute_sanity(maybe_list: list[Any]) -> AttributeValue:
    """A list as a span can hold it: of one primitive type, bools and numbers made the widest.

    Raises:
        ValueError: It has items of several types otherwise, or of no primitive one.
    """
    kinds = {cast(type[Any], type(item)) for item in maybe_list}
    if len(kinds) > 1 and kinds <= {bool, int, float}:
        widest = float if float in kinds else int
        return [widest(item) for item in maybe_list]
    if len(kinds) > 1 or not kinds <= set(PRIMITIVES):
        names = ", ".join(sorted(map(full_qualified_name, kinds)))
        raise ValueError(f"a list on a span has items of one primitive type; got {names}.")
    return maybe_list


def check_attributes_sanity(attributes: Mapping[Any, Any]) -> None:
    """Refuse attributes that OpenTelemetry would drop.

    Raises:
        ValueError: A key is no string, or a value neither a primitive nor a list of one type.
    """
    for key, value in attributes.items():
        if not isinstance(key, str):
            raise ValueError(f"attribute keys are strings; got {key!r} ({type(key).__name__})")
        if isinstance(value, list):
            try:
                sanitize_list_attribute_sanity(cast(list[Any], value))
            except ValueError as error:
                raise ValueError(f"attribute {key!r}: {error}") from None
        elif not isinstance(value, PRIMITIVES):
            raise ValueError(
                f"attribute {key!r}: got {value!r} ({type(value).__name__}); expected a string, a "
                "bool, a number, or a list of those. See sanitize_attributes"
            )


def format_exception_attributes(exception: BaseException) -> Attributes:
    """OpenTelemetry's attributes of an exception, with its traceback; ``escaped`` is true."""
    return {
        "exception.type": full_qualified_name(type(exception)),
        "exception.message": str(exception),
        "exception.escaped": True,
        "exception.stacktrace": "".join(traceback.format_exception(exception)),
    }


# --- OpenTelemetry's own objects


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
