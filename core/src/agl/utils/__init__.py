"""Helpers that users call by name: span attributes (``otel``)."""

from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any


def elsewhere(module: str, home: str, names: Collection[str]) -> Callable[[str], Any]:
    """``__getattr__`` of a module whose other names agl-agentlightning has, in ``home``."""

    def get(name: str) -> Any:
        from agl.errors import MissingPluginError, install_line

        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"agentlightning.{home}"), name)
        except ModuleNotFoundError as error:
            if error.name != "agentlightning":
                raise
            raise MissingPluginError(
                f"{module}.{name} lives in agl-agentlightning, which is not installed. "
                f"Run: {install_line('agl-agentlightning')}"
            ) from None

    return get


__getattr__ = elsewhere(__name__, "utils.server_launcher", ["PythonServerLauncherArgs"])
