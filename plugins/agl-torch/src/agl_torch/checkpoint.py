"""What a checkpoint of a model in training has: a folder that ``from_pretrained`` loads, and more.

``agl_learning.checkpoint`` makes the folder whole, and says whether it still is.
"""

import hashlib
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

from agl.errors import ConfigError

if TYPE_CHECKING:
    from agl_torch.learner import Learner

STATE = "learner.json"
OPTIMIZER = "optimizer.safetensors"
CRITIC = "critic.safetensors"


def save(folder: Path, learner: "Learner", tokenizer: Any, sampler_random: random.Random) -> None:
    """Write weights, tokenizer, optimiser, random states and the critic, where there is one."""
    save_model(learner.model, folder)
    if learner.critic is not None:
        save_file(_trained(learner.critic), folder / CRITIC)
    tokenizer.save_pretrained(folder)
    state = learner.optimizer.state_dict()
    tensors = {
        f"{index}/{name}": value.detach().cpu().contiguous()
        for index, values in state["state"].items()
        for name, value in values.items()
    }
    tensors["random/torch"] = torch.get_rng_state()
    save_file(tensors, folder / OPTIMIZER)
    record = {
        "learner_random": learner.random.getstate(),
        "sampler_random": sampler_random.getstate(),
        "kl_coefficient": learner.kl_coefficient,
        "base": learner.base,
    }
    (folder / STATE).write_text(json.dumps(record))


def fingerprint(*models: Any) -> str:
    """The first half of the SHA-256 of all weights, in the order of their names."""
    digest = hashlib.sha256()
    for model in models:
        for name, value in sorted(model.state_dict().items()):
            digest.update(name.encode())
            digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


def save_model(model: Any, folder: Path) -> None:
    """Write the weights as safetensors, without the progress bar that transformers draws."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model.save_pretrained(folder)
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def restore(folder: Path, learner: "Learner", sampler_random: random.Random) -> None:
    """Put optimiser, random states and critic back; the weights are loaded by the caller.

    Raises:
        ConfigError: The checkpoint is of another model.
    """
    record = json.loads((folder / STATE).read_text())
    if record.get("base", "") != learner.base:
        what = "an adapter; give lora_rank, as its run had it"
        if learner.base:
            what = "an adapter for other weights; give the model that its run began with"
        raise ConfigError(f"the checkpoint {str(folder)!r} has {what}")
    tensors = load_file(folder / OPTIMIZER)
    torch.set_rng_state(tensors.pop("random/torch"))
    state: dict[int, dict[str, Any]] = {}
    for key, value in tensors.items():
        index, name = key.split("/")
        state.setdefault(int(index), {})[name] = value
    present = learner.optimizer.state_dict()
    # A parameter that never got a gradient has no state.
    parameters = [p for group in learner.optimizer.param_groups for p in group["params"]]
    for index, values in state.items():
        saved = tuple(values["exp_avg"].shape)
        if index >= len(parameters) or saved != tuple(parameters[index].shape):
            has = "no such one"
            if index < len(parameters):
                has = f"shape {tuple(parameters[index].shape)} there"
            raise ConfigError(
                f"the checkpoint {str(folder)!r} is of another model: its optimiser state "
                f"for parameter {index} has shape {saved}, the model has {has}"
            )
    learner.optimizer.load_state_dict({"state": state, "param_groups": present["param_groups"]})
    if learner.critic is not None:
        learner.critic.load_state_dict(load_file(folder / CRITIC), strict=False)
    learner.kl_coefficient = record["kl_coefficient"]
    learner.random.setstate(_random_state(record["learner_random"]))
    sampler_random.setstate(_random_state(record["sampler_random"]))


def _trained(module: Any) -> dict[str, Any]:
    return {name: one.data for name, one in module.named_parameters() if one.requires_grad}


def _random_state(state: list[Any]) -> tuple[Any, ...]:
    version, internal, gauss = state
    return version, tuple(internal), gauss
