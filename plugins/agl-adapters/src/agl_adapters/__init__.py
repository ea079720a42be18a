"""agl-adapters: what turns spans into triplets, chat messages and training rows."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_adapters.calls import model_calls as model_calls
    from agl_adapters.credit import FinalReward as FinalReward
    from agl_adapters.messages import TraceToMessages as TraceToMessages
    from agl_adapters.proxy_triplets import LlmProxyTraceToTriplet as LlmProxyTraceToTriplet
    from agl_adapters.rows import RowSet as RowSet, TraceToRows as TraceToRows
    from agl_adapters.triplets import TracerTraceToTriplet as TracerTraceToTriplet

__version__ = "0.1.0"

_HOME = {
    "FinalReward": "credit",
    "LlmProxyTraceToTriplet": "proxy_triplets",
    "RowSet": "rows",
    "TraceToMessages": "messages",
    "TraceToRows": "rows",
    "TracerTraceToTriplet": "triplets",
    "model_calls": "calls",
}

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"agl_adapters.{_HOME[name]}"), name)
    raise AttributeError(f"module 'agl_adapters' has no attribute {name!r}")
