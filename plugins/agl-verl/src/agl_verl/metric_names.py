"""What metrics are called that every trainer has: in verl's own log, and where agl writes them.

Verl's log tells agl's metrics from its own by ``agl/`` and ``val-agl/``. In ``metrics.jsonl``, and
for hooks and trackers, each has the name that it has for every algorithm; what only verl measures
keeps verl's name.
"""

from collections.abc import Mapping
from typing import Final

PARTS: Final = {"agl/": "", "val-agl/": "val/"}
"""Beginning of a name in verl's log -> what stands for it elsewhere."""
NAMES: Final = {"actor/grad_norm": "grad_norm", "actor/entropy": "entropy"}
"""Name in verl -> elsewhere; in the same unit, and over the same tokens."""


def by_our_names(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics of verl's log by the names that they have elsewhere."""
    return {_ours(name): value for name, value in metrics.items()}


def _ours(name: str) -> str:
    for part, ours in PARTS.items():
        if name.startswith(part):
            return ours + name.removeprefix(part)
    return NAMES.get(name, name)
