"""A language model of 100 thousand parameters and its tokenizer, made on the spot, for tests.

One token per printable ASCII character (all others are ``<unk>``), with a chat template. Sampled
tokens decode to text that encodes to the same tokens, so the calls of a rollout merge into one row,
as a good model's do.
"""

from pathlib import Path

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""In the manner of ChatML. The tokens of a conversation are a prefix of the tokens of its
continuation, so the calls of one rollout can merge into one row."""

SPECIAL_TOKENS = ["<pad>", "<|im_start|>", "<|im_end|>"]


def make_tiny_model(folder: str | Path, *, seed: int = 0, max_tokens: int = 1024) -> Path:
    """Write a random Llama model and a tokenizer with a chat template into ``folder``."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    tokenizer.save_pretrained(str(folder))
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 128}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    # Not Qwen2: AutoTokenizer gives its models another pre-tokenizer than the saved one.
    config = LlamaConfig(
        **{**sizes, **ids, "max_position_embeddings": max_tokens},
        **{"tie_word_embeddings": False, "bos_token_id": None},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(str(folder))
    return folder


def _tokenizer():
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    tokens = [*SPECIAL_TOKENS, "<unk>", "\t", "\n", *(chr(code) for code in range(32, 127))]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(SPECIAL_TOKENS)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<|im_end|>",
        unk_token="<unk>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
