"""Which attempt a span belongs to: one span processor on the process's OpenTelemetry provider."""

import contextlib
import contextvars
import inspect
import logging
import os
import random
import threading
import weakref
from collections.abc import Generator
from typing import Any, Final, Protocol

from opentelemetry import context as otel_context, trace as trace_api
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import (
    ReadableSpan,
    Span as SdkSpan,
    SpanLimits,
    SpanProcessor,
    TracerProvider,
)
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from agl.errors import TracerError
from agl.semconv import LightningResourceAttributes

logger = logging.getLogger(__name__)

EMITTER_SCOPE = "agl"
"""Instrumentation scope of the spans of emitters."""


class SpanSink(Protocol):
    """Takes the spans of one trace context."""

    trace_id: int
    """For spans that have no parent."""

    def add(self, span: ReadableSpan) -> None:
        """A span has ended; called in any thread."""
        ...


_SINK: Final = otel_context.create_key("agl-span-sink")
_UNTRACED: Final = object()
_random = random.Random()
"""Makes ids without a system call, which would release the GIL and wait for it again."""


class SpanRouter(SpanProcessor):
    """Gives each span, when it ends, to the sink that was current when it began.

    The current sink travels in OpenTelemetry's context. Where there is none, the span goes to the
    only open sink if it began in a thread that was started while that sink was open (by the agent
    then, most likely); else it is counted as unattributed.
    """

    def __init__(self) -> None:
        self._provider: Any = None
        self.tracer: trace_api.Tracer
        """Of the emitters; there is one after ``install``."""
        self._reset()

    def _reset(self) -> None:
        _random.seed()
        self._lock = threading.RLock()  # a ``__del__`` that ends a span may interrupt us
        self._open: dict[int, tuple[SpanSink, frozenset[threading.Thread]]] = {}
        self._began: dict[tuple[int, int], tuple[SdkSpan, SpanSink]] = {}
        self._agent_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._has_warned = False
        self.num_unattributed = 0

    def install(self) -> None:
        """Join the process's provider, or set one; a ``TracerError`` if it cannot be joined."""
        provider: Any = trace_api.get_tracer_provider()
        if provider is self._provider:
            return
        if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            raise TracerError(
                "OTEL_SDK_DISABLED=true: OpenTelemetry would drop every span. Unset it, or use "
                "another tracer"
            )
        with self._lock:
            if isinstance(trace_api.get_tracer_provider(), trace_api.ProxyTracerProvider):
                trace_api.set_tracer_provider(_own_provider())
            provider = trace_api.get_tracer_provider()
            if provider is self._provider:  # another runner has set it meanwhile
                return
            if not hasattr(provider, "add_span_processor"):
                raise TracerError(
                    f"the process's tracer provider is a {type(provider).__qualname__}, which "
                    "takes no span processors; expected OpenTelemetry's SDK TracerProvider. Set "
                    "that one, or none, before the runner starts"
                )
            provider.add_span_processor(self)
            self._provider, self.tracer = provider, provider.get_tracer(EMITTER_SCOPE)

    def open(self, sink: SpanSink) -> None:
        """Spans may go to ``sink`` from now on."""
        with self._lock:
            self._open[id(sink)] = sink, frozenset(threading.enumerate())

    def close(self, sink: SpanSink) -> list[ReadableSpan]:
        """No more spans go to ``sink``; returns those that began and have not ended."""
        with self._lock:
            self._open.pop(id(sink), None)
            left = [key for key, (_, owner) in self._began.items() if owner is sink]
            return [self._began.pop(key)[0] for key in left]

    def current_sink(self, context: Context | None = None) -> SpanSink | None:
        """The sink of a span that begins here, or None."""
        found, thread = _named_in(context), threading.current_thread()
        with self._lock:
            if found is not None:
                return self._open.get(id(found), (None,))[0]
            if len(self._open) != 1:
                return None
            [(sink, older_threads)] = self._open.values()
            if thread in older_threads and thread not in self._agent_threads:
                return None
            self._agent_threads.add(thread)
            return sink

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        """Note whose span it is."""
        sink, named = self.current_sink(parent_context), _named_in(parent_context)
        if sink is not None:
            context = span.get_span_context()
            with self._lock:
                self._began[context.trace_id, context.span_id] = span, sink
        elif named is not _UNTRACED:
            self._count_unattributed(span.name, came_late=named is not None)

    def on_end(self, span: ReadableSpan) -> None:
        """Hand it over."""
        context = span.get_span_context()
        if context is None:
            return
        with self._lock:
            _, sink = self._began.pop((context.trace_id, context.span_id), (None, None))
        if sink is not None:
            sink.add(span)

    def _count_unattributed(self, name: str, *, came_late: bool) -> None:
        thread = threading.current_thread()
        with self._lock:
            self.num_unattributed += 1
            # Spans of older threads are those of a server or an algorithm, say: nothing is amiss.
            is_agents = (
                came_late
                or thread in self._agent_threads
                or any(thread not in older for _, older in self._open.values())
            )
            if self._has_warned or not is_agents:
                return
            self._has_warned = True
        when = "after its trace context was left" if came_late else "in a thread without context"
        logger.warning(
            "span %r began %s (%d are open) and is given to no rollout; further ones are only "
            "counted. Threads of an agent keep its context when they are started with "
            "asyncio.to_thread or contextvars.copy_context().run",
            *(name, when, len(self._open)),
        )


def _own_provider() -> TracerProvider:
    # The default of 128 attributes would silently cut nested objects and long conversations.
    unlimited: Any = dict.fromkeys(inspect.signature(SpanLimits).parameters, SpanLimits.UNSET)
    return TracerProvider(
        sampler=ALWAYS_ON,
        resource=Resource.create({LightningResourceAttributes.TRACER_NAME.value: "otel"}),
        shutdown_on_exit=False,
        id_generator=_IdGenerator(),
        span_limits=SpanLimits(**unlimited),
    )


class _IdGenerator(IdGenerator):
    """Ids of a generator of our own; all roots of a trace context share its trace id.

    The SDK's own generator draws from ``random``: an agent that seeds it would get the same span
    ids again, and one that relies on its seed would see other numbers under a tracer.
    """

    def generate_span_id(self) -> int:
        return _random.getrandbits(64) or 1

    def generate_trace_id(self) -> int:
        sink = ROUTER.current_sink()
        return new_trace_id() if sink is None else sink.trace_id

    def is_trace_id_random(self) -> bool:
        return True


def _named_in(context: Context | None) -> object:
    return otel_context.get_value(_SINK, context) or otel_context.get_value(_SINK)


def new_trace_id() -> int:
    """A random trace id."""
    return _random.getrandbits(128) or 1


ROUTER: Final = SpanRouter()
"""That of this process."""
# A forked runner must not think that its parent's trace contexts are open in it; Windows has none.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ROUTER._reset)  # pyright: ignore[reportPrivateUsage]


@contextlib.contextmanager
def use_sink(sink: SpanSink) -> Generator[None]:
    """Spans that begin in the block go to ``sink`` and have no parent outside it."""
    root = trace_api.set_span_in_context(trace_api.INVALID_SPAN)
    token = otel_context.attach(otel_context.set_value(_SINK, sink, root))
    try:
        yield
    finally:
        otel_context.detach(token)


def untraced_context() -> contextvars.Context:
    """A copy of the present context in which spans belong to no attempt: for agl's own work."""
    context = contextvars.copy_context()
    context.run(lambda: otel_context.attach(otel_context.set_value(_SINK, _UNTRACED, Context())))
    return context
