"""``agl gateway`` as a process."""

import asyncio
import contextlib
import functools
import json
import signal
import time
import zlib
from collections import Counter
from contextlib import closing

import aiohttp
import psutil
import pytest
from tests.waiting import until

from agl.semconv import ModelCallAttributes as Key
from agl_http.server import bind
from agl_http.tokens import tokens_of
from agl_server.server import LightningStoreServer

from .conftest import models


@pytest.fixture
def gateway(start_agl):
    return functools.partial(start_agl, "gateway", "--port", "0")


async def test_it_serves_and_writes_every_record_before_it_ends(bench, gateway, monkeypatch):
    monkeypatch.setenv("AGL_MODEL_API_KEY", "key-of-the-models")
    server = LightningStoreServer(bench.store, host="127.0.0.1", port=0)
    await server.start()
    process = gateway("--model", f"echo={bench.llm.url}", "--store", server.endpoint, "--open")
    base = process.url.removesuffix("/v1")
    url = f"{base}/rollout/{bench.ids[0]}/attempt/{bench.ids[1]}/v1"
    for number in range(5):
        assert (await bench.post(bench.ask(str(number)), url))[0] == 200
    code, output = process.end()
    spans = await bench.store.query_spans(bench.ids[0])
    await server.stop()
    assert code == 0, output
    said = [json.loads(span.attributes[Key.INPUT_MESSAGES])[0]["content"] for span in spans]
    assert said == list("01234")
    keys = {one["authorization"] for one in bench.llm.request_headers}
    assert keys == {"Bearer key-of-the-models"}
    assert "Traceback" not in output
    assert tokens_of(server).admin not in output


async def test_a_recording_is_replayed_and_ends_at_the_first_difference(bench, gateway, tmp_path):
    folder = str(tmp_path / "recording")
    process = gateway("--model", f"echo={bench.llm.url}", "--record", folder, "--open")
    before = [await bench.post(bench.ask(text), process.url) for text in ("one", "two")]
    assert process.end(signal.SIGINT)[0] == 0
    process = gateway("--replay", folder, "--open")
    assert await bench.post(bench.ask("one"), process.url) == before[0]
    assert (await bench.post(bench.ask("three"), process.url))[0] == 409
    code, output = process.end(None)
    assert code == 1
    assert '-      "content": "two",' in output
    assert '+      "content": "three",' in output
    assert "agl: the replay has stopped" in output
    assert len(bench.llm.requests) == 2


async def test_token_budget_and_config_are_taken(bench, gateway, tmp_path):
    config = tmp_path / "gateway.yaml"
    entries = models(bench.llm.url, price={"input": 1.0, "output": 5.0})
    config.write_text(json.dumps({"model_list": entries, "callbacks": [], "num_retries": 2}))
    budget = ("--run-budget", "calls=9", "--run-budget", "cost=0.00005")
    process = gateway("--config", str(config), "--token", "secret", *budget)
    refused, error = await bench.refused(bench.ask(), process.url)
    assert (refused, error["code"]) == (401, "invalid_api_key")
    key = {"authorization": "Bearer secret"}
    statuses = [(await bench.post(bench.ask(), process.url, **key))[0] for _ in range(3)]
    assert statuses == [200, 200, 429]
    assert bench.llm.requests == [bench.ask()] * 2
    code, output = process.end()
    assert code == 0
    assert "the run has spent its budget: cost 5.2e-05 of 5e-05" in " ".join(output.split())


# --- several processes


@pytest.fixture
async def several(bench, gateway, tmp_path):
    """Starts them, before a store server; the bench's attempt is one of a store that they know."""
    server = LightningStoreServer(bench.store, host="127.0.0.1", port=0)
    await server.start()
    config = tmp_path / "gateway.yaml"
    entries = models(bench.llm.url, send_seed=True)
    config.write_text(json.dumps({"model_list": entries, "max_body_bytes": 10**6}))
    given = ("--config", str(config), "--store", server.endpoint, "--open", "--processes", "3")
    yield lambda before="": gateway(*given, before=before)
    await server.stop()


