"""agl-service: a training server, its client and its commands."""

from typing import Any, cast

import lazy_loader  # pyright: ignore[reportMissingTypeStubs]

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = cast(Any, lazy_loader).attach_stub(__name__, __file__)
