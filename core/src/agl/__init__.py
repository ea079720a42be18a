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

_PLUGIN: dict[str, tuple[str, str, str]] = {
    "AgentOpsTracer": ("agl.tracers", "agentops", "agl-tracers"),
    "APO": ("agl.algorithms", "apo", "agl-apo"),
    "GRPO": ("agl.algorithms", "grpo", "agl-torch"),
    "LLMProxy": ("agl.gateways", "proxy", "agl-gateway"),
    "LlmProxyTraceToTriplet": ("agl.adapters", "proxy-triplet", "agl-adapters"),
    "TraceToMessages": ("agl.adapters", "messages", "agl-adapters"),
    "TraceToRows": ("agl.adapters", "rows", "agl-adapters"),
    "TracerTraceToTriplet": ("agl.adapters", "triplet", "agl-adapters"),
    "VERL": ("agl.algorithms", "verl", "agl-verl"),
    "WeaveTracer": ("agl.tracers", "weave", "agl-tracers"),
}
"""Public names that live in a plugin: entry point group, entry point, distribution."""

_LIBRARY: dict[str, tuple[str, str]] = {
    "Choice": ("agl_learning.records", "agl-learning"),
    "CreditRule": ("agl_learning.credit", "agl-learning"),
    "group_advantages": ("agl_learning.advantages", "agl-learning"),
    "Ledger": ("agl_learning.ledger", "agl-learning"),
    "load_ledger": ("agl_learning.ledger", "agl-learning"),
    "load_parts": ("agl_learning.ledger", "agl-learning"),
    "MixingCheck": ("agl_learning.mixing", "agl-learning"),
    "ModelCall": ("agl_learning.records", "agl-learning"),
    "RowBreak": ("agl_learning.records", "agl-learning"),
    "save_ledger": ("agl_learning.ledger", "agl-learning"),
    "sibling_advantages": ("agl_learning.advantages", "agl-learning"),
    "TrainedModel": ("agl_learning.records", "agl-learning"),
    "TrainingRow": ("agl_learning.records", "agl-learning"),
}
"""Public names that live in a library: module, distribution."""

_load, _, _names = cast(Any, lazy_loader).attach_stub(__name__, __file__)
__all__ = sorted([*_names, "__version__"])  # pyright: ignore[reportUnsupportedDunderAll]


def __dir__() -> list[str]:
    # Without the names of plugins: ``help(agl)`` must work where one of them is not installed.
    return list(__all__)


def __getattr__(name: str) -> Any:
    if name in _PLUGIN:
        from agl.plugins.registry import load_public_name

        value = load_public_name(name, *_PLUGIN[name])
    elif name in _LIBRARY:
        from agl.plugins.registry import load_from_library

        value = load_from_library(name, *_LIBRARY[name])
    elif name in _names:
        value = _load(name)
    elif find_spec(f"agl.{name}") is not None:
        value = import_module(f"agl.{name}")
    else:
        raise AttributeError(f"module 'agl' has no attribute {name!r}")
    globals()[name] = value
    return value
