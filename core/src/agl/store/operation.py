"""Operations of a store: methods that hand what they are given to the store's ``call``.

So a store over another one is one method, and methods of its own for what is special with it.
"""

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


class Unset:
    """Type of ``UNSET``: an argument that was left out, where None means "clear it"."""

    _instance: "Unset | None" = None

    def __new__(cls) -> "Unset":
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def __repr__(self) -> str:
        return "UNSET"

    def __bool__(self) -> bool:
        return False


UNSET: Final = Unset()


def given(**changes: Any) -> dict[str, Any]:
    """The changes that are not ``UNSET``."""
    return {name: value for name, value in changes.items() if value is not UNSET}


class _Store(Protocol):
    def call(self, operation: str, arguments: dict[str, Any]) -> Coroutine[Any, Any, Any]: ...


def operation(method: F) -> F:
    """Let a method hand its name and what it is given, by name, to ``call``."""
    _, *parameters = inspect.signature(method).parameters.values()
    places = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    required = {one.name for one in parameters if one.default is one.empty}
    known = {one.name for one in parameters}

    @functools.wraps(method)
    async def call(self: _Store, *args: Any, **kwargs: Any) -> Any:
        arguments = dict(zip(places, args, strict=False)) | kwargs
        is_whole = len(arguments) == len(args) + len(kwargs)
        if not (is_whole and required <= arguments.keys() <= known):
            await method(self, *args, **kwargs)  # a TypeError, in Python's words
        return await self.call(method.__name__, arguments)

    vars(call)["is_operation"] = True
    return cast(F, call)
