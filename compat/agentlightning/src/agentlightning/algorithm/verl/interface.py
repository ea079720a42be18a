"""Reinforcement learning with verl; needs agl-verl."""

from typing import TYPE_CHECKING, Any

from agentlightning._names import rest

if TYPE_CHECKING:
    from agl_verl import VERL as VERL

_rest = rest(__name__)


def __getattr__(name: str) -> Any:
    if name != "VERL":
        return _rest(name)
    import agl

    return agl.VERL
