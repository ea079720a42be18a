"""What a training server is told by a file in YAML, by variables, and by its command."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from agl.cli.shared import note
from agl.errors import ConfigError
from agl.plugins import registry
from agl.plugins.parts import plan_part
from agl.plugins.schema import schema_of, validate
from agl.utils.text import did_you_mean
from agl_runs.config.overrides import apply_overrides, parse_yaml, read
from agl_runs.options import Count, check_name
from agl_service.jobs import Quotas

KEYS = {
    "model.path": ["model"],
    "model.dtype": ["dtype"],
    "model.tensor_parallel": ["server.replicas"],
    "algorithm.name": ["type"],
    "algorithm.kl_coef": ["kl.coefficient"],
    "algorithm.clip_range": ["clip.low", "clip.high"],
    "algorithm.entropy_coef": ["entropy_bonus"],
    "algorithm.actor_lr": ["learning_rate"],
    "algorithm.critic_lr": ["critic_learning_rate"],
    "runtime.max_seq_len": ["server.max_model_tokens"],
    "runtime.batch_size": ["batch_size"],
    "runtime.gradient_accumulation": [],
    "runtime.checkpoint_interval": ["checkpoints.every"],
    "service.jobs_at_once": ["jobs_at_once"],
    "service.quotas": ["quotas"],
    "service.store": ["store"],
    "service.address": ["address"],
}
"""Key of a file -> fields of ``Settings``, or options of the algorithm, as ``type`` and ``model``;
other keys of ``algorithm`` are options by the same name."""
OF_JOBS = ("steps", "groups_per_step", "run_dir", "resume_from")
"""Options of an algorithm that each job has for itself, by what its client asks."""
VARIABLES = {
    "LIGHTNING_MODEL_PATH": "model.path",
    "LIGHTNING_DEVICE": "algorithm.device",
    "LIGHTNING_RL_ALGORITHM": "algorithm.name",
    "LIGHTNING_BATCH_SIZE": "runtime.batch_size",
    "LIGHTNING_LEARNING_RATE": "algorithm.learning_rate",
}


@dataclass(frozen=True)
class Settings:
    """What holds for all jobs of a server."""

    algorithm: dict[str, Any]
    """Type and options."""
    jobs_at_once: Count = 1
    quotas: Quotas = Quotas()
    batch_size: Count | None = None
    """Most rollouts of an update, whatever a client asks for; those of one task at least."""
    store: str = ""
    """Database for the stores of jobs, so that several servers may use one folder."""
    address: str = ""
    """Where the other servers reach this one; by default, where it listens."""


def read_settings(
    file: Path | None, given: dict[str, Any], overrides: Sequence[str] = ()
) -> Settings:
    """Check a file and what goes before it: variables, keys of it, and options of the algorithm.

    Raises:
        ConfigError: Something is unknown, missing or wrong.
    """
    said: dict[str, Any] = {}
    for block, values in ({} if file is None else read(file)).items():
        if not isinstance(values, dict | None):
            raise ConfigError(f"{file}: {block}: expected keys and values, got {values!r}")
        said |= {f"{block}.{key}": value for key, value in (values or {}).items()}
    for key in said:
        if key not in KEYS and not key.startswith("algorithm."):
            raise ConfigError(f"{file}: {key}: unknown key.{did_you_mean(key, KEYS)}")
    for key in (*said, *(f"algorithm.{change.partition('=')[0]}" for change in overrides)):
        if key in ("algorithm.type", "algorithm.model"):
            raise ConfigError(f"{key}: say --algorithm or --model, or algorithm.name or model.path")
        if key.removeprefix("algorithm.") in OF_JOBS:
            raise ConfigError(f"{key}: each job has its own, by what its client asks; leave it out")
    for variable, key in VARIABLES.items():
        if text := os.environ.get(variable):
            said[key] = parse_yaml(text, variable)
    said |= {key: value for key, value in given.items() if value is not None}
    if "model.path" not in said:
        raise ConfigError("which model? Say --model, LIGHTNING_MODEL_PATH, or model.path in a FILE")
    check_name("agl server", model=said["model.path"], algorithm=said.get("algorithm.name", "grpo"))
    spec: dict[str, Any] = {"type": said.pop("algorithm.name", "grpo")}
    spec["checkpoints"] = {"every": 20, "keep_last": 2}
    of_jobs: dict[str, Any] = {"algorithm": spec}
    # Of vLLM there can be several.
    changes = ["server.type=vllm"] * (said.get("model.tensor_parallel", 1) != 1)
    for key, value in said.items():
        if not (options := KEYS.get(key, [key.removeprefix("algorithm.")])):
            note(f"{key}={value} is not needed: gradients add up over what memory.* allows")
        elif options[0] in {one.name for one in fields(Settings)}:
            of_jobs[options[0]] = value
        changes += [f"{one}={json.dumps(value)}" for one in options if one not in of_jobs]
    apply_overrides(spec, [*changes, *overrides])
    if Path(spec["model"]).exists():
        spec["model"] = str(Path(spec["model"]).absolute())
    target = registry.load(registry.GROUPS["algorithm"], spec["type"])
    if "groups_per_step" not in {option.name for option in schema_of(target).options}:
        raise ConfigError(f"algorithm {spec['type']!r}: expected grpo or another of agl-torch")
    spec["group_size"] = plan_part("algorithm", spec, where="algorithm").build().group_size
    settings = Settings(**validate(Settings, of_jobs, "service"))
    for key, schemes in {"store": ("postgresql", "postgres"), "address": ("http", "https")}.items():
        if (found := vars(settings)[key]) and found.partition("://")[0] not in schemes:
            raise ConfigError(f"service.{key}: expected {schemes[0]}://...")
    if settings.store:
        plan_part("store", settings.store, where="service.store")
    return settings
