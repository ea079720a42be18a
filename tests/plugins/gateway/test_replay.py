"""A recording, and the same run once more without a backend."""

import json
import random

import aiohttp
import pytest
from tests.waiting import free_port

import agl
from agl.errors import ConfigError
from agl.semconv import ModelCallAttributes as Key
from agl_gateway import LLMProxy
from agl_testing.echo_llm import EchoLLM, RawReply

from .conftest import models, stream_of


@pytest.fixture
def recorded(bench, started, tmp_path):
    """Records what a function does, stops the backend, and opens the replay."""

    async def record(work, **options):
        folder = tmp_path / "recording"
        first = await started(record=str(folder), **options)
        before = await work(first)
        await first.proxy.stop()
        count = len(bench.llm.requests)
        second = await started(replay=str(folder))
        second.first, second.answers, second.folder = first, before, folder
        second.backend_calls = count
        return second

    return record


async def test_a_run_is_replayed_byte_for_byte_without_a_backend(bench, recorded):
    requests = [
        bench.ask("héllo wörld"),
        bench.ask(n=2, temperature=0.5),
        bench.ask(logprobs=True),
        bench.ask(stream=True, stream_options={"include_usage": True}),
        {"model": "echo", "prompt": "x"},
    ]

    async def work(bench):
        return [await bench.post(request) for request in requests]

    replay = await recorded(work)
    # Another order, and other ids than in the recording.
    answers = [await replay.post(request) for request in reversed(requests)]
    assert answers[::-1] == replay.answers
    assert len(bench.llm.requests) == replay.backend_calls == 4


@pytest.mark.parametrize("stream", [False, True])
async def test_each_dialect_is_replayed_and_recorded_again(recorded, stream):
    said = [{"role": "user", "content": [{"type": "text", "text": "hello you"}]}]
    calls = {
        "chat/completions": {"messages": [{"role": "user", "content": "hello you"}]},
        "messages": {"max_tokens": 50, "messages": said},
        "responses": {"input": "hello you"},
        "completions": {"prompt": "hello you"},
    }

    async def work(bench):
        about = {"model": "echo", "stream": stream}
        return [await bench.post({**about, **body}, path=path) for path, body in calls.items()]

    replay = await recorded(work)
    assert [status for status, _ in replay.answers] == [200] * 4
    assert await work(replay) == replay.answers
    before, after = await replay.first.spans(), await replay.spans()
    for key in (Key.PROMPT_TOKEN_IDS, Key.RESPONSE_TOKEN_IDS, Key.RESPONSE_LOGPROBS):
        assert [s.attributes[key] for s in after] == [s.attributes[key] for s in before]


async def test_streams_keep_the_pieces_that_they_came_in(bench, recorded):
    bench.llm.latency_seconds = 0.03
    body = bench.ask("äöü one two three", stream=True)

    async def work(bench):
        return (await stream_of(f"{bench.url}/chat/completions", body))[2]

    replay = await recorded(work)
    pieces = await work(replay)
    assert len(pieces) >= 5
    assert pieces == replay.answers


async def test_equal_requests_get_their_answers_in_the_order_of_the_recording(bench, recorded):
    bench.llm.reply = lambda request: f"answer {len(bench.llm.requests)}"

    async def work(bench):
        return [await bench.post(bench.ask("again")) for _ in range(3)]

    replay = await recorded(work)
    assert await work(replay) == replay.answers
    status, error = await replay.refused(replay.ask("again"))
    assert status == 409
    assert "comes more often than in the recording" in error["message"]


async def test_failures_are_replayed_too_and_streams_break_where_they_did(bench, recorded):
    part = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    long = RawReply(400, b'{"error":{"message":"too long"}}')
    replies = iter([long, RawReply(200, b"<html>"), RawReply(200, part, "text/event-stream")])
    bench.llm.reply = lambda request: next(replies)

    async def work(bench):
        asked = [bench.ask("one"), bench.ask("two"), bench.ask(stream=True)]
        return [await bench.post(one) for one in asked]

    replay = await recorded(work)
    assert [status for status, _ in replay.answers] == [400, 502, 200]
    assert await work(replay) == replay.answers
    assert b"ended before" in replay.answers[-1][1]


async def test_a_backend_that_was_down_is_down_again(recorded):
    with EchoLLM() as gone:
        url = gone.url
    replay = await recorded(lambda bench: bench.post(bench.ask()), model_list=models(url))
    assert replay.answers[0] == 502
    assert await replay.post(replay.ask()) == replay.answers


async def test_a_client_that_left_may_leave_again(bench, recorded):
    bench.llm.latency_seconds = 0.05

    async def leave(bench):
        piece = await bench.leave()
        await bench.span()
        return piece

    replay = await recorded(leave)
    assert await leave(replay) == replay.answers
    assert "client closed the connection" in (await replay.attributes())[Key.ERROR]


