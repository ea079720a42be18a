"""verl's worker, engine and estimator on the CPU, no Ray, in a process of its own.

    python engine_run.py MODEL_FOLDER RESULT.json

Three GRPO steps: sample with plain transformers, recompute the log-probabilities in verl's engine,
take a step. Writes how far the two were apart, how far the weights moved, and what saving and
restoring weights did.
"""

import asyncio
import json
import sys
from functools import partial
from pathlib import Path

from agl_testing.verl_cpu import use_cpu

use_cpu()

import os  # noqa: E402

# The process group meets at a file: another process can take a port before verl is imported.
os.environ.update(
    DIST_INIT_METHOD=f"file://{Path(sys.argv[2]).with_name('process-group').absolute()}",
    MASTER_ADDR="unused", MASTER_PORT="0",  # verl reads them all the same
    RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", VERL_LOGGING_LEVEL="ERROR",
)  # fmt: skip

import numpy as np  # noqa: E402
import torch  # noqa: E402
import verl  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from verl.experimental.separation.engine_workers import DetachActorWorker  # noqa: E402
from verl.trainer.config import CheckpointConfig  # noqa: E402
from verl.trainer.ppo import core_algos  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.workers.config import (  # noqa: E402
    ActorConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    TrainingWorkerConfig,
)
from verl.workers.engine_workers import TrainingWorker  # noqa: E402
from verl.workers.utils.losses import ppo_loss  # noqa: E402

from agl_testing.verl_cpu.inference_server import InferenceServer  # noqa: E402

torch.set_num_threads(1)
SINGLE = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
G, T = 4, 8
PROMPTS = [[5, 9, 11], [7, 8, 20, 31]]


def build(path: str) -> TrainingWorker:
    model = HFModelConfig(
        path=path,
        use_remove_padding=False,
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "sdpa"},
    )
    engine = FSDPEngineConfig(
        strategy="fsdp2",
        use_torch_compile=False,
        mixed_precision=SINGLE,
        model_dtype="fp32",
        micro_batch_size_per_gpu=8,
        infer_micro_batch_size_per_gpu=8,
        use_dynamic_bsz=False,
    )
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=model,
            engine_config=engine,
            optimizer_config=FSDPOptimizerConfig(lr=3e-3, total_training_steps=100),
            checkpoint_config=CheckpointConfig(),
        )
    )
    worker.reset()
    actor = ActorConfig(
        strategy="fsdp2",
        ppo_mini_batch_size=8,
        ppo_micro_batch_size_per_gpu=8,
        use_dynamic_bsz=False,
        rollout_n=G,
        loss_agg_mode="token-mean",
    )
    worker.set_loss_fn(partial(ppo_loss, config=actor))
    return worker


def weights(worker: TrainingWorker) -> dict[str, torch.Tensor]:
    pairs, _ = worker.engine.get_per_tensor_param()
    return {name: tensor.detach().clone() for name, tensor in pairs}


def apart(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def nested(rows: list, dtype: torch.dtype) -> torch.Tensor:
    return torch.nested.as_nested_tensor(
        [torch.tensor(row, dtype=dtype) for row in rows], layout=torch.jagged
    )


async def sample(server: InferenceServer, state: dict, version: int) -> list:
    await server.set_weights(state, version)
    params = {"max_tokens": T, "temperature": 1.0, "logprobs": True, "ignore_eos": True}
    rows = []
    for group, prompt in enumerate(PROMPTS):
        for _ in range(G):
            out = await server.generate(prompt, dict(params), request_id="r")
            assert out.extra_fields["global_steps"] == version
            rows.append((group, prompt, out.token_ids, out.log_probs))
    return rows


def step(worker: TrainingWorker, server: InferenceServer, number: int) -> dict:
    rows = asyncio.run(sample(server, weights(worker), number))
    responses = [row[2] for row in rows]
    mask = [[1] * len(row) for row in responses]
    sequences = [row[1] + row[2] for row in rows]
    data = TensorDict(
        {
            "prompts": nested([row[1] for row in rows], torch.int64),
            "responses": nested(responses, torch.int64),
            "input_ids": nested(sequences, torch.int64),
            "position_ids": nested([list(range(len(row))) for row in sequences], torch.int64),
            "response_mask": nested(mask, torch.int64),
            "loss_mask": nested(mask, torch.int64),
        },
        batch_size=len(rows),
    )
    infer = data.clone()
    tu.assign_non_tensor(infer, compute_loss=False, temperature=1.0, calculate_entropy=True)
    logprobs = worker.infer_batch(infer)["log_probs"].unbind()
    old = [
        all_of[len(row[1]) - 1 : len(row[1]) - 1 + len(row[2])]
        for all_of, row in zip(logprobs, rows, strict=True)
    ]
    difference = max(
        float((mine - torch.tensor(row[3])).abs().max())
        for mine, row in zip(old, rows, strict=True)
    )
    rewards = torch.tensor([sum(t < 50 for t in row) / len(row) for row in responses])
    scores = torch.zeros(len(rows), T)
    scores[:, -1] = rewards
    advantages, _ = core_algos.compute_grpo_outcome_advantage(
        token_level_rewards=scores,
        response_mask=torch.ones(len(rows), T),
        index=np.array([row[0] for row in rows]),
    )
    data["old_log_probs"] = torch.nested.as_nested_tensor(
        [row.float() for row in old], layout=torch.jagged
    )
    data["advantages"] = torch.nested.as_nested_tensor(
        list(advantages.unbind()), layout=torch.jagged
    )
    tu.assign_non_tensor(
        data, temperature=1.0, global_batch_size=8, mini_batch_size=8, epochs=1, seed=1,
        dataloader_kwargs={"shuffle": False}, calculate_entropy=False,
    )  # fmt: skip
    metrics = tu.get(worker.train_mini_batch(data), "metrics")
    first = {k: v[0] if isinstance(v, list) else v for k, v in metrics.items()}
    return {
        "reward": float(rewards.mean()),
        "logprob_difference": difference,
        "grad_norm": float(first["grad_norm"]),
        "loss": float(first["loss"]),
    }


def save_and_restore(worker: TrainingWorker) -> dict:
    """What separate_async does with old weights; the classes of verl share these methods."""
    holder = DetachActorWorker.__new__(DetachActorWorker)
    holder._strategy_handlers = None
    holder.actor = worker
    holder.config = type("C", (), {"actor": type("A", (), {"strategy": "fsdp2"})})
    saved_at = weights(worker)
    holder.save_model_to_cpu(0)
    with torch.no_grad():
        for parameter in worker.engine.module.parameters():
            parameter.add_(1.0)
    changed = apart(saved_at, weights(worker))
    holder.restore_model_from_cpu(0)
    return {"changed": changed, "after_restoring": apart(saved_at, weights(worker))}


def main(model: str, result: str) -> None:
    torch.manual_seed(0)
    worker = build(model)
    server = InferenceServer(model, response_length=T)
    before = weights(worker)
    found = {
        "verl": verl.__version__,
        "steps": [step(worker, server, number) for number in range(3)],
        "moved": apart(before, weights(worker)),
        "restore": save_and_restore(worker),
    }
    Path(result).write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
