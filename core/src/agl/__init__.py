"""agl: train any agent with any algorithm, through one store.

A Trainer runs an Algorithm, which puts Rollouts in a Store; Runners claim them, run your Agent
under a Tracer and write Spans back; an Adapter turns spans into what the algorithm learns from.

Every name is imported when it is first used, so that ``import agl`` costs next to nothing. The list
of names is ``__init__.pyi``.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

import lazy_loader  # pyright: ignore[reportMissingTypeStubs]

__version__ = "0.1.0"

_load, _, _names = cast(Any, lazy_loader).attach_stub(__name__, __file__)
__all__ = sorted([*_names, "__version__"])  # pyright: ignore[reportUnsupportedDunderAll]


def __dir__() -> list[str]:
    # Without the names of plugins: ``help(agl)`` must work where one of them is not installed.
    return list(__all__)


def __getattr__(name: str) -> Any:
    if name in _names:
        value = _load(name)
    elif find_spec(f"agl.{name}") is not None:
        value = import_module(f"agl.{name}")
    else:
        from agl.plugins.registry import load_public_name

        value = load_public_name(name, __all__)
    globals()[name] = value
    return value
