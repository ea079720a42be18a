"""``OtelTracer``: the spans of OpenTelemetry, each brought to the attempt in which it began."""

import contextlib
import logging
from collections.abc import AsyncGenerator, Generator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from opentelemetry import trace as trace_api
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.trace import Status, StatusCode

from agl.errors import TracerError
from agl.tracer.base import SpanRecordingContext, Tracer, active_tracer
from agl.tracer.buffer import SpanBuffer
from agl.tracer.routing import ROUTER, use_sink
from agl.types import Attributes, Span, SpanCoreFields, StatusCode as Code, TraceStatus
from agl.types.records import construct
from agl.types.spans import seconds

if TYPE_CHECKING:
    from agl.store.base import LightningStore

logger = logging.getLogger(__name__)

SCOPE = "agentlightning"
"""Instrumentation scope of the spans that are made with the tracer itself."""

_last: ContextVar["tuple[OtelTracer, SpanBuffer] | None"] = ContextVar("agl_last", default=None)
"""The trace context that this task left last, and whose it was."""


class OtelTracer(Tracer, trace_api.Tracer):
    """Collects the spans that agents and instrumented libraries make with OpenTelemetry.

    It uses the process's global ``TracerProvider``: the one that is set already, or else one of its
    own with no sampling and no limits. Any number of trace contexts may be open at once; a span
    belongs to the one in which it began, as OpenTelemetry's context tells, which follows asyncio
    tasks and ``asyncio.to_thread``. In a thread that was started without its context, it belongs
    to the only open trace context, if there is just one, and otherwise to none.

    Spans are written in the background, numbered by the store in the order of their ends. Leaving a
    trace context writes the rest, spans that are still open included: these get status ERROR and
    the time of leaving as their end.

    It is a tracer of OpenTelemetry as well: ``start_as_current_span`` and ``start_span`` do as
    there.
    """

    def __init__(self) -> None:
        self._last: SpanBuffer | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_last": None}

    def init_worker(
        self, worker_id: int, store: "LightningStore | None" = None, *args: Any, **kwargs: Any
    ) -> None:
        super().init_worker(worker_id, store)
        ROUTER.install()

    @contextlib.asynccontextmanager
    async def trace_context(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        name: str | None = None,
        *,
        store: "LightningStore | None" = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AsyncGenerator["OtelTracer"]:
        """Collect spans; see ``Tracer.trace_context``.

        Raises:
            TracerError: Only one of the ids was given, or ids without a store; or, on leaving, the
                store did not take the spans.
        """
        ROUTER.install()
        buffer = SpanBuffer(self.target(store, rollout_id, attempt_id))
        body_error: BaseException | None = None
        with use_sink(buffer), active_tracer(self):
            ROUTER.open(buffer)
            try:
                yield self
            except BaseException as error:
                body_error = error
                raise
            finally:
                buffer.add_unended(ROUTER.close(buffer))
                self._last = buffer
                _last.set((self, buffer))
                try:
                    await buffer.finish()
                except TracerError as error:
                    if body_error is None:
                        raise
                    # What the body raised is the cause that matters, and goes on.
                    logger.error("%s", error)

    def start_span(self, *args: Any, **kwargs: Any) -> trace_api.Span:
        """As OpenTelemetry's ``Tracer.start_span``."""
        return trace_api.get_tracer(SCOPE).start_span(*args, **kwargs)

    def start_as_current_span(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *args: Any, **kwargs: Any
    ) -> contextlib.AbstractContextManager[trace_api.Span]:
        """As OpenTelemetry's ``Tracer.start_as_current_span``."""
        return trace_api.get_tracer(SCOPE).start_as_current_span(*args, **kwargs)

    def get_last_trace(self) -> list[Span]:
        sink = ROUTER.current_sink()
        if isinstance(sink, SpanBuffer):
            return sink.spans()
        tracer, buffer = _last.get() or (None, None)
        if tracer is not self:
            buffer = self._last
        return [] if buffer is None else buffer.spans()

    @contextlib.contextmanager
    def operation_context(
        self,
        name: str,
        attributes: Attributes | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> Generator[SpanRecordingContext]:
        """See ``Tracer.operation_context``; spans made within are children."""
        span = self._start(name, attributes, start_time)
        recording = _OtelRecording(span)
        try:
            with trace_api.use_span(span, record_exception=False, set_status_on_exception=False):
                yield recording
        except BaseException as error:
            recording.record_exception(error)
            raise
        finally:
            if span.status.status_code is StatusCode.UNSET:
                span.set_status(Status(StatusCode.OK))
            span.end(None if end_time is None else _nanoseconds(end_time))

    def _start(self, name: str, attributes: Attributes | None, start_time: float | None) -> SdkSpan:
        if ROUTER.current_sink() is None:
            raise TracerError(
                f"span {name!r} was emitted outside every open trace context. Emit it from the "
                "agent's own task or thread; start threads of your own with "
                "contextvars.copy_context().run or asyncio.to_thread"
            )
        span = ROUTER.tracer.start_span(
            name,
            attributes=cast(Any, attributes),
            start_time=None if start_time is None else _nanoseconds(start_time),
        )
        if not isinstance(span, SdkSpan):
            raise TracerError(
                f"span {name!r} is not recorded: the process's OpenTelemetry TracerProvider drops "
                "it. Unset OTEL_SDK_DISABLED, or give that provider the sampler ALWAYS_ON"
            )
        return span


class _OtelRecording:
    """``SpanRecordingContext`` over a span of the SDK."""

    def __init__(self, span: SdkSpan) -> None:
        self._span = span

    def record_attributes(self, attributes: Attributes) -> None:
        self._span.set_attributes(cast(Any, attributes))

    def record_exception(self, exception: BaseException) -> None:
        self._span.record_exception(exception)
        self._span.set_status(Status(StatusCode.ERROR, str(exception) or type(exception).__name__))

    def record_status(self, status_code: Code, description: str | None = None) -> None:
        code = TraceStatus(status_code=status_code).status_code  # refuses what is none
        # The SDK takes a description only with ERROR.
        self._span.set_status(Status(StatusCode[code], description if code == "ERROR" else None))

    def get_recorded_span(self) -> SpanCoreFields:
        span = self._span
        status = TraceStatus.from_opentelemetry(span.status)
        times = {"start_time": seconds(span.start_time), "end_time": seconds(span.end_time)}
        core = {"name": span.name, "status": status, "attributes": dict(span.attributes or {})}
        return construct(SpanCoreFields, core | times)


def _nanoseconds(unix_seconds: float) -> int:
    return int(unix_seconds * 1e9)
