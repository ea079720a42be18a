"""Options of an algorithm: fields of a dataclass whose types carry their limits.

The constructor of the dataclass is the schema: ``agl plugins show`` and a configuration file read
the types, and ``check_options`` refuses in Python what they do not allow.

    @dataclass(kw_only=True)
    class Mine(Training):
        clip: AboveZero = 0.2
        rows: Count | None = None

Those that belong together are a ``Group``: ``lora: {rank: 8}`` in a file, a dict in Python.
"""

import inspect
import os
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields, replace
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    Self,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Gt, Le, Lt
from pydantic import GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, core_schema as made
from typing_extensions import Format, get_annotations

from agl.errors import ConfigError, UnknownArgumentError
from agl.types import Dataset
from agl.utils.checks import check_choice, check_numbers
from agl.utils.text import did_you_mean

Count = Annotated[int, Ge(1)]
"""How many: at least one."""
NotNegative = Annotated[float, Ge(0)]
AboveZero = Annotated[float, Gt(0)]
Share = Annotated[float, Gt(0), Le(1)]
"""Which part of a whole."""


def check_name(owner: str, /, **values: object) -> None:
    """Refuse what cannot name anything.

    Raises:
        ConfigError: It is no text, or an empty one.
    """
    for name, value in values.items():
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(f"{owner}: {name} must be a name; got {value!r}")


Name = Annotated[str, check_name]
"""Of something: not empty."""

_Inner = TypeVar("_Inner")
_BOUNDS = {Ge: ("least", "ge"), Gt: ("above", "gt"), Le: ("most", "le"), Lt: ("below", "lt")}
_TYPES: dict[Any, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    str: ((str, os.PathLike), "a string"),
    list: (list, "a list"),
    dict: (Mapping, "a dict"),
}
"""Type of a field -> what it takes, and its name in messages."""


class Named:
    """What has options by name, and refuses a name that it does not have."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Name the nearest option where one is unknown.

        Raises:
            UnknownArgumentError: One is.
        """
        known = inspect.signature(cls.__init__).parameters
        takes_any = any(one.kind is one.VAR_KEYWORD for one in known.values())
        for name in () if takes_any else options.keys() - known:
            hint = did_you_mean(name, known)
            raise UnknownArgumentError(f"{cls.__name__}: unknown option {name!r}.{hint}")
        return super().__new__(cls)


@dataclass(frozen=True, kw_only=True, repr=False)
class Group(Named):
    """Options that belong together; each has a default, and a bare value is that of the first.

    None, null in a file, is all defaults, but where a field may be None. A bare value and others
    are a mapping in which the bare one has the key "": ``lora=4 lora.alpha=8`` as overrides.

    Raises:
        ConfigError: An option is wrong, or does not go with the others.
    """

    def __post_init__(self) -> None:
        check_options(type(self).__name__, self)
        if problem := self.problem():
            raise ConfigError(f"{type(self).__name__}: {problem}")

    def problem(self) -> str | None:
        """Which option does not go with the others, at the beginning, and why."""

    def __repr__(self) -> str:
        return repr({n: x for n, x in vars(self).items() if x != getattr(type(self), n)})

    @classmethod
    def names(cls) -> list[str]:
        """Of the options."""
        return [one.name for one in fields(cls) if one.init]

    @classmethod
    def given(cls, value: Any) -> dict[str, Any]:
        """The options that a value is."""
        if isinstance(value, cls):
            return {name: getattr(value, name) for name in cls.names()}
        first = cls.names()[0]
        if value is None or isinstance(value, Mapping):
            given = dict(cast("Mapping[str, Any]", value or {}))
            return {first: given.pop(""), **given} if "" in given else given
        return {first: value}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        # A dict, whose defaults the field of the algorithm has; ``check_options`` makes the group.
        hints = get_type_hints(cls, include_extras=True)
        each: dict[str, Any] = {}
        for name in cls.names():
            each[name] = handler.generate_schema(hints[name])
            if bool not in (hints[name], *get_args(hints[name])):
                each[name] = made.no_info_before_validator_function(_no_bool, each[name])
        optional = {name: made.typed_dict_field(one, required=False) for name, one in each.items()}
        group = made.typed_dict_schema(optional, extra_behavior="forbid")

        def read(value: Any) -> dict[str, Any]:
            first, *_ = names = cls.names()
            if isinstance(value, bool) and bool not in (hints[first], *get_args(hints[first])):
                raise ValueError(f"expected {', '.join(names)}, and no true or false")
            return cls.given(value)

        return made.no_info_before_validator_function(read, group)


