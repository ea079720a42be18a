"""The spans of one trace context, on their way to the store."""

import asyncio
import logging
import threading
import time

from opentelemetry.sdk.trace import ReadableSpan

from agl.errors import TracerError
from agl.tracer.base import SpanTarget
from agl.tracer.routing import new_trace_id, untraced_context
from agl.types import UNASSIGNED, Span, TraceStatus

logger = logging.getLogger(__name__)

BATCH_SIZE = 64
"""Most spans in one write; so many waiting ones are written at once."""
BATCH_SECONDS = 0.05
"""A span waits at most so long for others before it is written."""
EMITTER_SCOPE = "agl"
"""Name of the OpenTelemetry tracer that emitters use."""


class SpanBuffer:
    """Keeps spans in the order of their ends, and writes them in the background.

    Spans of emitters are written as soon as the write before them is done: a reward must have its
    number before the model call after it gets one, from another process perhaps.

    Args:
        target: Where to write; None only keeps them.
    """

    def __init__(self, target: SpanTarget | None) -> None:
        self.trace_id = new_trace_id()
        self.thread_id = threading.get_ident()
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._spans: dict[str, Span] = {}
        self._pending: list[Span] = []
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._error: Exception | None = None

    def spans(self) -> list[Span]:
        """All spans so far; those that are stored have their numbers."""
        with self._lock:
            return list(self._spans.values())

    def add(self, span: ReadableSpan) -> None:
        """Take a span that has ended; in any thread."""
        scope = span.instrumentation_scope
        self._keep(self._convert(span), urgent=scope is not None and scope.name == EMITTER_SCOPE)

    def add_unended(self, spans: list[ReadableSpan]) -> None:
        """Take spans that are still open when the trace context is left."""
        status = TraceStatus(
            status_code="ERROR", description="still open when its trace context was left"
        )
        for span in spans:
            changes = {"end_time": time.time(), "status": status}
            self._keep(self._convert(span).model_copy(update=changes), urgent=False)

    def _convert(self, span: ReadableSpan) -> Span:
        target = self._target
        if target is None:
            return Span.from_opentelemetry(span, "", "", UNASSIGNED)
        return Span.from_opentelemetry(span, target.rollout_id, target.attempt_id, UNASSIGNED)

    def _keep(self, span: Span, *, urgent: bool) -> None:
        with self._lock:
            self._spans[span.span_id] = span
            if self._target is None:
                return
            self._pending.append(span)
            waiting = len(self._pending)
        if urgent or waiting == BATCH_SIZE:
            self._loop.call_soon_threadsafe(self._write_soon)
        elif waiting == 1:
            self._loop.call_soon_threadsafe(self._write_later)

    def _write_later(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(BATCH_SECONDS, self._write_soon)

    def _write_soon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._error is None and (self._writing is None or self._writing.done()):
            self._start_writing()

    def _start_writing(self) -> "asyncio.Task[None]":
        # Untraced: a store client whose HTTP library is instrumented would trace itself for ever.
        self._writing = self._loop.create_task(self._write(), context=untraced_context())
        return self._writing

    async def _write(self) -> None:
        target = self._target
        assert target is not None
        while True:
            with self._lock:
                batch = self._pending[:BATCH_SIZE]
                del self._pending[: len(batch)]
            if not batch:
                return
            try:
                added = await target.store.add_many_spans(batch)
            except Exception as error:
                with self._lock:
                    self._pending[:0] = batch
                self._error = error
                return
            with self._lock:
                self._spans.update((span.span_id, span) for span in added)

    async def finish(self) -> None:
        """Write what is left.

        Raises:
            TracerError: The store does not take it.
        """
        if self._target is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        writing = self._writing
        if writing is None or writing.done():
            writing = None
        while writing is not None or self._pending:
            # A failed write in the background is tried once more here.
            self._error = None if writing is None else self._error
            # Shielded, so that a second cancellation does not cut a write in two.
            await asyncio.shield(writing or self._start_writing())
            if writing is None and self._error is not None:
                raise TracerError(
                    f"rollout {self._target.rollout_id!r}, attempt {self._target.attempt_id!r}: "
                    f"{len(self._pending)} of {len(self._spans)} spans could not be stored: "
                    f"{type(self._error).__name__}: {self._error}"
                ) from self._error
            writing = None
