"""The inference server, asked through the openai client and by hand."""

import asyncio
import json
import threading
import time

import aiohttp
import openai
import pytest
import torch
from tests import fork_server
from tests.interpreter import AGL

from agl.errors import ConfigError
from agl_http.server import bind
from agl_models.completions import RequestError
from agl_models.sampling.batcher import Batcher
from agl_models.sampling.sequences import SamplingRequest
from agl_torch.batch import token_logprobs
from agl_torch.draws import sampling_distribution
from agl_torch.generate import Sampler
from agl_torch.server import InferenceServer, TorchApp

from .conftest import WORDS
from .test_learner import make_row

MESSAGES = [{"role": "user", "content": "red and green"}]
PROMPT = [1, 4, 12, 5, 3, 2]  # <user> red and green <end> <agent>
WITH_IDS = {"return_token_ids": True}


@pytest.fixture
def server(model, tokenizer):
    with InferenceServer(model, tokenizer, model_name="tiny", max_model_tokens=40) as server:
        yield server


@pytest.fixture
async def client(server):
    async with openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


async def post(server, body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.url}/chat/completions", data=data) as response,
    ):
        return response.status, await response.json()


async def test_answer_carries_ids_and_logprobs_of_a_plain_forward_pass(client, model, tokenizer):
    asked = {"max_tokens": 8, "temperature": 0.8, "logprobs": True, "extra_body": WITH_IDS}
    answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, **asked)
    choice = answer.choices[0]
    assert answer.prompt_token_ids == PROMPT
    logits = model(torch.tensor([[*PROMPT, *choice.token_ids]])).logits[0]
    expected = torch.log_softmax(logits / 0.8, -1)[
        torch.arange(len(choice.token_ids)) + len(PROMPT) - 1, torch.tensor(choice.token_ids)
    ]
    content = choice.logprobs.content
    assert [token.logprob for token in content] == pytest.approx(expected.tolist(), abs=1e-4)
    assert [tokenizer.convert_tokens_to_ids(token.token) for token in content] == choice.token_ids
    assert tokenizer.decode(choice.token_ids, skip_special_tokens=True) == choice.message.content
    assert answer.usage.prompt_tokens == 6
    assert answer.usage.completion_tokens == len(choice.token_ids)
    assert answer.model_version == "0"
    assert choice.weight_versions == [{"version": "0", "start": 0, "end": len(choice.token_ids)}]


async def test_ids_and_logprobs_come_only_when_asked_for(server):
    _, answer = await post(server, {"model": "tiny", "messages": MESSAGES, "max_tokens": 2})
    assert "prompt_token_ids" not in answer
    assert "token_ids" not in answer["choices"][0]
    assert answer["choices"][0]["logprobs"] is None


async def test_stream_brings_the_same_answer_in_pieces(client):
    options = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "extra_body": WITH_IDS}
    options |= {"seed": 3, "logprobs": True, "n": 2}
    whole = await client.chat.completions.create(**options)
    text, ids, logprobs, ends, prompts, usage = {}, {}, {}, {}, [], None
    async for chunk in await client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            if choice.delta.role == "assistant":
                prompts.append(chunk.prompt_token_ids)
                continue
            text[choice.index] = text.get(choice.index, "") + choice.delta.content
            ids.setdefault(choice.index, []).extend(choice.token_ids)
            if choice.logprobs:
                found = [token.logprob for token in choice.logprobs.content]
                logprobs.setdefault(choice.index, []).extend(found)
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    assert prompts == [PROMPT, PROMPT]
    assert usage == whole.usage
    for choice in whole.choices:
        assert text[choice.index] == choice.message.content
        assert ids[choice.index] == choice.token_ids
        assert ends[choice.index] == choice.finish_reason
        expected = [token.logprob for token in choice.logprobs.content]
        assert logprobs[choice.index] == pytest.approx(expected, abs=1e-5)
    assert ids[0] != ids[1]


async def test_streamed_text_never_shows_a_stop_text(client):
    options = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    free = (await client.chat.completions.create(**options)).choices[0].message.content
    # From the middle of one word into the next: must be held back while it grows.
    middle = free.index(" ", len(free) // 2)
    stop = free[middle - 2 : middle + 2]
    parts = [
        chunk.choices[0].delta.content
        async for chunk in await client.chat.completions.create(**options, stop=[stop], stream=True)
        if chunk.choices  # AgentOps, which may watch this process, asks for one with the usage
    ]
    assert "".join(parts) == free[: free.index(stop)]


async def test_concurrent_requests_share_passes(server, passes):
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 5}
    await asyncio.gather(*(post(server, body) for _ in range(24)))
    assert max(rows for rows, _ in passes) > 1