def _no_bool(value: Any) -> Any:
    """The value; True would count as 1."""
    if isinstance(value, bool):
        raise ValueError("expected no true or false")
    return value


def absolute(folder: str | None) -> str | None:
    """The path of a folder from the root: an agent may change the folder of the process."""
    return None if folder is None else os.path.abspath(folder)


def check_place(owner: str, /, **values: object) -> None:
    """Refuse a path that leads nowhere, or a function's, which would be names on a hub later.

    Raises:
        ConfigError: It names the first of them, and what lies beside it under a like name.
    """
    for name, value in values.items():
        if not isinstance(value, str | Path):
            continue
        path = os.path.expanduser(str(value))
        is_path = path.startswith((".", os.sep)) or path.count("/") > 1 or path != str(value)
        if is_path and not os.path.exists(path):
            folder, last = os.path.split(path.rstrip(os.sep))
            beside = os.listdir(folder) if os.path.isdir(folder) else []
            hint = did_you_mean(last, beside)
            raise ConfigError(f"{owner}: {name} {str(value)!r}: there is no such folder.{hint}")
        if ":" in path and not os.path.exists(path):
            raise ConfigError(
                f"{owner}: {name} {str(value)!r}: expected a folder or a name on Hugging Face, "
                "which has no colon. What builds a model is given as a function, in Python; for a "
                "file, save the model in a folder"
            )


def need_tasks(owner: str, *datasets: Dataset[Any] | None) -> None:
    """Refuse to begin without any tasks."""
    if not any(given is not None and len(given) for given in datasets):
        raise ConfigError(
            f"{owner}: there are no tasks. Pass train_dataset; in a file, name them as train, or "
            "have the environment give them as its train"
        )


def check_options(owner: str, options: Any) -> None:
    """Refuse what the type of a field does not allow; make a ``Group`` of what is one.

    A number must be finite, and whole where the type is ``int``; limits are those of
    ``annotated_types``, and a string in ``Annotated`` is their reason, at the end of the message.
    A ``Literal`` must be one of its values. What is no number and has functions in ``Annotated``
    is checked by them alone, as ``function(owner, name=value)``. Else ``bool``, ``str`` (a path
    passes), ``list``, ``list[str]``, ``dict`` and unions of these are checked; fields of other
    types pass. Other limits, as ``pydantic.Field(gt=0)``, are pydantic's to check.

    Args:
        owner: What messages begin with.
        options: An instance of a dataclass.

    Raises:
        ConfigError: It names the first field that is wrong.
    """
    owner_type: type[Any] = options.__class__
    for field in fields(options):
        kind = _resolved(owner_type, field.name, field.type)
        value = getattr(options, field.name)
        parts = (one for one in (kind, *get_args(kind)) if isinstance(one, type))
        if group := next((one for one in parts if issubclass(one, Group)), None):
            # It may be frozen.
            object.__setattr__(options, field.name, _made(owner, field, group, kind, value))
        else:
            _check(owner, field.name, kind, value)


