"""The store's HTTP interface, by plain requests."""

import asyncio
import multiprocessing
import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import AsyncGenerator

import aiohttp
import pytest

import agl
from agl.errors import ConfigError, StoreError
from agl.types import Span
from agl_http.metrics import RequestMetrics
from agl_http.server import ServerThread, bind
from agl_runs.store import begin_run
from agl_server.server import LightningStoreServer


@pytest.fixture
async def http(server: LightningStoreServer) -> AsyncGenerator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"{server.endpoint}/v1/agl/") as session:
        yield session


async def ask(
    http: aiohttp.ClientSession, method: str, path: str, *, expect: int, **request: object
) -> object:
    async with http.request(method, path, **request) as response:
        answer = await response.json()
        assert response.status == expect, answer
        return answer


async def enqueue(http: aiohttp.ClientSession, *inputs: object) -> list[str]:
    answer = await ask(
        http,
        "POST",
        "queues/rollouts/enqueue",
        json={"rollouts": [{"input": value} for value in inputs]},
        expect=201,
    )
    return [rollout["rollout_id"] for rollout in answer]


async def claim(http: aiohttp.ClientSession, **body: object) -> list[dict]:
    return await ask(http, "POST", "queues/rollouts/dequeue", json=body, expect=200)


def span_of(rollout: dict, **changes: object) -> dict:
    span = Span.from_attributes(
        attributes={"a": 1},
        rollout_id=rollout["rollout_id"],
        attempt_id=rollout["attempt"]["attempt_id"],
    )
    return span.model_dump() | changes


# --- the wire format of 0.3


async def test_a_rollout_goes_through_its_life(http):
    (rollout_id,) = await enqueue(http, {"question": "six times seven"})
    rollout = await ask(http, "GET", f"rollouts/{rollout_id}", expect=200)
    assert rollout["status"] == "queuing"
    assert "attempt" not in rollout
    assert rollout["end_time"] is None

    (claimed,) = await claim(http, worker_id="w-1")
    assert claimed["rollout_id"] == rollout_id
    attempt_id = claimed["attempt"]["attempt_id"]
    number = await ask(
        http,
        "POST",
        "spans/next",
        json={"rollout_id": rollout_id, "attempt_id": attempt_id},
        expect=200,
    )
    assert number == {"sequence_id": 1}
    span = span_of(claimed, sequence_id=1)
    assert (await ask(http, "POST", "spans", json=span, expect=201))["sequence_id"] == 1
    assert await ask(http, "POST", "spans", json=span, expect=201) is None

    path = f"rollouts/{rollout_id}/attempts"
    latest = await ask(http, "GET", f"{path}/latest", expect=200)
    assert latest["status"] == "running"
    done = await ask(http, "POST", f"{path}/latest", json={"status": "succeeded"}, expect=200)
    assert done["status"] == "succeeded"
    ended = await ask(
        http, "POST", "waits/rollouts", json={"rollout_ids": [rollout_id]}, expect=200
    )
    assert [rollout["status"] for rollout in ended] == ["succeeded"]
    worker = await ask(http, "GET", "workers/w-1", expect=200)
    assert worker["status"] == "idle"


async def test_pages_echo_their_bounds(http):
    await enqueue(http, 1, 2, 3)
    page = await ask(http, "GET", "rollouts", params={"limit": 2, "offset": 1}, expect=200)
    assert [page["limit"], page["offset"], page["total"], len(page["items"])] == [2, 1, 3, 2]
    page = await ask(http, "GET", "rollouts", params=[("status_in", "failed")], expect=200)
    assert page["total"] == 0
    page = await ask(http, "POST", "rollouts/search", json={"status_in": []}, expect=200)
    assert page["total"] == 0


@pytest.mark.parametrize(("page", "status"), [("", 200), ("resources", 404), ("workers", 404)])
async def test_address_says_in_a_browser_what_it_is(http, server, page, status):
    async with http.get(f"{server.endpoint}/{page}") as answer:
        assert answer.status == status
        assert "To see its pages, run: agl ui" in await answer.text()


