"""Rewards."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from agentlightning._errors import RewardError, raised_as
from agl.emitter import *
from agl.emitter import emit_reward as _emit_reward
from agl.semconv import AGL_ANNOTATION as AGL_ANNOTATION
from agl.types import RewardDimension as RewardDimension, SpanCoreFields


def emit_reward(
    reward: float | dict[str, Any],
    *,
    primary_key: str | None = None,
    attributes: dict[str, Any] | None = None,
    propagate: bool = True,
) -> SpanCoreFields:
    """Record a reward; see ``agl.emit_reward``."""
    with raised_as(RewardError, TypeError):
        return _emit_reward(
            reward, primary_key=primary_key, attributes=attributes, propagate=propagate
        )


def reward(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Record what a function returns as a reward; newer scripts call ``emit_reward``.

    Returns:
        The function, plain or a coroutine as before; what it returns is a number or None.
    """
    if inspect.iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def recorded_async(*args: Any, **kwargs: Any) -> Any:
            return _recorded(await fn(*args, **kwargs))

        return recorded_async

    @functools.wraps(fn)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        return _recorded(fn(*args, **kwargs))

    return recorded


def _recorded(value: Any) -> Any:
    if value is not None:
        emit_reward(value)
    return value
