"""``LLMProxy(num_workers=N)``: processes that share an address, and keep each attempt in one."""

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from tests.models import answer_of, call, entry

pytest.importorskip("agl_gateway")

import agentlightning as agl
from agentlightning.utils.server_launcher import PythonServerLauncherArgs
from agl.errors import ConfigError
from agl_testing.echo_llm import EchoLLM

pytestmark = pytest.mark.plugins


@pytest.fixture
def llm() -> Iterator[EchoLLM]:
    with EchoLLM(lambda request: f"you said {request['messages'][-1]['content']}") as served:
        yield served


@pytest.fixture
async def store() -> AsyncIterator[Any]:
    server = agl.LightningStoreServer(agl.InMemoryLightningStore(), port=0)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def served(llm: EchoLLM, store: Any) -> AsyncIterator[Any]:
    """Starts a proxy of so many workers before the model."""
    started = []

    async def start(num_workers: int, **options: Any) -> agl.LLMProxy:
        given = {"model_list": [entry("m", llm.url)], **options}
        started.append(agl.LLMProxy(store=store, num_workers=num_workers, **given))
        await started[-1].start()
        return started[-1]

    yield start
    for proxy in started:
        await proxy.stop()
        assert not proxy.is_running()


MODEL = agl.LLM(endpoint="", model="m")


async def chat(url: str, text: str, stream: bool = False) -> str:
    if not stream:
        return await answer_of(MODEL, text, url)
    _, raw = await call(MODEL, text, url, stream=True)
    chunks = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith(b"data: {")]
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])


async def test_calls_of_many_attempts_are_recorded_each_in_its_own(served, store) -> None:
    proxy = await served(3, launch_mode="mp")
    assert proxy.is_running()
    pids = [worker.process.pid for worker in proxy._workers._workers]  # type: ignore
    assert len({*pids, os.getpid()}) == 4
    rollouts = [await store.start_rollout(number) for number in range(8)]

    async def work(rollout: agl.AttemptedRollout) -> None:
        url = proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id).endpoint
        for turn in range(3):
            said = await chat(url, f"{rollout.input} {turn}", turn == 1)
            assert said == f"you said {rollout.input} {turn}"

    await asyncio.gather(*map(work, rollouts))
    await proxy.flush()
    for rollout in rollouts:
        spans = await store.query_spans(rollout.rollout_id)
        prompts = [json.loads(each.attributes["gen_ai.input.messages"])[0] for each in spans]  # type: ignore
        told = [prompt.get("content") or prompt["parts"][0]["content"] for prompt in prompts]
        assert told == [f"{rollout.input} {turn}" for turn in range(3)]


async def test_what_is_asked_of_the_proxy_reaches_every_worker(served, llm) -> None:
    proxy = await served(2, model_list=[])
    url = f"http://127.0.0.1:{proxy.port}/v1"
    proxy.update_model_list([entry("m", llm.url)])
    assert await chat(url, "hello") == "you said hello"
    assert proxy.num_unattributed == 1
    await proxy.pause("m", refuse=True)
    for _ in range(4):
        assert (await call(MODEL, "hello", url))[0] == 503
    await proxy.resume("m")
    assert await chat(url, "again") == "you said again"


async def test_worker_that_dies_is_started_again(served, store) -> None:
    proxy = await served(2)
    first = proxy._workers._workers[0]  # type: ignore
    os.kill(first.process.pid, signal.SIGKILL)
    await asyncio.to_thread(first.process.wait)
    rollouts = [await store.start_rollout(number) for number in range(6)]
    for rollout in rollouts:
        url = proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id).endpoint
        assert await chat(url, "hi") == "you said hi"
    assert proxy._workers._workers[0] is not first  # type: ignore


async def test_question_is_answered_by_itself_after_a_refusal_and_after_a_death(served, llm):
    proxy = await served(3)
    url = f"http://127.0.0.1:{proxy.port}/v1"
    for _ in range(2):
        with pytest.raises(ConfigError, match="model 'none' is not served"):
            await proxy.pause("none")
        assert proxy.num_unattributed == 0
    last = proxy._workers._workers[2]  # type: ignore
    os.kill(last.process.pid, signal.SIGKILL)
    await asyncio.to_thread(last.process.wait)
    # Nobody's answer to the question after it.
    proxy.update_model_list([entry("m", llm.url), entry("other", llm.url)])
    assert proxy.num_unattributed == 0
    await proxy.pause("m", refuse=True)
    assert (await call(MODEL, "hello", url))[0] == 503
    await proxy.resume("m")
    assert await chat(url, "hello") == "you said hello"
    assert proxy.num_unattributed >= 1
    assert proxy.is_running()


