"""Constructors as a command line."""

import argparse
from collections.abc import Callable
from typing import Any, get_args, get_origin

from agl.errors import ConfigError
from agl.plugins.schema import Option, schema_of, validate


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
    made: list[Any] = []
    for each in classes:
        keys = {option.name: _key(each, option) for option in schema_of(each).options}
        values = {name: given[key] for name, key in keys.items() if key in given}
        try:
            values = validate(each, values, f"--{each.__name__.lower()}")
        except ConfigError as error:
            parser.error(str(error))
        made.append(each(**values))
    return made[0] if len(made) == 1 else tuple(made)


def _key(owner: type[Any], option: Option) -> str:
    return f"{owner.__name__.lower()}.{option.name}"


def _add(group: argparse._ArgumentGroup, owner: type[Any], option: Option) -> None:
    flag = f"--{_key(owner, option)}"
    flags = dict.fromkeys((flag.replace("_", "-"), flag))
    default = "" if option.required else f"; {option.default!r} unless given"
    about = f"{option.doc} ({option.type}{default})".strip().replace("%", "%%")
    settings: dict[str, Any] = {"dest": _key(owner, option), "default": argparse.SUPPRESS}
    members = get_args(option.annotation)
    takes_none = option.annotation is Any or type(None) in members
    if any(list in (part, get_origin(part)) for part in (option.annotation, *members)):
        settings["nargs"] = "*"
    else:
        settings["metavar"] = option.type.upper()[:20]
        settings["type"] = nullable_str if takes_none else str
    needed = option.required
    if needed and type(None) in members:
        needed, settings["default"] = False, None
    group.add_argument(*flags, required=needed, help=about, **settings)
