"""A small model of one's own: it knows the words, speaks in the form, and calls tools."""

import random
import sys
from typing import Any

import pytest

from agl.errors import ConfigError
from agl_testing.tiny_model import tiny_model

pytestmark = pytest.mark.plugins
pytest.importorskip("torch")
pytest.importorskip("transformers")

ORDERS = {"1": "packed", "2": "sent", "3": "lost"}


def conversation(draw: random.Random) -> list[dict[str, Any]]:
    order, asked = draw.choice([*ORDERS]), draw.choice([*ORDERS])
    call = {"type": "function", "function": {"name": "find_order", "arguments": {"order": asked}}}
    return [
        {"role": "user", "content": f"Where is order {order} ?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": ORDERS[asked]},
        {"role": "assistant", "content": f"It is {ORDERS[asked]}."},
    ]


async def test_it_speaks_in_the_form_of_its_conversations_and_calls_tools(tmp_path):
    openai, server = pytest.importorskip("openai"), pytest.importorskip("agl_torch.server")
    from agl_torch.models import load_model, load_tokenizer

    folder = tiny_model(tmp_path / "small", conversation, steps=150)
    model, tokenizer = load_model(folder, "cpu", "float32"), load_tokenizer(None, folder)
    tools = [{"type": "function", "function": {"name": "find_order"}}]
    messages: list[Any] = [{"role": "user", "content": "Where is order 2 ?"}]
    with server.InferenceServer(model, tokenizer, model_name="small") as served:
        async with openai.AsyncOpenAI(base_url=served.url, api_key="none") as client:
            asked: Any = {"model": "small", "temperature": 0, "max_tokens": 12, "tools": tools}
            answer = await client.chat.completions.create(messages=messages, **asked)
            said = answer.choices[0].message
            assert said.tool_calls[0].function.name == "find_order"
            messages.append(said.model_dump(exclude_none=True))
            called = said.tool_calls[0].id
            messages.append({"role": "tool", "tool_call_id": called, "content": "lost"})
            answer = await client.chat.completions.create(messages=messages, **asked)
    assert answer.choices[0].message.content == "It is lost ."  # a full stop is a token


def test_words_are_tokens_and_a_model_that_is_there_is_kept(tmp_path):
    from transformers import AutoTokenizer

    said = [conversation(random.Random(seed)) for seed in range(20)]
    folder = tiny_model(tmp_path, said, words=["stolen"], steps=1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.encode("It is stolen. unheard-of")
    assert tokenizer.convert_ids_to_tokens(ids) == ["It", "is", "stolen", ".", "<unknown>"]
    begun, whole = (
        tokenizer.apply_chat_template(part, tokenize=True, return_dict=False)
        for part in (said[0][:2], said[0])
    )
    assert whole[: len(begun)] == begun
    before = (folder / "model.safetensors").read_bytes()
    assert tiny_model(folder, said, seed=1) == folder
    assert (folder / "model.safetensors").read_bytes() == before
    again = tiny_model(tmp_path / "again", said, words=["stolen"], steps=1)
    assert (again / "model.safetensors").read_bytes() == before


def test_without_torch_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=r"tiny_model needs 'torch'.*agl-torch"):
        tiny_model(tmp_path, conversation)


def test_what_is_no_list_of_conversations_and_no_folder_is_refused(tmp_path):
    one = conversation(random.Random(0))
    for given, got in (([], "none"), (one, "{'role': 'user'"), (lambda _: [], r"\[\] as")):
        with pytest.raises(ConfigError, match=f"conversations: got {got}.*expected lists of mess"):
            tiny_model(tmp_path, given)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"/file' is a file\. Give the path of a folder"):
        tiny_model(tmp_path / "file" / "model", [one])
