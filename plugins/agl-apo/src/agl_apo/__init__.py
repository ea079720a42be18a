"""agl-apo: prompts that get better, and how sure we are of it.

``APO`` (``algorithm: apo``) and ``GEPA`` (``algorithm: gepa``) are the algorithms. Nothing heavy is
imported before one of them is used.
"""

from typing import Any, cast

import lazy_loader  # pyright: ignore[reportMissingTypeStubs]

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = cast(Any, lazy_loader).attach_stub(__name__, __file__)