class Attempt:
    """An attempt that calls; each request has a connection of its own, and so any process."""

    def __init__(self, bench, process, rollout) -> None:
        self.bench, self.rollout = bench, rollout
        self.url = process.url.removesuffix("/v1")
        ids = rollout.rollout_id, rollout.attempt.attempt_id
        self.path = "rollout/{}/attempt/{}".format(*ids)
        self.headers = dict(zip(("x-rollout-id", "x-attempt-id"), ids, strict=True))

    async def call(self, text: str, **fields: object) -> tuple[int, bytes]:
        return await self.bench.post(self.bench.ask(text, **fields), f"{self.url}/{self.path}/v1")

    async def end(self) -> dict:
        return json.loads((await self.bench.post({}, f"{self.url}/{self.path}", "end"))[1])

    def owner(self, count: int) -> int:
        return zlib.crc32(self.rollout.attempt.attempt_id.encode()) % count

    async def spans(self) -> list:
        return list(await self.bench.store.query_spans(self.rollout.rollout_id))


async def begin(bench, process, count: int) -> list[Attempt]:
    rollouts = [await bench.store.start_rollout(str(n), metadata={"seed": n}) for n in range(count)]
    return [Attempt(bench, process, one) for one in rollouts]


async def test_one_of_several_processes_answers_all_requests_of_an_attempt(bench, several):
    process = several()
    attempts = await begin(bench, process, 8)

    async def calls(attempt):
        for number in range(6):
            status, _ = await attempt.call("the same", stream=number % 2 == 1)
            assert status == 200
        said = await attempt.end()
        assert said["lost_calls"] == 0
        spans = await attempt.spans()  # without any wait: its end has stored them
        assert len(spans) == 6
        # They were counted at one place.
        assert len({one.attributes["gen_ai.request.seed"] for one in spans}) == 6
        assert {(await attempt.call("late"))[0] for _ in range(4)} == {410}
        assert (await bench.post(bench.ask(), process.url, **attempt.headers))[0] == 410

    await asyncio.gather(*map(calls, attempts))
    assert (await bench.post({}, process.url, "flush"))[0] == 200
    code, output = process.end()
    assert code == 0, output
    assert "Traceback" not in output


async def test_a_process_that_is_killed_costs_its_own_attempts_alone(bench, several):
    process = several()
    parent = psutil.Process(process.process.pid)
    await until(lambda: len(parent.children()) == 3)
    children = sorted(parent.children(), key=lambda one: one.pid)
    began, attempts = time.monotonic(), []
    while len({attempt.owner(3) for attempt in attempts}) < 3:
        attempts += await begin(bench, process, 6)
    answered, broken, stop = Counter(), [], asyncio.Event()

    async def call_on(attempt):
        while not stop.is_set():
            try:
                status, _ = await attempt.call("on and on")
            except aiohttp.ClientError as error:
                broken.append(error)
            else:
                answered[attempt, status] += 1

    calling = [asyncio.create_task(call_on(one)) for one in attempts]
    await until(lambda: all(answered[one, 200] > 2 for one in attempts))
    killed = time.monotonic()
    children[1].kill()
    before = answered.copy()
    await until(lambda: all(answered[one, 200] > before[one, 200] + 2 for one in attempts))
    stop.set()
    await asyncio.gather(*calling)
    for attempt in attempts:
        is_its_own, asked = attempt.owner(3) == 1, time.monotonic()
        seconds = (await attempt.end())["serving_seconds"]
        if is_its_own:  # a runner fails it
            assert time.monotonic() - seconds > killed
        else:
            assert asked - seconds < began
        recorded = [one for one in await attempt.spans() if one.status.status_code == "OK"]
        if not is_its_own:  # of other processes, no answer is without its record
            assert len(recorded) >= answered[attempt, 200]
    children = parent.children()
    assert len(children) == 3
    parent.kill()
    assert not psutil.wait_procs(children, timeout=30)[1]
    assert "process 1 was ended; it starts again" in process.end(None)[1]


async def test_processes_end_and_start_as_signals_say(bench, several):
    process = several("sleep 0 &")  # which becomes a child of the gateway, and ends
    parent = psutil.Process(process.process.pid)

    def alive() -> list[psutil.Process]:
        found = []
        for one in parent.children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since
                found += [one] * (one.status() != psutil.STATUS_ZOMBIE)
        return found

    await until(lambda: len(alive()) == 3)
    ended = alive()[-1]
    ended.terminate()
    await until(lambda: ended not in alive() and len(alive()) == 3)
    assert {(await bench.post(bench.ask(), process.url))[0] for _ in range(6)} == {200}
    code, output = process.end()
    assert code == 0, output
    assert "was ended; it starts again" in output
    assert "Traceback" not in output


