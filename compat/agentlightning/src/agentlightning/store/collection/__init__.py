"""In the original the collections under its stores; see ``_refused``."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import *
