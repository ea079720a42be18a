"""Looks before a run whether it can work: what would hang or fail late is said at once.

verl and Ray wait for ever, without a word, for CPUs that a cluster does not have.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agl.errors import ConfigError

logger = logging.getLogger("agl.verl")

CPUS_PER_RANK = 3
"""verl's placement groups: so many CPUs for each training process."""
CPUS_PER_SERVER = 2
"""Beside a rollout server that has GPUs of its own."""
SPARE_CPUS = 3
"""For actors that need one to be placed, and none later: load balancer and others."""


@dataclass(frozen=True)
class Needs:
    """What a run asks of Ray; CPUs are a declaration there, processes share what there is."""

    gpus: int
    cpus: int


def needs(config: Any) -> Needs:
    """What a configuration asks of Ray."""
    ranks = int(config.trainer.nnodes) * int(config.trainer.n_gpus_per_node)
    rollout = config.actor_rollout_ref.rollout
    separate = config.trainer.v1.trainer_mode == "separate_async"
    servers = int(rollout.nnodes) * int(rollout.n_gpus_per_node) if separate else 0
    units = int(config.transfer_queue.backend.SimpleStorage.num_data_storage_units)
    # The task runner and the queue's controller have one each.
    others = 1 + 1 + units + int(config.reward.num_workers) + SPARE_CPUS
    return Needs(ranks + servers, CPUS_PER_RANK * ranks + CPUS_PER_SERVER * servers + others)


def prepare_ray(config: Any) -> None:
    """Set how many CPUs a cluster of our own declares, where the configuration does not say.

    Raises:
        ConfigError: It says too few, or Ray's temporary folder is none that it can use.
    """
    from omegaconf import open_dict

    init = config.ray_kwargs.ray_init
    if init.get("address") or os.environ.get("RAY_ADDRESS"):
        with open_dict(init):
            init.pop("num_cpus", None)  # Ray refuses it for a cluster that runs
        return
    check_temporary_folder(os.environ)
    needed = needs(config).cpus
    given = init.get("num_cpus")
    if given is None:
        with open_dict(init):
            init.num_cpus = max(needed, os.cpu_count() or 1)
    elif int(given) < needed:
        raise ConfigError(
            f"VERL config: ray_kwargs.ray_init.num_cpus is {given}, and this run needs {needed} "
            "(a declaration; processes share what the machine has): verl would wait for ever. "
            "Leave it out"
        )


def check_temporary_folder(environment: Mapping[str, str]) -> None:
    """Refuse a folder for Ray in which its workers end as they start, without a word to the driver.

    Args:
        environment: Variables; ``nox`` for one sets ``TMPDIR`` to a folder in its environment.
    """
    root = environment.get("VIRTUAL_ENV")
    # Ray looks at the first that is set.
    name = "RAY_TMPDIR" if "RAY_TMPDIR" in environment else "TMPDIR"
    folder = environment.get(name)
    if root and folder and Path(folder).resolve().is_relative_to(Path(root).resolve()):
        raise ConfigError(
            f"{name} is {folder!r}, in the virtual environment: Ray's workers do not start there, "
            "and verl would wait for ever. Set RAY_TMPDIR to a folder outside of it"
        )


def check_cluster(config: Any, found: Mapping[str, float]) -> None:
    """Compare what the cluster has (``ray.cluster_resources()``) with what the run needs.

    Raises:
        ConfigError: There are too few GPUs or CPUs.
    """
    need = needs(config)
    kind = "NPU" if found.get("NPU") else "GPU"
    for name, wanted in ((kind, need.gpus), ("CPU", need.cpus)):
        have = int(found.get(name, 0))
        if have < wanted:
            where = (
                "trainer.n_gpus_per_node x trainer.nnodes and, in the mode separate_async, "
                "actor_rollout_ref.rollout.n_gpus_per_node x .nnodes"
                if name == kind
                else "3 for each training process, and the queue's and other processes"
            )
            raise ConfigError(
                f"the Ray cluster has {have} {name}s and this run needs {wanted} ({where}): verl "
                "would wait for ever. Give it more, or ask for less"
            )


def num_servers(config: Any) -> int:
    """How many rollout servers the GPUs make.

    Raises:
        ConfigError: Not a whole number; the message has both.
    """
    rollout = config.actor_rollout_ref.rollout
    per_server = (
        int(rollout.tensor_model_parallel_size)
        * int(rollout.data_parallel_size)
        * int(rollout.pipeline_model_parallel_size)
    )
    owner = rollout if config.trainer.v1.trainer_mode == "separate_async" else config.trainer
    gpus = int(owner.nnodes) * int(owner.n_gpus_per_node)
    if gpus < per_server or gpus % per_server:
        raise ConfigError(
            f"VERL config: {gpus} GPUs do not make whole rollout servers of {per_server} "
            "(actor_rollout_ref.rollout.tensor_model_parallel_size x data_parallel_size x "
            "pipeline_model_parallel_size)"
        )
    return gpus // per_server


def check_micro_batches(config: Any) -> None:
    """Refuse micro-batches that do not divide a mini-batch: verl would fail after the rollouts.

    Only FSDP, whose ranks are GPUs over ``ulysses_sequence_parallel_size``, is looked at.
    """
    model, actor = config.actor_rollout_ref, config.actor_rollout_ref.actor
    if not str(actor.strategy).startswith("fsdp"):
        return
    gpus = int(config.trainer.nnodes) * int(config.trainer.n_gpus_per_node)
    ranks = max(1, gpus // int(actor.ulysses_sequence_parallel_size))
    rows = int(actor.ppo_mini_batch_size) * int(model.rollout.n) // ranks
    for section, name, dynamic in (
        ("actor", "ppo_micro_batch_size_per_gpu", "use_dynamic_bsz"),
        ("rollout", "log_prob_micro_batch_size_per_gpu", "log_prob_use_dynamic_bsz"),
    ):
        size = model[section][name]
        if size is None or model[section][dynamic] or rows % int(size) == 0:
            continue
        raise ConfigError(
            f"VERL config: actor_rollout_ref.{section}.{name} is {size}, which does not divide the "
            f"{rows} rows of a mini-batch on each rank (actor.ppo_mini_batch_size x rollout.n / "
            "ranks); verl would fail after the first rollouts. Choose a divisor, or set "
            f"{section}.{dynamic}: true"
        )


def check_environment() -> None:
    """Look at what is installed.

    Raises:
        ConfigError: Packages are missing or do not fit.
    """
    from agl_verl.versions import check_versions, conflicts

    check_versions()
    problems = conflicts()
    if problems:
        logger.warning(
            "packages under verl do not fit each other, and Ray or verl may not start: %s. Name "
            "all that you need in one pip install, so that it looks for versions that fit",
            "; ".join(problems),
        )