async def test_processes_end_at_once_while_they_wait_for_the_store(gateway, monkeypatch):
    with closing(bind("127.0.0.1", 0, listen=False)) as kept:
        away = f"http://127.0.0.1:{kept.getsockname()[1]}"
        process = gateway("--model", "m=http://a/v1", "--store", away, "--processes", "2")
        children = psutil.Process(process.process.pid).children()
        code, output = process.end(signal.SIGINT)
    assert code == 0
    assert "agl: store" not in output  # nobody waited until the store was given up, which says so
    assert not psutil.wait_procs(children, timeout=0)[1]


async def test_a_request_that_is_passed_on_is_as_at_one_process(bench, several):
    process = several()
    (attempt,) = await begin(bench, process, 1)
    host = process.url.removeprefix("http://").removesuffix("/v1")
    base = f"http://{host}"
    async with aiohttp.ClientSession(headers={"origin": base}) as page:

        async def post(url, **given):
            connector = {"connection": "close"}  # so that each may come to another process
            async with page.post(url, headers=connector, **given) as answer:
                return answer.status

        url = f"{base}/{attempt.path}/v1/chat/completions"
        assert {await post(url, json=bench.ask()) for _ in range(8)} == {200}
        too_large = b"x" * (10**6 + 1)
        assert {await post(url, data=too_large) for _ in range(4)} == {413}
        texts = []
        for _ in range(3):
            async with page.get(f"{base}/metrics") as answer:
                texts.append(await answer.text())
    count = 'agl_http_requests_total{{method="{}",route="/v1/{}",status="{}"}} {}'
    for named in (("POST", "chat/completions", 200, 8.0), ("POST", "chat/completions", 413, 4.0)):
        assert count.format(*named) in texts[-1], texts[-1]
    reader, writer = await asyncio.open_connection(*host.rsplit(":", 1))
    head = "".join(f"{name}: {value}\r\n" for name, value in attempt.headers.items())
    writer.write(f"POST * HTTP/1.1\r\nhost: {host}\r\n{head}content-length: 0\r\n\r\n".encode())
    assert b" 404 " in await reader.readline()
    writer.close()
    assert process.end()[0] == 0


M = ["--model", "m=http://a/v1"]
BUDGET_OF_EACH = "--processes 2 with run_budget: each process would have its own"
LAST_PORTS = "--port 65533 with --processes 3: each has one of the ports after it"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which models? give --model NAME=URL"),
        (["--model", "qwen"], "'qwen': expected NAME=URL"),
        (["--model", "qwen=127.0.0.1:8000"], "api_base is '127.0.0.1:8000'"),
        ([*M, "--run-budget", "calls"], "'calls': expected LIMIT=NUMBER"),
        ([*M, "--run-budget", "money=5"], "money: unknown key. Known: calls"),
        ([*M, "--record", "r", "--replay", "r"], "give one of them"),
        ([*M, "--processes", "2", "--run-budget", "calls=1"], BUDGET_OF_EACH),
        ([*M, "--processes", "3", "--port", "65533"], LAST_PORTS),
        (["--replay", "nowhere"], "no recording in 'nowhere'"),
        (["--config", "none.yaml"], "none.yaml: No such file"),
        (["--config", "list.yaml"], "list.yaml: expected options of the gateway"),
        (["--config", "wrong.yaml"], "wrong.yaml: gateway.retries: unknown key. Did you mean"),
        (["--config", "broken.yaml"], "broken.yaml, line 1: not YAML"),
        ([*M, "--store", "nonsense"], "nonsense"),
    ],
)
def test_a_wrong_request_ends_with_2_and_a_sentence(here, agl, arguments, message):
    (here / "list.yaml").write_text("[1]")
    (here / "wrong.yaml").write_text("num_retries: 1\nretries: 1")
    (here / "broken.yaml").write_text("a: [")
    code, _, err = agl("gateway", *arguments)
    assert code == 2
    assert message in " ".join(err.split())
    assert {file.name for file in here.iterdir()} == {"broken.yaml", "list.yaml", "wrong.yaml"}