async def test_the_first_request_that_differs_stops_it_with_a_diff(bench, recorded, caplog):
    async def work(bench):
        await bench.post(bench.ask("what is the weather?", temperature=0.5))
        return await bench.post(bench.ask("something else entirely"))

    replay = await recorded(work)
    status, body = await replay.post(replay.ask("what is the wether?", temperature=0.5))
    assert status == 409
    message = json.loads(body)["error"]["message"]
    assert '-      "content": "what is the weather?",' in message
    assert '+      "content": "what is the wether?",' in message
    assert "something else" not in message
    assert message in caplog.text
    # From then on nothing is answered, not even what was recorded.
    assert await replay.post(replay.ask("something else entirely")) == (status, body)


async def test_official_clients_do_not_ask_a_stopped_replay_again(recorded):
    openai = pytest.importorskip("openai")
    replay = await recorded(lambda bench: bench.post(bench.ask()))
    async with openai.AsyncOpenAI(base_url=replay.url, api_key="x") as client:
        with pytest.raises(openai.ConflictError, match="the nearest recorded"):
            await client.chat.completions.create(**replay.ask("other"))
    assert len(await replay.spans()) == 1


async def test_a_call_after_the_last_recorded_one_stops_it(recorded):
    replay = await recorded(lambda bench: bench.post(bench.ask()))
    await replay.post(replay.ask())
    _, error = await replay.refused(replay.ask("one more"))
    assert "every recorded call is answered" in error["message"]


async def test_calls_that_nobody_asked_for_are_counted_at_the_end(recorded, caplog):
    replay = await recorded(lambda bench: bench.post(bench.ask()))
    await replay.proxy.stop()
    assert "replay: 1 recorded calls were not asked for" in caplog.text


async def test_forced_parameters_of_the_recording_need_not_be_given_again(bench, recorded):
    forced = models(bench.llm.url, forced_parameters={"all": {"temperature": 0.1}})
    asked = bench.ask(temperature=0.9)
    replay = await recorded(lambda bench: bench.post(asked), model_list=forced)
    assert await replay.post(asked) == replay.answers


async def test_a_restarted_proxy_goes_on_with_its_recording(recorded):
    async def work(bench):
        first = await bench.post(bench.ask("one"))
        await bench.proxy.restart()
        return [first, await bench.post(bench.ask("two"))]

    replay = await recorded(work)
    assert [await replay.post(replay.ask(name)) for name in ("one", "two")] == replay.answers


async def test_a_line_that_a_crash_left_unfinished_is_left_out(recorded, caplog):
    replay = await recorded(lambda bench: bench.post(bench.ask()))
    with (replay.folder / "calls.jsonl").open("a") as file:
        file.write('{"path":"chat/compl')
    assert LLMProxy(replay=str(replay.folder)).model_names == ["echo"]
    assert "line 3 is unfinished" in caplog.text


async def test_a_recording_is_not_overwritten(bench, recorded):
    replay = await recorded(lambda bench: bench.post(bench.ask()))
    proxy = LLMProxy(open=True, store=bench.store, record=str(replay.folder))
    with pytest.raises(ConfigError, match="holds a recording already"):
        await proxy.start()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("", "is empty"),
        ("{}\n", "line 1: this is no recording"),
        ('{"agl_gateway_recording":1}\n{"path":"x"}\n', "line 2"),
        ('{"agl_gateway_recording":1}\n{broken\n', "line 2"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path, text, message):
    if text is not None:
        (tmp_path / "calls.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=message):
        LLMProxy(replay=str(tmp_path))


@agl.rollout
async def guesser(task: str, llm: agl.LLM) -> float:
    """Two turns; the second shows what the first answered."""
    messages = [{"role": "user", "content": task}]
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        url = f"{llm.endpoint}/chat/completions"
        for _ in range(2):
            async with session.post(url, json={"model": "echo", "messages": messages}) as response:
                message = (await response.json())["choices"][0]["message"]
            messages += [message, {"role": "user", "content": "are you sure?"}]
    return float(message["content"])


def rewards_of_a_run(n_runners: int, **options: object) -> list[float | None]:
    proxy = LLMProxy(free_port(), open=True, **options)
    given = {"llm_proxy": proxy, "initial_resources": {"llm": proxy.as_resource(model="echo")}}
    baseline = agl.Baseline(max_queue_length=n_runners)
    trainer = agl.Trainer(algorithm=baseline, n_runners=n_runners, strategy="shm", **given)
    trainer.fit(guesser, [f"task {number // 2}" for number in range(6)])
    return sorted(baseline.rewards.values(), key=str)


def test_a_run_has_the_same_rewards_again_whoever_comes_first(echo_llm, tmp_path):
    echo_llm.reply = lambda request: str(random.random())
    about = {"model_list": models(echo_llm.url), "record": str(tmp_path / "run")}
    before = rewards_of_a_run(1, **about)
    assert len(set(before)) == 6
    assert rewards_of_a_run(4, replay=str(tmp_path / "run")) == before
    assert len(echo_llm.requests) == 12
