"""A model behind an address: chat completions, a batched sampler, engines as processes."""

from typing import Any, cast

import lazy_loader  # pyright: ignore[reportMissingTypeStubs]

__getattr__, __dir__, __all__ = cast(Any, lazy_loader).attach_stub(__name__, __file__)
