"""``operation``: a span around a piece of an agent's work, as decorator or ``with`` block."""

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar, overload

from agl.errors import ConfigError, TracerError
from agl.semconv import AGL_OPERATION, LightningSpanAttributes as Key
from agl.tracer.base import SpanRecordingContext, recording_tracer
from agl.types import SpanCoreFields
from agl.utils.otel import to_attributes

P = ParamSpec("P")
R = TypeVar("R")


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
        """Decorate: each call becomes a span with its arguments and its result.

        Raises:
            ConfigError: ``function`` is a generator function.
        """
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
