"""Every operation of a store as data: its name, parameters and answer, from the contract itself.

A method of the contract (``store/base.py``) under ``@operation`` hands what it is given to
``store.call``. So a store is one method, and methods of its own for what is special with it; and
what else must know the operations (``agl_server/calls.py``) reads their signatures.
"""

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Protocol, TypeVar, cast, get_type_hints

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

_OLDER_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "query_rollouts": {"status": "status_in", "rollout_ids": "rollout_id_in"}
}
"""Per operation, 0.3's name of a parameter -> its name."""


class Operation:
    """A method of the contract.

    Args:
        method: The method as it is declared.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method
        self.name = method.__name__
        parameters = list(inspect.signature(method).parameters.values())[1:]
        self.parameters = frozenset(p.name for p in parameters)
        self.leading = tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
        """Those that can be given by position."""
        self.defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self.required = self.parameters - self.defaults.keys()
        self.first = tuple(name for name in self.leading if name in self.required)
        self.changes = tuple(name for name, value in self.defaults.items() if value is UNSET)
        """Fields that an update changes where they are given."""
        self.older = _OLDER_NAMES.get(self.name, {})
        self.kind = self.name.removeprefix("query_") if self.name.startswith("query_") else None
        """What a query looks for."""

    @functools.cached_property
    def hints(self) -> dict[str, Any]:
        """The types of the parameters, and of the answer as ``return``."""
        return get_type_hints(self.method, include_extras=True)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """What was given, by name.

        Raises:
            TypeError: The method does not take that.
        """
        given = dict(zip(self.leading, args, strict=False))
        given.update(kwargs)
        if (
            len(given) != len(args) + len(kwargs)
            or not self.required <= given.keys()
            or not self.parameters >= given.keys()
        ):
            self.method(None, *args, **kwargs)  # Python says what is wrong with them
        return given

    def ask(self, store: object, given: dict[str, Any]) -> Coroutine[Any, Any, Any]:
        """Call it; by position where it can be no other, as its author may say other names."""
        named = {name: value for name, value in given.items() if name not in self.first}
        return getattr(store, self.name)(*(given[name] for name in self.first), **named)

    def complete(self, given: dict[str, Any]) -> dict[str, Any]:
        """All arguments, with the defaults of those that were not given; changes only if given."""
        if self.changes:
            everything = given.items()
            return {n: value for n, value in everything if value is not UNSET or n in self.required}
        arguments = self.defaults | given
        for old, name in self.older.items():
            value = arguments.pop(old)
            if arguments[name] is None:
                arguments[name] = value
        return arguments


class _Store(Protocol):
    def call(self, operation: Operation, arguments: dict[str, Any]) -> Coroutine[Any, Any, Any]: ...


def operation(method: F) -> F:
    """Let a method hand what it is given to ``call``, whatever stands in it."""
    declared = Operation(method)

    @functools.wraps(method)
    async def call(self: _Store, *args: Any, **kwargs: Any) -> Any:
        return await self.call(declared, declared.bind(args, kwargs))

    vars(call)["operation"] = declared
    return cast(F, call)


def operation_of(method: Callable[..., Any]) -> Operation:
    """The operation that a method of the contract is."""
    return vars(method).get("operation") or Operation(method)


def changes_of(method: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> dict[str, Any]:
    """The fields that an update changes, by name."""
    operation = operation_of(method)
    given = operation.complete(operation.bind(args, kwargs))
    return {name: value for name, value in given.items() if name not in operation.required}


def json_method(
    store: object, name: str
) -> Callable[..., Coroutine[Any, Any, bytes | list[bytes] | None]] | None:
    """The store's method that answers an operation in JSON: see ``LightningStore``.

    None where it has none, or where a subclass of the one that has it answers in its own way.
    """
    if name in getattr(store, "__dict__", ()):  # as tests and wrappers put it there
        return None
    for kind in type(store).__mro__:
        if f"{name}_json" in vars(kind):
            return getattr(store, f"{name}_json")
        if name in vars(kind) or "call" in vars(kind):
            return None
    return None
