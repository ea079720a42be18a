"""agl-gateway: the OpenAI-compatible address that agents call, and that records what they did."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_gateway.proxy import LLMProxy as LLMProxy

__version__ = "0.1.0"
__all__ = ["LLMProxy"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from agl_gateway import proxy

        return getattr(proxy, name)
    raise AttributeError(f"module 'agl_gateway' has no attribute {name!r}")
