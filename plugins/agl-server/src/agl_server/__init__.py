"""agl-server: the store over HTTP, both sides, and runners in processes of their own.

``client`` asks, ``server`` answers, ``calls`` says where; ``processes`` is the strategy ``cs``.
"""

from typing import Any, cast

import lazy_loader  # pyright: ignore[reportMissingTypeStubs]

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = cast(Any, lazy_loader).attach_stub(__name__, __file__)