async def test_client_without_a_token_is_told_of_once_on_both_sides(memory_store, caplog):
    server = LightningStoreServer(memory_store, port=0)
    await server.start()
    way = "can take the URL http://agl:TOKEN@HOST:PORT"
    for agent in ("old/0.3", "old/0.3", "other"):
        async with (
            aiohttp.ClientSession(headers={"User-Agent": agent}) as old,
            old.get(f"{server.address}/v1/agl/rollouts") as answer,
        ):
            assert (answer.status, way in await answer.text()) == (401, True)
    told = [record.getMessage() for record in caplog.records if way in record.getMessage()]
    assert [("token in a request from 127.0.0.1" in line, "old/0.3" in line) for line in told] == [
        (True, True),
        (True, False),
    ]
    await server.close()


async def test_a_claim_needs_no_body(http):
    await enqueue(http, 1)
    (claimed,) = await ask(http, "POST", "queues/rollouts/dequeue", expect=200)
    assert claimed["input"] == 1
    assert await ask(http, "POST", "queues/rollouts/dequeue", expect=200) == []


async def test_resources_are_stored_under_any_name(http):
    prompt = {"prompt": {"resource_type": "prompt_template", "template": "{x}", "engine": "jinja"}}
    assert await ask(http, "GET", "resources/latest", expect=200) is None
    made = await ask(http, "POST", "resources", json=prompt, expect=201)
    named = await ask(http, "POST", "resources/beam%2F0", json=prompt, expect=200)
    assert named["resources_id"] == "beam/0"
    assert await ask(http, "GET", "resources/beam%2F0", expect=200) == named
    assert await ask(http, "GET", "resources/latest", expect=200) == named
    assert await ask(http, "GET", f"resources/{made['resources_id']}", expect=200) == made
    assert await ask(http, "GET", "resources/nobody", expect=200) is None


async def test_null_clears_what_can_be_cleared(http):
    rollout = await ask(
        http, "POST", "rollouts", json={"input": 1, "metadata": {"a": 1}}, expect=201
    )
    path = f"rollouts/{rollout['rollout_id']}"
    changed = await ask(http, "POST", path, json={"metadata": None, "mode": "val"}, expect=200)
    assert (changed["metadata"], changed["mode"]) == (None, "val")
    for field in ("status", "config"):
        answer = await ask(http, "POST", path, json={field: None}, expect=400)
        assert field in answer["detail"]
    answer = await ask(http, "POST", f"{path}/attempts/latest", json={"status": None}, expect=400)
    assert answer["error_type"] == "InvalidQueryError"


async def test_a_batch_of_spans_is_answered_with_its_numbers(http):
    rollout = await ask(http, "POST", "rollouts", json={"input": 1}, expect=201)
    first, second = span_of(rollout), span_of(rollout)
    receipts = await ask(http, "POST", "spans/batch", json=[first, second, first], expect=201)
    assert [(receipt["span_id"], receipt["sequence_id"]) for receipt in receipts] == [
        (first["span_id"], 1),
        (second["span_id"], 2),
    ]


async def test_every_field_of_0_3_is_taken(http):
    """All that its client can send, in one life of a rollout; see its OpenAPI description."""
    llm = {"endpoint": "http://x/v1", "model": "m", "api_key": "k", "sampling_parameters": {}}
    resources = {
        "llm": llm | {"resource_type": "llm"},
        "proxy": llm | {"resource_type": "proxy_llm"},
        "prompt": {"resource_type": "prompt_template", "template": "x", "engine": "f-string"},
    }
    made = await ask(http, "POST", "resources", json=resources, expect=201)
    config = {
        "timeout_seconds": 9.0,
        "unresponsive_seconds": 9.0,
        "max_attempts": 2,
        "retry_condition": ["failed"],
    }
    task = {
        "input": {"q": 1},
        "mode": "train",
        "resources_id": made["resources_id"],
        "config": config,
        "metadata": {"a": 1},
    }
    await ask(http, "POST", "queues/rollouts/enqueue", json={"rollouts": [task]}, expect=201)
    await ask(http, "POST", "rollouts", json=task | {"worker_id": "w"}, expect=201)
    (rollout,) = await claim(http, limit=1, worker_id="w")
    path = f"rollouts/{rollout['rollout_id']}"
    await ask(http, "POST", path, json=task | {"mode": None}, expect=200)
    change = {"status": "running", "worker_id": "w", "last_heartbeat_time": 1.5, "metadata": {}}
    await ask(http, "POST", f"{path}/attempts/latest", json=change, expect=200)
    span = span_of(rollout) | {"a_key_of_its_own": 1}
    await ask(http, "POST", "spans", json=span, expect=201)
    await ask(http, "POST", "workers/w", json={"heartbeat_stats": {"cpu": 1}}, expect=200)
    page = {"limit": -1, "offset": 0, "sort_by": None, "sort_order": "asc"}
    within = {
        "status_in": ["running"],
        "rollout_id_in": None,
        "rollout_id_contains": None,
        "filter_logic": "and",
    }
    found = await ask(http, "POST", "rollouts/search", json=page | within, expect=200)
    assert [one["rollout_id"] for one in found["items"]] == [rollout["rollout_id"]]
    await ask(http, "POST", f"{path}/attempts", json={"worker_id": "w"}, expect=201)


