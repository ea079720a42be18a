"""The contract of a store.

Implementations hold data and apply ``store/rules.py``; they call no hooks. Any method may be called
from any thread and any event loop. Records are returned as they were right after the operation.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

from pydantic import ConfigDict

from agl.errors import NotSupportedError
from agl.store.operation_table import UNSET as UNSET, Operation, Unset as Unset, operation
from agl.store.packed import PackedSpan, unpacked
from agl.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    Failure,
    LedgerPart,
    NamedResources,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Span,
    TaskInput,
    Worker,
    WorkerStatus,
)
from agl.types.records import Record

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


SortOrder = Literal["asc", "desc"]
FilterLogic = Literal["and", "or"]


class LightningStoreCapabilities(TypedDict, total=False):
    """What a store can do; absent means False."""

    thread_safe: bool
    async_safe: bool
    zero_copy: bool
    """Processes that get the object (by fork or pickle) see the same data."""
    otlp_traces: bool
    """``otlp_traces_endpoint`` takes OTLP."""


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

    spans: "Sequence[Span | PackedSpan]"
    """Those that were added, as stored."""
    attempt: Attempt | None
    """The ended attempt as it is now; None when none was to be ended."""
    claimed: Sequence[AttemptedRollout]


class LightningStore:
    """Where algorithm and runners meet.

    It holds a queue of rollouts, their attempts and spans, resources, and workers.

    Ids are strings made by the store: ``ro-…``, ``at-…``, ``rs-…``. Instants are unix seconds.
    Queries take ``limit`` -1 for "all", an ``offset``, a field to sort by and an order, and return
    a ``PaginatedResult``; an unknown sort field, ``limit`` 0 or below -1, or a negative offset is
    an ``InvalidQueryError``.

    A store that has records in JSON may have a method ``NAME_json`` beside an operation: the same
    arguments, and the JSON of the answer, or None for None. A server asks that one.

    A store may leave methods out that nobody calls; each raises a ``NotSupportedError``. One that
    can be called from any thread says so in ``capabilities``; any other gets one call at a time
    (see ``LightningStoreThreaded``).
    """

    async def call(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        """Carry out an operation that the store has no method of its own for.

        Args:
            operation: Which.
            arguments: What was given, by name.

        Raises:
            NotSupportedError: It cannot.
        """
        kind = type(self).__name__
        raise NotSupportedError(
            f"{kind} has no {operation.name}(); write it in {kind}, or use another store"
        )

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """What this store can do; nothing, until its author says so."""
        return {"thread_safe": False, "async_safe": False, "zero_copy": False, "otlp_traces": False}

    def otlp_traces_endpoint(self) -> str:
        """Address that takes OTLP/HTTP traces for this store.

        Raises:
            NotImplementedError: The store has none; see ``capabilities``.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no OTLP endpoint; serve it with LightningStoreServer"
        )

    async def statistics(self) -> LightningStoreStatistics:
        """Counters; a store that counts nothing gives its name."""
        return {"name": type(self).__name__}

    async def check_health(self) -> None:
        """Find out whether the store keeps at present what it is given.

        Raises:
            StoreUnavailableError: It does not, and why.
        """

    async def close(self) -> None:
        """Finish pending writes; free files and threads. A second call does nothing."""

    # --- putting work in, taking it out

    async def enqueue_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        key: str | None = None,
    ) -> Rollout:
        """Queue one task; see ``enqueue_many_rollouts``, and ``EnqueueRolloutRequest`` for all."""
        request = EnqueueRolloutRequest(
            input=input,
            mode=mode,
            resources_id=resources_id,
            config=config,
            metadata=metadata,
            key=key,
        )
        return (await self.enqueue_many_rollouts([request]))[0]

    @operation
    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest]
    ) -> Sequence[Rollout]:
        """Queue tasks, first in first out; one whose ``key`` is stored already is not queued again.

        A ``resources_id`` of None becomes the latest snapshot of this moment, or stays None when
        there is none.

        Returns:
            The rollouts, status ``queuing`` where they are new, in the order of the requests.

        Raises:
            UnknownRecordError: A ``resources_id`` does not exist. Nothing was queued.
        """
        ...

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait_seconds: float = 0.0
    ) -> AttemptedRollout | None:
        """Claim one rollout, or None; see ``dequeue_many_rollouts``."""
        claimed = await self.dequeue_many_rollouts(
            limit=1, worker_id=worker_id, **_if_given(wait_seconds=wait_seconds)
        )
        return claimed[0] if claimed else None

    @operation
    async def dequeue_many_rollouts(
        self,
        *,
        limit: int = 1,
        worker_id: str | None = None,
        wait_seconds: float = 0.0,
        key: str | None = None,
    ) -> Sequence[AttemptedRollout]:
        """Claim up to ``limit`` queued rollouts; each gets a new attempt, status ``preparing``.

        Args:
            limit: At most so many; 0 or less claims nothing.
            worker_id: Who claims; the worker becomes ``busy``, or ``idle`` when nothing was found
                and it has no open attempt.
            wait_seconds: While the queue is empty, wait up to so long for the first one. 0 returns
                at once.
            key: Unique name of this claim, for those who may have to ask twice: what it has claimed
                already, and nobody has begun yet, is the answer again.

        Returns:
            What was claimed, possibly nothing. No rollout is ever handed out twice for one attempt.
        """
        ...

    @operation
    async def start_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
        *,
        key: str | None = None,
    ) -> AttemptedRollout:
        """Make a rollout and its first attempt at once, past the queue.

        See ``EnqueueRolloutRequest.key``: where a rollout with the key has an attempt already, none
        is made.
        """
        ...

    @operation
    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None, *, key: str | None = None
    ) -> AttemptedRollout:
        """Make another attempt of a rollout, which leaves the queue if it was there.

        Args:
            rollout_id: Whose attempt.
            worker_id: Who works on it.
            key: Unique name of this request: an attempt that it has made already, and that nobody
                has begun yet, is the answer again.

        Raises:
            UnknownRecordError: No such rollout.
            InvalidTransitionError: The rollout has ended.
        """
        ...

    # --- spans

    async def add_span(self, span: Span) -> Span | None:
        """Store one span; None when its id is stored already."""
        added = await self.add_many_spans([span])
        return added[0] if added else None

    @operation
    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Store spans, all or none.

        A ``sequence_id`` of ``UNASSIGNED`` becomes the attempt's next number, in the order given.
        The first number of an attempt is above all that its rollout's attempts have by then. A
        span whose (rollout, attempt, span id) is stored already is skipped. The first span moves
        its attempt from ``preparing`` to ``running``, and revives an ``unresponsive`` one; each
        counts as a heartbeat. Spans of an ended attempt are kept and change no status.

        Returns:
            The spans that were added, as stored.

        Raises:
            UnknownRecordError: An attempt does not exist.
            InvalidRecordError: A span holds what no store keeps: a number that is not finite, say.
        """
        ...

    async def add_otel_span(
        self,
        rollout_id: str,
        attempt_id: str,
        readable_span: "ReadableSpan",
        sequence_id: int | None = None,
    ) -> Span | None:
        """Store a finished span of the OpenTelemetry SDK; None when its id is stored already."""
        return await self.add_span(
            Span.from_opentelemetry(readable_span, rollout_id, attempt_id, sequence_id or 0)
        )

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        """Reserve the attempt's next span number."""
        return (await self.get_many_span_sequence_ids([(rollout_id, attempt_id)]))[0]

    @operation
    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        """Reserve span numbers, one per pair; a pair that stands twice gets two.

        Raises:
            UnknownRecordError: An attempt does not exist.
        """
        ...

    @operation
    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"] | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
    ) -> PaginatedResult[Span]:
        """Spans of a rollout, or of one attempt of it. Empty for unknown ids.

        Args:
            rollout_id: Whose spans.
            attempt_id: Only this attempt; ``"latest"`` for the newest; None for all.
            filter_logic: How the exact and ``_contains`` filters combine; the two ids always hold.
        """
        ...

    # --- looking at work

    @operation
    async def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
    ) -> PaginatedResult[Rollout]:
        """Rollouts; those with an attempt come as ``AttemptedRollout``.

        An empty ``status_in`` or ``rollout_id_in`` matches nothing. ``status`` and ``rollout_ids``
        are 0.3's older names of the two. Default order: as enqueued.
        """
        ...

    @operation
    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        """The rollout (an ``AttemptedRollout`` once it has an attempt), or None."""
        ...

    @operation
    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        """Attempts of a rollout; empty for an unknown one."""
        ...

    @operation
    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """The newest attempt, or None."""
        ...

    @operation
    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> list[Rollout]:
        """Wait until all these rollouts have ended.

        Args:
            rollout_ids: Which; unknown ids are left out of the answer and not waited for.
            timeout: Seconds to wait at most; None for as long as it takes, 0 to look only.

        Returns:
            Those that have ended, in the order of ``rollout_ids``.
        """
        ...

    # --- changing work

    @operation
    async def update_rollout(
        self,
        rollout_id: str,
        input: TaskInput | Unset = UNSET,
        mode: RolloutMode | None | Unset = UNSET,
        resources_id: str | None | Unset = UNSET,
        status: RolloutStatus | Unset = UNSET,
        config: RolloutConfig | Unset = UNSET,
        metadata: dict[str, Any] | None | Unset = UNSET,
    ) -> Rollout:
        """Change what is given.

        Raises:
            UnknownRecordError: No such rollout.
            InvalidTransitionError: The status cannot be reached from the present one.
        """
        ...

    @operation
    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"],
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: dict[str, Any] | None | Unset = UNSET,
        error: Failure | Unset = UNSET,
    ) -> Attempt:
        """Change what is given.

        The latest attempt's status moves the rollout; an older attempt's does not. Reporting the
        final status that an attempt has already is accepted and changes nothing. Any
        ``last_heartbeat_time`` is a sign of life of this moment: what is stored is the store's own
        time, for the clock of the machine that sends it may be wrong.

        Raises:
            UnknownRecordError: No such attempt.
            InvalidTransitionError: The status cannot be reached from the present one.
        """
        ...

    # --- a runner's whole turn

    async def turn(
        self,
        spans: "Sequence[Span | PackedSpan]" = (),
        *,
        finish: AttemptEnd | None = None,
        limit: int = 1,
        worker_id: str | None = None,
        wait_seconds: float = 0.0,
        key: str | None = None,
    ) -> Turn:
        """Store the spans of an attempt, end it, and claim the next rollouts, in this order.

        It is what ``add_many_spans``, ``update_attempt`` and ``dequeue_many_rollouts`` do, and
        raises what they raise. A store may do all of it at once, all or nothing; one that does not
        keeps the spans where the end is refused. A turn may be repeated: spans that are stored are
        skipped, and an end that is recorded is accepted.

        Args:
            spans: Packed or not; those that come back may be either.
            finish: How the attempt ended.
            limit: Claim at most so many; 0 claims nothing.
            worker_id: Who claims.
            wait_seconds: While the queue is empty, wait up to so long for the first one.
            key: Unique name of this claim; see ``dequeue_many_rollouts``.
        """
        added: Sequence[Span | PackedSpan] = ()
        if spans:
            added = await self.add_many_spans(unpacked(spans))
        attempt = None
        if finish is not None:
            attempt = await self.update_attempt(
                finish.rollout_id,
                finish.attempt_id,
                status=finish.status,
                **_if_given(error=finish.error),
            )
        claimed: Sequence[AttemptedRollout] = ()
        if limit > 0:
            claimed = await self.dequeue_many_rollouts(
                limit=limit, worker_id=worker_id, **_if_given(wait_seconds=wait_seconds, key=key)
            )
        return Turn(added, attempt, claimed)

    # --- the ledger

    @operation
    async def add_ledger_parts(self, parts: Sequence[LedgerPart]) -> None:
        """Keep accounts of rollouts, all or none.

        They are apart from spans: what an agent records cannot stand among them. One of the same
        rollout, run, algorithm and step takes the place of the one before, so that a write may be
        repeated; one of an earlier ``generation`` does not, so that a late write of a process that
        was thought dead changes nothing.

        Raises:
            UnknownRecordError: A rollout does not exist. Nothing was stored.
        """
        ...

    @operation
    async def query_ledger_parts(
        self,
        *,
        rollout_id_in: Sequence[str] | None = None,
        run: str | None = None,
        step: int | None = None,
        lost: bool | None = None,
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[LedgerPart]:
        """Accounts of rollouts; default order: as they were first added.

        Args:
            rollout_id_in: Only of these; an empty one matches nothing.
            run: Only of this run.
            step: Only of this step.
            lost: Only those that the run went back behind, or only those that count; None for all.
        """
        ...

    # --- resources

    @operation
    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        """Store a new snapshot, which becomes the latest."""
        ...

    @operation
    async def update_resources(
        self, resources_id: str, resources: NamedResources
    ) -> ResourcesUpdate:
        """Replace a snapshot, or make it under this id; it becomes the latest."""
        ...

    @operation
    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        """The snapshot, or None."""
        ...

    @operation
    async def get_latest_resources(self) -> ResourcesUpdate | None:
        """The snapshot that was added or replaced last, or None."""
        ...

    @operation
    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[ResourcesUpdate]:
        """Snapshots; default order: as created."""
        ...

    # --- workers

    @operation
    async def query_workers(
        self,
        *,
        status_in: Sequence[WorkerStatus] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Worker]:
        """Workers; default order: as first seen."""
        ...

    @operation
    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        """The worker, or None."""
        ...

    @operation
    async def update_worker(
        self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET
    ) -> Worker:
        """Note a heartbeat; an unknown worker is made."""
        ...


def _if_given(**options: Any) -> dict[str, Any]:
    """Options that a store written for 0.3 does not know; it can do without most of the time."""
    return {name: value for name, value in options.items() if value}
