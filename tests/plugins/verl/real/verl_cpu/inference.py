"""The inference server for tests as verl starts it, and how its weights get there."""

from typing import Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica
from verl.workers.rollout.utils import ensure_async_iterator

from verl_cpu.inference_server import InferenceServer, own_copy


def server_name(replica_rank: int) -> str:
    """The name of a replica's actor within the Ray job."""
    return f"agl_cpu_inference_{replica_rank}"


class CPUReplica(RolloutReplica):
    """One inference server; verl makes as many as the configuration has."""

    async def launch_servers(self) -> None:
        if self.is_reward_model or self.is_teacher_model:
            raise NotImplementedError(
                "the inference server for tests serves the policy only, no reward or teacher model"
            )
        if self.world_size != 1:
            raise NotImplementedError(
                f"the inference server for tests is one process; tensor, data and pipeline "
                f"parallel sizes must be 1, their product is {self.world_size}"
            )
        name = server_name(self.replica_rank)
        actor = ray.remote(num_cpus=0)(InferenceServer)
        server = actor.options(name=name, max_concurrency=self.max_concurrency).remote(
            self.model_config.path,
            response_length=self.config.response_length,
            max_model_len=self.config.max_model_len,
        )
        await server.get_version.remote()  # raises what its constructor raised
        self.servers = [server]
        self._server_handle = server
        self._server_address = name

    async def sleep(self) -> None:
        # As verl's own servers: without free_cache_engine the memory stays, and nothing sleeps.
        if self.config.free_cache_engine:
            await super().sleep()


class WeightReceiver(BaseRollout):
    """In the trainer's process (or beside the server): gives the weights to the server."""

    def __init__(self, config, model_config, device_mesh=None, replica_rank=None, **_):
        super().__init__(config, model_config, device_mesh)
        if replica_rank is None:  # in the trainer's process: each rank has a server of its own
            replica_rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        self.replica_rank = replica_rank
        self.is_leader_rank = True

    @property
    def _server(self) -> Any:
        return ray.get_actor(server_name(self.replica_rank))

    async def resume(self, tags: list[str]) -> None:
        if "weights" in tags:
            await self._server.wake_up.remote()

    async def release(self) -> None:
        await self._server.sleep.remote()

    async def update_weights(
        self,
        weights: Any,
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        **other: Any,
    ) -> None:
        if wire_format != "named_tensors" or other.get("peft_config") is not None:
            raise NotImplementedError(
                f"the inference server for tests takes whole weights; got {wire_format!r} and "
                f"peft_config={other.get('peft_config')!r}. For LoRA: model.lora.merge=True"
            )
        state = {name: own_copy(t) async for name, t in ensure_async_iterator(weights)}
        await self._server.set_weights.remote(state, global_steps)