# --- what is refused


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("queues/rollouts/enqueue", {"rollouts": [{"input": 1, "inptu": 2}]}, "inptu"),
        ("queues/rollouts/enqueue", {"rollouts": [{"input": 1, "config": {"retry": 1}}]}, "retry"),
        ("queues/rollouts/enqueue", {"rollouts": [], "rollout": 1}, "rollout"),
        ("queues/rollouts/dequeue", {"worker": "w"}, "worker"),
        ("rollouts", {"input": 1, "metdata": {}}, "metdata"),
        ("rollouts/search", {"status": ["failed"]}, "status"),
        ("rollouts/search", {"status_in": ["bogus"]}, "status_in"),
        ("workers/search", {"status_in": ["bogus"]}, "status_in"),
        ("resources", {"p": {"resource_type": "prompt_template", "tmplate": "x"}}, "tmplate"),
        (
            "resources",
            {"m": {"resource_type": "llm", "endpoint": "e", "model": "m", "sampling": {}}},
            "sampling",
        ),
        ("resources/rs", {"p": {"resource_type": "llm", "modle": "m"}}, "modle"),
        ("workers/w", {"stats": {}}, "stats"),
        (
            "turn",
            {
                "finish": {
                    "rollout_id": "r",
                    "attempt_id": "a",
                    "status": "failed",
                    "error": {"boundary": "agent", "type": "E", "message": "m", "stack": ""},
                }
            },
            "stack",
        ),
        ("waits/rollouts", {"rollout_ids": [], "wait": 1}, "wait"),
    ],
)
async def test_unknown_keys_and_words_are_refused_by_name(http, path, body, name):
    answer = await ask(http, "POST", path, json=body, expect=422)
    assert name in [step for part in answer["detail"] for step in part["loc"]]
    assert (await ask(http, "GET", "rollouts", expect=200))["total"] == 0


async def test_unknown_status_in_a_query_string_is_refused_by_name(http):
    for kind in ("rollouts", "workers"):
        answer = await ask(http, "GET", kind, params={"status_in": "bogus"}, expect=422)
        assert "status_in" in answer["detail"][0]["loc"]


async def test_errors_name_their_class_and_status(http):
    (rollout_id,) = await enqueue(http, 1)
    cases = [
        ("GET", "rollouts/ro-none", None, 404, "UnknownRecordError"),
        ("POST", "rollouts/ro-none", {"mode": "val"}, 404, "UnknownRecordError"),
        ("POST", "rollouts/search", {"limit": 0}, 400, "InvalidQueryError"),
        ("POST", "rollouts/search", {"sort_by": "colour"}, 400, "InvalidQueryError"),
        ("POST", "rollouts/search", {"offset": "three"}, 422, "ValidationError"),
        ("POST", f"rollouts/{rollout_id}", {"status": "running"}, 409, "InvalidTransitionError"),
    ]
    for method, path, body, status, error_type in cases:
        answer = await ask(http, method, path, json=body, expect=status)
        assert answer["error_type"] == error_type
        assert set(answer) == {"detail", "error_type"}


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "1" + "0" * 400 + ".0"])
async def test_numbers_that_json_does_not_have_are_refused(http, number):
    body = f'{{"rollouts": [{{"input": 1}}, {{"input": {{"x": [{number}]}}}}]}}'
    headers = {"content-type": "application/json"}
    answer = await ask(
        http, "POST", "queues/rollouts/enqueue", data=body, headers=headers, expect=422
    )
    assert answer["error_type"] == "ValidationError"
    assert (await ask(http, "GET", "statistics", expect=200))["total_rollouts"] == 0