def _made(owner: str, field: "Field[Any]", group: type[Group], kind: Any, value: Any) -> Any:
    """The group of an option; what is not given is as in the default of the field."""
    if isinstance(value, group) or (value is None and type(None) in get_args(kind)):
        return value
    known = group.names()
    given = group.given(value)
    for name in given:
        if name not in known:
            hint = did_you_mean(str(name), known) or f" Known: {', '.join(known)}"
            raise ConfigError(f"{owner}: {field.name}.{name}: unknown key.{hint}")
    try:
        return replace(field.default if isinstance(field.default, group) else group(), **given)
    except ConfigError as error:
        why = str(error).removeprefix(f"{group.__name__}: ")
        raise ConfigError(f"{owner}: {field.name}.{why}") from None


def pick_options(kind: type[_Inner], holder: Any, **others: Any) -> _Inner:
    """Options of an inner part, as the algorithm that holds it has them.

    Args:
        kind: Their dataclass; a field that the holder does not have keeps its default.
        holder: What has fields of the same names.
        others: Fields whose values are not the holder's.
    """
    names = [one.name for one in fields(cast("Any", kind)) if hasattr(holder, one.name)]
    return kind(**{**{name: getattr(holder, name) for name in names}, **others})


def _resolved(options: type[Any], name: str, kind: Any) -> Any:
    """The type of a field; Any where it is a text that only type checkers can read."""
    classes = ((cls, get_annotations(cls, format=Format.FORWARDREF)) for cls in options.__mro__)
    declared = next(cls for cls, annotations in classes if name in annotations)
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
    if optional and value is None:
        return
    others = [member for member in members if get_origin(member) is not Literal]
    if 0 < len(others) < len(members):  # a word, or what the other members allow
        words = [word for one in members if one not in others for word in get_args(one)]
        if value not in words:
            try:
                _check(owner, name, Union[tuple(others)], value)  # noqa: UP007
            except ConfigError as error:
                raise ConfigError(f"{error}; or give {' or '.join(map(repr, words))}") from None
        return
    if len(members) != 1:
        _check_type(owner, name, members, value)
        return
    whole, kind, limits = members[0], members[0], ()
    if get_origin(kind) is Annotated:
        kind, *limits = get_args(kind)
    ours = (str, types.FunctionType, *_BOUNDS)
    if not all(isinstance(limit, ours) for limit in limits):
        _check_by_pydantic(owner, name, whole, value)
    elif kind in (int, float):
        bounds: dict[str, Any] = {}
        reason = "".join(f": {limit}" for limit in limits if isinstance(limit, str))
        for limit in limits:
            if type(limit) in _BOUNDS:
                word, attribute = _BOUNDS[type(limit)]
                bounds[word] = getattr(limit, attribute)
        try:
            check_numbers(owner, whole=kind is int, optional=optional, **bounds, **{name: value})
        except ConfigError as error:
            raise ConfigError(f"{error}{reason}") from None
    elif get_origin(kind) is Literal:
        check_choice(owner, get_args(kind), **{name: value})
    elif functions := [limit for limit in limits if not isinstance(limit, str)]:
        for limit in functions:
            check: Callable[..., None] = limit
            check(owner, **{name: value})
    else:
        _check_type(owner, name, members, value)


def _check_by_pydantic(owner: str, name: str, kind: Any, value: Any) -> None:
    """For limits that are none of ours, as ``pydantic.Field(gt=0)``."""
    try:
        TypeAdapter[Any](kind).validate_python(value, strict=True)
    except ValidationError as error:
        why = error.errors(include_url=False)[0]["msg"]
        raise ConfigError(f"{owner}: {name}: {why}; got {value!r}") from None


def _check_type(owner: str, name: str, kinds: list[Any], value: Any) -> None:
    """Refuse a value of none of these types; where one of them is not in ``_TYPES``, it passes."""
    expected: list[str] = []
    for kind in kinds:
        plain, word = _TYPES.get(get_origin(kind) or kind, (object, ""))
        is_texts = get_args(kind) == (str,)
        items: Any = value if is_texts and isinstance(value, plain) else ()
        if isinstance(value, plain) and all(isinstance(one, str) for one in items):
            return
        expected.append("a list of strings" if is_texts else word)
    raise ConfigError(f"{owner}: {name} must be {' or '.join(expected)}; got {value!r}")
