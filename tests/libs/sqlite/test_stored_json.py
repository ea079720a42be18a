"""What SQLite answers in JSON is the JSON of its records."""

import asyncio
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from agl.errors import InvalidQueryError, InvalidRecordError, StoreUnavailableError
from agl.store.base import LightningStore
from agl.types import (
    AttemptedRollout,
    EnqueueRolloutRequest,
    Failure,
    Rollout,
    RolloutConfig,
    Span,
)
from agl_server import packed_json
from agl_server.calls import CALLS, json_method
from agl_sqlite import SqliteLightningStore

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False, allow_infinity=False)
)
SCALARS = st.one_of(TEXTS, st.booleans(), NUMBERS)
JSON = st.recursive(
    st.one_of(SCALARS, st.none(), st.floats(), st.sampled_from(["NaN", "Infinity"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.none() | st.dictionaries(TEXTS, JSON, max_size=3)
ATTRIBUTES = st.dictionaries(TEXTS, SCALARS | st.lists(TEXTS, max_size=3), max_size=4)
CONTEXTS = st.fixed_dictionaries(
    {
        "trace_id": TEXTS,
        "span_id": TEXTS,
        "is_remote": st.booleans(),
        "trace_state": st.dictionaries(TEXTS, TEXTS, max_size=2),
    }
)
TIMES = st.none() | st.integers(0, 10**10) | st.floats(0, 1e10)
EXTRA = {"of_its_own": st.none() | SCALARS | st.dictionaries(TEXTS, SCALARS, max_size=2)}
SPANS = st.fixed_dictionaries(
    {
        "sequence_id": st.integers(0, 9),
        "trace_id": st.sampled_from(["t1", "t2"]),
        "parent_id": st.none() | st.sampled_from(["p1", "p2"]),
        "name": TEXTS,
        "status": st.fixed_dictionaries(
            {"status_code": st.sampled_from(["OK", "UNSET"])},
            optional={"description": st.none() | TEXTS} | EXTRA,
        ),
        "attributes": ATTRIBUTES,
        "events": st.lists(
            st.fixed_dictionaries(
                {"name": TEXTS, "attributes": ATTRIBUTES}, optional={"timestamp": TIMES}
            ),
            max_size=2,
        ),
        "links": st.lists(
            st.fixed_dictionaries(
                {"context": CONTEXTS}, optional={"attributes": st.none() | ATTRIBUTES}
            ),
            max_size=2,
        ),
        "start_time": TIMES,
        "end_time": TIMES,
        "context": st.none() | CONTEXTS,
        "parent": st.none() | CONTEXTS,
        "resource": st.fixed_dictionaries({"attributes": ATTRIBUTES, "schema_url": TEXTS}),
    },
    optional=EXTRA,
)
QUERIES = st.fixed_dictionaries(
    {},
    optional={
        "attempt_id": st.sampled_from(["latest", "first", "at-0123456789ab"]),
        "limit": st.sampled_from([-1, 1, 2, 100]),
        "offset": st.integers(0, 4),
        "sort_by": st.sampled_from([None, "start_time", "name", "parent_id", "attempt_id"]),
        "sort_order": st.sampled_from(["asc", "desc"]),
        "filter_logic": st.sampled_from(["and", "or"]),
        "trace_id": st.just("t1"),
        "parent_id_contains": st.just("p"),
        "name_contains": TEXTS,
    },
)


def is_held(value: Any) -> bool:
    """Whether JSON can hold it; else the store refuses it."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def strictly(content: bytes) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(content, parse_constant=refuse)


async def both(store: LightningStore, name: str, **arguments: Any) -> tuple[Any, Any]:
    """The JSON of the answer, and the answer in JSON."""
    answer_json = json_method(store, name)
    assert answer_json is not None
    record = await getattr(store, name)(**arguments)
    content = await answer_json(**arguments)
    content = b"".join(content) if isinstance(content, list) else content
    found, answer = strictly(content or b"null"), CALLS[name].answer
    if name == "query_spans":  # what a part of a span left out is what it is by default
        found = strictly(answer.dump_json(answer.validate_python(found)))
    return strictly(answer.dump_json(record)), found


async def add_spans(store: LightningStore, claimed: AttemptedRollout, drafts: list[Any]) -> None:
    """Half as a server takes them, if it takes them so, and half as records."""
    for number, draft in enumerate(drafts):
        ids = {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}
        span = draft | ids | {"span_id": f"s{number}"}
        try:
            text = json.dumps(span, indent=number % 3 or None, ensure_ascii=number % 2 == 0)
            packed = packed_json.pack(text.encode())
        except ValueError:
            packed = Span.model_validate(span)
        await store.turn([packed if number % 2 else Span.model_validate(span)], limit=0)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    input=JSON,
    metadata=OBJECTS,
    progress=OBJECTS,
    drafts=st.lists(SPANS, max_size=5),
    queries=st.lists(QUERIES, min_size=1, max_size=4),
)
@example(input={"": math.nan}, metadata=None, progress=None, drafts=[], queries=[{}])
@example(input=[], metadata={"": math.inf}, progress=None, drafts=[], queries=[{}])
@example(input=[], metadata=None, progress={"": math.inf}, drafts=[], queries=[{}])
def test_json_of_the_store_is_the_json_of_its_records(
    tmp_path: Path,
    input: Any,
    metadata: Any,
    progress: Any,
    drafts: Any,
    queries: Any,
) -> None:
    async def compare() -> None:
        store = SqliteLightningStore(tmp_path / "a.db", durability="process")
        config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
        request = EnqueueRolloutRequest(input=input, metadata=metadata, config=config)
        if not is_held(metadata) or not is_held(input):
            with pytest.raises(InvalidRecordError):
                await store.enqueue_many_rollouts([request])
            await store.close()
            return
        (rollout,) = await store.enqueue_many_rollouts([request])
        rollout_id = rollout.rollout_id
        records = [await both(store, "get_rollout_by_id", rollout_id=rollout_id)]
        (first,) = await store.dequeue_many_rollouts()
        await add_spans(store, first, drafts[:3])
        records.append(await both(store, "query_spans", rollout_id=rollout_id))
        lost = Failure(boundary="agent", type="é", message='"\n')
        ids = rollout_id, first.attempt.attempt_id
        if not is_held(progress):
            with pytest.raises(InvalidRecordError):
                await store.update_attempt(*ids, metadata=progress)
        held = progress if is_held(progress) else None
        await store.update_attempt(*ids, metadata=held, status="failed", error=lost)
        records.append(await both(store, "get_rollout_by_id", rollout_id=rollout_id))
        (second,) = await store.dequeue_many_rollouts(worker_id="w")
        await add_spans(store, second, drafts[3:])
        records.append(await both(store, "get_rollout_by_id", rollout_id=rollout_id))
        for query in queries:
            if query.get("attempt_id") == "first":
                query = query | {"attempt_id": first.attempt.attempt_id}
            records.append(await both(store, "query_spans", rollout_id=rollout_id, **query))
        for stranger in (rollout_id + "x", rollout_id.upper(), "ro-0123456789ab", ""):
            records.append(await both(store, "get_rollout_by_id", rollout_id=stranger))
            records.append(await both(store, "query_spans", rollout_id=stranger))
        await store.close()
        for of_record, in_json in records:
            assert in_json == of_record

    asyncio.run(compare())


async def enqueue(store: LightningStore) -> Rollout:
    return (await store.enqueue_many_rollouts([EnqueueRolloutRequest(input="i")]))[0]


async def test_what_the_store_refuses_it_refuses_in_json_too(tmp_path: Path) -> None:
    store = SqliteLightningStore(tmp_path / "a.db")
    with pytest.raises(InvalidQueryError, match="cannot sort by 'odd'"):
        await store.query_spans_json(rollout_id="ro-1", sort_by="odd")
    await store.close()
    with pytest.raises(StoreUnavailableError, match="closed"):
        await store.get_rollout_by_id_json("ro-1")


async def test_threads_may_ask_for_json_at_once(tmp_path: Path) -> None:
    store = SqliteLightningStore(tmp_path / "a.db")
    rollout_ids = [(await enqueue(store)).rollout_id for _ in range(8)]

    def ask(rollout_id: str) -> set[str]:
        answers = [store.get_rollout_by_id_json(rollout_id) for _ in range(20)]
        return {strictly(asyncio.run(answer) or b"null")["rollout_id"] for answer in answers}

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, rollout_ids)) == [{rollout_id} for rollout_id in rollout_ids]
    await store.close()


def test_a_subclass_that_answers_in_its_own_way_is_not_passed_by(tmp_path: Path) -> None:
    class OfItsOwn(SqliteLightningStore):
        async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
            return None

    class Watched(SqliteLightningStore):
        async def call(self, operation: str, arguments: dict[str, Any]) -> Any:
            return await super().call(operation, arguments)

    own, watched = OfItsOwn(tmp_path / "a.db"), Watched(tmp_path / "b.db")
    assert json_method(own, "get_rollout_by_id") is None
    assert json_method(own, "query_spans") == own.query_spans_json
    assert json_method(watched, "query_spans") is None
    for store in (own, watched):
        asyncio.run(store.close())


def test_a_method_that_is_put_on_a_store_is_not_passed_by(tmp_path: Path) -> None:
    store = SqliteLightningStore(tmp_path / "a.db")
    assert json_method(store, "query_spans") is not None
    vars(store)["query_spans"] = None
    assert json_method(store, "query_spans") is None
    asyncio.run(store.close())
