"""The data of the contract: what a store says of itself, a runner's turn, a writer's fence."""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Final, Literal, NamedTuple, TypedDict

from pydantic import ConfigDict

from agl.store.packed_span import AnySpan
from agl.types import Attempt, AttemptedRollout, Failure
from agl.types.records import Record


class LightningStoreCapabilities(TypedDict, total=False):
    """What a store can do; absent means False."""

    thread_safe: bool
    async_safe: bool
    zero_copy: bool
    """Processes that get the object (by fork or pickle) see the same data."""
    otlp_traces: bool
    """``otlp_traces_endpoint`` takes OTLP."""
    persistent: bool
    """What it holds outlives the process that uses it, so a run in it can go on. Not in 0.3."""


class LightningStoreStatistics(TypedDict, total=False):
    """Counters of a store."""

    name: str
    total_rollouts: int
    total_attempts: int
    total_spans: int
    total_resources: int
    total_workers: int
    uptime: float
    """Seconds since the store was opened."""


class AttemptEnd(Record):
    """The final status of an attempt, as ``LightningStore.turn`` reports it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rollout_id: str
    attempt_id: str
    status: Literal["succeeded", "failed", "timeout"]
    error: Failure | None = None


class Turn(NamedTuple):
    """What ``LightningStore.turn`` did."""

    spans: Sequence[AnySpan]
    """Those that were added, as stored."""
    attempt: Attempt | None
    """The ended attempt as it is now; None when none was to be ended."""
    claimed: Sequence[AttemptedRollout]


class Fence(NamedTuple):
    """Names a document whose version says which writer is current; its body says who that is.

    A writer with a lower version may not write.
    """

    kind: str
    key: str
    version: int


FENCE: Final[ContextVar[Fence | None]] = ContextVar("agl_fence", default=None)
"""The fence of the current caller; a store raises a ``ReplacedError`` and writes nothing if the
document's version is higher. A caller without a fence is never refused."""

RETRY_SECONDS: Final[ContextVar[float]] = ContextVar("agl_store_retry_seconds", default=60.0)
"""So long a call waits for a store whose disk is full, about as a client over HTTP asks again. A
server sets 0 for what it answers, as its clients decide how long they wait."""
