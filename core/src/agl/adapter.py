"""The adapters under the path of 0.3's guides: ``agl.adapter.TraceToMessages``."""

from typing import Any

import agl
from agl.algorithm import adapter
from agl.utils.catalogue import public_names, refuse_name


def __getattr__(name: str) -> Any:
    if public_names("components").get(name, ("",))[0] == "agl.adapters":
        return getattr(agl, name)
    if hasattr(adapter, name):
        return getattr(adapter, name)
    return refuse_name("agl.adapter", name, dir(adapter))
