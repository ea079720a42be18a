"""The names; each is imported when it is first used."""

from .base import (
    FilterOptions as FilterOptions,
    PaginatedResult as PaginatedResult,
    SortOptions as SortOptions,
)
