"""Record rewards, messages, objects and exceptions from inside an agent, and read them back.

Every ``emit_*`` makes one span through the active tracer, or with ``propagate=False`` makes it and
keeps it local, for which no tracer is needed.
"""

import json
import logging
import math
import numbers
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, cast

from agl.env import LightningEnvVar, resolve_bool_env_var
from agl.errors import TracerError
from agl.operations import OperationContext as OperationContext, operation as operation
from agl.semconv import (
    AGL_ANNOTATION,
    AGL_EXCEPTION,
    AGL_MESSAGE,
    AGL_OBJECT,
    LightningSpanAttributes,
)
from agl.tracer.base import DummyTracer, Tracer, get_active_tracer
from agl.types import UNASSIGNED, Attributes, RewardDimension, SpanCoreFields, SpanLike, TraceStatus
from agl.utils.otel import filter_attributes, flatten_attributes, to_json_text

logger = logging.getLogger(__name__)

PRIMARY_REWARD = "primary"
"""Name of a reward that was given as a single number."""


# --- writing


def emit_reward(
    reward: float | Mapping[str, float],
    *,
    primary_key: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    propagate: bool = True,
) -> SpanCoreFields:
    """Record a reward, intermediate or final.

    Args:
        reward: A finite number, or several by name.
        primary_key: Which of several is the primary one; required for, and only for, a mapping.
        attributes: More attributes of the span, nested or flat; links, for example.
        propagate: Whether the span goes to the active tracer.

    Raises:
        TypeError: A reward is no number.
        ValueError: A reward is not finite, or ``primary_key`` does not fit.
        TracerError: There is no active tracer.
    """
    return emit_annotation(
        {**reward_attributes(reward, primary_key), **(attributes or {})}, propagate=propagate
    )


def emit_annotation(annotation: Mapping[str, Any], propagate: bool = True) -> SpanCoreFields:
    """Record any attributes as a span.

    Args:
        annotation: Strings, bools, finite numbers, and lists and mappings of those.
        propagate: Whether the span goes to the active tracer.

    Raises:
        ValueError: A value is none of these.
        TracerError: There is no active tracer.
    """
    return _emit(
        "annotation", AGL_ANNOTATION, flatten_attributes(annotation, strict=True), propagate
    )


def emit_message(
    message: str, attributes: Mapping[str, Any] | None = None, propagate: bool = True
) -> None:
    """Record a line of text.

    Raises:
        TypeError: ``message`` is no string.
        TracerError: There is no active tracer.
    """
    if not isinstance(message, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"emit_message takes a string, got {type(message).__name__}; "
            "use emit_object for anything else"
        )
    _emit(
        "message",
        AGL_MESSAGE,
        {LightningSpanAttributes.MESSAGE_BODY.value: message, **_extra(attributes)},
        propagate,
    )


def emit_object(
    object: Any, attributes: Mapping[str, Any] | None = None, propagate: bool = True
) -> SpanCoreFields:
    """Record an object that JSON can hold; pydantic models and dataclasses count.

    Raises:
        ValueError: JSON cannot hold it.
        TracerError: There is no active tracer.
    """
    body: Attributes = {LightningSpanAttributes.OBJECT_TYPE.value: type(object).__name__}
    if type(object) in (str, bool, int) or (type(object) is float and math.isfinite(object)):
        body[LightningSpanAttributes.OBJECT_LITERAL.value] = object
    else:
        body[LightningSpanAttributes.OBJECT_JSON.value] = to_json_text(object, strict=True)
    return _emit("object", AGL_OBJECT, {**body, **_extra(attributes)}, propagate)


def emit_exception(
    exception: BaseException, attributes: Mapping[str, Any] | None = None, propagate: bool = True
) -> None:
    """Record an exception with its traceback; the span itself counts as OK.

    Raises:
        TypeError: ``exception`` is no exception.
        TracerError: There is no active tracer.
    """
    if not isinstance(exception, BaseException):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"emit_exception takes an exception, got {type(exception).__name__}")
    _emit(
        "exception",
        AGL_EXCEPTION,
        {
            "exception.type": type(exception).__qualname__,
            "exception.message": str(exception),
            "exception.stacktrace": "".join(traceback.format_exception(exception)),
            "exception.escaped": False,
            **_extra(attributes),
        },
        propagate,
    )


def reward_value(value: Any) -> float:
    """A number of any kind as a finite float: bool, int, numpy scalars, Decimal, 0-d tensors.

    Raises:
        TypeError: It is no number.
        ValueError: It is NaN or infinite.
    """
    is_number = isinstance(value, numbers.Number) or getattr(value, "ndim", None) == 0
    if not is_number or not hasattr(value, "__float__"):
        raise TypeError(f"a reward is a number; got {value!r} ({type(value).__name__})")
    number = float(cast(Any, value))
    if not math.isfinite(number):
        raise ValueError(
            f"a reward must be finite; got {number}. A reward that could not be computed is no "
            "number: return None, or raise"
        )
    return number


