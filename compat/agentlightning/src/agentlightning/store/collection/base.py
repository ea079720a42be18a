"""What is left of the collections under the original's stores."""

from agentlightning._names import rest
from agentlightning.types.core import (
    FilterOptions as FilterOptions,
    PaginatedResult as PaginatedResult,
    SortOptions as SortOptions,
)

__getattr__ = rest(__name__)
