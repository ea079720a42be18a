"""The import package ``agentlightning``, over agl: scripts of Agent Lightning run as they are.

It holds names and translations. What agl cannot do is refused by name, with what to use instead.
Every name is imported when it is first used; the list of names is ``__init__.pyi``. Names that only
agl has (``agentlightning.GRPO``, say) are handed on.
"""

import os
import sys
from typing import Any

from agentlightning._names import lazy, without_absent

# The folder of the original's metadata: importlib.metadata would cost more than all the rest.
if any(
    name.startswith("agentlightning-") and name.endswith(".dist-info")
    for path in sys.path
    if os.path.isdir(path or ".")
    for name in os.listdir(path or ".")
):
    raise ImportError(
        "agl-agentlightning and the original agentlightning are both installed, and each brings "
        "a package of this name: uninstall one (pip uninstall agentlightning), then install the "
        "other again"
    )

__version__ = "0.3.0"
"""Of the interface, which scripts compare; agl's own is ``agl.__version__``."""

_ours, __dir__ = lazy(__name__, __file__)
__all__ = without_absent(__dir__())  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    try:
        value = _ours(name)
    except AttributeError as error:
        import agl

        if not hasattr(agl, name):
            raise error from None
        value = getattr(agl, name)
    globals()[name] = value
    return value
