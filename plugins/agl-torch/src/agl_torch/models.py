"""From what a user gives as model and tokenizer to objects that are ready to train."""

import contextlib
import functools
import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from agl.errors import ConfigError
from agl.utils.logs import stderr_console
from agl_torch.adapter import base_chain, load_merged

ModelSource = Any
"""A folder or a name on the Hugging Face Hub, a model object, or a function that builds one."""


def use_deterministic_algorithms(torch_threads: int | None) -> None:
    """Have this process, from now on, compute the same results from the same tensors.

    Args:
        torch_threads: Of one torch operation: sums are cut into as many parts. None takes 1.

    Torch raises where an operation has no way to do that.
    """
    import torch

    # cuBLAS looks at it when a GPU is used for the first time.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(torch_threads or 1)


@contextmanager
def without_bars() -> Generator[None]:
    """Without the progress bars that transformers draws, into the log and our own bars."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def load_model(source: ModelSource, device: str | None, dtype: str) -> Any:
    """The model on its device, in evaluation mode, every parameter trainable.

    Args:
        source: See ``ModelSource``. The adapter that a folder may have is added to its model.
        device: For example ``cuda:0``; None takes a GPU if there is one.
        dtype: Name of a torch type, as ``float32``, or ``auto``; only for models that are loaded.

    Raises:
        ConfigError: There is no such model, type or device.
    """
    import torch

    if isinstance(source, str | Path):
        torch_dtype = dtype if dtype == "auto" else getattr(torch, dtype, None)
        if dtype != "auto" and not isinstance(torch_dtype, torch.dtype):
            raise ConfigError(f"unknown dtype {dtype!r}; expected float32, bfloat16, ...")
        working = stderr_console().status(f"loading the model {source} ...")
        with _loading("model", source), without_bars(), working:
            model = load_merged(source, torch_dtype)
    else:
        model = _build(source, "model")
    if not hasattr(model, "generation_config"):
        raise ConfigError(
            f"the model must be a causal language model of transformers; got {type(model).__name__}"
        )
    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    model: Any = model
    try:
        model = model.to(chosen)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {chosen!r} cannot be used: {error}") from error
    return model.requires_grad_(True).eval()


def load_shape(source: str | Path) -> Any:
    """A model of a folder or a name without its weights, on the device ``meta``."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with _loading("model", source), torch.device("meta"):
        config = AutoConfig.from_pretrained(base_chain(source)[-1])
        return AutoModelForCausalLM.from_config(config)


def resolve_dtype(dtype: Any, device: Any) -> Any:
    """``auto`` is ``bfloat16`` on a GPU that has it, and ``float32`` elsewhere."""
    import torch

    if dtype != "auto":
        return dtype
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if where.type != "cuda" or not torch.cuda.is_available():
        return "float32"
    with torch.cuda.device(where):
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"


def autocast(dtype: str, device: Any) -> AbstractContextManager[Any]:
    """A block in which a model with float32 weights computes in ``dtype``; they stay float32."""
    import torch

    dtype = resolve_dtype(dtype, device)
    if dtype == "float32":
        return contextlib.nullcontext()
    return torch.autocast(torch.device(device).type, dtype=getattr(torch, dtype))


def as_mask(model: Any, seen: Any) -> Any:
    """What each token sees, in the form that a model's attention takes."""
    import torch

    if model.config.get_text_config()._attn_implementation != "eager":
        return seen
    lowest = torch.finfo(model.dtype).min
    return torch.where(seen, 0.0, lowest).to(model.dtype)


@contextmanager
def checkpoint_layers(*models: Any) -> Generator[None]:
    """A block whose passes keep what layers were given, and gradients compute the rest again.

    The way of ``transformers`` does nothing in evaluation mode, in which a model is trained here.

    Raises:
        ConfigError: A model has no layers that are known to bear it.
    """
    from torch.utils.checkpoint import checkpoint
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers: list[Any] = []
    for model in models:
        found = [one for one in model.modules() if isinstance(one, GradientCheckpointingLayer)]
        if not found:
            raise ConfigError(
                f"memory.gradient_checkpointing: {type(model).__name__} has no layers that can be "
                "computed again; leave it out"
            )
        layers += found
    for layer in layers:
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def load_tokenizer(source: ModelSource, model_source: ModelSource) -> Any:
    """The tokenizer; from where the model comes when ``source`` is None.

    Raises:
        ConfigError: There is none.
    """
    if source is None:
        if not isinstance(model_source, str | Path):
            raise ConfigError("give a tokenizer too when the model is not a folder or name")
        source = model_source
    if not isinstance(source, str | Path):
        return _build(source, "tokenizer")
    from transformers import AutoTokenizer

    with _loading("tokenizer", source):
        return AutoTokenizer.from_pretrained(source)


def check_vocabulary(model: Any, tokenizer: Any) -> None:
    """Refuse a tokenizer that writes what the model cannot read."""
    known = model.get_input_embeddings().weight.shape[0]
    if (needed := len(tokenizer)) > known:
        raise ConfigError(
            f"the tokenizer {type(tokenizer).__name__} has {needed} tokens, and the model "
            f"{type(model).__name__} knows {known}. Take the model's own tokenizer, or give the "
            "model further ones first (model.resize_token_embeddings)"
        )


@contextmanager
def _loading(what: str, source: str | Path) -> Generator[None]:
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # what is raised for a damaged file has no common base
        raise ConfigError(f"cannot load the {what} {str(source)!r}: {error}") from error


def _build(source: Any, what: str) -> Any:
    # Models are callable too, but they have a config; tokenizers have a vocabulary.
    finished = hasattr(source, "config") or hasattr(source, "get_vocab")
    if finished or not isinstance(source, Callable):
        return source
    built = source()
    if built is None:
        raise ConfigError(f"the function given as {what} returned nothing")
    return built
