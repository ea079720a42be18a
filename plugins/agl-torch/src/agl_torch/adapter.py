"""Low-rank adapters by ``peft``: small matrices are trained, and the weights under them stay.

For each layer W of the chosen ones, y = W x + (alpha / rank) * B A x; B begins at zero, so that
the model begins as it was.

Source: LoRA (arXiv:2106.09685).

Where we differ: there is no dropout, as log-probabilities are those of sampling; and the model
without its adapter is a second set of layers over the same weights, not the adapter switched off,
as others may sample from it meanwhile.
"""

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

from agl.errors import ConfigError
from agl_learning.run.checkpoint import home_of
from agl_learning.trainer.options import Lora
from agl_torch.options import need

ADAPTER = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
"""Of the names of tensors in such a file."""
BASE = "base.sha256"
"""Beside an adapter of ours: the ``fingerprint`` of the weights that it is for, in bfloat16."""


def fingerprint(*models: Any, dtype: str | None = None) -> str:
    """The first half of the SHA-256 of all weights, in the order of their names.

    Args:
        dtype: What they are rounded to before; None takes them as they are. In ``bfloat16`` they
            are the same whether a model was loaded in float32 or in bfloat16.
    """
    import torch

    digest = hashlib.sha256()
    for model in models:
        for name, value in sorted(model.state_dict().items()):
            digest.update(name.encode())
            value = value.detach().cpu()
            if dtype is not None and value.is_floating_point():
                value = value.to(getattr(torch, dtype))
            digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


def share_weights(model: Any) -> Any:
    """A model of its own over the same weights: what changes one changes both.

    All of its parameters count as trained: torch multiplies by others in another way, of which
    the rows of a batch do not come out alike (``Sampler.check_batches``).
    """
    import torch

    return copy.deepcopy(
        model, {id(one): torch.nn.Parameter(one.data) for one in model.parameters()}
    )


def copy_trained(model: Any, dtype: str = "float32") -> Any:
    """A copy of what is trained of a model, in a type, over the same weights of what is not."""
    import torch

    return copy.deepcopy(
        model,
        {
            id(one): torch.nn.Parameter(one.detach().to(getattr(torch, dtype), copy=True))
            if one.requires_grad
            else one
            for one in model.parameters()
        },
    )


def refresh(copied: Any, model: Any, seed: int) -> None:
    """Give a copy of what is trained the weights as they are by now.

    Where it has 16 bits they are rounded by chance: to the nearest, small steps would not reach it.
    The same draws serve each time, so that a copy depends on the weights alone.
    """
    import torch

    from agl_models.stochastic_rounding import round_by_chance

    chance = torch.Generator(model.device).manual_seed(seed)
    for one, own in zip(copied.parameters(), model.parameters(), strict=True):
        if one.dtype != own.dtype:
            one.data.copy_(round_by_chance(own.detach(), one.dtype, chance))
        elif one is not own:
            one.data.copy_(own.detach())


def copy_on_cpu(model: Any) -> Any:
    """A copy whose weights are in the memory of the machine, wherever those of the model are."""
    import torch

    weights = {id(one): one.detach().to("cpu", copy=True) for one in model.parameters()}
    return copy.deepcopy(model, {key: torch.nn.Parameter(one) for key, one in weights.items()})


def add_adapter(model: Any, lora: Lora, base: str | Path, checkpoint: Path | None = None) -> None:
    """Put one on a model, in place; from then on it is all that is trained and saved.

    Args:
        base: Where the model can be loaded again; stands in checkpoints.
        checkpoint: Has the adapter's weights; None begins anew.

    Raises:
        ConfigError: The model has no such layers, or the checkpoint an adapter of another form.
    """
    import torch
    from peft import LoraConfig

    alpha: Any = lora.effective_alpha
    modules = lora.modules or "all-linear"
    config = LoraConfig(r=lora.rank, lora_alpha=alpha, target_modules=modules)
    model.requires_grad_(False)
    try:
        model.add_adapter(config)
    except ValueError as error:
        raise ConfigError(f"lora.modules: {error}") from error
    model.peft_config["default"].base_model_name_or_path = str(base)
    for one in model.parameters():
        if one.requires_grad:  # made in the type of the layer; small steps get lost in 16 bits
            one.data = one.data.to(torch.float32)
    model.eval()
    if checkpoint is None:
        return
    if not (checkpoint / ADAPTER).exists():
        raise ConfigError(
            f"the checkpoint {str(checkpoint)!r} has a whole model and no adapter; leave lora "
            "out to go on, or give it as model to train an adapter on it"
        )
    now = {"r": config.r, "lora_alpha": alpha}
    try:
        saved = json.loads((checkpoint / ADAPTER).read_text("utf-8"))
        before = {name: saved[name] for name in (*now, "target_modules")}
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{str(checkpoint / ADAPTER)!r} cannot be read: {error!r}") from error
    modules = before.pop("target_modules")
    if before != now or _fill(model, checkpoint):
        raise ConfigError(
            f"the checkpoint {str(checkpoint)!r} has an adapter of another form ({before}, "
            f"{modules}); continue with the lora options that it had"
        )


