"""Agents as classes."""

import inspect
from abc import ABCMeta
from collections.abc import Callable
from typing import Any, TypeVar

from agl import LitAgent as _LitAgent, NamedResources, Rollout, RolloutMode

T = TypeVar("T")


class LitAgent(_LitAgent[T], metaclass=ABCMeta):
    """agl's, whose methods may have the parameters of 0.1: ``(self, task, rollout_id, resources)``.

    Every agent of agl is one, too.
    """

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return _LitAgent in other.__mro__ if cls is LitAgent else NotImplemented

    def rollout_method(self, mode: RolloutMode | None) -> Any:
        method: Any = super().rollout_method(mode)
        names = list(inspect.signature(method).parameters)[1:]
        if "rollout_id" not in names or not {*names} <= {"resources", "rollout", "rollout_id"}:
            return method

        def arguments(task: Any, resources: NamedResources, rollout: Rollout) -> tuple[Any, ...]:
            given = {"resources": resources, "rollout": rollout, "rollout_id": rollout.rollout_id}
            return task, *(given[name] for name in names)

        return adapted(method, arguments)


def adapted(
    method: Any,
    arguments: Callable[[Any, Any, Any], tuple[Any, ...]],
    result: Callable[[Any, Any], Any] = lambda value, rollout: value,
) -> Callable[[Any, Any, Any], Any]:
    """A rollout method, plain or a coroutine, as a runner calls it.

    ``arguments`` makes what the method gets of what the runner gives; ``result`` makes what the
    runner gets of what the method gave and its last argument.
    """

    def call(task: Any, resources: Any, rollout: Any) -> Any:
        given = arguments(task, resources, rollout)
        return result(method(*given), given[-1])

    async def call_async(task: Any, resources: Any, rollout: Any) -> Any:
        given = arguments(task, resources, rollout)
        return result(await method(*given), given[-1])

    return call_async if inspect.iscoroutinefunction(method) else call


def is_v0_1_rollout_api(func: Callable[..., Any]) -> bool:
    """Whether a rollout method is written as in 0.1, with a parameter ``rollout_id``."""
    return "rollout_id" in inspect.signature(func).parameters
