"""Record rewards, messages, objects, exceptions and operations in an agent, and read them back.

Every ``emit_*`` makes one span through the active tracer, and raises TracerError if there is none;
with ``propagate=False`` it makes the span, keeps it local, and needs no tracer.
"""

import base64
import functools
import inspect
import logging
import math
import numbers
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar, cast, overload

from agl.env import LightningEnvVar, resolve_bool_env_var
from agl.errors import ConfigError, TracerError
from agl.semconv import (
    AGL_ANNOTATION,
    AGL_EXCEPTION,
    AGL_MESSAGE,
    AGL_OBJECT,
    AGL_OPERATION,
    LightningSpanAttributes as Key,
    ModelCallAttributes,
)
from agl.tracer.base import SpanRecordingContext, recording_tracer
from agl.types import Attributes, SpanCoreFields, SpanLike
from agl.types.spans import OK
from agl.utils.json_values import parse_json, to_json_text
from agl.utils.otel import make_link_attributes, to_attributes
from agl.utils.rewards import (
    PRIMARY_REWARD as PRIMARY_REWARD,
    find_final_reward as find_final_reward,
    find_reward_spans as find_reward_spans,
    get_reward_value as get_reward_value,
    get_rewards_from_span as get_rewards_from_span,
    is_reward_span as is_reward_span,
)

logger = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")


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
        primary_key: Which of several is the primary one; None is the first one.
        attributes: More attributes of the span, nested or flat; links, for example.

    Raises:
        TypeError: A reward is no number.
        ValueError: A reward is not finite, or ``primary_key`` does not fit.
    """
    body = reward_attributes(reward, primary_key)
    if attributes:
        body = to_attributes({**body, **attributes}, strict=True)
    return _emit(AGL_ANNOTATION, body, None, propagate)


def emit_annotation(annotation: Mapping[str, Any], propagate: bool = True) -> SpanCoreFields:
    """Record any attributes as a span: strings, bools, finite numbers, lists and mappings of those.

    Raises:
        ValueError: A value is none of these.
    """
    return _emit(AGL_ANNOTATION, to_attributes(annotation, strict=True), None, propagate)


def emit_choice(response_id: str, index: int, propagate: bool = True) -> SpanCoreFields:
    """Record which of several answers to one request (``n`` above 1) the agent used.

    Only that one earns the rewards of the call. It need not be said where a later call goes on with
    the answer.

    Args:
        response_id: Of the model's response, its ``id``.
        index: Of the choice, from 0.

    Raises:
        ValueError: ``index`` is no number of a choice.
    """
    if type(index) is not int or index < 0:
        raise ValueError(f"emit_choice: index={index!r}; expected the number of a choice, from 0")
    link = make_link_attributes({ModelCallAttributes.RESPONSE_ID.value: response_id})
    chosen = {Key.CHOSEN.value: index, **link}
    return emit_annotation(chosen, propagate=propagate)


def emit_message(
    message: str, attributes: Mapping[str, Any] | None = None, propagate: bool = True
) -> None:
    """Record a line of text; a ``TypeError`` if it is no string."""
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
    """
    body: Attributes = {Key.OBJECT_TYPE.value: type(object).__name__}
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
    """Record an exception, or raise a ``TypeError`` for what is none; the span counts as OK."""
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
    else:
        first = next(iter(reward), None) if primary_key is None else primary_key
        if first is None or first not in reward:
            raise ValueError(f"primary_key={first!r} is none of the rewards {dict(reward)}")
        dimensions = {first: reward[first], **reward}
    prefix = Key.REWARD.value
    attributes: Attributes = {}
    for index, (name, value) in enumerate(dimensions.items()):
        attributes[f"{prefix}.{index}.name"] = str(name)
        attributes[f"{prefix}.{index}.value"] = reward_value(value)
    return attributes


def _emit(
    name: str, body: Attributes, attributes: Mapping[str, Any] | None, propagate: bool
) -> SpanCoreFields:
    attributes = {**body, **to_attributes(attributes)} if attributes else body
    tracer = recording_tracer(f"emit {name.rpartition('.')[2]} span", propagate=propagate)
    debug = LightningEnvVar.AGL_EMITTER_DEBUG
    if logger.isEnabledFor(logging.INFO) and resolve_bool_env_var(debug, fallback=False):
        logger.info("emit %s: %s", name, attributes)
    return tracer.create_span(name, attributes, status=OK)


# --- operations


