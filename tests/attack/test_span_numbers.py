"""A span with the highest number leaves others their place: numbers cannot be used up."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

import agl
from agl.store.packed import MAX_SEQUENCE_ID


@pytest.fixture(params=["memory", "sqlite"])
async def client(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncGenerator[agl.LightningStoreClient]:
    store: agl.LightningStore = agl.InMemoryLightningStore()
    if request.param == "sqlite":
        store = agl.SqliteLightningStore(str(tmp_path / "agl.db"))
    server = agl.LightningStoreServer(store, port=0)
    await server.start()
    client = agl.LightningStoreClient(server.endpoint)
    yield client
    await client.close()
    await server.close()


async def test_numbers_cannot_be_used_up(client: agl.LightningStoreClient) -> None:
    begun = await client.start_rollout("a task")

    def span(number: int) -> agl.Span:
        made = agl.Span.from_attributes(
            attributes={},
            rollout_id=begun.rollout_id,
            attempt_id=begun.attempt.attempt_id,
        )
        return made.model_copy(update={"sequence_id": number})

    with pytest.raises(agl.AglError, match=str(MAX_SEQUENCE_ID)):
        await client.add_many_spans([span(MAX_SEQUENCE_ID + 1)])
    (highest,) = await client.add_many_spans([span(MAX_SEQUENCE_ID)])
    honest = [(await client.add_many_spans([span(0)]))[0] for _ in range(3)]
    first = highest.sequence_id + 1
    assert [one.sequence_id for one in honest] == [first, first + 1, first + 2]
    assert len(await client.query_spans(begun.rollout_id)) == 4
