"""What every tracer must do, as a pytest class; see ``agl_testing.contract``."""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager

import pytest

from agl.emitter import emit_message, emit_reward, find_final_reward, get_message_value, operation
from agl.errors import TracerError
from agl.store.base import LightningStore
from agl.tracer.base import Tracer, get_active_tracer
from agl.types import AttemptedRollout, Span, TraceStatus
from agl_testing.contract import Contract


@asynccontextmanager
async def _traced(
    tracer: Tracer, store: LightningStore, given: AttemptedRollout | None = None
) -> AsyncGenerator[AttemptedRollout]:
    """A context of a rollout: of one that is given, or of a new one."""
    rollout = given or await store.start_rollout("task")
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    async with tracer.trace_context(store=store, **ids):
        yield rollout


async def _stored(store: LightningStore, rollout: AttemptedRollout) -> list[Span]:
    return list(await store.query_spans(rollout.rollout_id))


@pytest.mark.asyncio
class TracerContract(Contract):
    """Claims of ``Tracer``'s docstrings."""

    kind = "tracer"
    expected_type = Tracer

    @pytest.fixture
    def tracer(self) -> Generator[Tracer]:
        """The tracer to test, at work."""
        with self.build().lifespan() as tracer:
            yield tracer

    @pytest.fixture
    def store(self, memory_store: LightningStore) -> LightningStore:
        """Where the spans go."""
        return memory_store

    async def test_active_only_within_its_context(self, tracer: Tracer) -> None:
        """The emitters find the tracer within its context, and only there."""
        assert get_active_tracer() is None
        async with tracer.trace_context():
            assert get_active_tracer() is tracer
        assert get_active_tracer() is None

    async def test_spans_are_stored_at_the_end(self, tracer: Tracer, store: LightningStore) -> None:
        """Nothing is still on its way: an attempt's status is final right afterwards."""
        async with _traced(tracer, store) as rollout:
            for index in range(200):
                tracer.create_span(f"span-{index}", {"index": index})
        spans = await _stored(store, rollout)
        assert [span.attributes["index"] for span in spans] == list(range(200))
        assert {span.attempt_id for span in spans} == {rollout.attempt.attempt_id}

    async def test_spans_are_numbered_as_they_end(
        self, tracer: Tracer, store: LightningStore
    ) -> None:
        """Numbers begin at 1 and rise; an operation ends after what it contains."""
        async with _traced(tracer, store) as rollout:
            tracer.create_span("first")
            with tracer.operation_context("third"):
                await asyncio.sleep(0.1)  # long enough for a background write in between
                tracer.create_span("second")
            tracer.create_span("fourth")
        spans = await _stored(store, rollout)
        assert [span.name for span in spans] == ["first", "second", "third", "fourth"]
        assert [span.sequence_id for span in spans] == [1, 2, 3, 4]

    async def test_without_ids_nothing_is_stored(
        self, tracer: Tracer, store: LightningStore
    ) -> None:
        """A context without ids is for looking at spans only."""
        tracer.init_worker(0, store)
        async with tracer.trace_context():
            tracer.create_span("local")
            assert [span.name for span in tracer.get_last_trace()] == ["local"]
        assert [span.name for span in tracer.get_last_trace()] == ["local"]
        assert (await store.statistics()).get("total_spans") == 0

    async def test_unfit_ids_are_refused(self, tracer: Tracer, store: LightningStore) -> None:
        """One id alone, and ids without a store."""
        with pytest.raises(TracerError, match="both ids"):
            async with tracer.trace_context(store=store, rollout_id="ro-1"):
                pass
        with pytest.raises(TracerError, match="store"):
            async with tracer.trace_context(rollout_id="ro-1", attempt_id="at-1"):
                pass

    async def test_error_passes_and_spans_stay(self, tracer: Tracer, store: LightningStore) -> None:
        """What happened before the error is often what explains it."""
        rollout = await store.start_rollout("task")
        error = KeyError("mine")

        async def fail() -> None:
            async with _traced(tracer, store, rollout):
                tracer.create_span("before")
                raise error

        with pytest.raises(KeyError) as caught:
            await fail()
        assert caught.value is error
        assert [span.name for span in await _stored(store, rollout)] == ["before"]
        assert get_active_tracer() is None

    async def test_two_contexts_do_not_mix(self, tracer: Tracer, store: LightningStore) -> None:
        """A tracer is used for one rollout after the other."""
        rollouts = [await store.start_rollout("task") for _ in range(2)]
        for index, rollout in enumerate(rollouts):
            async with _traced(tracer, store, rollout):
                tracer.create_span(f"span-{index}")
            assert [span.name for span in tracer.get_last_trace()] == [f"span-{index}"]
        names = [[span.name for span in await _stored(store, each)] for each in rollouts]
        assert names == [["span-0"], ["span-1"]]

    async def test_fifty_at_once_stay_apart(self, tracer: Tracer, store: LightningStore) -> None:
        """Each span is in its own rollout, whether it came from a task, a sub-task or a thread."""
        rollouts = [await store.start_rollout("task") for _ in range(50)]

        async def part(owner: int, index: int) -> None:
            await asyncio.sleep(0.001 * (index % 3))
            with tracer.operation_context("operation", {"owner": owner}):
                await asyncio.sleep(0)
                tracer.create_span("task", {"owner": owner})

        async def run(owner: int, rollout: AttemptedRollout) -> None:
            async with _traced(tracer, store, rollout):
                await asyncio.gather(*(part(owner, index) for index in range(3)))
                await asyncio.to_thread(tracer.create_span, "thread", {"owner": owner})
                mine = tracer.get_last_trace()
                assert [span.attributes["owner"] for span in mine] == [owner] * 7

        await asyncio.gather(*(run(owner, each) for owner, each in enumerate(rollouts)))
        for owner, rollout in enumerate(rollouts):
            spans = await _stored(store, rollout)
            assert [span.attributes["owner"] for span in spans] == [owner] * 7
            assert [span.sequence_id for span in spans] == list(range(1, 8))

    async def test_last_trace_is_of_the_own_task(
        self, tracer: Tracer, store: LightningStore
    ) -> None:
        """Also after its context was left, while others are open."""
        rollouts = [await store.start_rollout("task") for _ in range(2)]
        both_open = asyncio.Barrier(2)

        async def run(index: int) -> list[str]:
            async with _traced(tracer, store, rollouts[index]):
                await both_open.wait()
                tracer.create_span(f"span-{index}")
            await both_open.wait()
            return [span.name for span in tracer.get_last_trace()]

        assert await asyncio.gather(run(0), run(1)) == [["span-0"], ["span-1"]]

    async def test_code_in_a_thread_is_recorded(
        self, tracer: Tracer, store: LightningStore
    ) -> None:
        """Plain agents run in threads, with the context of the attempt."""
        rollout = await store.start_rollout("task")

        def work() -> None:
            assert get_active_tracer() is tracer
            with tracer.operation_context("outer"):
                tracer.create_span("inner")

        async with _traced(tracer, store, rollout):
            await asyncio.to_thread(work)
        assert [span.name for span in await _stored(store, rollout)] == ["inner", "outer"]

    async def test_operation_is_a_parent(self, tracer: Tracer, store: LightningStore) -> None:
        """Spans nest as the blocks do."""
        async with _traced(tracer, store) as rollout:
            with tracer.operation_context("outer"):
                with tracer.operation_context("middle"):
                    tracer.create_span("inner")
                tracer.create_span("sibling")
            tracer.create_span("outside")
        spans = {span.name: span for span in await _stored(store, rollout)}
        parents = {name: span.parent_id for name, span in spans.items()}
        assert parents == {
            "outer": None,
            "middle": spans["outer"].span_id,
            "inner": spans["middle"].span_id,
            "sibling": spans["outer"].span_id,
            "outside": None,
        }
        inside = [spans[name].trace_id for name in ("outer", "middle", "inner", "sibling")]
        assert len(set(inside)) == 1

    async def test_failed_operation_has_an_error(
        self, tracer: Tracer, store: LightningStore
    ) -> None:
        """The error passes, and is on the span."""
        rollout = await store.start_rollout("task")

        def fail() -> None:
            with tracer.operation_context("work") as recording:
                recording.record_attributes({"step": 1})
                raise ValueError("broken")

        async with _traced(tracer, store, rollout):
            with pytest.raises(ValueError, match="broken"):
                fail()
            with tracer.operation_context("fine"):
                pass
        work, fine = await _stored(store, rollout)
        assert (work.status.status_code, work.attributes["step"]) == ("ERROR", 1)
        assert "broken" in (work.status.description or "")
        assert fine.status.status_code == "OK"

    async def test_created_span_is_as_recorded(self, tracer: Tracer, store: LightningStore) -> None:
        """Name, attributes, status and times are those given."""
        rollout = await store.start_rollout("task")
        moment = time.time() - 100
        async with _traced(tracer, store, rollout):
            core = tracer.create_span(
                "past", {"a": [1, 2]}, moment, TraceStatus(status_code="ERROR", description="why")
            )
        (span,) = await _stored(store, rollout)
        for each in (core, span):
            assert each.name == "past"
            assert list(each.attributes["a"]) == [1, 2]  # pyright: ignore
            assert (each.status.status_code, each.status.description) == ("ERROR", "why")
            assert each.start_time == pytest.approx(moment, abs=1e-3)
            assert each.end_time == pytest.approx(moment, abs=1e-3)

    async def test_emitters_work_under_it(self, tracer: Tracer, store: LightningStore) -> None:
        """The reward that an agent emits is the reward that an algorithm reads."""
        async with _traced(tracer, store) as rollout:
            emit_message("hello")
            with operation(name="grade") as grade:
                grade.set_input(answer="42")
                emit_reward(0.25)
                grade.set_output({"reward": 0.75})
            emit_reward(0.75)
        spans = await _stored(store, rollout)
        assert find_final_reward(spans) == 0.75
        assert get_message_value(spans[0]) == "hello"
        assert spans[1].parent_id == spans[2].span_id
        assert spans[2].attributes["agentlightning.operation.output.reward"] == 0.75
