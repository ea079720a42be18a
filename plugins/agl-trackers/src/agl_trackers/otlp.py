"""OTLP: the spans and rewards of a run, sent on to a collector as its rollouts end."""

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import agl
from agl.algorithm.base import Algorithm
from agl.errors import ConfigError
from agl.store.base import LightningStore
from agl.types import Attempt, AttemptedRollout, Rollout, Span
from agl.utils.checks import check_numbers
from agl.utils.secrets import hide
from agl_trackers.delivery import Delivery
from agl_trackers.rollouts import Following
from agl_trackers.tracker import options_of, require

if TYPE_CHECKING:
    from agl_trackers.traces import Trace

MOST_AT_ONCE = 64
"""Rollouts that are sent at once, at most; one at first, and twice as many after each success."""
LONGEST_PAUSE = 30.0
"""Seconds between two tries where a collector fails again and again."""
LAST_TRIES = 3
"""So many rollouts are tried alone at the end, one after the other, before the rest is given up."""
MOST_COUNTED = 40
"""Pages of rollouts that are counted at the end, at most."""
LAST_TRY = 1.0
"""Seconds for which the end waits for a collector that has just failed."""

Ended = tuple[Rollout, Attempt, Sequence[Span]]
"""A rollout, an attempt of it that has ended, and that attempt's spans."""


