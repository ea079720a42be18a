"""Record rewards, messages, objects and exceptions from inside an agent, and read them back.

Every ``emit_*`` makes one span through the active tracer, or with ``propagate=False`` makes it and
keeps it local, for which no tracer is needed.
"""

import base64
import functools
import itertools
import logging
import math
import numbers
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from agl.env import LightningEnvVar, resolve_bool_env_var
from agl.semconv import (
    AGL_ANNOTATION,
    AGL_EXCEPTION,
    AGL_MESSAGE,
    AGL_OBJECT,
    LightningSpanAttributes as Key,
    ModelCallAttributes,
)
from agl.tracer.base import recording_tracer
from agl.tracer.operation import OperationContext as OperationContext, operation as operation
from agl.types import UNASSIGNED, Attributes, RewardDimension, SpanCoreFields, SpanLike, TraceStatus
from agl.utils.attributes import attributes_under, to_attributes, to_json_text
from agl.utils.otel import extract_links_from_attributes, make_link_attributes
from agl.utils.text import parse_json

logger = logging.getLogger(__name__)

AttemptKey = TypeVar("AttemptKey")
Span_ = TypeVar("Span_", bound=SpanLike)

PRIMARY_REWARD = "primary"
"""Name of a reward that was given as a single number."""
MAX_REWARD = 1e12
"""A larger one cannot be read: the squares of gradients, which grow with it, must fit 32 bits."""


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
    return _emit(AGL_ANNOTATION, to_attributes(annotation, strict=True), None, propagate)


def emit_choice(response_id: str, index: int, propagate: bool = True) -> SpanCoreFields:
    """Record which of several answers to one request (``n`` above 1) the agent used.

    Only that one earns the rewards of the call. It need not be said where a later call goes on with
    the answer.

    Args:
        response_id: Of the model's response, its ``id``.
        index: Of the choice, from 0.
        propagate: Whether the span goes to the active tracer.

    Raises:
        ValueError: ``index`` is no number of a choice.
        TracerError: There is no active tracer.
    """
    if type(index) is not int or index < 0:
        raise ValueError(f"emit_choice: index={index!r}; expected the number of a choice, from 0")
    link = make_link_attributes({ModelCallAttributes.RESPONSE_ID.value: response_id})
    chosen = {Key.CHOSEN.value: index, **link}
    return emit_annotation(chosen, propagate=propagate)


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
    _emit(AGL_MESSAGE, {Key.MESSAGE_BODY.value: message}, attributes, propagate)


def emit_object(
    object: Any, attributes: Mapping[str, Any] | None = None, propagate: bool = True
) -> SpanCoreFields:
    """Record a primitive, bytes, or what JSON can hold; pydantic models and dataclasses count.

    Raises:
        ValueError: JSON cannot hold it.
        TracerError: There is no active tracer.
    """
    kind = type(object).__name__
    body: Attributes = {Key.OBJECT_TYPE.value: kind}
    if type(object) is bytes:
        body[Key.OBJECT_LITERAL.value] = base64.b64encode(object).decode()
    elif type(object) in (str, bool, int, float):
        body[Key.OBJECT_LITERAL.value] = str(object)
    else:
        body[Key.OBJECT_JSON.value] = to_json_text(object, strict=True)
    return _emit(AGL_OBJECT, body, attributes, propagate)


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
    body: Attributes = {
        "exception.type": type(exception).__qualname__,
        "exception.message": str(exception),
        "exception.stacktrace": "".join(traceback.format_exception(exception)),
        "exception.escaped": False,
    }
    _emit(AGL_EXCEPTION, body, attributes, propagate)


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
        how = f"agl.emit_reward({dict(reward)}, primary_key={next(iter(reward), '')!r})"
        raise ValueError(f"which of several rewards is the final one, primary_key says: call {how}")
    else:
        dimensions = {primary_key: reward[primary_key], **reward}
    prefix = Key.REWARD.value
    attributes: Attributes = {}
    for index, (name, value) in enumerate(dimensions.items()):
        attributes[f"{prefix}.{index}.name"] = name
        attributes[f"{prefix}.{index}.value"] = reward_value(value)
    return attributes


def _emit(
    name: str, body: Attributes, attributes: Mapping[str, Any] | None, propagate: bool
) -> SpanCoreFields:
    attributes = {**body, **to_attributes(attributes or {})}
    tracer = recording_tracer(f"emit {name.rpartition('.')[2]} span", propagate=propagate)
    if resolve_bool_env_var(LightningEnvVar.AGL_EMITTER_DEBUG, fallback=False):
        logger.info("emit %s: %s", name, attributes)
    return tracer.create_span(name, attributes, status=TraceStatus(status_code="OK"))


# --- reading


def get_rewards_from_span(span: SpanLike) -> list[RewardDimension]:
    """All rewards of a span, the primary one first; empty when it has none that can be read.

    Besides agl's own attributes it reads the output of AgentOps' reward operations and the
    attribute ``reward`` of older annotation spans.
    """
    try:
        return _read_rewards(span)
    except ValueError:
        return []


def reward_problem(span: SpanLike) -> str | None:
    """Why the reward that a span holds cannot be read; None where it can, or where there is none.

    Anybody may write spans: a value may be text, a list, no number or infinite, and a link without
    its key or its value does not say what the reward is about.
    """
    try:
        _read_rewards(span)
    except ValueError as error:
        return str(error)
    return None