def _fill(model: Any, folder: Path) -> list[str]:
    """Put the weights of a folder into the adapter of a model, if they are those that belong there.

    Returns:
        Names of tensors that are in but one of them, or have another shape; then nothing was done.
    """
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from safetensors.torch import load_file

    try:
        weights = load_file(folder / WEIGHTS)
    except Exception as error:  # SafetensorError and OSError have no common base
        raise ConfigError(f"the adapter in {str(folder)!r} cannot be read: {error}") from error
    given = {name.removeprefix(PREFIX): value.shape for name, value in weights.items()}
    shapes = {name: value.shape for name, value in get_peft_model_state_dict(model).items()}
    wrong = sorted({name for name, _ in given.items() ^ shapes.items()})
    if not wrong:
        set_peft_model_state_dict(model, weights)
    return wrong


def merge(model: Any) -> Any:
    """Add the adapter of a model to its weights, in place, and give the model back."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, layer in [*model.named_modules()]:
        if isinstance(layer, BaseTunerLayer):
            layer.merge()
            model.set_submodule(name, layer.get_base_layer())
    # Or else saving it would look for the adapter, and another one warn of it.
    model._hf_peft_config_loaded = False
    del model.peft_config
    return model


def base_chain(source: str | Path) -> list[str | Path]:
    """A folder or name, and what is under it as long as that is an adapter; the last is a model.

    Raises:
        ConfigError: An adapter does not say what it is for, or is for itself.
    """
    found = [source]
    while (Path(found[-1]) / ADAPTER).exists():
        base = _find_base(Path(found[-1]))
        if base in map(str, found):
            raise ConfigError(f"{base!r} holds an adapter that is said to be built on itself")
        found.append(base)
    return found


def _find_base(folder: Path) -> str:
    """Where the model under the adapter of a folder is."""
    try:
        base = json.loads((folder / ADAPTER).read_text("utf-8"))["base_model_name_or_path"]
        if not isinstance(base, str):
            raise TypeError(f"base_model_name_or_path is {base!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{str(folder / ADAPTER)!r} does not say which model its adapter is for: {error!r}"
        ) from error
    if not Path(base).is_absolute() or Path(base).exists():
        return base
    # The folder of the run may have moved, and its beginning with it.
    if (moved := home_of(folder) / Path(base).name).exists():
        return str(moved)
    raise ConfigError(
        f"the adapter in {str(folder)!r} is for the model {base!r}, which is not there, nor is "
        f"{str(moved)!r}. Put it back, or write where it is now into {ADAPTER} of that folder "
        "(base_model_name_or_path)"
    )


def load_merged(source: str | Path, dtype: Any) -> Any:
    """The model of a folder or name; where it is an adapter, added to what it was built on.

    Raises:
        ConfigError: ``peft`` is not there, or an adapter is not one for what is under it.
        OSError: There is no such model.
    """
    from transformers import AutoModelForCausalLM

    *adapters, base = base_chain(source)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    # From float16 they would not round to the same as from the type that they were trained in.
    if adapters and (Path(adapters[-1]) / BASE).exists() and str(dtype) != "torch.float16":
        check_base(Path(adapters[-1]), fingerprint(model, dtype="bfloat16"))
    for folder in reversed(adapters):
        _add(model, Path(folder))
    return model


def check_base(folder: Path, base: str) -> None:
    """Refuse to put the adapter of a folder on other weights than those it was trained on.

    Args:
        folder: Of a checkpoint of ours.
        base: See ``BASE``; "" for none.
    """
    made_for = (folder / BASE).read_text("utf-8") if (folder / BASE).exists() else ""
    if made_for != base:
        raise ConfigError(
            f"the checkpoint {str(folder)!r} has an adapter for other weights; put back the model "
            "that its run began with, or give that"
        )


def _add(model: Any, folder: Path) -> None:
    """Add the adapter of a folder to the weights of a model."""
    need(f"{str(folder)!r} holds an adapter, and", "peft", "lora")
    from peft import LoraConfig

    try:
        model.add_adapter(LoraConfig.from_pretrained(str(folder)))
    except Exception as error:  # what these libraries raise for a damaged file has no common base
        raise ConfigError(f"the adapter in {str(folder)!r} cannot be read: {error}") from error
    if wrong := _fill(model, folder):
        raise ConfigError(
            f"the adapter in {str(folder)!r} is damaged, or for another model: {len(wrong)} "
            f"tensors are missing, too many or of another shape, the first {wrong[0]!r}"
        )
    merge(model)
