"""What our packages offer, installed or not, and names that agl does not have under that name.

``catalogue.json`` has the entry points of all packages of the repository, and a line for each
command; ``docs/generate.py`` writes it. ``names.json`` is kept by hand.
"""

import functools
import inspect
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

from agl.errors import UnknownArgumentError
from agl.utils.text import did_you_mean

P = ParamSpec("P")
T = TypeVar("T")


@functools.cache
def _read(name: str) -> Any:
    return json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def offered(group: str) -> dict[str, str]:
    """Name -> what to install for it, of an entry point group."""
    return _read("catalogue.json")["components"].get(group, {})


def commands() -> dict[str, dict[str, tuple[str, str]]]:
    """Section of ``agl --help`` -> command -> what to install for it, and a line on it."""
    return _read("catalogue.json")["commands"]


def public_names(kind: str) -> dict[str, Any]:
    """Names of ``import agl``, or other names of ``keys of a file`` -> what they stand for."""
    return _read("names.json")[kind]


def refuse_name(module: str, name: str, known: Iterable[str]) -> NoReturn:
    """Raise a module's ``AttributeError``, with the nearest name, or the one for a name of 0.3."""
    instead = _read("names.json")["of 0.3"].get(name)
    hint = did_you_mean(name, known := [*known]) or did_you_mean(name.upper(), known)
    hint = f" It is of Agent Lightning 0.3: {instead}" if instead else hint
    message = f"module {module!r} has no attribute {name!r}.{hint}"
    raise AttributeError(message, name=name)  # with a name, Python adds no guess of its own


def refuse_keywords(owner: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Have a function refuse keywords that it does not know by name, with the nearest right one.

    Args:
        owner: What messages begin with; also the key of 0.3's keywords in ``names.json``.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        known = [name for name in inspect.signature(function).parameters if name != "self"]

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            for name in kwargs:
                if name not in known:
                    instead = _read("names.json")["keywords of 0.3"].get(owner, {}).get(name)
                    hint = f" It is of Agent Lightning 0.3: {instead}" if instead else ""
                    hint = hint or did_you_mean(name, known) or f" There are {', '.join(known)}"
                    raise UnknownArgumentError(f"{owner}: unknown argument {name!r}.{hint}")
            return function(*args, **kwargs)

        return call

    return decorate
