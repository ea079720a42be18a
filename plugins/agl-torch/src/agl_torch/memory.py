"""How much memory a run will need, by a rule of thumb, before a model is loaded for it.

    weights      4 bytes each (2 under an adapter, with dtype bfloat16)
    gradients    4 bytes per trained weight; AdamW 8 more
    copies       of weights: the start, for a penalty; the critic, which is trained too; what is
                 sampled from while the other is trained
    activations  tokens x layers x (12 hidden + 4 intermediate) numbers, of 4 or 2 bytes; with
                 gradient checkpointing tokens x hidden x layers, and all of one layer
    logits       tokens x vocabulary x 12 bytes: logits, their softmax, its gradient
    sampling     keys and values of the sequences that are sampled at once

Tokens are those of a full microbatch whose tokens were all sampled. Activations and logits are
there while weights change, what sampling needs in between. All but sampling is there once per
learner process, on one device. It is an estimate, not a bound.
"""

from pathlib import Path
from typing import Any

from agl.errors import ConfigError
from agl_learning.free_memory import free_memory

GIB = 2**30


def estimate(options: Any, model: Any) -> dict[str, float]:
    """Bytes per part; see the module.

    Args:
        options: Of an algorithm of this package.
        model: Of ``transformers``; its weights may be on the device ``meta``.
    """
    config = model.config.get_text_config()
    size, layers = config.hidden_size, config.num_hidden_layers
    inner = getattr(config, "intermediate_size", None) or 4 * size
    weights = trained = float(sum(one.numel() for one in model.parameters()))
    narrow = options.dtype == "bfloat16"
    per_weight, number = 4.0, 2.0 if narrow else 4.0
    if options.lora_rank is not None:
        per_weight = number
        # Two slim matrices for each of four of size x size, and three of size x inner.
        trained = float(options.lora_rank * layers * (11 * size + 3 * inner))
    copied = weights if options.lora_rank is None else 0.0
    has_critic = getattr(options, "critic", "head") != "head"
    copies = bool(options.kl_coefficient) + has_critic + bool(options.max_staleness)
    longest = options.max_model_tokens or config.max_position_embeddings
    rows = options.groups_per_step * options.group_size
    tokens = float(min(options.microbatch_tokens or rows * longest, rows * longest))
    layer = tokens * (12 * size + 4 * inner) * number
    activations = layers * layer
    if options.gradient_checkpointing:
        activations = layer + tokens * size * layers * number
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or size // config.num_attention_heads
    # Where nobody says how long they get, one of the longest must fit.
    at_once = min(options.max_batch_size, rows) if options.max_model_tokens else 1
    processes = options.learner_processes
    sampled = at_once * longest * layers * 2 * heads * width * number
    return {
        "weights": processes * per_weight * weights,
        "gradients and optimiser": processes * 12.0 * trained * (1 + has_critic),
        "copies": 4.0 * copied * copies,
        "activations": processes * activations * (1 + has_critic),
        "logits": processes * 12.0 * tokens * config.vocab_size,
        "sampling": sampled if options.server == "torch" else 0.0,
    }


def check_memory(options: Any, model: Any, device: str | None) -> None:
    """Refuse a run that will hardly fit.

    Args:
        options: Of an algorithm of this package.
        model: A folder or a name; or one that has been loaded, and takes no more for its weights.
        device: None takes a GPU if there is one.

    Raises:
        ConfigError: With the parts of the estimate, and what makes them smaller.
    """
    import torch

    from agl_torch.models import load_shape

    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if where.type not in ("cuda", "cpu"):
        return  # nobody knows how much is free
    is_named = isinstance(model, str | Path)
    parts = estimate(options, load_shape(model) if is_named else model)
    if not is_named:
        parts["weights"] = 0.0
    passing = max(parts["activations"] + parts["logits"], parts["sampling"])
    needed = parts["weights"] + parts["gradients and optimiser"] + parts["copies"] + passing
    free = torch.cuda.mem_get_info(where)[0] if where.type == "cuda" else free_memory()
    if needed > free:
        listed = ", ".join(f"{name} {value / GIB:.2f}" for name, value in parts.items() if value)
        raise ConfigError(
            f"{options.title}: this run needs about {needed / GIB:.2f} GiB of {where} ({listed}), "
            f"and {free / GIB:.2f} GiB are free. Lower microbatch_tokens; set "
            "gradient_checkpointing; lower max_model_tokens or max_batch_size; train an adapter "
            "(lora_rank); or say check_memory=False if you know better"
        )