async def test_unknown_keys_are_refused_by_name(http):
    answer = await ask(http, "POST", "rollouts/search", json={"statusin": []}, expect=422)
    assert answer["detail"][0]["loc"] == ["body", "statusin"]
    answer = await ask(http, "GET", "rollouts", params={"statusin": "failed"}, expect=422)
    assert answer["detail"][0]["loc"] == ["query", "statusin"]


async def test_a_body_over_the_limit_is_refused(http):
    async def chunks():
        for _ in range(30):
            yield b" " * 10_000

    answer = await ask(http, "POST", "spans", data=b" " * 100_001, expect=413)
    assert "100001" in answer["detail"]
    # No length is announced for these.
    answer = await ask(http, "POST", "spans", data=chunks(), expect=413)
    assert "max_body_bytes" in answer["detail"]


async def test_an_unforeseen_error_shows_nothing_of_the_inside(http, store, caplog):
    store.statistics = None  # calling it raises a TypeError
    answer = await ask(http, "GET", "statistics", expect=500)
    assert "NoneType" not in str(answer)
    assert "Traceback" not in str(answer)
    assert "NoneType" in caplog.text
    assert await ask(http, "GET", "health", expect=200)


# --- repeated requests


async def test_a_repeated_post_is_carried_out_once(http):
    headers = {"Idempotency-Key": "k-1"}
    body = {"rollouts": [{"input": 1}]}
    request = {"json": body, "headers": headers, "expect": 201}
    first = await ask(http, "POST", "queues/rollouts/enqueue", **request)
    assert await ask(http, "POST", "queues/rollouts/enqueue", **request) == first
    assert (await ask(http, "GET", "statistics", expect=200))["total_rollouts"] == 1
    headers["Idempotency-Key"] = "k-2"
    assert await ask(http, "POST", "queues/rollouts/enqueue", **request) != first


async def test_a_pipelined_request_has_no_writer_of_the_one_before(server, store):
    start = agl.RunStart(run_id="r", algorithm="a", pid=1, host="here")
    for _ in range(2):
        await begin_run(store, start)
    body = b'{"rollouts": [{"input": 1}]}'

    def request(*lines: str) -> bytes:
        head = ["POST /v1/agl/queues/rollouts/enqueue HTTP/1.1", "Host: localhost", *lines]
        about = ["Content-Type: application/json", f"Content-Length: {len(body)}", "", ""]
        return "\r\n".join([*head, *about]).encode() + body

    reader, writer = await asyncio.open_connection(*server.endpoint[7:].split(":"))
    writer.write(request("AGL-Fence: 1 run.starts r") + request("Connection: close"))
    answers = await reader.read()
    writer.close()
    assert b" 409 " in answers.splitlines()[0]
    assert b"HTTP/1.1 201 " in answers


@pytest.mark.parametrize("fence", ["x", "1 kind", "12345678901234567 run.starts r"])
async def test_a_fence_that_cannot_be_read_lets_nothing_through(http, fence):
    about = {"json": {"rollouts": [{"input": 1}]}, "headers": {"AGL-Fence": fence}}
    answer = await ask(http, "POST", "queues/rollouts/enqueue", **about, expect=400)
    assert "AGL-Fence" in answer["detail"]
    assert (await ask(http, "GET", "statistics", expect=200))["total_rollouts"] == 0


async def test_posts_repeated_at_the_same_time_are_carried_out_once(http):
    async def wait_for_work() -> list[dict]:
        request = {"json": {"wait_seconds": 5}, "headers": {"Idempotency-Key": "k"}, "expect": 200}
        return await ask(http, "POST", "queues/rollouts/dequeue", **request)

    both = asyncio.gather(wait_for_work(), wait_for_work())
    await asyncio.sleep(0.1)
    await enqueue(http, 1, 2)
    first, second = await both
    assert first == second
    assert len(first) == 1


