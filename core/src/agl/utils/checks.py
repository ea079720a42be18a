"""Options of components that are no sensible values, refused by name."""

import math
import numbers
import os
from collections.abc import Sequence
from typing import Any

from agl.errors import ConfigError


def check_numbers(
    owner: str,
    /,
    *,
    whole: bool = False,
    optional: bool = False,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    **values: object,
) -> None:
    """Refuse what is no finite number, or out of bounds. True and False are no numbers.

    Args:
        owner: Whose options they are.
        whole: Only whole numbers.
        optional: None is allowed, too.
        least: The least that is allowed.
        above: All must be above it.
        most: The most that is allowed.
        below: All must be below it.
        values: Name of the option -> value.

    Raises:
        ConfigError: It names the first of them.
    """
    bounds: list[str] = []
    for word, bound in (("at least", least), ("above", above), ("at most", most), ("below", below)):
        if bound is not None:
            bounds.append(f"{word} {bound:g}")
    for name, value in values.items():
        if optional and value is None:
            continue
        kind = numbers.Integral if whole else numbers.Real
        if isinstance(value, bool) or not isinstance(value, kind):
            expected = f"a {'whole ' if whole else ''}number"
            raise ConfigError(f"{owner}: {name} must be {expected}; got {value!r}")
        number: Any = value
        if not isinstance(value, numbers.Integral) and not math.isfinite(number):
            raise ConfigError(f"{owner}: {name} must be a finite number; got {value!r}")
        if (
            (least is not None and number < least)
            or (above is not None and number <= above)
            or (most is not None and number > most)
            or (below is not None and number >= below)
        ):
            raise ConfigError(f"{owner}: {name} must be {' and '.join(bounds)}; got {value!r}")


def check_name(owner: str, /, **values: object) -> None:
    """Refuse what cannot name anything.

    Raises:
        ConfigError: It is no text, or an empty one.
    """
    for name, value in values.items():
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(f"{owner}: {name} must be a name; got {value!r}")


def check_choice(owner: str, known: Sequence[str], /, **values: object) -> None:
    """Refuse what is none of the known values.

    Raises:
        ConfigError: It names the first of them, and what there is.
    """
    for name, value in values.items():
        if value not in known:
            raise ConfigError(f"{owner}: {name} is {value!r}; expected {', '.join(known)}")


def absolute(folder: str | None) -> str | None:
    """The path of a folder from the root: an agent may change the folder of the process."""
    return None if folder is None else os.path.abspath(folder)
