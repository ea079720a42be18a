"""Whether a run will fit, before a model is loaded for it; see ``agl_torch.memory_estimate``.

What a function builds is counted when it is there: the model before its gradients, a critic or a
teacher not at all.
"""

import contextlib
import ctypes
from pathlib import Path
from typing import Any

from agl.errors import ConfigError
from agl_models.free_memory import free_memory
from agl_models.processes.engines import memory_share
from agl_torch.memory_estimate import Size, estimate
from agl_torch.models import resolve_dtype

GIB = 2**30


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
        options: Of an algorithm of this package.
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
    if options.server.type != "torch" and not where.index:  # they take the first card
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
    from agl_torch.models import load_shape

    if _is_named(source):
        return Size.of(load_shape(source))
    return Size.of(source) if hasattr(source, "config") else None