async def test_a_key_with_another_body_is_refused(http):
    request = {"headers": {"Idempotency-Key": "k"}}
    one, other = {"rollouts": [{"input": 1}]}, {"rollouts": [{"input": 2}]}
    first = await ask(http, "POST", "queues/rollouts/enqueue", json=one, expect=201, **request)
    said = await ask(http, "POST", "queues/rollouts/enqueue", json=other, expect=422, **request)
    assert "'k' was sent with another body" in said["detail"]
    again = await ask(http, "POST", "queues/rollouts/enqueue", json=one, expect=201, **request)
    assert again == first
    assert (await ask(http, "GET", "statistics", expect=200))["total_rollouts"] == 1


async def test_a_key_with_another_body_is_refused_while_the_first_is_in_work(http, store):
    dequeue, is_held = store.dequeue_many_rollouts, threading.Event()

    async def noted(**options):
        is_held.set()
        return await dequeue(**options)

    async def claim_with(body: dict, status: int):
        path, key = "queues/rollouts/dequeue", {"Idempotency-Key": "k"}
        return await ask(http, "POST", path, json=body, headers=key, expect=status)

    store.dequeue_many_rollouts = noted
    first = asyncio.create_task(claim_with({"wait_seconds": 30}, 200))
    assert await asyncio.to_thread(is_held.wait, 30)
    assert "another body" in (await claim_with({"limit": 0}, 422))["detail"]
    await enqueue(http, 1)
    assert len(await first) == 1


async def test_an_abandoned_post_answers_for_the_one_that_is_still_under_way(http):
    path, key = "queues/rollouts/dequeue", {"Idempotency-Key": "k"}
    await enqueue(http, 1)
    asked = key | {"AGL-Abandoned": "1"}
    assert await ask(http, "POST", path, json={"limit": 0}, headers=asked, expect=200) == []
    # The request whose client has given up comes only now, and claims nothing.
    assert await ask(http, "POST", path, json={"limit": 1}, headers=key, expect=200) == []
    assert len(await ask(http, "POST", path, json={"limit": 1}, expect=200)) == 1


async def test_an_abandoned_post_is_told_what_was_claimed(http):
    path, key = "queues/rollouts/dequeue", {"Idempotency-Key": "k"}
    await enqueue(http, 1)
    claimed = await ask(http, "POST", path, json={"limit": 1}, headers=key, expect=200)
    asked = key | {"AGL-Abandoned": "1"}
    assert await ask(http, "POST", path, json={"limit": 0}, headers=asked, expect=200) == claimed


async def test_a_refused_post_is_not_remembered(http):
    request = {"json": {"status": "cancelled"}, "headers": {"Idempotency-Key": "k"}}
    await ask(http, "POST", "rollouts/ro-none", expect=404, **request)
    (rollout_id,) = await enqueue(http, 1)
    await ask(http, "POST", f"rollouts/{rollout_id}", expect=200, **request)


# --- metrics


async def test_metrics_count_requests_by_route_and_status(http, server):
    (rollout_id,) = await enqueue(http, 1)
    await claim(http)
    for status in (200, 409):
        await ask(
            http,
            "POST",
            f"rollouts/{rollout_id}/attempts/latest",
            json={"status": "succeeded" if status == 200 else "running"},
            expect=status,
        )
    await ask(http, "GET", "rollouts/ro-none", expect=404)
    await ask(http, "GET", "/nowhere", expect=404)
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


# --- long polls


async def test_a_held_claim_is_answered_when_work_comes(http):
    held = asyncio.create_task(claim(http, wait_seconds=60))
    await asyncio.sleep(0.2)
    assert not held.done()
    begin = time.monotonic()
    await enqueue(http, "work")
    (claimed,) = await held
    assert claimed["input"] == "work"
    assert time.monotonic() - begin < 30


async def test_a_client_that_hangs_up_takes_no_work(http, server):
    async with aiohttp.ClientSession(f"{server.endpoint}/v1/agl/") as other:
        held = asyncio.create_task(claim(other, wait_seconds=10))
        await asyncio.sleep(0.2)
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
    await enqueue(http, 1)
    (claimed,) = await claim(http, wait_seconds=2)
    assert claimed["input"] == 1


