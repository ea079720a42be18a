"""The part of the store contract about spans."""

import time
from functools import partial
from typing import Any

import pytest

from agl.errors import InvalidRecordError, UnknownRecordError
from agl.store.base import LightningStore
from agl.types import Event, Link, SpanContext, TraceStatus
from agl_testing.store_steps import (
    RETRY_ONCE,
    claim,
    column,
    end_of,
    ids_of,
    report,
    span_of,
    status_of,
)


class StoreSpansContract:
    """Adding, numbering, reading spans."""

    async def test_span_comes_back_as_it_was(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        context = SpanContext(trace_id="a" * 32, span_id="b" * 16, is_remote=True, trace_state={})
        attributes = {"s": "ü", "i": 3, "f": 0.5, "b": True, "ids": [1, 2], "words": ["a", "b"]}
        made = span_of(started, parent_id="c" * 16, attributes=attributes).model_copy(
            update={
                "sequence_id": 7,
                "status": TraceStatus(status_code="ERROR", description="no"),
                "events": [Event(name="e", attributes={"x": 1}, timestamp=1.5)],
                "links": [Link(context=context, attributes={"y": 2})],
            }
        )
        assert await store.add_span(made) == made
        assert list(await store.query_spans(started.rollout_id)) == [made]

    async def test_span_without_number_gets_the_next_one(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        added = await store.add_many_spans([span_of(started) for _ in range(3)])
        assert [span.sequence_id for span in added] == [1, 2, 3]
        again = await store.add_span(span_of(started))
        assert again is not None
        assert again.sequence_id == 4

    async def test_numbers_grow_over_the_attempts_of_a_rollout(self, store: LightningStore) -> None:
        first = await store.start_rollout("task", config=RETRY_ONCE)
        pair = ids_of(first)
        numbers = [await store.get_next_span_sequence_id(*pair) for _ in range(3)]
        await store.add_span(span_of(first).model_copy(update={"sequence_id": 40}))
        (unnumbered,) = await store.add_many_spans([span_of(first)])
        numbers += [unnumbered.sequence_id, await store.get_next_span_sequence_id(*pair)]
        assert numbers == [1, 2, 3, 41, 42]
        await report(store, first, "failed")
        second = await claim(store)
        assert second.rollout_id == first.rollout_id
        assert await store.get_next_span_sequence_id(*ids_of(second)) == 43
        (unnumbered,) = await store.add_many_spans([span_of(second)])
        done = await store.turn([span_of(second)], limit=0)
        assert [unnumbered.sequence_id, done.spans[0].sequence_id] == [44, 45]
        await store.add_span(span_of(first).model_copy(update={"sequence_id": 50}))  # late
        third = await store.start_attempt(first.rollout_id)
        (unnumbered,) = await store.add_many_spans([span_of(third)])
        assert unnumbered.sequence_id == 51

    async def test_numbers_are_reserved_per_attempt(self, store: LightningStore) -> None:
        one, two = [await store.start_rollout(i) for i in range(2)]
        first, second = ids_of(one), ids_of(two)
        numbers = await store.get_many_span_sequence_ids([first, second, first])
        assert list(numbers) == [1, 1, 2]
        assert await store.get_next_span_sequence_id(*second) == 2

    async def test_numbers_of_unknown_attempts_are_refused(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        with pytest.raises(UnknownRecordError, match="at-none"):
            await store.get_next_span_sequence_id(started.rollout_id, "at-none")
        with pytest.raises(UnknownRecordError, match="ro-none"):
            await store.get_next_span_sequence_id("ro-none", started.attempt.attempt_id)

    async def test_stored_span_is_skipped(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        first, second = span_of(started), span_of(started)
        assert await store.add_span(first) is not None
        assert await store.add_span(first) is None
        added = await store.add_many_spans([first, second, second])
        assert [span.span_id for span in added] == [second.span_id]
        assert added[0].sequence_id == 2
        assert (await store.query_spans(started.rollout_id)).total == 2

    async def test_span_id_may_recur_in_another_attempt(self, store: LightningStore) -> None:
        one, two = [await store.start_rollout(i) for i in range(2)]
        assert await store.add_span(span_of(one, span_id="a" * 16)) is not None
        assert await store.add_span(span_of(two, span_id="a" * 16)) is not None

    async def test_spans_are_added_all_or_none(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        stray = span_of(started).model_copy(update={"attempt_id": "at-none"})
        with pytest.raises(UnknownRecordError, match="at-none"):
            await store.add_many_spans([span_of(started), stray])
        assert (await store.query_spans(started.rollout_id)).total == 0
        assert await status_of(store, started) == "preparing"

    @pytest.mark.parametrize("value", [float("nan"), [1.0, float("-inf")]])
    async def test_not_finite_is_refused_by_name(self, store: LightningStore, value: Any) -> None:
        started = await store.start_rollout("task")
        bad = span_of(started, attributes={"score": value})
        with pytest.raises(InvalidRecordError, match=f"{bad.span_id}.*score"):
            await store.add_many_spans([span_of(started), bad])
        assert len(await store.query_spans(started.rollout_id)) == 0

    @pytest.mark.parametrize(
        "field", ["span_id", "trace_id", "parent_id", "schema_url", "link", "trace_state", "other"]
    )
    async def test_text_beyond_utf_8_is_refused(self, store: LightningStore, field: str) -> None:
        started = await store.start_rollout("task")
        good, bad = span_of(started), span_of(started)
        ids = {"trace_id": "a" * 32, "span_id": "b" * 16, "is_remote": False}
        context = SpanContext.model_validate({**ids, "trace_state": {"a": "\ud800"}})
        changes: dict[str, Any] = {
            "schema_url": {"resource": bad.resource.model_copy(update={"schema_url": "\ud800"})},
            "link": {"links": [Link(context=context)]},
            "trace_state": {"context": context},
        }
        bad = bad.model_copy(update=changes.get(field, {field: "\ud800"}))
        spans = [good, bad, span_of(started)]
        with pytest.raises(InvalidRecordError):
            await store.add_many_spans(spans)
        with pytest.raises(InvalidRecordError):
            await store.turn(spans, finish=end_of(started), limit=0)
        assert (await store.query_spans(started.rollout_id)).total == 0
        assert await status_of(store, started) == "preparing"
        added = await store.add_many_spans([good])
        assert [span.sequence_id for span in added] == [1]

    async def test_negative_number_is_refused_by_name(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        bad = span_of(started).model_copy(update={"sequence_id": -1})
        for write in (store.add_many_spans([span_of(started), bad]), store.turn([bad], limit=0)):
            with pytest.raises(InvalidRecordError, match=f"{bad.span_id}.*sequence_id is -1"):
                await write
        assert len(await store.query_spans(started.rollout_id)) == 0

    async def test_spans_of_several_attempts_in_one_call(self, store: LightningStore) -> None:
        one, two = [await store.start_rollout(i) for i in range(2)]
        added = await store.add_many_spans([span_of(one), span_of(two), span_of(one)])
        assert [(s.rollout_id, s.sequence_id) for s in added] == [
            (one.rollout_id, 1),
            (two.rollout_id, 1),
            (one.rollout_id, 2),
        ]

    async def test_first_span_sets_running_and_is_a_heartbeat(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        await store.add_span(span_of(started))
        assert await status_of(store, started) == "running"
        (attempt,) = await store.query_attempts(started.rollout_id)
        assert attempt.status == "running"
        assert attempt.last_heartbeat_time == pytest.approx(time.time(), abs=60)

    async def test_span_of_an_ended_attempt_is_kept(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        ended = await report(store, started, "succeeded")
        assert await store.add_span(span_of(started)) is not None
        assert await store.get_latest_attempt(started.rollout_id) == ended
        assert (await store.query_spans(started.rollout_id)).total == 1

    async def test_span_after_the_end_of_its_attempt_is_late(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        await store.add_span(span_of(started))
        await report(store, started, "succeeded")
        await store.add_span(span_of(started))
        # What an algorithm writes comes after every end.
        await store.add_span(span_of(started).model_copy(update={"writer": "algorithm"}))
        await store.turn([span_of(started)], limit=0)
        # A gateway's call that ended before the attempt was in it, whoever ended the attempt.
        for end in (started.attempt.start_time, time.time() + 60):
            call = {"writer": "gateway", "start_time": end, "end_time": end}
            await store.add_span(span_of(started).model_copy(update=call))
        stored = await store.query_spans(started.rollout_id)
        assert [span.late for span in stored] == [False, True, False, True, False, True]

    async def test_span_after_the_next_attempt_began_is_late(self, store: LightningStore) -> None:
        first = await store.start_rollout("task")
        second = await store.start_attempt(first.rollout_id)
        await store.add_many_spans([span_of(first), span_of(second)])
        await store.turn([span_of(first)], finish=end_of(first), limit=0)
        late = {(one.attempt_id, one.late) for one in await store.query_spans(first.rollout_id)}
        assert late == {(first.attempt.attempt_id, True), (second.attempt.attempt_id, False)}

    async def test_add_otel_span(self, store: LightningStore) -> None:
        from opentelemetry.sdk.trace import TracerProvider

        started = await store.start_rollout("task")
        span: Any = TracerProvider().get_tracer("t").start_span("work", attributes={"k": [1, 2]})
        span.end()
        added = await store.add_otel_span(*ids_of(started), span)
        assert added is not None
        assert (added.name, added.sequence_id, added.attributes["k"]) == ("work", 1, [1, 2])
        assert await store.add_otel_span(*ids_of(started), span) is None

    async def test_query_spans_by_attempt(self, store: LightningStore) -> None:
        first = await store.start_rollout("task")
        await store.add_span(span_of(first, "one"))
        second = await store.start_attempt(first.rollout_id)
        await store.add_span(span_of(second, "two"))
        names = partial(column, store.query_spans, "name", first.rollout_id)
        assert await names(None) == ["one", "two"]
        assert await names(first.attempt.attempt_id) == ["one"]
        assert await names("latest") == ["two"]
        assert await names("at-none") == []
        assert (await store.query_spans("ro-none")).total == 0

    async def test_query_spans_filters(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        made = [
            span_of(started, "plan", trace_id="1" * 32, span_id="a" * 16),
            span_of(started, "plan b", trace_id="2" * 32, span_id="b" * 16, parent_id="a" * 16),
            span_of(started, "act", trace_id="2" * 32, span_id="ab" * 8, parent_id="b" * 16),
        ]
        await store.add_many_spans(made)
        found = partial(column, store.query_spans, "name", started.rollout_id)
        assert await found(name="plan") == ["plan"]
        assert await found(name_contains="plan") == ["plan", "plan b"]
        assert await found(trace_id="2" * 32) == ["plan b", "act"]
        assert await found(trace_id_contains="1") == ["plan"]
        assert await found(span_id="a" * 16) == ["plan"]
        assert await found(span_id_contains="ab") == ["act"]
        assert await found(parent_id="a" * 16) == ["plan b"]
        assert await found(parent_id_contains="b") == ["act"]
        assert await found(name_contains="plan", trace_id="2" * 32) == ["plan b"]
        assert await found(name="act", parent_id="a" * 16, filter_logic="or") == ["plan b", "act"]
        assert await found(name="none") == []

    async def test_query_spans_sorts_and_pages(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        times = [3.0, None, 1.0, 2.0]
        made = [
            span_of(started, f"s{i}").model_copy(update={"start_time": t, "end_time": t})
            for i, t in enumerate(times)
        ]
        await store.add_many_spans(made)
        names = partial(column, store.query_spans, "name", started.rollout_id)
        assert await names(sort_by="start_time") == ["s2", "s3", "s0", "s1"]
        assert await names(sort_by="end_time", sort_order="desc") == ["s1", "s0", "s3", "s2"]
        assert await names(sort_order="desc") == ["s3", "s2", "s1", "s0"]
        assert await names(sort_by=None) == ["s0", "s1", "s2", "s3"]
        page = await store.query_spans(started.rollout_id, limit=2, offset=1)
        assert [span.name for span in page] == ["s1", "s2"]
        assert (page.total, page.limit, page.offset) == (4, 2, 1)
