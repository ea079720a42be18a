"""What users give, and what of it makes no sense: refused by name."""

import inspect
import math
import numbers
from collections.abc import Mapping, Sequence
from operator import ge, gt, le, lt
from typing import Any, TypeVar, cast

from agl.errors import ConfigError, DatasetError
from agl.types import Resource

T = TypeVar("T")


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
    """Raise a ``ConfigError`` for the first option that is no finite number, or out of bounds.

    ``values`` are the options of ``owner`` by name; ``optional`` lets None pass, too. True and
    False are no numbers.
    """
    limits = [("at least", ge, least), ("above", gt, above), ("at most", le, most)]
    bounds = [(word, fits, b) for word, fits, b in (*limits, ("below", lt, below)) if b is not None]
    for name, value in values.items():
        if optional and value is None:
            continue
        number: Any = value
        expected = ""
        if isinstance(value, bool) or not isinstance(
            value, numbers.Integral if whole else numbers.Real
        ):
            expected = f"a {'whole ' if whole else ''}number"
        elif not isinstance(value, numbers.Integral) and not math.isfinite(number):
            expected = "a finite number"
        elif not all(fits(number, bound) for _, fits, bound in bounds):
            expected = " and ".join(f"{word} {bound:g}" for word, _, bound in bounds)
        if expected:
            raise ConfigError(f"{owner}: {name} must be {expected}; got {value!r}")


def check_choice(owner: str, known: Sequence[str], /, **values: object) -> None:
    """Raise a ``ConfigError`` for the first value that is none of the known ones."""
    for name, value in values.items():
        if value not in known:
            *most, last = known
            raise ConfigError(f"{owner}: {name} is {value!r}; expected {', '.join(most)} or {last}")


def check_dataset(where: str, dataset: Any) -> None:
    """Raise a ``DatasetError`` for what is no sequence of tasks, and for none. None passes."""
    kind = cast("type[Any]", type(dataset))
    if isinstance(dataset, str | bytes):
        hint = "The tasks of a file are agl_runs.config.datasets.load_dataset(path)"
    elif isinstance(dataset, Mapping):
        hint = "Give one of its values"
    elif inspect.isclass(dataset) or not {"__len__", "__getitem__"} <= {*dir(kind)}:
        hint = "Of a generator or a set, give list(...)"
    else:
        try:
            if len(dataset):
                return
            hint = "It has no tasks. Where the algorithm needs none, leave it out"
        except Exception as error:
            hint = f"Its len() raises {type(error).__name__}: {error}"
    if dataset is not None:
        raise DatasetError(
            f"{where}: expected a dataset, a list of tasks say, with len() and [index]; "
            f"got {dataset!r:.200}. {hint}"
        )


def check_resources(where: str, resources: Any) -> None:
    """Raise a ``ConfigError`` for what is no mapping of resources. None passes."""
    if resources is not None and not isinstance(resources, Mapping):
        raise ConfigError(f"{where}: expected a dict of name -> resource; got {resources!r}")
    for name, value in cast("Mapping[Any, Any]", resources or {}).items():
        if not isinstance(value, Resource):
            raise ConfigError(
                f"{where}: {name!r} must be a resource, agl.PromptTemplate(template=...) for a "
                f"prompt or agl.LLM(endpoint=..., model=...) for a model; got {value!r:.80}"
            )


def one_of(owner: str, /, **values: T | None) -> T | None:
    """The value that was given under one of the names of a setting; a ``ConfigError`` for two."""
    given = {name: value for name, value in values.items() if value is not None}
    if len(given) > 1:
        raise ConfigError(f"{owner}: {' and '.join(given)} are one setting; give one of them")
    return next(iter(given.values()), None)
