"""Constructors as a command line."""

import argparse
from collections.abc import Callable
from typing import Any, get_args, get_origin

from agl.plugins.schema import Option, schema_of


def nullable_str(value: str) -> str | None:
    """The text; None for ``none``, ``null``, ``nil`` and ``~``, in any case."""
    return None if value.lower() in ("none", "null", "nil", "~") else value


def nullable_int(value: str) -> int | None:
    """The number; None as in ``nullable_str``."""
    return _number(int, value)


def nullable_float(value: str) -> float | None:
    """The number; None as in ``nullable_str``."""
    return _number(float, value)


def _number(kind: Callable[[str], Any], value: str) -> Any:
    try:
        return None if nullable_str(value) is None else kind(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def lightning_cli(*classes: type[Any]) -> Any:
    """Build objects from the command line: ``--classname.parameter VALUE``.

    Returns:
        The object, or as many as there are classes.

    Raises:
        SystemExit: The command line is wrong, or asks for help.
    """
    parser = argparse.ArgumentParser(description="Constructors, by their parameters.")
    for each in classes:
        group = parser.add_argument_group(each.__name__)
        for option in schema_of(each).options:
            _add(group, each, option)
    given = vars(parser.parse_args())
    made = tuple(
        each(
            **{
                option.name: given[_key(each, option)]
                for option in schema_of(each).options
                if _key(each, option) in given
            }
        )
        for each in classes
    )
    return made[0] if len(made) == 1 else made


def _key(owner: type[Any], option: Option) -> str:
    return f"{owner.__name__.lower()}.{option.name}"


def _add(group: argparse._ArgumentGroup, owner: type[Any], option: Option) -> None:
    flag = f"--{_key(owner, option)}"
    flags = dict.fromkeys((flag.replace("_", "-"), flag))
    default = "" if option.required else f"; {option.default!r} unless given"
    about = f"{option.doc} ({option.type}{default})".strip().replace("%", "%%")
    settings: dict[str, Any] = {"dest": _key(owner, option), "default": argparse.SUPPRESS}
    item = _item_of(option.annotation)
    if item is not None:
        settings |= {"nargs": "*", "type": _reader(item)}
    else:
        settings |= {"type": _reader(option.annotation), "metavar": option.type.upper()[:20]}
    needed = option.required
    if needed and type(None) in get_args(option.annotation):
        needed, settings["default"] = False, None
    group.add_argument(*flags, required=needed, help=about, **settings)


def _item_of(annotation: Any) -> Any:
    """What a list parameter has items of; None for any other."""
    for part in (annotation, *get_args(annotation)):
        if get_origin(part) is list:
            return (get_args(part) or (str,))[0]
        if part is list:
            return str
    return None


def _reader(annotation: Any) -> Callable[[str], Any]:
    """Reads one value of a type; what no text can be (a component, say) stays the text."""
    from pydantic import TypeAdapter, ValidationError
    from pydantic.errors import PydanticSchemaGenerationError

    takes_none = annotation is Any or type(None) in get_args(annotation)
    try:
        adapter = TypeAdapter[Any](annotation)
    except (PydanticSchemaGenerationError, TypeError):
        adapter = None

    def value(text: str) -> Any:
        if takes_none and nullable_str(text) is None:
            return None
        if adapter is None:
            return text
        try:
            return adapter.validate_strings(text)
        except ValidationError as error:
            raise argparse.ArgumentTypeError(error.errors()[0]["msg"]) from None

    return value
