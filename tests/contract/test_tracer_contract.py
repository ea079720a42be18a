"""The tracer contract over the tracer that ships with the core, and over a minimal one."""

import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Generator
from contextvars import ContextVar
from typing import Any

import pytest

import agl
from agl.tracer.base import active_tracer
from agl_testing.tracer_contract import *  # noqa: F403


class Trace:
    def __init__(self, rollout_id: str, attempt_id: str) -> None:
        self.ids = {"rollout_id": rollout_id, "attempt_id": attempt_id}
        self.trace_id = secrets.token_hex(16)
        self.spans: list[agl.Span] = []


current: ContextVar[Trace | None] = ContextVar("current", default=None)
parent: ContextVar[str | None] = ContextVar("parent", default=None)


class Recording:
    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    def record_attributes(self, attributes: agl.Attributes) -> None:
        self.fields["attributes"] |= attributes

    def record_exception(self, exception: BaseException) -> None:
        self.fields["status"] = agl.TraceStatus(status_code="ERROR", description=str(exception))

    def record_status(self, status_code: Any, description: str | None = None) -> None:
        status = agl.TraceStatus(status_code=status_code, description=description)
        self.fields["status"] = status

    def get_recorded_span(self) -> agl.SpanCoreFields:
        return agl.SpanCoreFields.model_validate(self.fields)


class MinimalTracer(agl.Tracer):
    """What a third party might write: one context variable, one write at the end."""

    def __init__(self) -> None:
        self.last: ContextVar[Trace | None] = ContextVar("last", default=None)

    @contextlib.asynccontextmanager
    async def trace_context(  # pyright: ignore
        self, name=None, *, store=None, rollout_id=None, attempt_id=None
    ) -> AsyncGenerator[agl.Tracer]:
        target = self.target(store, rollout_id, attempt_id)
        trace = Trace(rollout_id or "", attempt_id or "")
        token = current.set(trace)
        try:
            with active_tracer(self):
                yield self
        finally:
            current.reset(token)
            self.last.set(trace)
            if target is not None:
                await target.store.add_many_spans(trace.spans)

    def get_last_trace(self) -> list[agl.Span]:
        trace = current.get() or self.last.get()
        return list(trace.spans) if trace else []

    @contextlib.contextmanager
    def operation_context(
        self, name, attributes=None, start_time=None, end_time=None
    ) -> Generator[Recording]:
        trace = current.get()
        assert trace is not None
        fields: dict[str, Any] = {
            "name": name,
            "attributes": dict(attributes or {}),
            "status": agl.TraceStatus(status_code="OK"),
            "start_time": time.time() if start_time is None else start_time,
            "end_time": None,
        }
        recording = Recording(fields)
        span_id, parent_id = secrets.token_hex(8), parent.get()
        token = parent.set(span_id)
        try:
            yield recording
        except BaseException as error:
            recording.record_exception(error)
            raise
        finally:
            parent.reset(token)
            fields["end_time"] = time.time() if end_time is None else end_time
            trace.spans.append(
                agl.Span.from_attributes(
                    **fields,
                    **trace.ids,
                    trace_id=trace.trace_id,
                    span_id=span_id,
                    parent_id=parent_id,
                )
            )


@pytest.fixture(params=[agl.OtelTracer, MinimalTracer])
def tracer(request):
    tracer = request.param()
    tracer.init()
    tracer.init_worker(0, None)
    yield tracer
    tracer.teardown_worker(0)
    tracer.teardown()