def _read_rewards(span: SpanLike) -> list[RewardDimension]:
    attributes: Mapping[str, Any] = {} if getattr(span, "late", False) else _attributes_of(span)
    found = attributes_under(attributes, Key.REWARD)
    values: list[tuple[str, Any]] = []
    while (value := found.get(f"{len(values)}.value")) is not None:
        values.append((str(found.get(f"{len(values)}.name", PRIMARY_REWARD)), value))
    if not values:
        value = _agentops_reward(attributes)
        if value is None and span.name == AGL_ANNOTATION:
            value = attributes.get("reward")
        values = [] if value is None else [(PRIMARY_REWARD, value)]
    rewards = [
        RewardDimension(name=name, value=_checked_reward(name, value)) for name, value in values
    ]
    if rewards:
        extract_links_from_attributes(attributes)  # raises where nobody can say what it is about
    return rewards


def _checked_reward(name: str, value: Any) -> float:
    if isinstance(value, bool | int | float) and abs(value) <= MAX_REWARD:  # no for NaN, too
        return float(value)
    raise ValueError(
        f"reward {name!r} is {str(value)[:80]!r} ({type(value).__name__}); expected a number from "
        f"-{MAX_REWARD:g} to {MAX_REWARD:g}"
    )


def _agentops_reward(attributes: Mapping[str, Any]) -> Any:
    for key in ("agentops.task.output", "agentops.entity.output"):
        text = attributes.get(key)
        if not isinstance(text, str):
            continue
        try:
            output = parse_json(text)
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
    counts. A reward that cannot be read is none: where it is the last, there is no final reward.
    Where a grader spoke, only its reward counts.
    """
    rewards = find_final_rewards(spans)
    return rewards[0].value if rewards else None


def find_final_rewards(spans: Sequence[SpanLike]) -> list[RewardDimension]:
    """The final reward's dimensions, the primary one first; none where ``find_final_reward`` is."""
    spans = graded_only(_of_newest_attempt(spans))
    rewards = [span for span in spans if is_reward_span(span) or reward_problem(span)]
    return get_rewards_from_span(sorted(rewards, key=_sequence)[-1]) if rewards else []


def graded_only(spans: Sequence[Span_]) -> Sequence[Span_]:
    """Those of an attempt's spans whose rewards count: all, or the grade, the runner's last."""
    own = [one for one in spans if getattr(one, "writer", None) in (None, "runner")]
    grades = [s for s in own if _attributes_of(s).get(Key.GRADED) and not getattr(s, "late", 0)]
    return sorted(grades, key=_sequence)[-1:] or spans


def _of_newest_attempt(spans: Sequence[SpanLike]) -> Sequence[SpanLike]:
    attempts: dict[str | None, list[SpanLike]] = {}
    for span in [one for one in spans if not getattr(one, "late", False)]:
        attempts.setdefault(getattr(span, "attempt_id", None), []).append(span)
    return attempts[newest_attempt(attempts)] if len(attempts) > 1 else spans


def newest_attempt(attempts: Mapping[AttemptKey, Sequence[SpanLike]]) -> AttemptKey:
    """The attempt of a rollout that began last, by the numbers of its spans.

    Numbers grow over a rollout's attempts. Where they do not, as in stores of other versions, which
    begin anew in each attempt, the times of the spans decide.

    Args:
        attempts: Attempt -> its spans; at least one.
    """
    first = {key: min(map(_sequence, spans), default=0.0) for key, spans in attempts.items()}
    last = {key: max(map(_sequence, spans), default=0.0) for key, spans in attempts.items()}
    in_order = sorted(attempts, key=lambda key: first[key])
    if all(last[one] < first[other] for one, other in itertools.pairwise(in_order)):
        return in_order[-1]
    began = {
        key: min((span.start_time or math.inf for span in spans), default=0.0)
        for key, spans in attempts.items()
    }
    return max(began, key=lambda key: began[key])


def _sequence(span: SpanLike) -> float:
    return getattr(span, "sequence_id", UNASSIGNED) or math.inf


def get_message_value(span: SpanLike) -> str | None:
    """The text of a message span, or None."""
    value = _attributes_of(span).get(Key.MESSAGE_BODY)
    return None if value is None else str(value)


def get_object_value(span: SpanLike) -> Any:
    """The object of an object span, or None.

    Raises:
        ValueError: The span's text is none of the type that it names.
    """
    attributes = _attributes_of(span)
    literal = attributes.get(Key.OBJECT_LITERAL)
    if literal is None:
        text = attributes.get(Key.OBJECT_JSON)
        return None if text is None else parse_json(text)
    kind = attributes.get(Key.OBJECT_TYPE)
    read = _FROM_LITERAL.get(kind)
    if read is None or not isinstance(literal, str):
        return literal
    try:
        return read(literal)
    except (ValueError, LookupError):
        raise ValueError(f"object span {span.name!r}: {literal!r} is no {kind}") from None


_FROM_LITERAL: dict[Any, Callable[[str], Any]] = {
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "int": int,
    "float": float,
    "bytes": functools.partial(base64.b64decode, validate=True),
}
"""How the text of an object span becomes an object again, by the name of its type."""


def _attributes_of(span: SpanLike) -> Mapping[str, Any]:
    return span.attributes or {}
