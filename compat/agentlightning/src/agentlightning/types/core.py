"""Rollouts, attempts, workers."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from agentlightning._v01.records import (
    AgentLightningTask as AgentLightningTask,
    AgentResource as AgentResource,
    GenericResponse as GenericResponse,
    LitRollout as LitRollout,
    RolloutLegacy as RolloutLegacy,
    RolloutRawResultLegacy as RolloutRawResultLegacy,
    Task as Task,
    TaskIfAny as TaskIfAny,
)
from agl import (
    Hook as Hook,
    ParallelWorkerBase as ParallelWorkerBase,
    Triplet as Triplet,
)
from agl.types import (
    Attempt as Attempt,
    AttemptedRollout as AttemptedRollout,
    AttemptStatus as AttemptStatus,
    Dataset as Dataset,
    EnqueueRolloutRequest as EnqueueRolloutRequest,
    PaginatedResult as PaginatedResult,
    Rollout as Rollout,
    RolloutConfig as RolloutConfig,
    RolloutMode as RolloutMode,
    RolloutRawResult as RolloutRawResult,
    RolloutStatus as RolloutStatus,
    TaskInput as TaskInput,
    Worker as Worker,
    WorkerStatus as WorkerStatus,
)


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
