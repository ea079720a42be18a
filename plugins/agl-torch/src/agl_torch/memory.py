"""How much memory training a model takes, by a rule of thumb.

    weights      4 bytes each (2 under an adapter, with dtype bfloat16)
    gradients    4 bytes per trained weight, the critic's too; AdamW 8 more, or 2 of 8 bits
    copies       4 bytes per weight of the start, for a penalty; of the critic; of what is sampled
                 from while the other is trained, with ``max_staleness`` (2 with dtype bfloat16, and
                 without ``max_staleness`` too). Over an adapter the last two are copies of the
                 adapter, and the start is none. A teacher has 4 or 2
    activations  tokens x layers x (12 hidden + 4 intermediate) numbers, of 4 or 2 bytes; with
                 gradient checkpointing tokens x hidden x layers, and all of one layer; with dtype
                 bfloat16 a copy of the weights in it, where they are float32
    logits       ``LOGITS_TOKENS`` x vocabulary x 12 bytes: logits, their softmax, its gradient; 20
                 where ``entropy_bonus`` has the entropy carry a gradient, too
    sampling     keys and values of the sequences that are sampled at once; or the part of the card
                 that vLLM or SGLang takes

Tokens are those of a full microbatch whose tokens were all sampled. Activations and logits are
there while weights change; what sampling needs is in between, or with ``max_staleness`` meanwhile.
It is an estimate, not a bound. What a function builds is counted when it is there: the model before
its gradients, a critic or a teacher not at all.
"""

import contextlib
import ctypes
from pathlib import Path
from typing import Any, NamedTuple

from agl.errors import ConfigError
from agl_models.free_memory import free_memory
from agl_models.processes.engines import memory_share
from agl_torch.models import load_shape, resolve_dtype

GIB = 2**30
LOGITS_TOKENS = 512
"""Logits are made for so many tokens at once: those of all would fill the memory."""
AUTO_TOKENS = 2048
"""Of a microbatch with ``microbatch_tokens="auto"``, at most."""


class Size(NamedTuple):
    """Of one model."""

    weights: float
    hidden: int
    inner: int
    """Of the layers between the hidden ones."""
    layers: int
    vocabulary: int
    cached: int
    """Numbers that a token leaves in the cache of one layer."""
    positions: int

    @classmethod
    def of(cls, model: Any) -> "Size":
        """Of a model of ``transformers``; its weights may be on the device ``meta``."""
        config = model.config.get_text_config()
        hidden, heads = config.hidden_size, config.num_attention_heads
        width = getattr(config, "head_dim", None) or hidden // heads
        return cls(
            weights=float(sum(one.numel() for one in model.parameters())),
            hidden=hidden,
            inner=getattr(config, "intermediate_size", None) or 4 * hidden,
            layers=config.num_hidden_layers,
            vocabulary=config.vocab_size,
            cached=2 * (getattr(config, "num_key_value_heads", None) or heads) * width,
            positions=config.max_position_embeddings,
        )


