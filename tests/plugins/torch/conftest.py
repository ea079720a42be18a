"""A tiny model and its tokenizer, built on the spot; the server tests share one server."""

import json

import pytest

pytest.importorskip("torch")

SPECIAL, COLOURS = ["<pad>", "<user>", "<agent>", "<end>"], ["red", "green", "blue"]
WORDS = [*SPECIAL, *COLOURS, "one", "two", "three", "four", "five", "and", "then", "stop"]


@pytest.fixture(scope="session")
def tokenizer():
    from tests.seams.table_model import build_tokenizer

    return build_tokenizer(WORDS)


@pytest.fixture(scope="session")
def broken_tokenizer():
    """It splits no words, as where its pre_tokenizer is set too late."""
    from tests.seams.table_model import build_tokenizer
    from tokenizers import pre_tokenizers

    template = "{% for m in messages %}<user> {{ m['content'] }} {% endfor %}"
    made = build_tokenizer(WORDS, template)
    made.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([])
    return made


TOOL_TEMPLATE = (
    "{% if tools %}Call a tool as <tool_call>{}</tool_call>: {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}"
    "{% for c in m['tool_calls'] or [] %}<tool_call>{{ c['function'] | tojson }}</tool_call>"
    "{% endfor %}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(scope="session")
def byte_tokenizer():
    """A token per byte: a character may have several."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({byte: n for n, byte in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<end>", special=True)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<end>", chat_template=TOOL_TEMPLATE
    )


SIZES = {
    **{"vocab_size": len(WORDS), "hidden_size": 32, "intermediate_size": 64},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"max_position_embeddings": 64, "initializer_range": 0.3, "tie_word_embeddings": False},
    **{"pad_token_id": 0, "bos_token_id": None, "eos_token_id": WORDS.index("<end>")},
}


def build_model(seed: int = 0):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**SIZES)).eval()


AGENT = """
import agl
from openai import AsyncOpenAI

@agl.rollout
async def agent(task, llm: agl.LLM) -> float:
    async with AsyncOpenAI(api_key="x", base_url=llm.endpoint, max_retries=0) as client:
        messages = [{"role": "user", "content": task["q"]}]
        for _ in range(task.get("turns", 1)):
            answer = await client.chat.completions.create(
                model=llm.model, messages=messages, **llm.sampling_parameters)
            text = answer.choices[0].message.content
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "two"}]
    return float(REWARD)
"""


def write_project(folder, reward, questions, turns=1, **algorithm):
    """An agent that asks, its tasks, and ``agl.yaml`` for a run of GRPO into ``out``."""
    (folder / "asking_agent.py").write_text(AGENT.replace("REWARD", reward))
    tasks = [json.dumps({"q": question, "turns": turns}) for question in questions]
    (folder / "tasks.jsonl").write_text("\n".join(tasks))
    of_grpo = {"type": "grpo", "model": "model", "seed": 1, "groups_per_step": 2, "group_size": 4}
    config = {"agent": "asking_agent:agent", "train": "tasks.jsonl", "strategy": "shm"}
    config["algorithm"] = {**of_grpo, "max_tokens": 3, "device": "cpu", **algorithm}
    (folder / "agl.yaml").write_text(json.dumps({**config, "run_dir": "out"}))


@pytest.fixture
def model():
    return build_model()


@pytest.fixture
def prompts():
    """Token ids of three different lengths."""
    return [[1, 4, 3, 2], [1, 7, 8, 9, 3, 2, 5, 3, 1, 6, 3, 2], [1, 4, 12, 5, 3, 2]]


@pytest.fixture
def passes(model, monkeypatch):
    """Rows and columns of what the model is given, pass by pass."""
    shapes = []
    forward = model.forward

    def noting(**inputs):
        shapes.append(tuple(inputs["input_ids"].shape))
        return forward(**inputs)

    monkeypatch.setattr(model, "forward", noting)
    return shapes


@pytest.fixture
def grpo(tmp_path, tokenizer):
    import agl

    def build(made=agl.GRPO, **options):
        defaults = {
            **{"model": build_model, "tokenizer": tokenizer, "run_dir": str(tmp_path / "run")},
            **{"steps": 2, "groups_per_step": 2, "group_size": 8, "learning_rate": 1e-2},
            **{"max_tokens": 1, "device": "cpu", "torch_threads": 1, "show_progress": False},
        }
        return made(**{**defaults, **options})

    return build
