"""agl-adapters: what turns spans into triplets, chat messages and training rows."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_adapters.air import AutoRewards as AutoRewards
    from agl_adapters.chats import ChatRow as ChatRow, TraceToChats as TraceToChats
    from agl_adapters.credit.discounted import Discounted as Discounted
    from agl_adapters.credit.final import FinalReward as FinalReward
    from agl_adapters.credit.per_agent import PerAgent as PerAgent
    from agl_adapters.credit.per_call import PerCall as PerCall
    from agl_adapters.credit.stepwise import Stepwise as Stepwise
    from agl_adapters.messages import TraceToMessages as TraceToMessages
    from agl_adapters.proxy_triplets import LlmProxyTraceToTriplet as LlmProxyTraceToTriplet
    from agl_adapters.rows import TraceToRows as TraceToRows
    from agl_adapters.triplets import TracerTraceToTriplet as TracerTraceToTriplet

__version__ = "0.1.0"

_HOME = {
    "AutoRewards": "air",
    "ChatRow": "chats",
    "Discounted": "credit.discounted",
    "FinalReward": "credit.final",
    "LlmProxyTraceToTriplet": "proxy_triplets",
    "PerAgent": "credit.per_agent",
    "PerCall": "credit.per_call",
    "Stepwise": "credit.stepwise",
    "TraceToChats": "chats",
    "TraceToMessages": "messages",
    "TraceToRows": "rows",
    "TracerTraceToTriplet": "triplets",
}

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"agl_adapters.{_HOME[name]}"), name)
    raise AttributeError(f"module 'agl_adapters' has no attribute {name!r}")
