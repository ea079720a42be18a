"""``agl store --tracker``, ``agl gateway --tracker`` and ``agl prometheus`` as processes."""

import os
import subprocess
import sys

import aiohttp
import pytest

import agl
from agl.cli import main
from agl.errors import UnknownComponentError
from agl_http.tokens import without_token
from agl_server.client import LightningStoreClient
from agl_testing.echo_llm import EchoLLM

from .conftest import scrape, until

STORE = ("store", "--port", "0", "--backend", "memory")


async def enqueue(store) -> None:
    client = LightningStoreClient(store.url)
    await client.enqueue_rollout(input=1)
    await client.close()


async def test_agl_store_shows_the_metrics_of_both_trackers(start_agl, tmp_path) -> None:
    process = start_agl(*STORE, "--tracker", "prometheus", "--tracker", "console")
    await enqueue(process)
    address, token = without_token(process.url)
    samples = await scrape(f"{address}/v1/prometheus", token)
    assert samples.value("agl_store_total", method="enqueue_many_rollouts", status="OK") == 1
    code, output = process.end()
    assert code == 0, output
    assert "Traceback" not in output


async def test_a_gateway_shows_its_requests(start_agl) -> None:
    with EchoLLM() as llm:
        model = ("--model", f"echo={llm.url}", "--tracker", "prometheus")
        process = start_agl("gateway", "--port", "0", "--open", *model)
        body = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}
        async with aiohttp.ClientSession() as http:
            for url, status in (("/chat/completions", 200), ("/nothing", 404)):
                async with http.post(process.url + url, json=body) as response:
                    assert response.status == status
        samples = await until(
            lambda: scrape(f"{process.url}/prometheus"), lambda s: s.value("agl_http_total") >= 2
        )
        native = await scrape(f"{process.url}/metrics")
    asked = {"path": "/v1/chat/completions", "method": "POST", "status": "200"}
    assert samples.value("agl_http_total", **asked) == 1
    assert samples.value("agl_http_latency_count", **asked) == 1
    assert samples.value("agl_http_total", path="none", status="404") == 1
    route = {"route": "/v1/chat/completions", "method": "POST", "status": "200"}
    assert native.value("agl_http_requests_total", **route) == 1


async def test_agl_prometheus_shows_all_processes_and_a_store(start_agl, tmp_path) -> None:
    shared = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    stores = [start_agl(*STORE, "--tracker", "prometheus", env=shared) for _ in range(2)]
    for store in stores:
        await enqueue(store)
    exporter = start_agl("prometheus", "--port", "0", "--store", stores[0].url, env=shared)
    assert exporter.url.endswith("/v1/prometheus")
    samples = await scrape(exporter.url)
    assert samples.value("agl_store_total", method="enqueue_many_rollouts") == 2
    assert samples.value("agl_store_records", kind="rollouts") == 1
    assert samples.value("agl_store_up") == 1
    stores[0].end()
    samples = await scrape(exporter.url)
    assert samples.value("agl_store_up") == 0
    assert samples.value("agl_store_total", method="enqueue_many_rollouts") == 2
    code, output = exporter.end()
    assert code == 0, output
    assert "no metrics" in output
    assert without_token(stores[0].url)[1] not in output


async def test_agl_prometheus_asks_for_the_stores_token_or_a_reader_s(start_agl) -> None:
    secret = "a-long-secret-of-the-store"
    env = os.environ | {"AGL_SERVER_TOKEN": secret}
    store = start_agl(*STORE, env=env)
    exporter = start_agl(
        *("prometheus", "--port", "0", "--metrics-path", "/m", "--access-log"),
        *("--store", store.url.replace("//", f"//agl:{secret}@")),
        env=env,
    )
    samples = await scrape(exporter.url, secret)
    assert samples.value("agl_store_up") == 1
    async with aiohttp.ClientSession() as http:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            async with http.get(exporter.url, headers=headers) as response:
                assert response.status == 401
        async with http.get(exporter.url.replace("/m", "/health")) as response:
            assert response.status == 200
    code, output = exporter.end()
    assert code == 0
    assert "GET /m 200" in output


async def test_a_gateway_takes_a_tracker_by_name_and_shows_no_attempt_the_metrics() -> None:
    store = agl.InMemoryLightningStore()
    rollout = await store.start_rollout(input=1)
    ids = rollout.rollout_id, rollout.attempt.attempt_id
    proxy = agl.LLMProxy(store=store, tracker="prometheus")
    await proxy.start()
    try:
        base = f"http://127.0.0.1:{proxy.port}"
        own = f"{base}/rollout/{ids[0]}/attempt/{ids[1]}/v1"
        headers = {"Authorization": f"Bearer {proxy.api_key}"}
        async with aiohttp.ClientSession() as http:
            for what in ("metrics", "prometheus"):
                assert (await scrape(f"{base}/v1/{what}", proxy.api_key)).all is not None
                async with http.get(f"{base}/v1/{what}") as response:
                    assert response.status == 401
                async with http.get(f"{own}/{what}", headers=headers) as response:
                    assert response.status == 403
    finally:
        await proxy.stop()
        await store.close()
    with pytest.raises(UnknownComponentError, match=r"unknown metrics 'promethus'.*'prometheus'"):
        agl.LLMProxy(tracker="promethus")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "there is nothing to show: set PROMETHEUS_MULTIPROC_DIR"),
        (["--metrics-path", "/"], "expected a path below the root"),
        (["--store", "http://127.0.0.1:1", "--host", "0.0.0.0"], "set AGL_SERVER_TOKEN"),
    ],
)
def test_agl_prometheus_refuses(arguments, said, capsys, monkeypatch) -> None:
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["prometheus", *arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_without_agl_metrics_the_tracker_is_refused_with_what_to_install() -> None:
    code = (
        "from agl.plugins import registry\n"
        "all = registry.components\n"
        "registry.components = lambda group: [] if group == 'agl.metrics' else all(group)\n"
        "from agl.cli import main\n"
        "main(['store', '--tracker', 'console'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "--tracker needs agl-metrics. Run:" in done.stderr
