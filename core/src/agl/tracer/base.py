"""The contract of a tracer, and which tracer is active where."""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from agl.errors import TracerError
from agl.types import Attributes, Span, SpanCoreFields, StatusCode, TraceStatus
from agl.types.spans import OK
from agl.utils.life_cycle import ParallelWorkerBase

if TYPE_CHECKING:
    from agl.store.base import LightningStore


class SpanRecordingContext(Protocol):
    """A span that is being recorded."""

    def record_attributes(self, attributes: Attributes) -> None:
        """Add attributes."""

    def record_exception(self, exception: BaseException) -> None:
        """Add an exception event and set the status to ERROR."""

    def record_status(self, status_code: StatusCode, description: str | None = None) -> None:
        """Set the outcome; a ValueError if there is no such code."""

    def get_recorded_span(self) -> SpanCoreFields:
        """What was recorded; complete once the context has been left."""
        ...


@dataclass(frozen=True)
class SpanTarget:
    """Where the spans of a trace context go."""

    store: "LightningStore"
    rollout_id: str
    attempt_id: str


class Tracer(ParallelWorkerBase, ABC):
    """Collects the spans of a rollout and brings them to the store.

    A subclass must implement ``trace_context`` and ``get_last_trace``; ``operation_context`` makes
    the emitters work under it. Many trace contexts may be open in one process at once: which one a
    span belongs to is decided by context variables, never by a process-wide global.
    """

    _store: "LightningStore | None" = None

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process: the options, without the store or what was collected."""
        return {**vars(self), "_store": None}

    @abstractmethod
    def trace_context(
        self,
        name: str | None = None,
        *,
        store: "LightningStore | None" = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AbstractAsyncContextManager[Any]:
        """Collect spans for as long as the context is open.

        With both ids (and a store, given here or to ``init_worker``) the spans are in the store
        when the context has been left; without ids they are only kept for ``get_last_trace``.
        Within it this tracer is the active one.

        Raises:
            TracerError: Only one of the two ids was given, or ids without a store.
        """

    @abstractmethod
    def get_last_trace(self) -> list[Span]:
        """Spans of the open trace context of this task or thread, else of the last one left."""

    def create_span(
        self,
        name: str,
        attributes: Attributes | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        """Record a span that begins and ends at ``timestamp`` (unix seconds; None is now).

        Raises:
            TracerError: ``operation_context`` cannot record it.
        """
        moment = time.time() if timestamp is None else timestamp
        with self.operation_context(name, attributes, moment, moment) as recording:
            if status is not None:
                recording.record_status(status.status_code, status.description)
        return recording.get_recorded_span()

    def operation_context(
        self,
        name: str,
        attributes: Attributes | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> AbstractContextManager[SpanRecordingContext]:
        """Record a span around a block; times other than now may be given in unix seconds."""
        raise TracerError(
            f"{type(self).__name__} cannot record operations; "
            "it does not implement operation_context"
        )

    def trace_run(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``func`` under a trace context without ids, from synchronous code."""
        import asyncio

        async def call() -> Any:
            return func(*args, **kwargs)

        return asyncio.run(self.trace_run_async(call))

    async def trace_run_async(
        self, func: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any
    ) -> Any:
        """Await ``func`` under a trace context without ids."""
        async with self.trace_context():
            return await func(*args, **kwargs)

    def get_langchain_handler(self) -> Any:
        """A LangChain callback handler, which records nothing by itself; None without LangChain."""
        try:
            from langchain_core.callbacks import BaseCallbackHandler  # pyright: ignore
        except ImportError:
            return None
        return BaseCallbackHandler()  # pyright: ignore

    @contextlib.contextmanager
    def lifespan(self, store: "LightningStore | None" = None) -> Generator["Tracer"]:
        """``init`` and ``init_worker`` before, ``teardown_worker`` and ``teardown`` after."""
        self.init()
        self.init_worker(0, store)
        try:
            yield self
        finally:
            self.teardown_worker(0)
            self.teardown()

    def init_worker(
        self, worker_id: int, store: "LightningStore | None" = None, *args: Any, **kwargs: Any
    ) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Prepare for one runner; ``store`` is used by trace contexts that name none."""
        super().init_worker(worker_id)
        self._store = store

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        """Forget the store."""
        self._store = None

    def target(
        self, store: "LightningStore | None", rollout_id: str | None, attempt_id: str | None
    ) -> SpanTarget | None:
        """What ``trace_context`` makes of these arguments; None without ids."""
        if rollout_id is None and attempt_id is None:
            return None
        if rollout_id is None or attempt_id is None:
            raise TracerError(
                f"trace_context needs both ids or neither; got rollout_id={rollout_id!r}, "
                f"attempt_id={attempt_id!r}"
            )
        store = store or self._store
        if store is None:
            raise TracerError(
                f"trace_context of rollout {rollout_id!r} has no store; pass store=..., or call "
                "init_worker(worker_id, store) first"
            )
        return SpanTarget(store, rollout_id, attempt_id)


_active: ContextVar[Tracer | None] = ContextVar("agl_active_tracer", default=None)
_open: list[Tracer] = []
"""The tracer of each trace context that is open in this process."""


def get_active_tracer() -> Tracer | None:
    """The tracer of this task or thread, or None.

    A thread without a context gets the only tracer that is open in the process; that tracer decides
    whose span it is.
    """
    tracer = _active.get()
    if tracer is None and len({id(other) for other in _open}) == 1:
        return next(iter(_open), None)
    return tracer


def recording_tracer(doing: str, *, propagate: bool) -> Tracer:
    """The active tracer, or a ``TracerError``; without ``propagate`` one that keeps nothing."""
    tracer = get_active_tracer() if propagate else DummyTracer()
    if tracer is None:
        raise TracerError(
            f"No active tracer found. Cannot {doing}. Do so in an agent that a runner runs, or "
            "within tracer.trace_context(); in a thread of your own, start it with "
            "contextvars.copy_context().run or asyncio.to_thread; or pass propagate=False to keep "
            "the span local"
        )
    return tracer


def set_active_tracer(tracer: Tracer) -> None:
    """Make a tracer active in this context; a ``TracerError`` if another one is."""
    current = _active.get()
    if current is not None and current is not tracer:
        raise TracerError(
            f"{type(tracer).__name__} cannot become active: {type(current).__name__} is. "
            "Leave its trace context first, or call agl.clear_active_tracer()"
        )
    _active.set(tracer)


def clear_active_tracer() -> None:
    """No tracer is active here any more."""
    _active.set(None)


@contextlib.contextmanager
def active_tracer(tracer: Tracer) -> Generator[None]:
    """Within the block ``tracer`` is active; contexts may be nested."""
    token = _active.set(tracer)
    _open.append(tracer)
    try:
        yield
    finally:
        _open.remove(tracer)
        _active.reset(token)


class _LocalSpan:
    """A span that is recorded and goes nowhere: what emitters use with ``propagate=False``."""

    def __init__(self, core: SpanCoreFields) -> None:
        self.core = core

    def record_attributes(self, attributes: Attributes) -> None:
        self.core = self.core.changed(attributes={**self.core.attributes, **attributes})

    def record_exception(self, exception: BaseException) -> None:
        kind, message = type(exception).__qualname__, str(exception)
        self.record_attributes({"exception.type": kind, "exception.message": message})
        self.record_status("ERROR", message)

    def record_status(self, status_code: StatusCode, description: str | None = None) -> None:
        status = TraceStatus(status_code=status_code, description=description)
        self.core = self.core.changed(status=status)

    def get_recorded_span(self) -> SpanCoreFields:
        return self.core


class DummyTracer(Tracer):
    """Builds spans and keeps none."""

    @contextlib.asynccontextmanager
    async def trace_context(self, name: str | None = None, **_: Any) -> AsyncGenerator[Any]:  # pyright: ignore
        with active_tracer(self):
            yield self

    def get_last_trace(self) -> list[Span]:
        return []

    @contextlib.contextmanager
    def operation_context(
        self,
        name: str,
        attributes: Attributes | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> Generator[SpanRecordingContext]:
        begin = time.time() if start_time is None else start_time
        about: Any = {"name": name, "status": OK, "start_time": begin, "end_time": None}
        span = _LocalSpan(SpanCoreFields(attributes=dict(attributes or {}), **about))
        try:
            yield span
        except BaseException as error:
            span.record_exception(error)
            raise
        finally:
            span.core = span.core.changed(end_time=time.time() if end_time is None else end_time)
