"""The token backend: requests in, tokens with versions out; the client stands in for verl's."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from agl_http.server import ServerThread
from agl_models.completions import end_tokens
from agl_models.versions import MODEL_NAME
from agl_verl.backend import Serving, TokenBackend

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "quickstart"))

from world import build_tokenizer

pytest.importorskip("transformers")
httpx = pytest.importorskip("httpx")


class Client:
    """Answers with fixed words, and remembers what it was asked."""

    def __init__(self, tokenizer, words="attic garden <end>", versions=(3, 3)):
        self.token_ids = tokenizer.encode(words)
        self.versions = dict(zip(("min_global_steps", "max_global_steps"), versions, strict=True))
        self.asked, self.ids = [], []

    async def generate(self, request_id, *, prompt_ids, sampling_params):
        self.asked.append((prompt_ids, sampling_params))
        self.ids.append(request_id)
        token_ids = self.token_ids[: sampling_params["max_tokens"]]
        await asyncio.sleep(0)
        return SimpleNamespace(
            token_ids=token_ids, log_probs=[-0.25] * len(token_ids), extra_fields=self.versions
        )


@pytest.fixture
def tokenizer():
    tokenizer = build_tokenizer()
    tokenizer.eos_token = "<end>"
    return tokenizer


@pytest.fixture
def serve(tokenizer):
    running = []

    def start(client=None, api_key=None, **options):
        serving = Serving(
            client=client or Client(tokenizer),
            tokenizer=tokenizer,
            max_model_tokens=options.pop("max_model_tokens", 30),
            max_answer_tokens=options.pop("max_answer_tokens", 8),
            defaults={"temperature": 1.0},
            **options,
        )
        server = ServerThread(TokenBackend(serving, api_key))
        server.start()
        running.append(server)
        return server.url

    yield start
    for server in running:
        server.stop()


def post(url, headers=None, **body):
    asked = {"messages": [{"role": "user", "content": "find the cat"}], "logprobs": True}
    body = {"model": MODEL_NAME, "return_token_ids": True, **asked, **body}
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=100)


def test_an_answer_has_tokens_logprobs_and_version(serve, tokenizer):
    client = Client(tokenizer)
    answer = post(serve(client), temperature=0.5).json()
    choice = answer["choices"][0]
    assert choice["message"]["content"] == "attic garden"
    assert choice["token_ids"] == tokenizer.encode("attic garden <end>")
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == [-0.25] * 3
    assert choice["finish_reason"] == "stop"
    assert choice["weight_versions"] == [{"version": "3", "start": 0, "end": 3}]
    prompt = tokenizer.encode("<user> find the cat <end> <assistant>")
    assert answer["prompt_token_ids"] == prompt
    assert answer["usage"] == {"prompt_tokens": 6, "completion_tokens": 3, "total_tokens": 9}
    assert client.asked == [(prompt, {"temperature": 0.5, "max_tokens": 8, "logprobs": True})]


def test_an_answer_across_a_weight_update_names_both_versions(serve, tokenizer):
    answer = post(serve(Client(tokenizer, versions=(3, 5)))).json()
    assert answer["choices"][0]["weight_versions"][0]["version"] == "3-5"


def test_lengths_are_cut_to_what_the_model_takes(serve, tokenizer):
    client = Client(tokenizer)
    url = serve(client, max_model_tokens=8)
    answer = post(url, max_tokens=50).json()
    assert client.asked[0][1]["max_tokens"] == 2
    assert answer["choices"][0]["finish_reason"] == "length"
    refused = post(serve(client, max_model_tokens=6))
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert "max_model_len" in refused.json()["error"]["message"]


def test_stop_texts_end_the_answer_with_the_token_that_completes_them(serve, tokenizer):
    choice = post(serve(), stop=["den"]).json()["choices"][0]
    assert choice["message"]["content"] == "attic gar"
    assert choice["token_ids"] == tokenizer.encode("attic garden")
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("name", ["seed", "sampling_seed"])
def test_each_choice_has_a_seed_of_its_own_under_the_servers_name(serve, tokenizer, name):
    client = Client(tokenizer)
    post(serve(client, seed_name=name), n=3, seed=40)
    assert sorted(sampling[name] for _, sampling in client.asked) == [40, 41, 42]
    assert all(len(sampling) == 4 for _, sampling in client.asked)


def test_tool_calls_need_a_parser_and_are_read_by_it(serve):
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    refused = post(serve(), tools=tools)
    assert refused.status_code == 400
    assert "multi_turn.format" in refused.json()["error"]["message"]

    class Parser:
        async def extract_tool_calls(self, token_ids):
            call = SimpleNamespace(name="look", arguments='{"room": "attic"}', tool_call_id=None)
            return "well", [call]

    choice = post(serve(tool_parser=Parser()), tools=tools).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "well"
    function = choice["message"]["tool_calls"][0]["function"]
    assert function == {"name": "look", "arguments": '{"room": "attic"}'}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "'image_url'"),
        ({"logit_bias": {"1": 2}}, "'logit_bias'"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(serve, body, says):
    response = post(serve(), **body)
    assert response.status_code == 400
    assert says in response.json()["error"]["message"]


def test_a_dead_server_is_an_error_of_the_call(serve, tokenizer):
    class Dead(Client):
        async def generate(self, *arguments, **keywords):
            raise ConnectionError("the actor died")

    response = post(serve(Dead(tokenizer)))
    assert response.status_code == 502
    assert "the actor died" in response.json()["error"]["message"]


def test_a_call_without_the_key_or_while_the_trainer_has_the_gpus_is_refused(serve):
    is_open, key = [False], {"authorization": "Bearer secret"}
    url = serve(is_open=lambda: is_open[0], api_key="secret")
    refused = post(url, key)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "model_paused"
    is_open[0] = True
    assert [post(url, headers).status_code for headers in (None, key)] == [401, 200]


@pytest.mark.parametrize(
    ("is_sticky", "attempts", "found"),
    [(True, "aab", ["a"] * 4 + ["b"] * 2), (True, ["", ""], 4), (False, "aa", 4)],
)
def test_calls_of_one_attempt_go_to_one_of_several_servers(
    serve, tokenizer, is_sticky, attempts, found
):
    client = Client(tokenizer)
    url = serve(client, is_sticky=is_sticky)
    for attempt in attempts:
        post(url, {"x-session-id": attempt} if attempt else {}, n=2)
    assert found in (client.ids, len(set(client.ids)))


def test_every_end_token_of_the_generation_configuration_ends_an_answer(serve, tokenizer):
    """As of Llama 3.1, whose tool calls end with another token than its answers."""
    from transformers import GenerationConfig

    words = ["garden", "<end>"]
    ids = tokenizer.convert_tokens_to_ids(words)
    ends = end_tokens(GenerationConfig(eos_token_id=ids))
    assert ends == set(ids)
    client = Client(tokenizer, "attic garden")
    for options, finish in (({}, "length"), ({"end_token_ids": ends}, "stop")):
        answer = post(serve(client, **options), max_tokens=2).json()
        assert answer["choices"][0]["finish_reason"] == finish
