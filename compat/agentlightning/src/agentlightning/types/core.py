"""Rollouts, attempts, workers."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from agentlightning._v01.records import *
from agl import Hook as Hook, ParallelWorkerBase as ParallelWorkerBase, Triplet as Triplet
from agl.types import *


class FilterField(TypedDict, total=False):
    """How one field is matched."""

    exact: Any
    within: Sequence[Any]
    contains: str


class SortOptions(TypedDict):
    """By which field, in which order."""

    name: str
    order: Literal["asc", "desc"]


FilterOptions = Mapping[str, FilterField | Literal["and", "or"] | Mapping[str, FilterField]]
"""Field -> its filter; and ``_aggregate``, and ``_must``."""