async def test_what_a_conversation_began_with_is_read_once_per_version(server, client, passes):
    async def ask(messages):
        passes.clear()
        asked = {"messages": messages, "max_tokens": 4, "temperature": 0}
        answer = await client.chat.completions.create(model="tiny", **asked)
        longest = max(columns for _, columns in passes)
        return answer.choices[0].message.model_dump(include={"role", "content"}), longest

    long = [{"role": "user", "content": "red " * 20}]
    answer, read = await ask(long)
    assert read == 23
    assert await ask(long) == (answer, 1)
    _, read = await ask([*long, answer, {"role": "user", "content": "blue"}])
    assert read < 10
    with server.updating() as model, torch.no_grad():
        model.model.embed_tokens.weight.mul_(-1)
    changed, read = await ask(long)
    assert read == 23
    assert changed != answer


async def test_no_answer_mixes_two_versions_of_the_weights(server, client):
    """Each version makes the model say one word only; an update in between would show."""
    stop, pushed = threading.Event(), threading.Event()

    def push_weights():
        words = iter(range(10**6))
        while not stop.is_set():
            with server.updating() as model, torch.no_grad():
                # The head becomes blind to everything but a constant: one word wins by far.
                model.lm_head.weight.zero_()
                model.model.norm.weight.zero_()
                bias = torch.zeros(model.config.vocab_size)
                bias[4 + next(words) % 8] = 50.0
                model.lm_head.bias = torch.nn.Parameter(bias)
            pushed.set()
            time.sleep(0.002)

    thread = threading.Thread(target=push_weights)
    thread.start()
    try:
        await asyncio.to_thread(pushed.wait)
        answers = []
        # The test's time limit is the bound: sooner or later an update comes in between.
        while len({answer.model_version for answer in answers}) < 3:
            asked = {"messages": MESSAGES, "max_tokens": 25, "extra_body": WITH_IDS}
            calls = [client.chat.completions.create(model="tiny", **asked) for _ in range(8)]
            answers += await asyncio.gather(*calls)
    finally:
        stop.set()
        thread.join()
    for answer in answers:
        version = int(answer.model_version)
        assert set(answer.choices[0].token_ids) == {4 + (version - 1) % 8}


async def test_models_and_health_are_listed(server):
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{server.url}/models") as response:
            assert [card["id"] for card in (await response.json())["data"]] == ["tiny"]
        async with session.get(server.url.removesuffix("/v1") + "/health") as response:
            assert await response.json() == {"status": "ok", "model_version": "0"}
        async with session.get(f"{server.url}/nothing") as response:
            assert response.status == 404
            assert "no such address: GET /v1/nothing" in (await response.json())["error"]["message"]


TOOL = {"type": "function", "function": {"name": "f"}}
IMAGE = {"role": "user", "content": [{"type": "image_url"}]}


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"model": "other"}, 404, "unknown model 'other'; this server has 'tiny'"),
        ({"max_tokens": 35}, 400, "takes 40 tokens; the messages have 6 and 35 were asked for"),
        ({"messages": [{"role": "user", "content": "red " * 60}]}, 400, "the messages have 63"),
        ({"temperature": -1}, 400, "'temperature': Input should be greater than or equal to 0"),
        ({"tools": [TOOL]}, 400, "does not show calls as <tool_call>"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, 400, "kwargs.chat_template'"),
        ({"frequency_penalty": 0.5}, 400, "'frequency_penalty': Input should be 0; got 0.5"),
        ({"messages": [IMAGE]}, 400, "'image_url' are not supported: the model that is trained"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(server, change, status, message):
    got, answer = await post(server, {"model": "tiny", "messages": MESSAGES, **change})
    assert got == status
    assert message in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"


async def test_a_failure_of_the_model_is_an_answer_and_the_server_goes_on(server, monkeypatch):
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 2}

    def fail(**inputs):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(server.model, "forward", fail)
        status, answer = await post(server, body)
        assert status == 500
        assert "out of memory" in answer["error"]["message"]
    assert (await post(server, body))[0] == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_nobody_awaits_is_given_up(model, tokenizer, stream, monkeypatch):
    submit, given_up = Batcher.submit, threading.Event()

    async def noting(self, request):
        try:
            return await submit(self, request)
        finally:
            given_up.set()

    monkeypatch.setattr(Batcher, "submit", noting)
    server = InferenceServer(model, tokenizer, model_name="tiny", max_model_tokens=60)
    begun, goes_on, forward = threading.Event(), threading.Event(), model.forward

    def slowly(**inputs):
        begun.set()
        assert goes_on.wait(60)
        return forward(**inputs)

    with server:
        model.forward = slowly
        body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 50, "stream": stream}
        body["temperature"] = 0
        asking = asyncio.create_task(post(server, body))
        await asyncio.to_thread(begun.wait, 60)
        asking.cancel()  # closes the connection
        was_noticed = await asyncio.to_thread(given_up.wait, 60)
        goes_on.set()
    assert was_noticed


