"""The import package ``agentlightning``, over agl: scripts of Agent Lightning run as they are.

It holds names and translations. What agl cannot do is refused by name, with what to use instead.
Every name is imported when it is first used: ``_names`` has the list. Names that only agl has
(``agentlightning.GRPO``, say) are handed on.
"""

import os
import sys
from typing import TYPE_CHECKING, Any

from agentlightning._names import Finder, attach

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

sys.meta_path.insert(0, Finder)
attach(sys.modules[__name__])

if TYPE_CHECKING:
    from .adapter import *
    from .algorithm import *
    from .client import *
    from .config import lightning_cli as lightning_cli
    from .emitter import *
    from .env_var import *
    from .execution import *
    from .litagent import *
    from .llm_proxy import LLMProxy as LLMProxy
    from .logging import *
    from .runner import *
    from .server import AgentLightningServer as AgentLightningServer
    from .store import *
    from .tracer import *
    from .trainer import *
    from .types import *

    def __getattr__(name: str) -> Any: ...