async def test_metrics_are_those_of_all_workers(served, store) -> None:
    proxy = await served(3)
    for number in range(12):
        rollout = await store.start_rollout(number)
        url = proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id).endpoint
        await chat(url, "hi")

    def metrics() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{proxy.port}/v1/metrics") as answer:
            return answer.read().decode()

    for _ in range(4):  # whichever worker's door it comes to
        text = await asyncio.to_thread(metrics)
        told = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in text.splitlines()}
        calls = {name: float(n) for name, n in told.items() if 'route="/v1/chat/comp' in name}
        labels = 'method="POST",route="/v1/chat/completions",status="200"'
        assert calls[f"agl_http_requests_total{{{labels}}}"] == 12
        assert sum(n for name, n in calls.items() if name.endswith('le="+Inf"}')) == 12
    assert text.count("# TYPE agl_http_requests_total counter") == 1


MISTAKEN: list[tuple[dict[str, Any], str]] = [
    ({"launch_mode": "bogus"}, "launch_mode is 'bogus'; expected thread, mp or asyncio"),
    ({"num_workers": 0}, "num_workers must be at least 1"),
    ({"port": 1, "launcher_args": PythonServerLauncherArgs(port=2)}, "give either launcher_args"),
    ({"num_workers": 2, "launcher_args": PythonServerLauncherArgs()}, "give either launcher_args"),
    ({"litellm_config": {"router_settings": {}}}, "litellm_config is not supported"),
    ({"middlewares": ["opentelemetry"]}, r"middlewares=\['opentelemetry'\] is not supported"),
    ({"callbacks": ["stream_conversion"]}, "unknown name 'stream_conversion'"),
]


@pytest.mark.parametrize(("options", "words"), MISTAKEN)
def test_option_that_fits_nothing_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        agl.LLMProxy(**options)


@pytest.mark.parametrize("num_workers", [1, 2])
async def test_caller_gets_the_token_ids_as_in_0_3(served, num_workers) -> None:
    proxy = await served(num_workers)
    _, answer = await call(MODEL, "hi", f"http://127.0.0.1:{proxy.port}/v1")
    assert answer["prompt_token_ids"]
    assert answer["choices"][0]["token_ids"]
    assert answer["choices"][0].get("logprobs") is None, "nobody asked for them"


async def test_store_that_other_processes_cannot_reach_is_refused() -> None:
    proxy = agl.LLMProxy(store=agl.InMemoryLightningStore(), num_workers=2)
    with pytest.raises(ConfigError, match="InMemoryLightningStore is not served; wrap it in Li"):
        await proxy.start()
    with pytest.raises(ConfigError, match="run_budget needs one process"):
        agl.LLMProxy(num_workers=2, run_budget={"calls": 1})


def test_trainer_has_a_proxy_of_several_processes(llm: EchoLLM) -> None:
    @agl.rollout
    async def agent(task: str, llm: agl.LLM) -> float:
        return float(await answer_of(llm, task) == f"you said {task}")

    rewards: list[float | None] = []

    @agl.algo
    async def algorithm(store: Any, llm_proxy: Any, train_dataset: Any) -> None:
        resources = await store.add_resources({"llm": llm_proxy.as_resource(model="m")})
        for task in train_dataset:
            await store.enqueue_rollout(task, resources_id=resources.resources_id)
        for rollout in await store.query_rollouts():
            await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
            spans = await store.query_spans(rollout.rollout_id)
            assert "openai.chat.completion" in [span.name for span in spans]
            rewards.append(agl.find_final_reward(spans))

    agl.Trainer(
        algorithm=algorithm,
        tracer=agl.OtelTracer(),
        n_runners=2,
        strategy={"type": "cs", "server_port": 0},
        llm_proxy={"model_list": [entry("m", llm.url)], "num_workers": 2},
    ).fit(agent, ["a", "b", "c", "d"])
    assert rewards == [1.0] * 4


def test_server_settings_travel_as_one_value() -> None:
    settings = PythonServerLauncherArgs(8000, "0.0.0.0", n_workers=4, launch_mode="thread")
    assert (settings.port, settings.host, settings.n_workers) == (8000, "0.0.0.0", 4)


async def test_call_that_its_client_gives_up_is_given_up_at_the_model(served, store) -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def model(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        while await reader.read(1000):
            pass
        gone.set()
        writer.close()

    async with await asyncio.start_server(model, "127.0.0.1", 0) as silent:
        url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        proxy = await served(2, model_list=[entry("m", url)])
        async with httpx.AsyncClient() as client:
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            address = f"http://127.0.0.1:{proxy.port}/v1/chat/completions"
            call = asyncio.create_task(client.post(address, json=body))
            await asyncio.wait_for(asked.wait(), 30)
            call.cancel()
            await asyncio.wait_for(gone.wait(), 30)