def reward_attributes(
    reward: float | Mapping[str, float], primary_key: str | None = None
) -> Attributes:
    """Span attributes that hold a reward; arguments and errors as in ``emit_reward``."""
    if not isinstance(reward, Mapping):
        if primary_key is not None:
            raise ValueError(
                f"primary_key={primary_key!r} names one of several rewards, but one number was "
                "given; leave it out, or give the rewards as a dict"
            )
        dimensions = {PRIMARY_REWARD: reward}
    elif primary_key is None or primary_key not in reward:
        raise ValueError(
            f"primary_key={primary_key!r}: expected one of the rewards' names, {list(reward)}"
        )
    else:
        dimensions = {primary_key: reward[primary_key], **reward}
    prefix = LightningSpanAttributes.REWARD.value
    attributes: Attributes = {}
    for index, (name, value) in enumerate(dimensions.items()):
        attributes[f"{prefix}.{index}.name"] = name
        attributes[f"{prefix}.{index}.value"] = reward_value(value)
    return attributes


def _extra(attributes: Mapping[str, Any] | None) -> Attributes:
    return flatten_attributes(attributes or {})


def _emit(what: str, name: str, attributes: Attributes, propagate: bool) -> SpanCoreFields:
    tracer: Tracer | None = get_active_tracer() if propagate else DummyTracer()
    if tracer is None:
        raise TracerError(
            f"No active tracer found. Cannot emit {what} span. Emit from an agent that a runner "
            "runs, or within tracer.trace_context(); in a thread of your own, start it with "
            "contextvars.copy_context().run or asyncio.to_thread; or pass propagate=False to keep "
            "the span local"
        )
    if resolve_bool_env_var(LightningEnvVar.AGL_EMITTER_DEBUG, fallback=False):
        logger.info("emit %s: %s", name, attributes)
    return tracer.create_span(name, attributes, status=TraceStatus(status_code="OK"))


# --- reading


def get_rewards_from_span(span: SpanLike) -> list[RewardDimension]:
    """All rewards of a span, the primary one first; empty when it has none.

    Besides agl's own attributes it reads the output of AgentOps' reward operations and the
    attribute ``reward`` of older annotation spans.
    """
    attributes = _attributes_of(span)
    found = filter_attributes(attributes, LightningSpanAttributes.REWARD)
    rewards: list[RewardDimension] = []
    while (value := found.get(f"{len(rewards)}.value")) is not None:
        name = found.get(f"{len(rewards)}.name", PRIMARY_REWARD)
        rewards.append(RewardDimension(name=name, value=value))
    if rewards:
        return rewards
    value = _agentops_reward(attributes)
    if value is None and span.name == AGL_ANNOTATION:
        value = attributes.get("reward")
    if isinstance(value, bool | int | float):
        return [RewardDimension(name=PRIMARY_REWARD, value=float(value))]
    return []


def _agentops_reward(attributes: Mapping[str, Any]) -> Any:
    for key in ("agentops.task.output", "agentops.entity.output"):
        text = attributes.get(key)
        if not isinstance(text, str):
            continue
        try:
            output = json.loads(text)
        except ValueError:
            continue
        if isinstance(output, dict) and cast(dict[str, Any], output).get("type") == "reward":
            return cast(dict[str, Any], output).get("value")
    return None


def get_reward_value(span: SpanLike) -> float | None:
    """The primary reward of a span, or None."""
    rewards = get_rewards_from_span(span)
    return rewards[0].value if rewards else None


def is_reward_span(span: SpanLike) -> bool:
    """Whether the span holds a reward."""
    return bool(get_rewards_from_span(span))


def find_reward_spans(spans: Sequence[SpanLike]) -> list[SpanLike]:
    """The spans that hold a reward, in the order given."""
    return [span for span in spans if is_reward_span(span)]


def find_final_reward(spans: Sequence[SpanLike]) -> float | None:
    """The primary reward of the last reward span, or None.

    Last means the highest sequence id; spans without one count as newer than those with one, in
    the order given. When the spans belong to several attempts, only the attempt that began last
    counts.
    """
    spans = _of_newest_attempt(spans)
    ordered = sorted(find_reward_spans(spans), key=_sequence)
    return get_reward_value(ordered[-1]) if ordered else None


def _of_newest_attempt(spans: Sequence[SpanLike]) -> Sequence[SpanLike]:
    began: dict[str | None, float] = {}
    for span in spans:
        attempt_id = getattr(span, "attempt_id", None)
        start_time = span.start_time or math.inf
        began[attempt_id] = min(began.get(attempt_id, math.inf), start_time)
    if len(began) <= 1:
        return spans
    newest = max(began, key=lambda attempt_id: began[attempt_id])
    return [span for span in spans if getattr(span, "attempt_id", None) == newest]


def _sequence(span: SpanLike) -> float:
    return getattr(span, "sequence_id", UNASSIGNED) or math.inf


def get_message_value(span: SpanLike) -> str | None:
    """The text of a message span, or None."""
    value = _attributes_of(span).get(LightningSpanAttributes.MESSAGE_BODY)
    return None if value is None else str(value)


def get_object_value(span: SpanLike) -> Any:
    """The object of an object span, or None."""
    attributes = _attributes_of(span)
    if LightningSpanAttributes.OBJECT_LITERAL in attributes:
        return attributes[LightningSpanAttributes.OBJECT_LITERAL]
    text = attributes.get(LightningSpanAttributes.OBJECT_JSON)
    return None if text is None else json.loads(text)


def _attributes_of(span: SpanLike) -> Mapping[str, Any]:
    return span.attributes or {}
