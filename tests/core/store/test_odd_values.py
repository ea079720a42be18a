"""What JSON cannot hold, or gives back otherwise, is refused where it is written, or kept."""

import json
import math
from typing import Any

import aiohttp
import numpy
import pytest
from tests.stores import opened, served

from agl.errors import InvalidRecordError, InvalidTransitionError
from agl.store.span_checks import storable
from agl.types import Link, SpanContext
from agl_server.client import without_token
from agl_testing.store_steps import span_of

NUMBER = 10**5_000
"""Python reads no number of so many digits."""
DEEP: list[Any] = []
for _ in range(900):
    DEEP = [DEEP]
CYCLE: list[Any] = []
CYCLE.append(CYCLE)


async def test_blanks_behind_a_span_damage_nothing(store):
    async with served(store) as (server, _):
        started = await store.start_rollout("task")
        await store.add_span(span_of(started, name="good"))
        await store.update_attempt(started.rollout_id, "latest", status="succeeded")
        url, token = without_token(server.endpoint)
        headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            for blanks in ("\n", " ", "\r\n\t"):
                body = span_of(started, name="late").model_dump_json() + blanks
                async with session.post(f"{url}/v1/agl/spans", data=body) as answer:
                    assert answer.status == 201
        found = [(one.name, one.late) for one in await store.query_spans(started.rollout_id)]
    assert found == [("good", False), *[("late", True)] * 3]


@pytest.mark.parametrize("value", [DEEP, CYCLE], ids=["deep", "cycle"])
async def test_what_nobody_can_read_again_is_refused_and_changes_nothing(store, value):
    one = await store.enqueue_rollout("one")
    await store.update_worker("w", {"known": 1})
    for refused in (
        store.update_worker("w", {"n": value}),
        store.update_rollout(one.rollout_id, metadata={"n": value}),
    ):
        with pytest.raises(InvalidRecordError):
            await refused
    assert (await store.get_worker_by_id("w")).heartbeat_stats == {"known": 1}
    claimed = await store.dequeue_rollout("w")
    assert claimed.input == "one"
    assert [each.metadata for each in await store.query_rollouts()] == [claimed.metadata]
    with pytest.raises(InvalidRecordError):
        await store.add_span(span_of(claimed, attributes={"n": NUMBER}))
    assert list(await store.query_spans(claimed.rollout_id)) == []


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"label": math.nan}, r"input\['label'\] .*it is nan \(float\)"),
        ({"a": [1, {"b": -math.inf}]}, r"input\['a'\]\[1\]\['b'\] .*it is -inf"),
        ({"a": b"text"}, r"input\['a'\] .*it is b'text' \(bytes\)"),
        ({"a": [numpy.float32(1)]}, r"input\['a'\]\[0\] .*numpy.float32"),
        ({"a": {"b": numpy.arange(2)}}, r"input\['a'\]\['b'\] .*numpy.ndarray"),
        ({"a": "\ud800"}, r"input\['a'\] .*surrogates"),
        (object(), "^input cannot be stored: .*'object'"),
        ({"label": DEEP}, "input .*deeper than 191 levels"),
        ({"label": CYCLE}, "input .*holds itself"),
    ],
)
async def test_no_store_takes_a_task_that_json_cannot_hold(store, task, said):
    async with served(store) as (_, client):
        one = await store.enqueue_rollout("one")
        for remote in (store, client):
            for refused in (
                remote.enqueue_rollout(task),
                remote.start_rollout(task),
                remote.update_rollout(one.rollout_id, input=task),
            ):
                with pytest.raises(InvalidRecordError, match=said):
                    await refused
        assert [each.input for each in await store.query_rollouts()] == ["one"]


async def test_a_task_with_these_words_is_no_number(tmp_path):
    task = {"text": "NaN, Infinity", "digits": "7" * 10_000, "number": 10**300}
    async with opened(tmp_path / "s.db") as store:
        await store.enqueue_rollout(json.loads(json.dumps(task)))
        assert (await store.dequeue_rollout()).input == task


async def test_span_of_odd_texts_becomes_one_that_is_kept(store):
    started = await store.start_rollout("task")
    ids = {"trace_id": "\ud800", "span_id": "b" * 16, "is_remote": False, "trace_state": {}}
    odd = span_of(started, parent_id="\ud800").model_copy(
        update={"links": [Link(context=SpanContext.model_validate(ids))], "mine": "\ud800"}
    )
    await store.add_many_spans([storable(odd), span_of(started)])
    kept, _ = await store.query_spans(started.rollout_id)
    assert (kept.parent_id, kept.links[0].context.trace_id) == ("\ufffd", "\ufffd")
    with pytest.raises(InvalidRecordError, match="NUL"):
        storable(span_of(started, span_id="a\0b"))


@pytest.mark.parametrize("wrong", [{"mode": "training"}, {"config": 3}, {"metadata": [1]}])
async def test_what_is_no_field_of_a_rollout_is_refused_and_no_damage(store, wrong):
    rollout_id = (await store.start_rollout("task")).rollout_id
    for ask in (store.start_rollout("task", **wrong), store.update_rollout(rollout_id, **wrong)):
        with pytest.raises(InvalidRecordError, match=next(iter(wrong))):
            await ask
    assert len(await store.query_rollouts()) == 1


async def test_a_status_given_as_text_is_that_status_and_no_part_of_its_name(store):
    rollout_id = (await store.enqueue_rollout("task")).rollout_id
    with pytest.raises(InvalidTransitionError, match="is 'queuing', not requeuing"):
        await store.update_rollout(rollout_id, status="cancelled", if_status="requeuing")
    ended = await store.update_rollout(rollout_id, status="cancelled", if_status="queuing")
    assert ended.status == "cancelled"
