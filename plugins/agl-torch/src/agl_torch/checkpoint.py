"""What a checkpoint of a model in training has: a folder that ``from_pretrained`` loads, and more.

``agl_learning.run.checkpoint`` makes the folder whole, and says whether it still is.
"""

import copy
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agl.errors import ConfigError
from agl_models.stochastic_rounding import round_by_chance
from agl_torch.adapter import BASE, check_base
from agl_torch.models import without_bars

if TYPE_CHECKING:
    from agl_torch.learner import Learner

STATE = "learner.pt"


def save(folder: Path, learner: "Learner", tokenizer: Any, sampler_random: random.Random) -> None:
    """Write weights, tokenizer, optimiser, random states and the critic, where there is one."""
    save_model(learner.model, folder)
    tokenizer.save_pretrained(folder)
    if learner.base:
        (folder / BASE).write_text(learner.base, "utf-8")
    record = {
        "optimizer": learner.optimizer.state_dict()["state"],
        "optimizer_kind": learner.options.optimizer.type,
        "critic": {name: one.data for name, one in _of_critic(learner).items()},
        "torch_random": torch.get_rng_state(),
        "learner_random": learner.random.getstate(),
        "sampler_random": sampler_random.getstate(),
        "kl_coefficient": learner.kl_coefficient,
        "kl_began_with": learner.options.kl.coefficient,
    }
    torch.save(record, folder / STATE)


def save_model(model: Any, folder: Path, dtype: str | None = None) -> None:
    """Write the weights as safetensors, without the progress bar that transformers draws.

    Args:
        dtype: None leaves them as they are; to 16 bits, wide ones are rounded by chance.
    """
    narrow: dict[str, Any] = {}
    config = copy.deepcopy(model.config)
    if dtype is not None:
        config.dtype = getattr(torch, dtype)
        chance = torch.Generator(model.device).manual_seed(0)
        made: dict[tuple[Any, ...], Any] = {}  # what is tied is written once
        narrow["state_dict"] = {}
        for name, one in model.state_dict().items():
            key = (one.data_ptr(), one.shape)
            if key not in made and one.dtype == torch.float32 != config.dtype:
                made[key] = round_by_chance(one, config.dtype, chance)
            elif key not in made:
                made[key] = one.to(config.dtype) if one.is_floating_point() else one
            narrow["state_dict"][name] = made[key]
    with without_bars():
        model.save_pretrained(folder, **narrow)
        config.save_pretrained(folder)  # beside an adapter, too: peft looks for its base's


def restore(folder: Path, learner: "Learner", sampler_random: random.Random) -> None:
    """Put optimiser, random states and critic back; the weights are loaded by the caller.

    Raises:
        ConfigError: The checkpoint is of another model or optimiser.
    """
    this, optimizer = f"the checkpoint {str(folder)!r}", learner.options.optimizer.type
    try:
        record = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    except Exception as error:  # of a damaged file or without torchao they have no common base
        raise ConfigError(
            f"{STATE} of {this} cannot be read with {optimizer=}: {str(error).rstrip('.')}. If the "
            "file is damaged, remove the folder, and the run goes on from the checkpoint before it"
        ) from error
    if (kind := record.get("optimizer_kind", "adamw")) != optimizer:
        raise ConfigError(f"{this} was made with optimizer={kind!r}; give that, not {optimizer!r}")
    if not learner.base and (folder / BASE).exists():
        raise ConfigError(f"{this} has an adapter; give lora, as its run had it")
    check_base(folder, learner.base)
    parameters = [p for group in learner.optimizer.param_groups for p in group["params"]]
    shapes = dict(enumerate(tuple(one.shape) for one in parameters))
    for index, values in record["optimizer"].items():  # one that never got a gradient has none
        if (saved := tuple(values["exp_avg"].shape)) != shapes.get(index):
            raise ConfigError(
                f"{this} is of another model: its optimiser state for parameter {index} has shape "
                f"{saved}, the model has {shapes.get(index)} there"
            )
    groups = learner.optimizer.state_dict()["param_groups"]
    learner.optimizer.load_state_dict({"state": record["optimizer"], "param_groups": groups})
    critic = _of_critic(learner)
    here, there = ({n: one.shape for n, one in part.items()} for part in (critic, record["critic"]))
    if here != there:
        raise ConfigError(
            f"{this} has {len(there)} tensors of a critic, and here it has {len(here)}, or others. "
            "Give the critic that the run had"
        )
    for name, values in record["critic"].items():
        critic[name].data.copy_(values)
    if learner.options.kl.coefficient == record["kl_began_with"]:  # else it begins anew
        learner.kl_coefficient = record["kl_coefficient"]
    torch.set_rng_state(record["torch_random"])
    learner.random.setstate(record["learner_random"])
    sampler_random.setstate(record["sampler_random"])


def _of_critic(learner: "Learner") -> dict[str, Any]:
    """What is trained of it, by name; nothing where there is none."""
    parameters = [] if learner.critic is None else learner.critic.named_parameters()
    return {name: one for name, one in parameters if one.requires_grad}
