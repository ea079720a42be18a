"""Options of an algorithm: fields of a dataclass whose types carry their limits.

The constructor of the dataclass is the schema: ``agl plugins show`` and a configuration file read
the types, and ``check_options`` refuses in Python what they do not allow.

    @dataclass(kw_only=True)
    class Mine(Training):
        clip: AboveZero = 0.2
        rows: Count | None = None
"""

import sys
import types
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from agl.utils.checks import check_choice, check_name, check_numbers

Count = Annotated[int, Ge(1)]
"""How many: at least one."""
NotNegative = Annotated[float, Ge(0)]
AboveZero = Annotated[float, Gt(0)]
Share = Annotated[float, Gt(0), Le(1)]
"""Which part of a whole."""
Name = Annotated[str, check_name]
"""Of something: not empty."""

_BOUNDS = {Ge: ("least", "ge"), Gt: ("above", "gt"), Le: ("most", "le"), Lt: ("below", "lt")}


def check_options(owner: str, options: Any) -> None:
    """Refuse what the type of a field does not allow: in numbers, choices and names.

    A number must be finite, and whole where the type is ``int``; limits are those of
    ``annotated_types``. A ``Literal`` must be one of its values. A function in ``Annotated`` is
    called as ``function(owner, name=value)``. Fields of other types pass.

    Args:
        owner: What messages begin with.
        options: An instance of a dataclass.

    Raises:
        ConfigError: It names the first field that is wrong.
    """
    owner_type: type[Any] = options.__class__
    for field in fields(options):
        kind = _resolved(owner_type, field.name, field.type)
        _check(owner, field.name, kind, getattr(options, field.name))


def _resolved(options: type[Any], name: str, kind: Any) -> Any:
    """The type of a field; Any where it is a text that only type checkers can read."""
    declared = next(cls for cls in options.__mro__ if name in vars(cls).get("__annotations__", {}))
    holder = types.SimpleNamespace(__annotations__={name: kind})
    try:
        namespace = vars(sys.modules[declared.__module__])
        return get_type_hints(holder, namespace, {}, include_extras=True)[name]
    except NameError:
        return Any


def _check(owner: str, name: str, kind: Any, value: Any) -> None:
    members = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    optional = type(None) in members
    members = [member for member in members if member is not type(None)]
    if len(members) != 1 or (optional and value is None):
        return
    kind, limits = members[0], ()
    if get_origin(kind) is Annotated:
        kind, *limits = get_args(kind)
    if kind in (int, float):
        bounds: dict[str, Any] = {}
        for limit in limits:
            word, attribute = _BOUNDS[type(limit)]
            bounds[word] = getattr(limit, attribute)
        check_numbers(owner, whole=kind is int, optional=optional, **bounds, **{name: value})
    elif get_origin(kind) is Literal:
        check_choice(owner, get_args(kind), **{name: value})
    else:
        for limit in limits:
            check: Callable[..., None] = limit
            check(owner, **{name: value})
