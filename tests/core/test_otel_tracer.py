import asyncio
import os
import random
import re
import threading
from collections.abc import Sequence
from textwrap import dedent
from typing import Any, cast

import pytest
from opentelemetry import trace as trace_api
from opentelemetry.sdk.trace import ReadableSpan
from tests.interpreter import python
from tests.waiting import until

import agl
from agl.errors import TracerError
from agl.tracer.routing import ROUTER


class CountingStore(agl.InMemoryLightningStore):
    """Notes the size of each write, and fails as often as told."""

    def __init__(self, failures: int = 0, write_seconds: float = 0.0) -> None:
        super().__init__()
        self.failures = failures
        self.write_seconds = write_seconds
        self.writes: list[int] = []

    async def add_many_spans(self, spans: Sequence[agl.Span]) -> Sequence[agl.Span]:
        await asyncio.sleep(self.write_seconds)
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the store is away")
        self.writes.append(len(spans))
        return await super().add_many_spans(spans)


async def ids(store: agl.LightningStore) -> dict[str, Any]:
    rollout = await store.start_rollout({"task": 1})
    attempt_id = rollout.attempt.attempt_id
    return {"store": store, "rollout_id": rollout.rollout_id, "attempt_id": attempt_id}


async def spans_of(context: dict[str, Any]) -> Sequence[agl.Span]:
    return await context["store"].query_spans(context["rollout_id"])


async def names(context: dict[str, Any]) -> list[str]:
    return [span.name for span in await spans_of(context)]


@pytest.fixture
async def context(memory_store):
    return await ids(memory_store)


@pytest.fixture
def tracer():
    return agl.OtelTracer()


def make_span(name: str, **attributes: Any) -> None:
    """As an instrumented library does: through OpenTelemetry, knowing nothing of agl."""
    with trace_api.get_tracer("library").start_as_current_span(name, attributes=attributes):
        pass


async def test_spans_of_libraries_are_collected(tracer, context):
    async with tracer.trace_context(**context):
        with trace_api.get_tracer("library").start_as_current_span("outer") as span:
            span.add_event("half-way", {"a": 1})
            make_span("inner")
    inner, outer = await spans_of(context)
    assert (inner.name, outer.name) == ("inner", "outer")
    assert inner.parent_id == outer.span_id
    assert outer.events[0].name == "half-way"


async def test_roots_of_one_attempt_share_a_trace_id_and_have_no_outer_parent(tracer, context):
    with trace_api.get_tracer("caller").start_as_current_span("caller"):
        async with tracer.trace_context(**context):
            make_span("first")
            make_span("second")
    spans = await spans_of(context)
    assert [span.parent_id for span in spans] == [None, None]
    assert len({span.trace_id for span in spans}) == 1


async def test_thread_without_context_belongs_to_the_only_open_trace(tracer, context):
    def work() -> None:
        make_span("library")
        agl.emit_reward(0.5)

    async with tracer.trace_context(**context):
        thread = threading.Thread(target=work)
        thread.start()
        await asyncio.to_thread(thread.join)
    assert await names(context) == ["library", "agentlightning.annotation"]


async def test_thread_pool_of_an_agent_belongs_to_each_of_its_rollouts(memory_store, tracer):
    work, done = [threading.Event() for _ in range(2)], [threading.Event() for _ in range(2)]

    def pool() -> None:
        for index in range(2):
            work[index].wait(3)
            make_span(f"span-{index}")
            done[index].set()

    thread = threading.Thread(target=pool)
    for index in range(2):
        context = await ids(memory_store)
        async with tracer.trace_context(**context):
            if index == 0:
                thread.start()
            work[index].set()
            await asyncio.to_thread(done[index].wait, 3)
        assert await names(context) == [f"span-{index}"]
    thread.join()


async def test_thread_that_is_older_than_the_trace_is_never_guessed_to_belong_to_it(
    tracer, context
):
    # The algorithm and the servers of the same process are such threads.
    begin, errors = threading.Event(), list[BaseException]()

    def work() -> None:
        begin.wait(3)
        make_span("algorithm")
        try:
            agl.emit_reward(1.0)
        except TracerError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    before = ROUTER.num_unattributed
    async with tracer.trace_context(**context):
        begin.set()
        await asyncio.to_thread(thread.join)
    assert await names(context) == []
    assert ROUTER.num_unattributed == before + 1
    assert "outside every open trace context" in str(errors[0])


async def test_thread_without_context_belongs_to_none_of_several_traces(memory_store, tracer):
    first, second = await ids(memory_store), await ids(memory_store)
    before = ROUTER.num_unattributed
    async with tracer.trace_context(**first), tracer.trace_context(**second):
        thread = threading.Thread(target=make_span, args=("lost",))
        thread.start()
        await asyncio.to_thread(thread.join)
    assert await names(first) == await names(second) == []
    assert ROUTER.num_unattributed == before + 1


