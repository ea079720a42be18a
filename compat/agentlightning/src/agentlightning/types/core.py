"""Rollouts, attempts, workers."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field

from agl import Hook as Hook, ParallelWorkerBase as ParallelWorkerBase, Triplet as Triplet
from agl.types import *
from agl.types import NamedResources, ResourceUnion, Span


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


# --- of 0.1, as its server and its client send them

Mode = Literal["train", "val", "test"]

AgentResource = ResourceUnion
"""A tutorial's name for what an agent is given."""


class Task(BaseModel):
    """One rollout to be done, as a server hands it out."""

    rollout_id: str
    input: Any
    """What the agent gets as ``task``."""
    mode: Mode | None = None
    resources_id: str | None = None
    """None: the newest ones."""
    create_time: float | None = None
    """Unix seconds, as all times here."""
    last_claim_time: float | None = None
    num_claims: int | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])


class TaskIfAny(BaseModel):
    """The answer of ``GET /task``."""

    is_available: bool
    task: Task | None = None


class GenericResponse(BaseModel):
    """The answer of ``POST /rollout``."""

    status: str = "success"
    message: str | None = None
    data: dict[str, Any] | None = None


class RolloutLegacy(BaseModel):
    """What came of a task, as a runner reports it."""

    rollout_id: str
    task: Task | None = None
    """Set by runners whose agent failed, and by nobody else."""
    final_reward: float | None = None
    triplets: list[Triplet] | None = None
    trace: list[dict[str, Any]] | None = None
    """Spans in the JSON of OpenTelemetry's SDK: ``json.loads(span.to_json())``."""
    logs: list[str] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])


RolloutRawResultLegacy = (
    float | list[Triplet] | list[dict[str, Any]] | list[Any] | RolloutLegacy | None
)
"""What an agent of 0.1 may return; the list of any is one of OpenTelemetry's spans."""


class AgentLightningTask(BaseModel):
    """A tutorial's name for a task of its own: a name, and what there is to do."""

    model_config = ConfigDict(extra="allow")

    name: str
    context: str


class LitRollout(BaseModel):
    """What ``Trainer.dev(agent, task=...)`` brings, as a tutorial has it."""

    rollout_id: str
    final_reward: float | None
    traces: list[Span]
    resources: NamedResources
