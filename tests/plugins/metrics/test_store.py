"""What a store server counts, seen by a scrape of a real server."""

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from tests.stores import served

import agl
from agl.errors import UnknownRecordError
from agl.store.memory import InMemoryLightningStore
from agl.types import RolloutConfig
from agl_metrics import PrometheusMetricsBackend
from agl_metrics.watching import SECONDS, WatchedStore

from .conftest import scrape, until


async def test_a_served_store_counts_operations_requests_and_rollouts() -> None:
    tracker = PrometheusMetricsBackend(CollectorRegistry())
    async with served(tracker=tracker) as (server, client):
        rollout = await client.start_rollout(input={"task": 1}, mode="train")
        attempt = rollout.attempt
        for _ in range(2):  # an end may be reported twice, and is one
            await client.update_attempt(rollout.rollout_id, attempt.attempt_id, status="succeeded")
        with pytest.raises(UnknownRecordError):
            await client.update_attempt("ro-none", "at-none", status="failed")
        queued = await client.enqueue_rollout(input={"task": 2})
        for _ in range(2):
            await client.update_rollout(queued.rollout_id, status="cancelled")
        token = server.headers["Authorization"].removeprefix("Bearer ")
        url = f"{server.address}/v1/prometheus"
        async with aiohttp.ClientSession() as http, http.get(url) as response:
            assert response.status == 401
        samples = await until(
            lambda: scrape(url, token), lambda s: s.value("agl_http_total", status="404")
        )
        native = await scrape(f"{server.address}/metrics", token)
    start = {"method": "start_rollout", "store_pubmeth": "start_rollout", "status": "OK"}
    assert samples.value("agl_store_total", **start) == 1
    assert samples.value("agl_store_latency_count", **start) == 1
    assert samples.value("agl_store_total", method="update_attempt", status="OK") == 2
    error = {"method": "update_attempt", "status": "UnknownRecordError"}
    assert samples.value("agl_store_total", **error) == 1
    assert samples.value("agl_rollouts_total", status="succeeded", mode="train") == 1
    assert samples.value("agl_rollouts_duration_count", status="succeeded", mode="train") == 1
    assert samples.value("agl_rollouts_total", status="cancelled", mode="none") == 1
    assert samples.value("agl_rollouts_total") == 2
    path = "/v1/agl/rollouts/{rollout_id}/attempts/{attempt_id}"
    for status, count in (("200", 2), ("404", 1)):
        assert samples.value("agl_http_total", path=path, method="POST", status=status) == count
        assert native.value("agl_http_requests_total", route=path, status=status) == count


async def test_a_rollout_that_the_store_ends_by_itself_is_counted(remembered, monkeypatch) -> None:
    monkeypatch.setattr("agl_metrics.watching.LOOK_SECONDS", 0.0)
    store = WatchedStore(InMemoryLightningStore(scan_interval_seconds=0.01), remembered)
    await store.start_rollout(input=1, config=RolloutConfig(timeout_seconds=0.01))
    await until(store.statistics, lambda _: remembered.count("agl.rollouts.total"))
    await store.close()
    assert remembered.count("agl.rollouts.total", status="failed", mode="none") == 1


async def test_a_rollout_that_ran_when_the_server_began_is_counted(remembered) -> None:
    store = InMemoryLightningStore()
    rollout = await store.start_rollout(input=1)
    ended = await store.start_rollout(input=2)
    await store.update_attempt(ended.rollout_id, ended.attempt.attempt_id, status="failed")
    watched = WatchedStore(store, remembered)
    await watched.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="failed")
    await store.close()
    assert remembered.count("agl.rollouts.total") == 1


async def test_a_backend_of_one_s_own_is_told_of_each_request(remembered) -> None:
    async with served(open=True, tracker=remembered) as (server, _):
        async with aiohttp.ClientSession() as http:
            async with http.get(f"{server.address}/health") as response:
                assert response.status == 200
            async with http.get(f"{server.address}/v1/prometheus") as response:
                assert response.status == 404

        async def look():
            return remembered.count("agl.http.total")

        await until(look, lambda count: count == 2)
    health = {"path": "/health", "method": "GET", "status": "200"}
    assert remembered.count("agl.http.total", **health) == 1
    durations = [value for name, value, labels in remembered.observed if labels == health]
    assert len(durations) == 1
    assert 0 < durations[0] < 60


def test_bounds_of_durations_ascend() -> None:
    assert list(SECONDS) == sorted(set(SECONDS))
    assert (SECONDS[0], SECONDS[-1]) == pytest.approx((0.0001, 200))


@agl.rollout
def halves(task: int) -> float:
    return task / 2


@pytest.mark.parametrize("strategy", ["shm", {"type": "cs", "server_port": 0}])
def test_a_watched_store_is_counted_in_a_run(strategy, remembered, tmp_path) -> None:
    store = remembered.watch_store(agl.SqliteLightningStore(tmp_path / "store.db"))
    agl.Trainer(algorithm="baseline", store=store, strategy=strategy, n_runners=1).fit(
        halves, [0, 1, 2]
    )
    assert remembered.count("agl.rollouts.total", status="succeeded", mode="train") == 3
    assert remembered.count("agl.store.total", status="OK") >= 6
