"""The spans of one trace context, on their way to the store."""

import asyncio
import threading
import time
from collections import deque
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from agl.errors import TracerError
from agl.store.span_checks import add_accepted, storable
from agl.tracer.base import SpanTarget
from agl.tracer.routing import new_trace_id, untraced_context
from agl.types import UNASSIGNED, Event, Span, TraceStatus
from agl.utils.secrets import hide, hide_tokens

BATCH_SIZE = 64
"""Most spans in one write; so many waiting ones are written at once."""
BATCH_SECONDS = 0.1
"""A span waits at most so long for others before it is written."""
STILL_OPEN = TraceStatus(
    status_code="ERROR", description="still open when its trace context was left"
)


class SpanBuffer:
    """Keeps spans in the order of their ends, and writes them in the background.

    Nobody waits for a write: agents share event loops. The order of a span and of model calls that
    another process records follows from the time of its end; see ``runner/report.py``. Without a
    ``target`` it only keeps them.
    """

    def __init__(self, target: SpanTarget | None) -> None:
        self.trace_id = new_trace_id()
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._ended: deque[Span] = deque()
        self._spans: dict[str, Span] = {}
        self._pending: list[Span] = []
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        self._refused: list[Exception] = []
        """Why the store does not take some spans at all."""
        if target is not None:
            self._tick()

    def spans(self) -> list[Span]:
        """All spans so far; those that are stored have their numbers."""
        with self._lock:
            self._sort_in()
            return list(self._spans.values())

    def add(self, span: ReadableSpan) -> None:
        """Take a span that has ended; in any thread, also in a ``__del__`` that interrupts us."""
        if record := self._record(span):
            self._ended.append(record)
        if len(self._ended) == BATCH_SIZE and self._target is not None:
            self._loop.call_soon_threadsafe(self._write_soon)

    def add_unended(self, spans: list[ReadableSpan]) -> None:
        """Take spans that are still open when the trace context is left."""
        self._ended.extend(filter(None, map(self._record, spans)))

    def _record(self, span: ReadableSpan) -> Span | None:
        target = self._target
        ids = ("", "") if target is None else (target.rollout_id, target.attempt_id)
        try:
            record = _without_secrets(storable(Span.from_opentelemetry(span, *ids, UNASSIGNED)))
        except Exception as error:
            self._refused.append(error)
            return None
        if record.end_time is not None:
            return record
        return record.changed(end_time=time.time(), status=STILL_OPEN)

    def _sort_in(self) -> None:
        """Note what has ended, under the lock, which ``add`` never takes."""
        for _ in range(len(self._ended)):
            span = self._ended.popleft()
            self._spans[span.span_id] = span
            if self._target is not None:
                self._pending.append(span)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(BATCH_SECONDS, self._tick)
        self._write_soon()

    def _write_soon(self) -> None:
        is_free = self._error is None and (self._writing is None or self._writing.done())
        if is_free and (self._ended or self._pending):
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
                self._sort_in()
                batch = self._pending[:BATCH_SIZE]
                del self._pending[: len(batch)]
            if not batch:
                return
            try:
                added, refused = await add_accepted(target.store.add_many_spans, batch)
            except Exception as error:
                with self._lock:
                    self._pending[:0] = batch
                self._error = error
                return
            self._refused += refused
            with self._lock:
                self._spans.update((span.span_id, span) for span in added)
            if not self._ended and not self._pending:
                return
            await asyncio.sleep(0)  # a store that never suspends must not keep the loop

    async def finish(self) -> None:
        """Write what is left.

        Raises:
            TracerError: The store does not take it. Where it refused a record, that refusal is the
                cause, and all other spans are stored.
        """
        if self._timer is not None:
            self._timer.cancel()
        if self._target is None:
            return
        # Shielded, so that a second cancellation does not cut a write in two.
        if self._writing is not None and not self._writing.done():
            await asyncio.shield(self._writing)
        what = f"rollout {self._target.rollout_id!r}, attempt {self._target.attempt_id!r}"
        while self._ended or self._pending:
            self._error = None  # a write that failed in the background is tried once more
            await asyncio.shield(self._start_writing())
            if self._error is not None:
                raise TracerError(
                    f"{what}: {len(self._pending)} of {len(self._spans)} spans could not be "
                    f"stored: {type(self._error).__name__}: {self._error}"
                ) from self._error
        if self._refused:
            raise TracerError(
                f"{what}: {len(self._refused)} spans could not be stored; the others are. "
                f"{self._refused[0]}"
            ) from self._refused[0]


def _without_secrets(span: Span) -> Span:
    """What an agent records stays, but for the token in its address, which tracers note.

    Errors are described without keys, as in the failure of its attempt.
    """
    changes: dict[str, Any] = {}
    if hidden := hide_tokens(span.attributes):
        changes["attributes"] = {**span.attributes, **hidden}
    if span.events:
        changes["events"] = [_event_without_secrets(event) for event in span.events]
    if span.status.description:
        description = hide(span.status.description)
        changes["status"] = span.status.model_copy(update={"description": description})
    return span.model_copy(update=changes) if changes else span


def _event_without_secrets(event: Event) -> Event:
    hidden = hide_tokens(event.attributes)
    if event.name == "exception":
        texts = {k: v for k, v in event.attributes.items() if isinstance(v, str)}
        hidden = {name: hide(text) for name, text in texts.items()}
    return event.model_copy(update={"attributes": {**event.attributes, **hidden}})
