"""Checkpoints: a folder that ``from_pretrained`` loads, with what is needed to go on training."""

import json
import logging
import os
import random
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from agl.errors import ConfigError
from agl_learning.generations import read_generation, sync

logger = logging.getLogger("agl.torch")

if TYPE_CHECKING:
    from agl_torch.learner import Learner

STATE = "grpo_state.json"
OPTIMIZER = "grpo_optimizer.safetensors"


@dataclass(frozen=True)
class Progress:
    """Where a run is; JSON values only."""

    step: int
    version: int
    """Of the weights."""
    totals: dict[str, Any]
    """What the summary adds up."""
    tasks: dict[str, Any]
    """State of the order of tasks."""
    rewards: list[float | None] = field(default_factory=list[float | None])
    """Mean per step, from the first one on."""
    val_rewards: list[tuple[int, float | None]] = field(
        default_factory=list[tuple[int, float | None]]
    )
    """(step, mean) per evaluation."""
    branch: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """The way here; see ``agl_learning.generations``."""


def save_checkpoint(
    folder: Path,
    learner: "Learner",
    tokenizer: Any,
    progress: Progress,
    sampler_random: random.Random,
) -> Path:
    """Write weights, tokenizer, optimiser, random states and progress; whole or not at all."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_model(learner.model, partial)
    tokenizer.save_pretrained(partial)
    state = learner.optimizer.state_dict()
    tensors = {
        f"{index}/{name}": value.detach().cpu().contiguous()
        for index, values in state["state"].items()
        for name, value in values.items()
    }
    tensors["random/torch"] = torch.get_rng_state()
    save_file(tensors, partial / OPTIMIZER)
    record = {
        "progress": asdict(progress),
        "learner_random": learner.random.getstate(),
        "sampler_random": sampler_random.getstate(),
    }
    (partial / STATE).write_text(json.dumps(record))
    for path in sorted(partial.rglob("*")):
        sync(path)
    sync(partial)
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(partial, folder)
    sync(folder.parent)
    return folder


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


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
    """The checkpoint that ``path`` is, or the newest whole one of a run's folder.

    Of a folder, only what its last start made or went on from: where that one had gone back to an
    earlier checkpoint, what came after it before was given up.

    Raises:
        ConfigError: There is none, or the one that was named is damaged.
    """
    root = Path(path)
    if (root / STATE).is_file():
        damage = _damage(root)
        if damage:
            raise ConfigError(
                f"GRPO: the checkpoint {str(root)!r} is damaged: {damage}. Resume from another one"
            )
        return root
    newest = read_generation(root)
    for folder in sorted((root / "checkpoints").glob("step-*"), reverse=True):
        damage = _damage(folder)
        if not damage:
            branch = json.loads((folder / STATE).read_text("utf-8"))["progress"]["branch"]
            if newest is None or newest.leads_to(branch):
                return folder
            logger.info("the checkpoint %s is left out: the run has gone back behind it", folder)
            continue
        logger.warning(
            "the checkpoint %s is damaged and is left out: %s. The one before it is used, if "
            "there is one",
            folder,
            damage,
        )
    raise ConfigError(
        f"GRPO: no checkpoint to resume from in {str(root)!r}; expected a whole folder with "
        f"{STATE}, or a run's folder with checkpoints/step-*"
    )


def _damage(folder: Path) -> str:
    """What is wrong with a checkpoint; "" when it can be read."""
    try:
        for name in (STATE, "config.json"):
            json.loads((folder / name).read_text("utf-8"))
        if not (folder / OPTIMIZER).is_file():
            return f"{OPTIMIZER} is missing"
        files = sorted(folder.glob("*.safetensors"))
        if len(files) < 2:
            return "its weights are missing"
        for path in files:
            # Its header says how long the file must be.
            with safe_open(path, "pt"):
                pass
    except (OSError, ValueError, SafetensorError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def restore(folder: Path, learner: "Learner", sampler_random: random.Random) -> Progress:
    """Put optimiser and random states back; the weights are loaded by the caller.

    Raises:
        ConfigError: The checkpoint is of another model.
    """
    record = json.loads((folder / STATE).read_text())
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
                f"GRPO: the checkpoint {str(folder)!r} is of another model: its optimiser state "
                f"for parameter {index} has shape {saved}, the model has {has}"
            )
    learner.optimizer.load_state_dict({"state": state, "param_groups": present["param_groups"]})
    learner.random.setstate(_random_state(record["learner_random"]))
    sampler_random.setstate(_random_state(record["sampler_random"]))
    progress = record["progress"]
    for name in ("val_rewards", "branch"):
        progress[name] = [(first, second) for first, second in progress[name]]
    return Progress(**progress)


def _random_state(state: list[Any]) -> tuple[Any, ...]:
    version, internal, gauss = state
    return version, tuple(internal), gauss
