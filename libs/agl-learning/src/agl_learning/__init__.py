"""What algorithms that train share: collecting, advantages, the loop, resuming, reports."""

from typing import Any, cast

import lazy_loader  # pyright: ignore[reportMissingTypeStubs]

__getattr__, __dir__, __all__ = cast(Any, lazy_loader).attach_stub(__name__, __file__)
