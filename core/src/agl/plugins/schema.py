"""The constructor is the schema: options of a component, read from its ``__init__``.

Names, types and defaults come from the signature, texts from the docstring. What a file or a
command line gives is checked against them before anything is built.
"""

import dataclasses
import functools
import inspect
import json
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, cast, get_args, get_origin

from typing_extensions import Format, get_annotations

from agl.errors import ConfigError
from agl.utils.secrets import HIDDEN, is_secret
from agl.utils.text import did_you_mean

if TYPE_CHECKING:
    from pydantic import ValidationError

NO_DEFAULT = inspect.Parameter.empty
"""Default of an option that has none."""


@dataclass(frozen=True)
class Option:
    """One parameter of a constructor."""

    name: str
    annotation: Any
    """As resolved; ``Any`` if there is none or it cannot be resolved."""
    type: str
    """The annotation as a reader would write it."""
    default: Any
    target: Callable[..., Any]
    """What it is an option of."""

    @property
    def doc(self) -> str:
        """What the docstring says of it."""
        return _docs(self.target).get(self.name.rpartition(".")[2], "")

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is NO_DEFAULT


@dataclass(frozen=True)
class Schema:
    """What a class, or a function that builds a component, can be given by keyword."""

    options: tuple[Option, ...]
    open: bool
    """It has ``**kwargs`` and takes any further name."""


def schema_of(target: Callable[..., Any]) -> Schema:
    """Read the options of a class, or of a function that builds something."""
    try:
        signature = inspect.signature(target)
    except ValueError:
        return Schema((), open=True)  # a constructor written in C decides itself
    function = inspect.unwrap(cast("Any", target).__init__ if inspect.isclass(target) else target)
    namespace = getattr(function, "__globals__", {})
    options: list[Option] = []
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            continue
        annotation = _resolved(parameter.annotation, namespace)
        unknown = isinstance(annotation, str) or annotation is NO_DEFAULT
        known, shown = Any if unknown else annotation, readable_type(annotation)
        options.append(Option(parameter.name, known, shown, parameter.default, target))
    if dataclasses.is_dataclass(target) and inspect.isclass(target):
        options.sort(key=lambda option: (not option.required, _depth(target, option.name)))
    is_open = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    return Schema(tuple(options), open=is_open)


def with_inner(options: Iterable[Option]) -> Iterator[Option]:
    """Options, and after a group of them, as ``lora``, what is in it, as ``lora.rank``."""
    for option in options:
        yield option
        parts = (option.annotation, *get_args(option.annotation))
        for group in filter(inspect.isclass, parts):
            for one in schema_of(group).options if dataclasses.is_dataclass(group) else ():
                default = getattr(option.default, one.name, one.default)
                name = f"{option.name}.{one.name}"
                yield dataclasses.replace(one, name=name, default=default)


def _depth(target: type, name: str) -> int:
    """How far above ``target`` a field is declared: its own come before its base's."""
    owners = (name in get_annotations(cls, format=Format.FORWARDREF) for cls in target.__mro__)
    return next((depth for depth, owns in enumerate(owners) if owns), 0)


