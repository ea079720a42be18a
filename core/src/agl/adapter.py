"""The adapters under the path of 0.3's guides: ``agl.adapter.TraceToMessages``."""

from typing import Any

import agl
from agl.algorithm import adapter


def __getattr__(name: str) -> Any:
    group, *_ = agl._PLUGIN.get(name, ("",))  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportUnknownVariableType, reportAttributeAccessIssue]
    if group == "agl.adapters":
        return getattr(agl, name)
    if hasattr(adapter, name):
        return getattr(adapter, name)
    raise AttributeError(f"module 'agl.adapter' has no attribute {name!r}")
