"""OTLP: the spans and rewards of a run, sent on to a collector as its rollouts end."""

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import agl
from agl.errors import ConfigError
from agl.types import Attempt, AttemptedRollout, Rollout, Span
from agl.utils.checks import check_numbers
from agl_trackers.delivery import Delivery
from agl_trackers.following import Following
from agl_trackers.tracker import require

if TYPE_CHECKING:
    from agl.algorithm.base import Algorithm
    from agl.store.base import LightningStore

MOST_WAITING = 4
"""Batches that wait to be sent, at most; what comes after them is read later."""
LONGEST_PAUSE = 30.0
"""Seconds between two tries where a collector fails again and again."""
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
    """Of Phoenix, and the name of the service for others."""
    every_seconds: float = 1.0
    """How often the store is asked for rollouts that have ended."""
    wait_seconds: float = 10.0
    """Longest that the end of the run waits for the collector."""
    _delivery: Delivery | None = field(default=None, init=False, repr=False)
    _following: Following | None = field(default=None, init=False, repr=False)
    _task: Any = field(default=None, init=False, repr=False)
    _exporter: Any = field(default=None, init=False, repr=False)
    _resource: Any = field(default=None, init=False, repr=False)
    _ending: Any = field(default=None, init=False, repr=False)
    _woken: Any = field(default=None, init=False, repr=False)
    _failures: int = field(default=0, init=False, repr=False)

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

    async def on_run_start(self, algorithm: "Algorithm", store: "LightningStore") -> None:
        run_id, _ = algorithm.get_run() or ("run", 1)
        self._delivery, self._failures = Delivery("otlp"), 0
        self._ending, self._woken = threading.Event(), asyncio.Event()
        self._following = Following(store, run_id)
        self._delivery.put("the start", partial(self._open, run_id))
        await self._following.start()
        self._task = asyncio.create_task(self._follow(store, self._following))

    async def on_run_end(self) -> None:
        if self._delivery is None or self._task is None or self._following is None:
            return
        self._ending.set()
        self._woken.set()
        loop = asyncio.get_running_loop()
        seconds = min(self.wait_seconds, LAST_TRY) if self._failures else self.wait_seconds
        until = loop.time() + seconds
        left = max(0.0, seconds - self._delivery.seconds_under_way)
        await asyncio.wait([self._task], timeout=left)
        if not self._task.done():
            self._task.cancel()
            self._delivery.drop("rollouts were left to be read")
        if num_open := self._following.num_open:
            self._delivery.drop("their rollouts had not ended when the run did", num_open)
        await self._delivery.close(max(0.0, until - loop.time()), self._shut)

    async def _follow(self, store: "LightningStore", following: Following) -> None:
        """Until the run ends and all is read: read what has ended, as fast as it is sent."""
        delivery, is_last = self._delivery, False
        assert delivery is not None
        while not is_last:
            is_last = self._ending.is_set()
            some: list[Rollout] = []
            try:
                while delivery.num_waiting < MOST_WAITING and (
                    some := await following.ended(all_open=is_last)
                ):
                    batch = [one for rollout in some for one in await _attempts(store, rollout)]
                    delivery.put(f"{len(batch)} attempts", partial(self._send, batch))
                is_last = is_last and delivery.num_waiting < MOST_WAITING
            except Exception as error:
                why = f"rollouts could not be read ({type(error).__name__})"
                delivery.drop(why, max(1, len(some)))
            if self._ending.is_set():
                await asyncio.sleep(0.02)
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), self.every_seconds)

    # --- in the thread of the delivery

    def _open(self, run_id: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource

        address = self.endpoint
        if address is None and self.phoenix is not None:
            address = f"{self.phoenix.rstrip('/')}/v1/traces"
        self._exporter = OTLPSpanExporter(endpoint=address, headers=self.headers or None)
        about = {"service.name": self.project, "openinference.project.name": self.project}
        self._resource = Resource({**about, "agl.run": run_id})

    def _send(self, batch: Sequence[Ended]) -> None:
        try:
            self._send_at_once(batch)
            self._failures = 0
        except Exception:
            self._failures += 1
            # What fails at once, for a wrong key say, is not to cost as much as what works.
            self._ending.wait(min(2.0**self._failures, LONGEST_PAUSE))
            raise

    def _send_at_once(self, batch: Sequence[Ended]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        from agl_trackers.traces import trace_of

        traces = [trace_of(*ended, self._resource) for ended in batch]
        spans = [span for trace in traces for span in trace.spans]
        if self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise ConnectionError("the collector did not take the spans")
        if self.phoenix is not None:
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
                self._annotate(annotations)

    def _annotate(self, annotations: Sequence[Any]) -> None:
        """Phoenix's own way: of what OTLP carries it makes no annotations."""
        import requests  # comes with the exporter

        assert self.phoenix is not None
        answer = requests.post(
            f"{self.phoenix.rstrip('/')}/v1/span_annotations",
            json={"data": list(annotations)},
            headers=self.headers,
            timeout=10,
        )
        answer.raise_for_status()

    def _shut(self) -> None:
        self._exporter.shutdown()

    def __getstate__(self) -> dict[str, Any]:
        gone = ("_delivery", "_following", "_task", "_exporter", "_resource", "_ending")
        return {**vars(self), **dict.fromkeys((*gone, "_woken"))}


async def _attempts(store: "LightningStore", rollout: Rollout) -> list[Ended]:
    """The attempts of a rollout, each with its spans."""
    assert isinstance(rollout, AttemptedRollout)
    latest = rollout.attempt
    attempts = [latest]
    if latest.sequence_id > 1:
        attempts = list(await store.query_attempts(rollout.rollout_id))
    spans = await store.query_spans(rollout.rollout_id)
    return [
        (rollout, attempt, [span for span in spans if span.attempt_id == attempt.attempt_id])
        for attempt in attempts
    ]