def validate(target: Callable[..., Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Options converted to the types of the constructor that will get them; none is added.

    ``"4"`` becomes 4 for an ``int``; dicts become nested models and dataclasses, which refuse keys
    that they do not know.

    Args:
        target: The class or function that builds it; its ``explain_option``, if any, says more.
        where: What error messages begin with, as ``"agl.yaml: algorithm"``.

    Raises:
        ConfigError: An unknown or missing option, or a value of the wrong type.
    """
    schema = schema_of(target)
    known = {option.name: option for option in schema.options}
    converted: dict[str, Any] = {}
    for name, value in sorted(values.items(), key=lambda item: item[0] in known):  # unknown first
        if name in known:
            converted[name] = _convert(known[name].annotation, value, key(where, name))
        elif schema.open:
            converted[name] = value
        else:
            explain: Any = getattr(target, "explain_option", None)
            hint = explain(name, values) if explain else ""
            raise _unknown_key(key(where, name), name, known, hint)
    for option in schema.options:
        if option.required and option.name not in values:
            about = f": {option.doc}" if option.doc else ""
            raise ConfigError(f"{key(where, option.name)}: missing ({option.type}){about}")
    return converted


def key(where: str, name: object) -> str:
    """The address of a key in a message: ``agl.yaml: algorithm`` + ``prompts``, with a dot."""
    if where.endswith(":"):
        return f"{where} {name}"
    return f"{where}.{name}" if where else str(name)


def readable_type(annotation: Any) -> str:
    """An annotation in the shortest form that a reader would write."""
    if isinstance(annotation, str):
        return annotation
    if annotation is NO_DEFAULT or annotation is Any:
        return "Any"
    if annotation is None or annotation is type(None):
        return "None"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return readable_type(arguments[0])
    if origin is Literal:
        return " | ".join(json.dumps(value) for value in arguments)
    if origin in (Union, types.UnionType):
        return " | ".join(readable_type(argument) for argument in arguments)
    name = getattr(origin or annotation, "__name__", None) or str(annotation)
    if origin is None or not arguments or name == "Callable":
        return name
    inner = ", ".join("..." if a is ... else readable_type(a) for a in arguments)
    return f"{name}[{inner}]"


def _resolved(annotation: Any, namespace: dict[str, Any]) -> Any:
    """The type that a text names; the text itself if only type checkers can see all of it."""
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, namespace, {}, include_extras=True)["it"]
    except (NameError, TypeError, AttributeError):
        return annotation


@functools.cache
def _docs(target: Callable[..., Any]) -> dict[str, str]:
    """Texts of parameters; a subclass's text goes before its base's. Slow, and few ask."""
    import docstring_parser

    classes = target.__mro__[:-1] if inspect.isclass(target) else [target]
    sources: list[Any] = [s for cls in classes for s in (cls, vars(cls).get("__init__")) if s]
    docs: dict[str, str] = {}
    for source in sources:
        if getattr(source, "__module__", "").startswith("pydantic"):
            continue
        try:
            parsed = docstring_parser.parse_from_object(source)
        except (OSError, TypeError, SystemError):
            # A notebook has no source file; CPython 3.11's parser may raise SystemError when
            # another thread parses too.
            parsed = docstring_parser.parse(source.__doc__ or "")
        for parameter in parsed.params:
            docs.setdefault(parameter.arg_name, " ".join((parameter.description or "").split()))
    return docs


def _unknown_key(address: str, name: str, known: Collection[str], hint: str = "") -> ConfigError:
    hint = hint or did_you_mean(name, known)
    hint = hint or (f" Known: {', '.join(known)}" if known else " There are no options")
    return ConfigError(f"{address}: unknown key.{hint}")


def _convert(annotation: Any, value: Any, address: str) -> Any:
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
    from pydantic_core import SchemaError

    config = ConfigDict(arbitrary_types_allowed=True)
    try:  # of a list, as a type that brings a configuration of its own takes no other
        adapter = TypeAdapter[list[Any]](cast(Any, list)[annotation], config=config)
    except (PydanticUserError, SchemaError, NameError, TypeError):
        return value  # pydantic cannot check it, and the constructor decides
    try:
        strict = True if isinstance(value, bool) else None  # else True is 1 to pydantic
        return adapter.validate_python([value], strict=strict, extra="forbid")[0]
    except ValidationError as error:
        raise _explained(error, annotation, value, address) from None


_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


def _explained(error: "ValidationError", annotation: Any, value: Any, address: str) -> ConfigError:
    details = error.errors(include_url=False)
    first = next((detail for detail in details if detail["type"] in _UNKNOWN), details[0])
    at, found, name = address, value, address.rpartition(".")[2]
    # pydantic's location also names the members of unions; only real keys lead on.
    for part in first["loc"][1:]:
        with suppress(KeyError, IndexError, TypeError):
            found = found["" if part in _fields_in(annotation) and part not in found else part]
            at, name = key(at, part), str(part)
    if first["type"] in _UNKNOWN:
        return _unknown_key(at, name, sorted(_fields_in(annotation)))
    if first["type"] == "missing":
        return ConfigError(f"{key(at, first['loc'][-1])}: missing")
    has_bare = "" in getattr(found, "keys", tuple)()  # beside keys that only a group takes
    got = HIDDEN if is_secret(name) else repr(found[""] if has_bare else found)
    if has_bare:
        return ConfigError(f"{at} is {got} and has no {', '.join(repr(n) for n in found if n)}")
    if at == address and (len(details) > 1 or first["type"].endswith(("_type", "_parsing"))):
        # The members of a union that take such numbers, but not this one, say which they take.
        limits = [d["msg"] for d in details if d["type"].startswith(("greater_than", "less_than"))]
        which = f" (a number {' or '.join(limits)})".replace("Input should be ", "")
        expected = f"{readable_type(annotation)}{which if limits else ''}"
        return ConfigError(f"{at}: expected {expected}, got {got}")
    message = first["msg"].removeprefix("Value error, ")
    return ConfigError(f"{at}: {message[0].lower()}{message[1:]}; got {got}")


def _fields_in(annotation: Any, above: tuple[Any, ...] = ()) -> set[str]:
    """Names of the fields of all dataclasses and models in an annotation."""
    if annotation in above:
        return set()
    fields: dict[str, Any] = {}
    marks = {"__dataclass_fields__", "model_fields", "__total__"}
    if inspect.isclass(annotation) and marks & {*dir(annotation)}:
        fields = typing.get_type_hints(annotation)
    parts = [*get_args(annotation), *fields.values()]
    return {*fields}.union(*(_fields_in(part, (*above, annotation)) for part in parts))