async def test_stopping_answers_held_requests(server, http):
    (rollout_id,) = await enqueue(http, 1)
    await claim(http)
    work = asyncio.create_task(claim(http, wait_seconds=60))
    wait = asyncio.create_task(
        ask(http, "POST", "waits/rollouts", json={"rollout_ids": [rollout_id]}, expect=200)
    )
    await asyncio.sleep(0.2)
    begin = time.monotonic()
    await server.stop()
    assert await work == []
    assert await wait == []
    assert time.monotonic() - begin < 30


# --- who may call


async def test_with_a_token_only_health_is_open(store):
    server = LightningStoreServer(store, port=0, token="s3cret-long-enough")
    await server.start()
    try:
        async with aiohttp.ClientSession(server.address) as http:
            await ask(http, "GET", "/v1/agl/health", expect=200)
            await ask(http, "GET", "/health", expect=200)
            for header in (
                {},
                {"Authorization": "Bearer wrong"},
                {"Authorization": "s3cret-long-enough"},
            ):
                for path in ("/v1/agl/rollouts", "/openapi.json", "/metrics", "/nowhere"):
                    await ask(http, "GET", path, headers=header, expect=401)
                await ask(http, "POST", "/v1/traces", headers=header, expect=401)
            for header in ("Bearer s3cret-long-enough", "bearer s3cret-long-enough"):
                await ask(
                    http, "GET", "/v1/agl/rollouts", headers={"Authorization": header}, expect=200
                )
    finally:
        await server.stop()


async def test_other_hosts_need_a_token(store, monkeypatch):
    monkeypatch.delenv("AGL_SERVER_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="AGL_SERVER_TOKEN"):
        LightningStoreServer(store, host="0.0.0.0")
    with bind("0.0.0.0", 0) as sock, pytest.raises(ConfigError, match="AGL_SERVER_TOKEN"):
        LightningStoreServer(store, sock=sock)
    monkeypatch.setenv("AGL_SERVER_TOKEN", "s3cret-long-enough")
    assert LightningStoreServer(store, host="0.0.0.0").headers == {
        "Authorization": "Bearer s3cret-long-enough"
    }


async def test_only_given_origins_may_call_from_a_page(store):
    server = LightningStoreServer(
        store, port=0, cors_allow_origins="https://board.example", token="t" * 16
    )
    await server.start()
    try:
        async with aiohttp.ClientSession(server.endpoint) as http:
            preflight = {
                "Origin": "https://board.example",
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization",
            }
            async with http.options("/v1/agl/rollouts", headers=preflight) as response:
                assert response.status == 200
                allowed = response.headers["Access-Control-Allow-Origin"]
                assert allowed == "https://board.example"
            preflight["Origin"] = "https://elsewhere.example"
            async with http.options("/v1/agl/rollouts", headers=preflight) as response:
                assert "Access-Control-Allow-Origin" not in response.headers
    finally:
        await server.stop()


# --- options


@pytest.mark.parametrize(
    ("option", "value"),
    [("n_workers", 2), ("launch_mode", "mp"), ("launcher_args", object())],
)
def test_options_that_are_not_honoured_are_refused_by_name(store, option, value):
    with pytest.raises(ConfigError, match=option):
        LightningStoreServer(store, **{option: value})


async def test_a_port_in_use_is_refused(server, store):
    port = int(server.endpoint.rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use"):
        await LightningStoreServer(store, port=port).start()


async def test_a_bound_socket_is_served(store):
    sock = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    server = LightningStoreServer(store, sock=sock)
    assert server.address == f"http://127.0.0.1:{port}"
    await server.start()
    await server.start()
    async with aiohttp.ClientSession() as http:
        await ask(http, "GET", f"{server.endpoint}/v1/agl/health", expect=200)
    await server.stop()
    await server.stop()


async def test_a_stopped_server_starts_again_where_it_was(server, http):
    (rollout_id,) = await enqueue(http, 1)
    endpoint = server.endpoint
    await server.stop()
    await server.start()
    assert server.endpoint == endpoint
    await ask(http, "GET", f"rollouts/{rollout_id}", expect=200)


async def test_an_application_that_fails_to_start_is_an_error():
    async def app(scope, receive, send):
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no"})

    with pytest.raises(StoreError, match="did not start"):
        ServerThread(app).start()


# --- other processes


def _in_child(server: LightningStoreServer, pipe) -> None:
    rollout = asyncio.run(server.enqueue_rollout("from the child"))
    pipe.send((rollout.rollout_id, type(server.target).__name__))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
async def test_in_a_forked_process_the_server_is_a_client(server, store):
    mine, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(server, theirs))
    child.start()
    rollout_id, kind = await asyncio.to_thread(mine.recv)
    await asyncio.to_thread(child.join)
    assert kind == "LightningStoreClient"
    assert (await store.get_rollout_by_id(rollout_id)).input == "from the child"
    assert server.target is store


async def test_a_pickled_server_is_a_client(server, store):
    copy = pickle.loads(pickle.dumps(server))
    rollout = await copy.enqueue_rollout(1)
    assert await store.get_rollout_by_id(rollout.rollout_id)
    assert copy.endpoint == server.endpoint
    with pytest.raises(StoreError, match="another process"):
        await copy.start()
    await copy.close()
    assert await server.statistics()


def _sleep(pipe) -> None:
    pipe.send("up")
    time.sleep(30)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
async def test_a_forked_process_does_not_hold_the_port(server, http):
    await ask(http, "GET", "health", expect=200)
    port = int(server.endpoint.rpartition(":")[2])
    mine, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_sleep, args=(theirs,))
    child.start()
    try:
        await asyncio.to_thread(mine.recv)
        await server.stop()
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
        bind("127.0.0.1", port).close()
    finally:
        child.kill()
        child.join()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a kept port cannot be bound")