class OperationContext:
    """What ``operation(...)`` returns: use it in a ``with`` statement, or decorate with it."""

    def __init__(self, name: str | None, propagate: bool, attributes: Mapping[str, Any]) -> None:
        self._name = name
        self._propagate = propagate
        self._attributes = to_attributes(attributes)
        self._manager: AbstractContextManager[SpanRecordingContext] | None = None
        self._span: SpanRecordingContext | None = None

    def __enter__(self) -> "OperationContext":
        if self._manager is not None:
            raise TracerError(
                f"operation {self._name!r} is open already; call operation() anew for each block"
            )
        # Resolved here and not at decoration: a module is imported before any tracer is active.
        tracer = recording_tracer(f"record operation {self._name!r}", propagate=self._propagate)
        named = {} if self._name is None else {Key.OPERATION_NAME.value: self._name}
        self._manager = tracer.operation_context(AGL_OPERATION, {**self._attributes, **named})
        self._span = self._manager.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.__exit__(*raised)

    def set_input(self, *args: Any, **kwargs: Any) -> None:
        """Record what the work begins with; positional values become ``args.0``, ``args.1``."""
        values: dict[str, Any] = {f"args.{index}": value for index, value in enumerate(args)}
        self.record_attributes({Key.OPERATION_INPUT.value: {**values, **kwargs}})

    def set_output(self, output: Any) -> None:
        """Record what came of it; mappings and lists are flattened."""
        self.record_attributes({Key.OPERATION_OUTPUT.value: output})

    def record_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes, nested or flat."""
        self._open_span().record_attributes(to_attributes(attributes))

    def get_recorded_span(self) -> SpanCoreFields:
        """What was recorded; complete after the block."""
        return self._open_span().get_recorded_span()

    def _open_span(self) -> SpanRecordingContext:
        if self._span is None:
            raise TracerError(
                f"operation {self._name!r} has not begun; use it as 'with operation(...) as op:'"
            )
        return self._span

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Make each call a span with arguments and result; refuses a generator function."""
        name = self._name or getattr(function, "__name__", type(function).__name__)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(
                f"@operation cannot wrap the generator function {name!r}, whose work happens "
                "after the call; use 'with operation(...)' inside it"
            )
        signature = inspect.signature(function)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                with OperationContext(name, self._propagate, self._attributes) as context:
                    context.set_input(**_arguments(signature, args, kwargs))
                    result = await function(*args, **kwargs)
                    context.set_output(result)
                    return result

            return call_async  # pyright: ignore[reportReturnType]

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with OperationContext(name, self._propagate, self._attributes) as context:
                context.set_input(**_arguments(signature, args, kwargs))
                result = function(*args, **kwargs)
                context.set_output(result)
                return result

        return call


def _arguments(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return {}  # the call itself is about to raise the same error, with a better traceback
    bound.apply_defaults()
    given: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            given |= {f"{name}.{index}": item for index, item in enumerate(value)}
        elif name not in ("self", "cls"):  # no input that anybody could read back
            given[name] = value
    return given


@overload
def operation(fn: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def operation(
    fn: None = None, /, *, propagate: bool = True, name: str | None = None, **attributes: Any
) -> OperationContext: ...
def operation(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    propagate: bool = True,
    name: str | None = None,
    **attributes: Any,
) -> Any:
    """Record a piece of work as a span with its input, output, duration and failure.

    As a decorator (``@operation``, ``@operation(category="tool")``), for plain and coroutine
    functions, the arguments and the result are recorded. As a context manager, ``set_input`` and
    ``set_output`` record them. Spans made within become its children.

    Args:
        fn: The function, when used without parentheses.
        propagate: False keeps the span local; no tracer is needed.
        name: Name of the operation; a decorated function gives its own.
        attributes: More attributes of the span, nested or flat.

    Raises:
        TracerError: When the work begins, there is no active tracer.
    """
    context = OperationContext(name, propagate, attributes)
    return context if fn is None else context(fn)


# --- reading


def get_message_value(span: SpanLike) -> str | None:
    """The text of a message span, or None."""
    attributes: Mapping[str, Any] = span.attributes or {}
    value = attributes.get(Key.MESSAGE_BODY)
    return None if value is None else str(value)


def get_object_value(span: SpanLike) -> Any:
    """The object of an object span, or None; a ``ValueError`` if its text is not of its type."""
    attributes: Mapping[str, Any] = span.attributes or {}
    literal = attributes.get(Key.OBJECT_LITERAL)
    if literal is None:
        text = attributes.get(Key.OBJECT_JSON)
        return None if text is None else parse_json(text)
    kind = attributes.get(Key.OBJECT_TYPE)
    if kind not in _FROM_LITERAL or not isinstance(literal, str):
        return literal
    try:
        return _FROM_LITERAL[kind](literal)
    except (ValueError, LookupError):
        raise ValueError(f"object span {span.name!r}: {literal!r} is no {kind}") from None


_FROM_LITERAL: dict[Any, Callable[[str], Any]] = {
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "int": int,
    "float": float,
    "bytes": functools.partial(base64.b64decode, validate=True),
}
"""How the text of an object span becomes an object again, by the name of its type."""
