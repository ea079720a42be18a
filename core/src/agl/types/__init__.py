"""Every noun of agl, and nothing but data.

``records`` is the work, ``spans`` what it did, ``resources`` what it uses. Runs are in agl-runs;
model calls, credit and the ledger in agl-records.
"""

from collections.abc import Mapping
from typing import Any

from agl.types.records import (
    Attempt as Attempt,
    AttemptedRollout as AttemptedRollout,
    AttemptStatus as AttemptStatus,
    Dataset as Dataset,
    Document as Document,
    EnqueueRolloutRequest as EnqueueRolloutRequest,
    Failure as Failure,
    PaginatedResult as PaginatedResult,
    Rollout as Rollout,
    RolloutConfig as RolloutConfig,
    RolloutMode as RolloutMode,
    RolloutStatus as RolloutStatus,
    TaskInput as TaskInput,
    Worker as Worker,
    WorkerStatus as WorkerStatus,
    private_of as private_of,
    public_failure as public_failure,
    without_private as without_private,
)
from agl.types.resources import (
    LLM as LLM,
    NamedResources as NamedResources,
    PromptTemplate as PromptTemplate,
    ProxyLLM as ProxyLLM,
    Resource as Resource,
    ResourcesUpdate as ResourcesUpdate,
    ResourceUnion as ResourceUnion,
)
from agl.types.spans import (
    UNASSIGNED as UNASSIGNED,
    UNSAID as UNSAID,
    Attributes as Attributes,
    AttributeValue as AttributeValue,
    Event as Event,
    Link as Link,
    OtelResource as OtelResource,
    RewardDimension as RewardDimension,
    Span as Span,
    SpanContext as SpanContext,
    SpanCoreFields as SpanCoreFields,
    SpanLike as SpanLike,
    StatusCode as StatusCode,
    TraceState as TraceState,
    TraceStatus as TraceStatus,
)

RolloutRawResult = None | float | str | list[Any] | Mapping[str, Any]
"""What an agent may return: nothing, the final reward, several by name (the final one first), or
the whole list of its spans. One with a grader returns any JSON value, which is graded."""
GradeResult = None | float | Mapping[str, float]
"""What a grader may return: no reward, a finite number, or several by name, the primary one first.
"""
