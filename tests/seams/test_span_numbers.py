"""Span numbers from tracer, store and OTLP, as a reader of all attempts sees them."""

from collections.abc import AsyncGenerator

import pytest
from tests.otlp_requests import request_of
from tests.stores import served

import agl
from agl.store.span_checks import MAX_SEQUENCE_ID


@pytest.fixture(params=["memory", "sqlite"])
async def client(request, tmp_path) -> AsyncGenerator[agl.LightningStoreClient]:
    store = (
        agl.InMemoryLightningStore()
        if request.param == "memory"
        else agl.SqliteLightningStore(tmp_path / "agl.db")
    )
    async with served(store) as (_, client):
        yield client


async def test_numbers_grow_by_every_door(client: agl.LightningStoreClient) -> None:
    """As 0.3's client asks, in one request, in a turn, and by OTLP: one attempt after the other."""
    rollout = await client.enqueue_rollout("task")
    numbers: list[int] = []
    for _ in range(3):
        attempt = (await client.start_attempt(rollout.rollout_id)).attempt
        ids = {"rollout_id": attempt.rollout_id, "attempt_id": attempt.attempt_id}

        def span(number: int = 0, ids: dict[str, str] = ids) -> agl.Span:
            return agl.Span.from_attributes(attributes={}, sequence_id=number, **ids)

        number = await client.get_next_span_sequence_id(**ids)
        await client.add_span(span(number))
        await client.add_many_spans([span(), span()])
        await client.turn([span()], limit=0)
        await post_otlp(client, request_of([span()]))
        found = await client.query_spans(rollout.rollout_id, attempt.attempt_id)
        assert len(found) == 5
        numbers += [one.sequence_id for one in found]
    assert numbers == list(range(1, 16))


async def test_numbers_cannot_be_used_up(client: agl.LightningStoreClient) -> None:
    begun = await client.start_rollout("a task")

    def span(number: int) -> agl.Span:
        made = agl.Span.from_attributes(
            attributes={}, rollout_id=begun.rollout_id, attempt_id=begun.attempt.attempt_id
        )
        return made.model_copy(update={"sequence_id": number})

    with pytest.raises(agl.AglError, match=str(MAX_SEQUENCE_ID)):
        await client.add_many_spans([span(MAX_SEQUENCE_ID + 1)])
    (highest,) = await client.add_many_spans([span(MAX_SEQUENCE_ID)])
    honest = [(await client.add_many_spans([span(0)]))[0] for _ in range(3)]
    first = highest.sequence_id + 1
    assert [one.sequence_id for one in honest] == [first, first + 1, first + 2]
    assert len(await client.query_spans(begun.rollout_id)) == 4


async def post_otlp(client: agl.LightningStoreClient, body: bytes) -> None:
    import aiohttp

    headers = {"Content-Type": "application/x-protobuf"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(client.otlp_traces_endpoint(), data=body, headers=headers) as response,
    ):
        assert response.status == 200
