"""agl-verl: train the model behind an agent with verl, on one GPU or on a Ray cluster.

``VERL`` is the algorithm (``algorithm: verl``). Nothing heavy is imported before it runs: neither
verl nor ray nor torch.
"""

from typing import Any, cast

import lazy_loader  # pyright: ignore[reportMissingTypeStubs]

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = cast(Any, lazy_loader).attach_stub(__name__, __file__)