async def test_task_that_outlives_its_trace_writes_into_no_other(memory_store, tracer):
    first, second = await ids(memory_store), await ids(memory_store)
    go_on = asyncio.Event()

    async def late() -> None:
        await go_on.wait()
        make_span("late")

    async with tracer.trace_context(**first):
        task = asyncio.create_task(late())
    before = ROUTER.num_unattributed
    async with tracer.trace_context(**second):
        go_on.set()
        await task
    assert await names(first) == await names(second) == []
    assert ROUTER.num_unattributed == before + 1


async def test_seeding_random_does_not_repeat_span_ids(tracer, context):
    async with tracer.trace_context(**context):
        for index in range(3):
            random.seed(7)
            make_span(f"span-{index}")
        with_tracer = random.random()
    assert await names(context) == ["span-0", "span-1", "span-2"]
    random.seed(7)
    assert random.random() == with_tracer


async def test_spans_are_written_in_batches(tracer):
    store = CountingStore(write_seconds=0.01)
    context = await ids(store)
    async with tracer.trace_context(**context):
        for index in range(300):
            make_span(f"span-{index}")
            if index % 50 == 0:
                await asyncio.sleep(0)
    assert sum(store.writes) == 300
    assert max(store.writes) <= 64
    assert len(store.writes) <= 8


async def test_spans_are_in_the_store_soon_while_the_agent_runs(tracer):
    store = CountingStore()
    context = await ids(store)
    async with tracer.trace_context(**context):
        make_span("library")
        await until(lambda: store.writes)
        stored = tracer.get_last_trace()
        assert [span.sequence_id for span in stored] == [1]


async def test_failed_write_is_tried_again_and_loses_nothing(tracer):
    store = CountingStore(failures=1)
    context = await ids(store)
    async with tracer.trace_context(**context):
        agl.emit_message("first")
        await until(lambda: store.failures == 0)
        agl.emit_message("second")
    spans = await spans_of(context)
    assert [agl.get_message_value(span) for span in spans] == ["first", "second"]


async def test_store_that_stays_away_fails_the_trace(tracer):
    context = await ids(CountingStore(failures=99))
    with pytest.raises(TracerError, match=r"1 of 1 spans could not be stored: ConnectionError"):
        async with tracer.trace_context(**context):
            make_span("lost")
    assert [span.name for span in tracer.get_last_trace()] == ["lost"]


async def test_span_that_cannot_be_kept_costs_no_other(tracer, context):
    async def record() -> None:
        async with tracer.trace_context(**context):
            sink = cast(Any, ROUTER.current_sink())
            sink.add(ReadableSpan("broken"))
            make_span("whole")
            with sink._lock:  # as a ``__del__`` does that interrupts a write
                make_span("in between")

    with pytest.raises(TracerError, match="'broken' has no context"):
        await record()
    assert await names(context) == ["whole", "in between"]


async def test_error_of_the_agent_goes_before_that_of_the_store(caplog, tracer):
    context = await ids(CountingStore(failures=99))

    async def fail() -> None:
        async with tracer.trace_context(**context):
            make_span("lost")
            raise KeyError("mine")

    with pytest.raises(KeyError):
        await fail()
    assert "1 of 1 spans could not be stored" in caplog.text


async def test_span_that_is_still_open_is_stored_as_an_error(tracer, context):
    async with tracer.trace_context(**context):
        span = trace_api.get_tracer("library").start_span("hanging", attributes={"url": "x"})
    span.end()
    (stored,) = await spans_of(context)
    assert stored.attributes == {"url": "x"}
    assert stored.status.status_code == "ERROR"
    assert stored.status.description == "still open when its trace context was left"
    assert stored.end_time is not None


async def test_cancelled_body_has_its_spans_stored(tracer, context):
    async def run() -> None:
        async with tracer.trace_context(**context):
            make_span("before")
            await asyncio.sleep(10)

    task = asyncio.create_task(run())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await names(context) == ["before"]


async def test_nothing_is_cut_off(tracer, context):
    many = {f"key-{index}": "x" * 100 for index in range(1000)}
    async with tracer.trace_context(**context):
        agl.emit_annotation(many)
    (span,) = await spans_of(context)
    assert span.attributes == many


async def test_writes_of_an_instrumented_client_do_not_trace_themselves(tracer):
    class Instrumented(CountingStore):
        async def add_many_spans(self, spans: Sequence[agl.Span]) -> Sequence[agl.Span]:
            make_span("POST /spans")
            return await super().add_many_spans(spans)

    store = Instrumented()
    context = await ids(store)
    before = ROUTER.num_unattributed
    async with tracer.trace_context(**context):
        make_span("library")
        await until(lambda: store.writes)
        await asyncio.sleep(0.1)
    assert await names(context) == ["library"]
    assert ROUTER.num_unattributed == before


