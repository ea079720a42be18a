"""Weights from trainer to inference servers through Ray's object store, without NCCL.

The checkpoint engine of verl's mode ``separate_async``, where trainer and inference servers are
apart.
"""

import asyncio
from typing import Any

import ray
import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from verl_cpu.config import CHECKPOINT_ENGINE
from verl_cpu.inference_server import own_copy

MAILBOX = "agl_verl_weights"
WAIT_SECONDS = 300.0


@ray.remote(num_cpus=0)
class _Mailbox:
    """The newest weights; lives as long as the trainer's process that made it."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.state: dict[str, torch.Tensor] = {}
        self.changed = asyncio.Event()

    async def put(self, step: int | None, state: dict[str, torch.Tensor]) -> None:
        self.step, self.state = step, state
        self.changed.set()
        self.changed = asyncio.Event()

    async def get(self, step: int | None) -> dict[str, torch.Tensor]:
        while self.step != step or not self.state:
            await asyncio.wait_for(self.changed.wait(), WAIT_SECONDS)
        return self.state


@CheckpointEngineRegistry.register(CHECKPOINT_ENGINE)
class RayStoreCheckpointEngine(CheckpointEngine):
    """Rank 0 of the trainer leaves the weights in an actor; every receiver takes them there."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self.is_master = is_master
        # Made by whoever comes first; verl prepares all sides before weights are sent.
        self.mailbox: Any = None

    def prepare(self) -> dict[str, Any]:
        if self.mailbox is None:
            self.mailbox = _Mailbox.options(name=MAILBOX, get_if_exists=True).remote()
        return {}

    @classmethod
    def build_topology(cls, actor_wg_world_size, rollout_world_size, metadata):
        ranks = list(range(actor_wg_world_size + rollout_world_size))
        return {"rank": ranks[:actor_wg_world_size]}, {"rank": ranks[actor_wg_world_size:]}

    def init_process_group(self, rank: int) -> None:
        self.rank = rank

    def finalize(self) -> None:
        return None

    async def send_weights(self, weights, global_steps=None):
        # Every rank goes through the weights: gathering a sharded one takes all of them.
        state = {name: own_copy(tensor) for name, tensor in weights}
        if self.is_master:
            await self.mailbox.put.remote(global_steps, state)
        return {"agl/weights_sent": float(len(state))}

    async def receive_weights(self, global_steps: int | None = None):
        for name, tensor in (await self.mailbox.get.remote(global_steps)).items():
            yield name, tensor