async def test_a_stream_that_cannot_begin_leaves_nothing_behind(model, tokenizer):
    server = InferenceServer(model, tokenizer, model_name="tiny")  # not started
    app = TorchApp(server.sampler, server.weights, "tiny", 60)
    body = {"model": "tiny", "messages": MESSAGES, "stream": True, "n": 2}
    body = json.dumps({**body, "max_tokens": 50, "temperature": 0}).encode()
    arrived = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        return arrived.pop() if arrived else await asyncio.Event().wait()

    async def send(message):
        raise OSError("the connection is gone")

    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
    await app.start()
    try:
        with server.weights.changing():  # nothing is sampled meanwhile
            with pytest.raises(OSError, match="the connection is gone"):
                await app(scope, receive, send)
            await asyncio.sleep(0)  # a turn for those that were cancelled
            assert not [task for task in asyncio.all_tasks() if task.get_name() == "agl-stream"]
    finally:
        await app.close()


async def test_a_request_that_cannot_join_fails_alone(server, monkeypatch):
    sampler, add = server.sampler, server.sampler.add

    def refuse_short_ones(request):
        if request.max_tokens == 2:
            raise ValueError("it is too short")
        return add(request)

    monkeypatch.setattr(sampler, "add", refuse_short_ones)
    body = {"model": "tiny", "messages": MESSAGES}
    given = [{**body, "max_tokens": number} for number in (30, 2, 30)]
    results = await asyncio.gather(*(post(server, one) for one in given))
    assert [status for status, _ in results] == [200, 500, 200]


def test_a_tokenizer_without_a_chat_template_is_refused(model, tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", None)
    with pytest.raises(ConfigError, match="has no chat_template"):
        InferenceServer(model, tokenizer)


def test_other_machines_need_a_key(model, tokenizer):
    for host in ("0.0.0.0", "::", "192.0.2.1", "box.example"):
        with pytest.raises(ConfigError, match="AGL_SERVE_API_KEY"):
            InferenceServer(model, tokenizer, host=host, api_key="")


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused_by_both_numbers(model, tokenizer):
    model.resize_token_embeddings(len(WORDS) - 1)
    with pytest.raises(ConfigError, match=rf"has {len(WORDS)} tokens.*knows {len(WORDS) - 1}"):
        InferenceServer(model, tokenizer)


def test_a_prompt_that_the_model_cannot_read_is_refused_before_it_joins(model, tokenizer):
    sampler = Sampler(model, tokenizer)
    good = sampler.add(SamplingRequest([1, 4], max_tokens=2))
    with pytest.raises(RequestError, match=f"token {len(WORDS)}; the model has {len(WORDS)}"):
        sampler.add(SamplingRequest([1, len(WORDS)], max_tokens=2))
    while not good.is_over:
        sampler.step()
    assert good.completion.token_ids


def test_the_smallest_temperatures_take_the_most_probable_token():
    logits_B_V = torch.tensor([[1.0, 3.0, 2.0]] * 3)
    temperature_B = torch.tensor([1e-40, 1e-38, 1e-6])
    logprobs_B_V, draw_B_V = sampling_distribution(logits_B_V, temperature_B, torch.ones(3))
    torch.testing.assert_close(logprobs_B_V, torch.log_softmax(logits_B_V, -1))
    assert draw_B_V.tolist() == [[0.0, 1.0, 0.0]] * 3


async def test_answers_are_made_while_rows_are_scored(model, tokenizer):
    """The output layer sees fewer states while rows are scored: not those of another thread."""
    row = make_row("a", 5)
    alone = token_logprobs(model, [row])
    within, answered = asyncio.Event(), asyncio.Event()
    loop, layer = asyncio.get_running_loop(), model.get_output_embeddings()
    hold = []

    def wait(module, arguments):
        if hold:  # of the scoring pass alone: the server is asked in the midst of it
            hold.clear()
            loop.call_soon_threadsafe(within.set)
            asyncio.run_coroutine_threadsafe(answered.wait(), loop).result(60)

    with InferenceServer(model, tokenizer, model_name="tiny") as server:
        body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 4, "seed": 1}
        _, before = await post(server, body)
        model.base_model.register_forward_pre_hook(wait)
        hold.append(True)
        scoring = asyncio.create_task(asyncio.to_thread(token_logprobs, model, [row]))
        await within.wait()
        assert layer._forward_pre_hooks
        status, meanwhile = await post(server, body)
        answered.set()
        scores = await scoring
    assert status == 200
    assert meanwhile["choices"][0]["message"] == before["choices"][0]["message"]
    torch.testing.assert_close(scores.hidden_N_H, alone.hidden_N_H)


@pytest.mark.parametrize(
    ("what", "says"),
    [("port", "is in use"), ("model", "there is no such folder"), ("0.0.0.0", "AGL_SERVE_API_KEY")],
)
def test_what_cannot_be_served_is_told_with_exit_code_2(tmp_path, what, says):
    with bind("127.0.0.1", 0) as sock:
        port = str(sock.getsockname()[1]) if what == "port" else "0"
        host = what if "." in what else "127.0.0.1"
        command = [*AGL, "serve", tmp_path / "none"]
        ended = fork_server.run([*command, "--host", host, "--port", port])
    assert ended.returncode == 2
    assert says in ended.stderr