def in_process(code: str, **environment: str) -> str:
    done = python("-c", dedent(code), env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "begin", ["trace.set_tracer_provider(TracerProvider())", "agl.OtelTracer().init_worker(0)"]
)
def test_provider_that_is_set_already_is_kept_and_exporters_see_everything(begin):
    output = in_process(
        """
        import asyncio
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        import agl
        BEGIN
        set_already, exporter = trace.get_tracer_provider(), InMemorySpanExporter()
        set_already.add_span_processor(SimpleSpanProcessor(exporter))

        async def main():
            tracer = agl.OtelTracer()
            async with tracer.trace_context():
                agl.emit_reward(0.5)
                with trace.get_tracer("x").start_as_current_span("library"):
                    pass
            async with agl.OtelTracer().trace_context():
                agl.emit_reward(0.5)
            print([span.name for span in tracer.get_last_trace()])

        asyncio.run(main())
        assert trace.get_tracer_provider() is set_already
        print([span.name for span in exporter.get_finished_spans()])
        """.replace("BEGIN", begin)
    )
    annotation = "agentlightning.annotation"
    names = [annotation, "library"]
    assert output.splitlines() == [str(names), str([*names, annotation])]


@pytest.mark.parametrize(
    ("sampler", "variables", "said"),
    [
        (
            "ALWAYS_ON",
            {"OTEL_SDK_DISABLED": "true"},
            "OTEL_SDK_DISABLED=true: OpenTelemetry would ",
        ),
        ("ALWAYS_OFF", {}, "is not recorded.*ALWAYS_ON"),
    ],
)
def test_opentelemetry_that_would_drop_rewards_is_refused(sampler, variables, said):
    output = in_process(
        """
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider, sampling

        trace.set_tracer_provider(TracerProvider(sampler=sampling.SAMPLER))
        import agl
        try:
            agl.OtelTracer().trace_run(agl.emit_reward, 1.0)
        except agl.errors.TracerError as error:
            print(error)
        """.replace("SAMPLER", sampler),
        **variables,
    )
    assert re.search(said, output)


def test_forked_process_starts_afresh():
    output = in_process(
        """
        import asyncio, os, sys
        import agl
        from agl.tracer.routing import new_trace_id

        async def child():
            tracer = agl.OtelTracer()
            async with tracer.trace_context():
                agl.emit_message("child")
            return [agl.get_message_value(span) for span in tracer.get_last_trace()]

        async def main():
            tracer = agl.OtelTracer()
            async with tracer.trace_context():
                agl.emit_message("before")
                pid = os.fork()
                if pid == 0:
                    asyncio.events._set_running_loop(None)
                    # The parent's trace is not open here: nothing may go into it.
                    try:
                        agl.emit_message("in the parent's trace")
                    except agl.errors.TracerError:
                        print("refused", flush=True)
                    import contextvars
                    print(new_trace_id())
                    print(contextvars.Context().run(asyncio.run, child()), flush=True)
                    os._exit(0)
                os.waitpid(pid, 0)
                agl.emit_message("after")
                print(new_trace_id())
            print([agl.get_message_value(span) for span in tracer.get_last_trace()])

        asyncio.run(main())
        """
    )
    refused, one_id, child, other_id, parent = output.splitlines()
    assert [refused, child, parent] == ["refused", "['child']", "['before', 'after']"]
    assert one_id != other_id


def test_first_lost_span_of_an_agent_is_logged_and_the_others_are_counted():
    output = in_process(
        """
        import asyncio, logging, threading
        logging.basicConfig(format="%(message)s")
        import agl
        from opentelemetry import trace

        def make_spans(name):
            for index in range(3):
                trace.get_tracer("x").start_span(f"{name}-{index}").end()

        async def main():
            tracer = agl.OtelTracer()
            async with tracer.trace_context(), tracer.trace_context():
                thread = threading.Thread(target=make_spans, args=("lost",))
                thread.start()
                thread.join()
            from agl.tracer.routing import ROUTER

            print(ROUTER.num_unattributed)

        agl.OtelTracer().init_worker(0)
        make_spans("of a server")
        asyncio.run(main())
        """
    )
    assert output.startswith("6\nspan 'lost-0' began in a thread without context (2 are open)")
    assert len(output.splitlines()) == 2


async def test_trace_context_yields_a_tracer_of_opentelemetry(tracer, context):
    async with tracer.trace_context(name="write", **context) as made:
        assert isinstance(made, trace_api.Tracer)
        assert made.get_last_trace() == []
        with made.start_as_current_span("outer", attributes={"a": 1}):
            made.start_span("inner").end()
            agl.emit_message("hello")
    inner, message, outer = await spans_of(context)
    assert [inner.name, message.name, outer.name] == ["inner", "agentlightning.message", "outer"]
    assert inner.parent_id == message.parent_id == outer.span_id
    assert outer.attributes == {"a": 1}


@pytest.mark.parametrize("tracer", [agl.OtelTracer(), agl.DummyTracer()])
async def test_status_is_recorded_as_a_code_with_a_description(tracer):
    async with tracer.trace_context():
        with tracer.operation_context("op") as recording:
            recording.record_status("ERROR", "bad")
        bad = agl.TraceStatus(status_code="ERROR", description="bad")
        assert recording.get_recorded_span().status == bad
        with tracer.operation_context("op") as recording:
            recording.record_status("OK", "fine")
        assert recording.get_recorded_span().status.status_code == "OK"
        with tracer.operation_context("op") as recording, pytest.raises(ValueError, match="NOPE"):
            recording.record_status("NOPE")