def estimate(
    options: Any,
    model: Size,
    critic: "Size | None" = None,
    teacher: "Size | None" = None,
    dtype: str | None = None,
) -> dict[str, float]:
    """Bytes per part; see the module.

    Args:
        critic: Where it is a model of its own, and no copy of the other.
        dtype: In which the model computes; None takes that of the options.
    """
    number = 2.0 if (dtype or options.dtype) == "bfloat16" else 4.0
    is_adapter = options.lora is not None
    per_weight, trained = 4.0, model.weights
    if is_adapter:
        # Two slim matrices for each four layers of hidden x hidden, and three of hidden x inner.
        rows = 11 * model.hidden + 3 * model.inner
        per_weight, trained = number, float(options.lora.rank * model.layers * rows)
    of_critic = 0.0 if critic is None else critic.weights
    if getattr(options, "critic", "head") == "copy":
        critic, of_critic = model, trained
    copies = 4.0 * of_critic
    if options.kl.coefficient and not is_adapter:
        copies += 4.0 * model.weights
    if options.server.type == "torch" and number == 2.0 and not is_adapter:
        copies += 2.0 * trained
    elif options.max_staleness:
        copies += 4.0 * trained
    if teacher is not None:
        copies += number * teacher.weights
    longest = options.server.max_model_tokens or model.positions
    rows = options.groups_per_step * options.group_size
    asked = options.memory.microbatch_tokens
    microbatch = AUTO_TOKENS if asked == "auto" else asked or rows * longest
    tokens = float(min(microbatch, rows * longest))
    kept = 0.0
    for one in filter(None, (model, critic)):
        layer = tokens * (12 * one.hidden + 4 * one.inner) * number
        inputs = tokens * one.hidden * one.layers * number
        kept += layer + inputs if options.memory.gradient_checkpointing else one.layers * layer
        if number == 2.0 and not is_adapter:
            kept += 2.0 * one.weights
    # Where nobody says how long they get, one of the longest must fit.
    at_once = min(options.server.max_batch_size, rows) if options.server.max_model_tokens else 1
    sampled = at_once * longest * model.layers * model.cached * number
    return {
        "weights": per_weight * model.weights,
        "gradients and optimiser": (6.0 if options.optimizer.type == "adamw_8bit" else 12.0)
        * (trained + of_critic),
        "copies": copies,
        "activations": kept,
        "logits": (20.0 if options.entropy_bonus else 12.0)
        * min(tokens, LOGITS_TOKENS)
        * model.vocabulary,
        "sampling": sampled if options.server.type == "torch" else 0.0,
    }


def return_free_memory() -> None:
    """Give the system back what the C library keeps of freed memory, where it is glibc.

    It keeps for each thread what that thread freed, and updates run in a pool of threads: the heap
    of SmolLM2 grew from 2.0 to 3.3 GiB in three steps, with 1.5 GiB in use after each.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another library, or system
        ctypes.CDLL(None).malloc_trim(0)


def check_memory(options: Any, model: Any, device: str | None) -> None:
    """Refuse a run that will hardly fit.

    Args:
        model: A folder or a name; or one that has been loaded, and takes no more for its weights.
        device: None takes a GPU if there is one.

    Raises:
        ConfigError: With the parts of the estimate, and what makes them smaller.
    """
    import torch

    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if where.type not in ("cuda", "cpu"):
        return  # nobody knows how much is free
    parts = _needed(options, model, resolve_dtype(options.dtype, where))
    free, total = torch.cuda.mem_get_info(where) if where.type == "cuda" else (free_memory(), 0)
    if options.server.type != "torch" and options.server.is_on(where):
        share = memory_share(options.server.type, options.server.arguments or ())
        parts["sampling"] = share * total
    passing = (parts["activations"] + parts["logits"], parts["sampling"])
    lasting = parts["weights"] + parts["gradients and optimiser"] + parts["copies"]
    needed = lasting + (sum(passing) if options.max_staleness else max(passing))
    if needed > free:
        listed = ", ".join(f"{name} {value / GIB:.2f}" for name, value in parts.items() if value)
        raise ConfigError(
            f"{options.title}: this run needs about {needed / GIB:.2f} GiB of {where} ({listed}), "
            f"and {free / GIB:.2f} GiB are free. Lower memory.microbatch_tokens; "
            "set memory.gradient_checkpointing; lower server.max_model_tokens or "
            "server.max_batch_size, or what vLLM takes (server.arguments); train an adapter "
            "(lora); or set memory.check to false if you know better"
        )


def _needed(options: Any, model: Any, dtype: str) -> dict[str, float]:
    """The estimate, less what is there already."""
    critic, teacher = (getattr(options, name, None) for name in ("critic", "teacher"))
    size, of_critic = _size(model), _size(critic)
    of_teacher = _size(teacher) if _is_named(teacher) else None
    assert size is not None
    parts = estimate(options, size, of_critic, of_teacher, dtype)
    if not _is_named(model):
        parts["weights"] = 0.0
    if of_critic is not None and not _is_named(critic):
        parts["copies"] -= 4.0 * of_critic.weights
    return parts


def _is_named(source: Any) -> bool:
    return isinstance(source, str | Path) and source not in ("head", "copy")


def _size(source: Any) -> Size | None:
    """None for what is no model, or not yet."""
    if _is_named(source):
        return Size.of(load_shape(source))
    return Size.of(source) if hasattr(source, "config") else None
