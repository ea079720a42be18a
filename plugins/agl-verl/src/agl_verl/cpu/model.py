"""A language model of 100 thousand parameters and its tokenizer, made on the spot, for tests.

One token per character, with a chat template, no download. Sampled tokens decode to text that
encodes to the same tokens, so the calls of a rollout merge into one row, as a good model's do.
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


def make_tiny_model(
    folder: str | Path,
    *,
    seed: int = 0,
    hidden_size: int = 64,
    layers: int = 2,
    max_tokens: int = 1024,
    alphabet: str = "ascii",
) -> Path:
    """Write a random Llama model and a tokenizer with a chat template into ``folder``.

    Args:
        folder: Made if it is not there.
        seed: Of the weights; the same seed gives the same weights.
        hidden_size: A multiple of 16; there are four attention heads.
        layers: Transformer blocks.
        max_tokens: The longest sequence of prompt and response.
        alphabet: ``ascii``: a token per printable ASCII character, all others become ``<unk>``;
            or ``bytes``: a token per byte, which encodes every text, but an untrained model samples
            bytes that are no text, and re-encoding those gives other tokens.

    Returns:
        The folder, for ``model.path`` of verl and ``from_pretrained`` of transformers.

    Raises:
        ValueError: ``hidden_size`` does not fit the heads, or there is no such alphabet.
    """
    if alphabet not in ("ascii", "bytes"):
        raise ValueError(f"make_tiny_model: alphabet must be 'ascii' or 'bytes', got {alphabet!r}")
    if hidden_size <= 0 or hidden_size % 16:
        raise ValueError(
            f"make_tiny_model: hidden_size must be a multiple of 16, got {hidden_size}"
        )
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(alphabet)
    tokenizer.save_pretrained(str(folder))
    # Not Qwen2: AutoTokenizer gives its models another pre-tokenizer than the saved one.
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_tokens,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(str(folder))
    return folder


def _tokenizer(alphabet: str):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if alphabet == "ascii":
        tokens = ["<unk>", "\t", "\n", *(chr(code) for code in range(32, 127))]
    else:
        tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *tokens])}
    unknown = "<unk>" if alphabet == "ascii" else None
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=unknown))
    if alphabet == "ascii":
        backend.decoder = decoders.Fuse()
    else:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL_TOKENS)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<|im_end|>",
        unk_token=unknown,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