def test_a_kept_port_is_given_to_who_names_it_and_to_nobody_else():
    with bind("127.0.0.1", 0, listen=False) as kept:
        port = kept.getsockname()[1]
        for _ in range(20_000):
            with socket.socket() as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                other.bind(("127.0.0.1", 0))
                assert other.getsockname()[1] != port
        with bind("127.0.0.1", port), pytest.raises(ConfigError, match="is in use"):
            bind("127.0.0.1", port)


# --- agl store

STORE = [sys.executable, "-c", "from agl.cli import main; main()", "store"]


async def test_sigterm_answers_held_requests_and_ends_with_0(tmp_path):
    path = str(tmp_path / "s.db")
    process = await asyncio.create_subprocess_exec(
        *STORE, "--port", "0", "--path", path, stderr=asyncio.subprocess.PIPE
    )
    try:
        line = (await process.stderr.readline()).decode()
        assert path in line
        url = next(word for word in line.split() if word.startswith("http://"))
        async with aiohttp.ClientSession(f"{url}/v1/agl/") as http:
            await enqueue(http, 1)
            assert len(await claim(http)) == 1
            held = asyncio.create_task(claim(http, wait_seconds=60))
            await asyncio.sleep(0.2)
            process.terminate()
            assert await held == []
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_agl_store_says_in_one_line_what_is_wrong(server, tmp_path):
    port = server.endpoint.rpartition(":")[2]
    cases = [
        (["--port", port, "--path", str(tmp_path / "s.db")], "in use"),
        (["--port", "0", "--path", str(tmp_path / "no" / "folder" / "s.db")], "no/folder"),
        (["--port", "0", "--host", "0.0.0.0", "--backend", "memory"], "token"),
    ]
    for options, word in cases:
        process = await asyncio.create_subprocess_exec(
            *STORE, *options, stderr=asyncio.subprocess.PIPE
        )
        _, err = await process.communicate()
        assert process.returncode == 2
        assert word in err.decode()
        assert err.decode().count("\n") == 1
    assert not (tmp_path / "s.db").exists()


@pytest.mark.parametrize("depth", [185, 191, 195, 199, 300])
async def test_what_was_stored_however_deep_can_be_listed(
    server: LightningStoreServer, http: aiohttp.ClientSession, depth: int
) -> None:
    """Answers hold records some levels deep: an input as deep as can be read fitted in no page."""
    body = '{"input": ' + "[" * depth + "]" * depth + "}"
    headers = {"content-type": "application/json"}
    async with http.post("rollouts", data=body, headers=headers) as response:
        stored = response.status == 201
        assert stored or response.status == 422, await response.text()
    assert stored == (depth < 192)
    client = agl.LightningStoreClient(server.endpoint)
    assert len(await client.query_rollouts()) == stored
    await client.close()
