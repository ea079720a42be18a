"""The server counts requests and their durations, and does not trace itself."""

import asyncio
import sys

from agl_http.metrics import RequestMetrics

from .store_calls import claim, enqueue, get, post


async def test_metrics_count_requests_by_route_and_status(http, server):
    (rollout_id,) = await enqueue(http, 1)
    await claim(http)
    for status in (200, 409):
        change = {"status": "succeeded" if status == 200 else "running"}
        await post(http, f"rollouts/{rollout_id}/attempts/latest", change, status)
    await get(http, "rollouts/ro-none", 404)
    await get(http, "/nowhere", 404)
    async with http.get("/metrics") as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        lines = (await response.text()).splitlines()
    attempt = 'method="POST",route="/v1/agl/rollouts/{rollout_id}/attempts/{attempt_id}"'
    rollout = 'method="GET",route="/v1/agl/rollouts/{rollout_id}"'
    for line in (
        f'agl_http_requests_total{{{attempt},status="200"}} 1',
        f'agl_http_requests_total{{{attempt},status="409"}} 1',
        f'agl_http_requests_total{{{rollout},status="404"}} 1',
        'agl_http_requests_total{method="GET",route="none",status="404"} 1',
        f'agl_http_request_duration_seconds_bucket{{{attempt},le="+Inf"}} 2',
        f"agl_http_request_duration_seconds_count{{{attempt}}} 2",
        'agl_store_records{kind="rollouts"} 1',
    ):
        assert line in lines
    samples = [line for line in lines if not line.startswith("#")]
    assert all(float(line.rpartition(" ")[2]) >= 0 for line in samples)
    assert len({line.rpartition(" ")[0] for line in samples}) == len(samples)


async def test_durations_fall_into_their_buckets():
    requests = RequestMetrics()
    for seconds in (0.0005, 0.001, 0.002, 100.0):
        requests.observe("GET", "/x", 200, seconds)
    lines = requests.text({}).splitlines()
    name = 'agl_http_request_duration_seconds_bucket{method="GET",route="/x",le='
    for bound, count in (("0.001", 2), ("0.0025", 3), ("60.0", 3), ("+Inf", 4)):
        assert f'{name}"{bound}"}} {count}' in lines


SERVE_TRACED = """
import asyncio, urllib.request
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from agl_server.server import LightningStoreServer
from agl.store.memory import InMemoryLightningStore

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)

async def main():
    server = LightningStoreServer(InMemoryLightningStore(), port=0)
    await server.start()
    ask = urllib.request.Request(f"{server.address}/v1/agl/rollouts", headers=server.headers)
    await asyncio.to_thread(urllib.request.urlopen, ask)
    await server.close()

asyncio.run(main())
print([span.name for span in exporter.get_finished_spans()])
"""


async def test_the_server_does_not_trace_itself():
    """The global provider of its process is an agent's, whose spans those would become."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVE_TRACED, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert output.decode().strip() == "[]"