@dataclass(kw_only=True, eq=False)
class OTLP(agl.Hook):
    """Sends spans and rewards to any collector of OTLP over HTTP: Phoenix, Langfuse, Jaeger.

    A rollout is a session, and each attempt of it a trace with a span of its own, the attempt's
    spans below. Model calls have OpenInference's attributes and GenAI's: messages, model, tokens.
    Rewards are OpenInference's evaluations and GenAI's events of the attempt's span; Phoenix gets
    them as annotations, too. It reads the store beside the run, and waits with what a collector
    does not take in time.
    """

    endpoint: str | None = None
    """Where spans go, as ``http://127.0.0.1:4318/v1/traces``. Left out: to ``phoenix``, or where
    OpenTelemetry's variables say (``OTEL_EXPORTER_OTLP_ENDPOINT``)."""
    phoenix: str | None = None
    """Address of a Phoenix, as ``http://127.0.0.1:6006``, which gets rewards as annotations."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    """Sent with each request, for a key; ``OTEL_EXPORTER_OTLP_HEADERS`` has the same."""
    project: str = "agl"
    """Project in Phoenix, and the name of the service for others."""
    every_seconds: float = 1.0
    """How often the store is asked for rollouts that have ended."""
    wait_seconds: float = 10.0
    """Longest that the end of the run waits for the collector."""

    def __repr__(self) -> str:
        """Without keys."""
        about = f"endpoint={self.endpoint!r}, phoenix={self.phoenix!r}, project={self.project!r}"
        return hide(f"OTLP({about}, headers for {list(self.headers)})")

    def __post_init__(self) -> None:
        check_numbers("OTLP", above=0, every_seconds=self.every_seconds)
        check_numbers("OTLP", least=0, wait_seconds=self.wait_seconds)
        for name in ("endpoint", "phoenix"):
            address = getattr(self, name)
            if address is not None and not address.startswith(("http://", "https://")):
                raise ConfigError(
                    f"OTLP: {name}: expected an address with http:// or https://, got {address!r}"
                )
        require("otlp", "opentelemetry.exporter.otlp.proto.http")
        self._task: asyncio.Task[None] | None = None
        """Set when a run starts, as is all else that belongs to one."""

    async def on_run_start(self, algorithm: Algorithm, store: LightningStore) -> None:
        run_id, _ = algorithm.get_run() or ("run", 1)
        self._task, self._ending = None, asyncio.Event()
        self._delivery, self._following = Delivery("otlp"), Following(store, run_id)
        self._pending: deque[AttemptedRollout] = deque()
        """Rollouts that have ended and are not sent."""
        self._alone: dict[str, int] = {}
        """Rollouts that were not taken alone -> how many tries had succeeded until then."""
        self._failures = self._sent = 0
        """Tries that failed since one succeeded, and that succeeded."""
        self._delivery.put("the start", partial(self._open, run_id))
        await self._following.start()
        self._task = asyncio.create_task(self._follow(store))

    async def on_run_end(self) -> None:
        if self._task is None:
            return
        self._ending.set()
        loop = asyncio.get_running_loop()
        seconds = min(self.wait_seconds, LAST_TRY) if self._failures else self.wait_seconds
        until = loop.time() + seconds
        left = max(0.0, seconds - self._delivery.seconds_under_way)
        await asyncio.wait([self._task], timeout=left)
        if not self._task.done():
            self._task.cancel()
        if self._pending:
            hung = self._delivery.seconds_under_way
            why = f"the collector had not answered after {hung:.0f} s" if hung else "it had failed"
            self._delivery.drop(why, len(self._pending))
        await self._count_unread()
        left = max(0.0, until - loop.time())
        await self._delivery.close(left, lambda: self._exporter.shutdown(), hung=seconds)

    async def _follow(self, store: LightningStore) -> None:
        """Until the run ends and all is read: read what has ended, as fast as it is sent.

        What fails is tried again after a pause, half as much at once, so that a collector that
        fails or hangs costs next to nothing, and what cannot be taken ends up alone.
        """
        delivery, size, alone = self._delivery, 1, 0
        await delivery.idle()  # nothing is read for what cannot be opened, or hangs there
        while not delivery.is_failing:
            is_last, is_sent, is_all = self._ending.is_set(), True, False
            try:
                if len(self._pending) < size:
                    some = await self._following.ended(all_open=is_last)
                    self._pending.extend(some)
                    is_all = not some
            except Exception as error:
                delivery.warn("reading the store", error)
                is_sent = False
            if self._pending:
                is_sent = await self._try(store, size)
            if is_sent:
                self._failures, alone = 0, 0
                size = min(2 * size, MOST_AT_ONCE)
                if is_all and not self._pending:
                    if is_last:
                        return
                    await self._rest(self.every_seconds)
                continue
            self._failures += 1
            alone += size == 1
            if is_last and alone >= min(LAST_TRIES, max(1, len(self._pending))):
                return
            size = max(1, size // 2)
            await self._rest(min(2.0**self._failures, LONGEST_PAUSE))

    async def _try(self, store: LightningStore, size: int) -> bool:
        """Read and send the first of those that wait; whether they were sent."""
        some = [self._pending[n] for n in range(min(size, len(self._pending)))]
        try:
            batch = [one for rollout in some for one in await _attempts(store, rollout)]
            sent = self._delivery.put("spans", partial(self._send, batch), 0)
            is_sent = sent is not None and bool(await asyncio.wrap_future(sent))
        except Exception as error:
            self._delivery.warn("reading rollouts", error)
            is_sent = False
        for _ in some:
            self._pending.popleft()
        if is_sent:
            self._sent += 1
        elif len(some) > 1:
            self._pending.extendleft(reversed(some))
        elif self._alone.setdefault(some[0].rollout_id, self._sent) == self._sent:
            self._pending.append(some[0])  # perhaps nothing can be sent at present
        else:
            self._delivery.drop("those after them were taken, and they were not")
        return is_sent

    async def _count_unread(self) -> None:
        """What was not even looked at, as the collector failed or hung."""
        unread = 0
        with contextlib.suppress(Exception):
            for _ in range(MOST_COUNTED):
                some = await self._following.ended(all_open=True)
                unread += len(some)
                if not some:
                    break
        if unread:
            self._delivery.drop("the run had ended before they were read", unread)
        if still_open := self._following.num_open:
            self._delivery.drop("their rollouts had not ended when the run did", still_open)

    async def _rest(self, seconds: float) -> None:
        """At the end of the run there is none."""
        if self._ending.is_set():
            await asyncio.sleep(0.02)
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ending.wait(), seconds)

    # --- in the thread of the delivery

    def _open(self, run_id: str) -> None:
        self._delivery.doing("the import of OpenTelemetry's exporter")
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource

        self._delivery.doing("the start")
        # Where nobody has set up a log, its words of each try would go bare to standard error; what
        # was not taken is said by ours.
        logging.getLogger("opentelemetry.exporter.otlp").addHandler(logging.NullHandler())
        address = self.endpoint
        if address is None and self.phoenix is not None:
            address = f"{self.phoenix.rstrip('/')}/v1/traces"
        self._exporter = OTLPSpanExporter(endpoint=address, headers=self.headers or None)
        about = {"service.name": self.project, "openinference.project.name": self.project}
        self._resource = Resource({**about, "agl.run": run_id})

    def _send(self, batch: Sequence[Ended]) -> bool:
        """Whether the collector took it; an attempt that cannot be written is counted."""
        from agl_trackers.traces import trace_of

        traces: list[Trace] = []
        unwritten = Counter[str]()
        for ended in batch:
            try:
                traces.append(trace_of(*ended, self._resource))
            except Exception as error:
                unwritten[f"their spans cannot be written ({type(error).__name__})"] += 1
                self._delivery.warn(f"the spans of attempt {ended[1].attempt_id!r}", error)
        try:
            if traces:
                self._export(traces)
        except Exception as error:
            self._delivery.warn("sending", error)
            return False
        self._delivery.took(len(traces))
        for why, number in unwritten.items():
            self._delivery.drop(why, number)
        return True

    def _export(self, traces: "Sequence[Trace]") -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        spans = [span for trace in traces for span in trace.spans]
        if self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise ConnectionError("the collector did not take the spans")
        if self.phoenix is not None:
            self._annotate(self.phoenix, traces)

    def _annotate(self, phoenix: str, traces: "Sequence[Trace]") -> None:
        """Phoenix's own way: of what OTLP carries it makes no annotations."""
        import requests  # comes with the exporter

        annotations = [
            {
                "span_id": trace.root_id,
                "name": reward.name,
                "annotator_kind": "CODE",
                "result": {"score": reward.value},
            }
            for trace in traces
            for reward in trace.rewards
        ]
        if annotations:
            address = f"{phoenix.rstrip('/')}/v1/span_annotations"
            body = {"data": annotations}
            answer = requests.post(address, json=body, headers=self.headers, timeout=10)
            answer.raise_for_status()

    def __getstate__(self) -> dict[str, Any]:
        return {**options_of(self), "_task": None}


async def _attempts(store: LightningStore, rollout: AttemptedRollout) -> list[Ended]:
    """The attempts of a rollout, each with its spans."""
    attempts = [rollout.attempt]
    if rollout.attempt.sequence_id > 1:
        attempts = list(await store.query_attempts(rollout.rollout_id))
    spans = await store.query_spans(rollout.rollout_id)
    return [
        (rollout, attempt, [span for span in spans if span.attempt_id == attempt.attempt_id])
        for attempt in attempts
    ]
