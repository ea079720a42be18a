"""The contract of a store.

Implementations hold data and apply ``store/rules.py``; they call no hooks. Any method may be called
from any thread and any event loop. Records are returned as they were right after the operation.
"""

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from agl.errors import NotSupportedError
from agl.store.answers import (
    AttemptEnd as AttemptEnd,
    LightningStoreCapabilities as LightningStoreCapabilities,
    LightningStoreStatistics as LightningStoreStatistics,
    Turn as Turn,
)
from agl.store.operation import UNSET as UNSET, Unset as Unset, operation
from agl.store.packed_span import AnySpan, unpacked
from agl.store.reads import FilterLogic as FilterLogic, SortOrder as SortOrder, StoreReads
from agl.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    Document,
    EnqueueRolloutRequest,
    Failure,
    NamedResources,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Span,
    TaskInput,
    Worker,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


class LightningStore(StoreReads):
    """Where algorithm and runners meet.

    It holds a queue of rollouts, their attempts and spans, resources, workers, and documents. Ids
    are strings made by the store: ``ro-…``, ``at-…``, ``rs-…``. Instants are unix seconds. What
    only asks is in ``StoreReads``.

    A store writes the methods that are an ``@operation``; all others are made of those, and a store
    may have faster ones of its own.

    A store may leave methods out that nobody calls; each raises a ``NotSupportedError``.
    """

    async def call(self, operation: str, arguments: dict[str, Any]) -> Any:
        """Carry out an operation that the store has no method of its own for.

        Raises:
            NotSupportedError: It cannot.
        """
        kind = type(self).__name__
        raise NotSupportedError(
            f"{kind} has no {operation}(); write it in {kind}, or use another store"
        )

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """What this store can do; any thread and any event loop may call any store."""
        return {"thread_safe": True, "async_safe": True, "zero_copy": False, "otlp_traces": False}

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
        """Finish pending writes, wake who waits, free files and threads; once more does nothing."""

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
        about: Any = {"input": input, "mode": mode, "resources_id": resources_id, "config": config}
        request = EnqueueRolloutRequest(**about, metadata=metadata, key=key)
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
        given: dict[str, Any] = {"limit": 1, "worker_id": worker_id}
        if wait_seconds:  # which 0.3 did not know
            given["wait_seconds"] = wait_seconds
        claimed = await self.dequeue_many_rollouts(**given)
        return claimed[0] if claimed else None

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
        done = await self.turn(limit=limit, worker_id=worker_id, wait_seconds=wait_seconds, key=key)
        return done.claimed

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

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Store spans, all or none.

        A ``sequence_id`` of ``UNASSIGNED`` becomes the attempt's next number, in the order given.
        The first number of an attempt is above all that its rollout's attempts have by then. A
        span whose (rollout, attempt, span id) is stored already is skipped. The first span moves
        its attempt from ``preparing`` to ``running``, and revives an ``unresponsive`` one; each is
        a heartbeat. Spans of an ended or superseded attempt are kept as ``late``, but for those of
        an algorithm and a gateway's that ended before the attempt, and change no status.

        Returns:
            The spans that were added, with their numbers.

        Raises:
            UnknownRecordError: An attempt does not exist.
            InvalidRecordError: A span holds what no store keeps: a number that is not finite, say.
        """
        return unpacked((await self.turn(spans, limit=0)).spans)

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
        if_status: list[RolloutStatus] | Unset = UNSET,
    ) -> Rollout:
        """Change what is given; with ``if_status``, only while the rollout has one of these.

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

    @operation
    async def turn(
        self,
        spans: Sequence[AnySpan] = (),
        *,
        finish: AttemptEnd | None = None,
        limit: int = 1,
        worker_id: str | None = None,
        wait_seconds: float = 0.0,
        key: str | None = None,
    ) -> Turn:
        """Store the spans of an attempt, end it, and claim the next rollouts, in this order.

        All or nothing: if the end is refused, no span is stored and nothing is claimed. A turn may
        be repeated: spans that are stored are skipped, and an end that is recorded is accepted. See
        ``add_many_spans``, ``update_attempt`` and ``dequeue_many_rollouts`` for each part, and for
        what it raises.

        Args:
            spans: Packed or not; those that come back may be either.
            finish: How the attempt ended.
            wait_seconds: While the queue is empty, wait up to so long for the first one. By then
                the spans and the end are stored.
        """
        ...

    # --- resources

    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        """Store a new snapshot, which becomes the latest."""
        return await self.update_resources(f"rs-{secrets.token_hex(8)}", resources)

    @operation
    async def update_resources(
        self, resources_id: str, resources: NamedResources
    ) -> ResourcesUpdate:
        """Replace or make a snapshot; the latest now, unless its id begins with ``imported/``."""
        ...

    # --- workers

    @operation
    async def update_worker(
        self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET
    ) -> Worker:
        """Note a heartbeat; an unknown worker is made."""
        ...

    # --- documents, which libraries and plugins keep, and deleting

    @operation
    async def put_documents(self, documents: Sequence[Document]) -> None:
        """Keep documents, all or none.

        One with ``expect`` is kept if that version is stored (0: none is), so that of two writers
        who have read the same version one is refused. One without ``expect`` takes the place of a
        stored one whose version is the same or lower. Where a higher version is stored, that one
        stays: the write came late, from a process that was thought dead.

        Raises:
            ConflictError: Another version is stored than one expects.
            UnknownRecordError: A ``rollout_id`` does not exist.
        """
        ...

    @operation
    async def delete_documents(self, kind: str, keys: Sequence[str]) -> int:
        """Delete documents of a kind, and return how many were there."""
        ...

    @operation
    async def delete_rollouts(
        self, rollout_ids: Sequence[str], *, only_count: bool = False
    ) -> dict[str, int]:
        """Delete rollouts, their attempts and spans, and the documents about them.

        Resources that only these rollouts used go with them, but for the latest ones.

        Args:
            rollout_ids: Which; unknown ones are passed over.
            only_count: Delete nothing, and only say how much it would be.

        Returns:
            How many ``rollouts``, ``attempts``, ``spans``, ``documents`` and ``resources``.
        """
        ...
