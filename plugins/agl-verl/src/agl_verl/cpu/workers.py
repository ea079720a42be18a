"""verl's training workers on the CPU.

They start a gloo process group before verl does: verl would ask for ``cpu:gloo,cpu:gloo``, which
torch refuses. And what verl saves "to the CPU" they copy, because there it is there already.
"""

import os
from typing import Any

import torch
from verl.single_controller.base.decorator import Dispatch, register

from agl_verl.cpu import engines  # noqa: F401  (registers the engines)
from agl_verl.cpu.registration import register_inference

register_inference()

from verl.experimental.separation.engine_workers import DetachActorWorker  # noqa: E402
from verl.trainer.ppo.utils import Role  # noqa: E402
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker  # noqa: E402


def start_gloo() -> None:
    """Start the process group of this worker; its place comes from RANK and WORLD_SIZE.

    The processes meet where DIST_INIT_METHOD says (as in verl), else at MASTER_ADDR.
    """
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            "gloo",
            init_method=os.environ.get("DIST_INIT_METHOD"),
            rank=int(os.environ.get("RANK", "0")),
            world_size=int(os.environ.get("WORLD_SIZE", "1")),
        )


def copied(state: dict[str, tuple[torch.Tensor, Any]]) -> dict[str, tuple[torch.Tensor, Any]]:
    """The same weights in memory of their own.

    verl saves weights with ``.cpu()``, which on the CPU is no copy: the saved weights would follow
    the live ones, restoring them would do nothing, and training in the mode ``separate_async``
    would take its old log-probabilities from the wrong weights, without an error.
    """
    return {name: (tensor.clone(), spec) for name, (tensor, spec) in state.items()}


class CPUTrainingWorker(TrainingWorker):
    """A worker with one engine: the critic, or a part of the worker below."""

    def __init__(self, config: Any) -> None:
        start_gloo()
        super().__init__(config)


class _OnGloo:
    """Its engines are workers of their own, in one process with it."""

    actor_worker_cls = CPUTrainingWorker
    ref_worker_cls = CPUTrainingWorker

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> Any:
        start_gloo()
        return super().init_model()  # type: ignore[misc]


class CPUActorWorker(_OnGloo, ActorRolloutRefWorker):
    """Policy, reference policy and weight transfer, in one process."""


class CPUDetachedActorWorker(_OnGloo, DetachActorWorker):
    """The same with saved weights, for the mode ``separate_async``."""

    @property
    def copy_handler(self) -> Any:
        save = super().copy_handler

        def save_copied(module: Any) -> Any:
            state, spec = save(module)
            return copied(state), spec

        return save_copied


def worker_for(role: Role, *, detached: bool) -> type:
    """The class that takes a role of verl's on the CPU."""
    if role == Role.Critic:
        return CPUTrainingWorker
    return CPUDetachedActorWorker if detached else CPUActorWorker
