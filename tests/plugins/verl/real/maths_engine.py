"""Gradients of verl's real training worker beside those of a plain model; a program of its own.

``python maths_engine.py <folder of the model> <file for results> [rank world]``: verl's
TrainingWorker (FSDP2 on gloo, no Ray) takes one gradient step with plain SGD, so that what the
weights lose is the gradient. Beside it a ``transformers`` model, row by row and without verl, gets
the gradient of the loss written out here. Rank 0 writes per case the largest difference and the
largest entry of the reference.

It is a process of its own because verl settles on a device when it is imported, and because a
process group is global.
"""

import json
import os
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from verl_cpu.config import use_cpu

RANK, WORLD = (int(x) for x in (sys.argv[3:5] or ("0", "1")))
os.environ.update(
    DIST_INIT_METHOD=f"file://{Path(sys.argv[2]).with_name('process-group').absolute()}",
    MASTER_ADDR="unused", MASTER_PORT="0",  # verl reads them all the same
    RANK=str(RANK), WORLD_SIZE=str(WORLD), LOCAL_RANK=str(RANK), HF_HUB_OFFLINE="1",
    VERL_LOGGING_LEVEL="ERROR",
)  # fmt: skip
warnings.simplefilter("ignore")
use_cpu()

import torch  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.workers.config import (  # noqa: E402
    ActorConfig,
    CriticConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    PolicyLossConfig,
    TrainingWorkerConfig,
)
from verl.workers.engine_workers import TrainingWorker  # noqa: E402
from verl.workers.utils.losses import ppo_loss  # noqa: E402

from agl_verl.losses import FIELD, actor_loss, critic_loss, loss_weights  # noqa: E402
from agl_verl.trainer_mixin import RowContext, estimate, row_context, trajectories  # noqa: E402

torch.set_num_threads(1)
LOW, HIGH, ENTROPY, KL = 0.1, 0.15, 0.03, 0.05
CRITIC_CLIP = 0.3

ROLLOUTS: list[tuple[str, float, list[list[int]]]] = [
    # task, reward, response masks of its rows; zeros are a tool's tokens
    ("a", 1.0, [[1, 1, 1]]),
    ("a", 0.0, [[1, 1], [1, 0, 0, 1], [1, 1, 1, 1, 1]]),
    ("a", 0.5, [[1, 1, 1, 1, 1, 1, 1], [1, 0, 1]]),
    ("b", 1.0, [[1, 1], [1]]),
    ("b", 0.0, [[1, 1, 1, 0, 1, 1]]),
]
PADDING = 3


class Batch:
    """Twelve rows: nine of five rollouts, three of padding between them."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.keys: list[str] = []
        self.masks: list[list[int]] = []
        rewards: list[float] = []
        for number, (task, reward, rows) in enumerate(ROLLOUTS):
            for index, mask in enumerate(rows):
                self.keys.append(f"{task}_{number}_{index}")
                self.masks.append(mask)
                rewards.append(reward)
        for number in range(PADDING):
            place = 4 * number + 1
            self.keys.insert(place, f"padx_{number}_0")
            self.masks.insert(place, [0])
            rewards.insert(place, 0.0)
        self.padding = [key.startswith("pad") for key in self.keys]
        self.prompts, self.responses = [], []
        for mask in self.masks:
            size = int(torch.randint(2, 9, (1,), generator=generator))
            self.prompts.append(torch.randint(4, 90, (size,), generator=generator).tolist())
            self.responses.append(torch.randint(4, 90, (len(mask),), generator=generator).tolist())
        width = max(map(len, self.masks))
        self.mask_BL = torch.zeros(len(self.masks), width, dtype=torch.int64)
        scores_BL = torch.zeros(len(self.masks), width)
        for row, mask in enumerate(self.masks):
            self.mask_BL[row, : len(mask)] = torch.tensor(mask)
            scores_BL[row, len(mask) - 1] = rewards[row]

        def noise(scale: float) -> torch.Tensor:
            return scale * torch.randn(self.mask_BL.shape, generator=generator)

        self.shift_BL, self.reference_shift_BL = noise(0.2), noise(0.3)
        self.importance_BL = torch.rand(self.mask_BL.shape, generator=generator) + 0.5
        self.values_shift_BL, self.returns_BL = noise(0.4), noise(1.0)
        self.rollouts = trajectories(self.keys, self.padding, self.mask_BL)
        with row_context(RowContext(self.rollouts, scores_BL)):
            self.advantages_BL, _ = estimate("grpo", scores_BL, self.mask_BL, {})
        self.old_BL, self.reference_BL, self.values_BL = torch.zeros(3, *self.mask_BL.shape)
        self.part: slice | None = None

    def nested(self, values: Any, dtype: Any = torch.float32) -> Any:
        """Rows of a padded tensor, cut to their lengths; or lists."""
        rows = [
            torch.as_tensor(values[row][: len(mask)] if torch.is_tensor(values) else values[row])
            for row, mask in enumerate(self.masks)
        ]
        rows = rows[self.mine]
        return torch.nested.as_nested_tensor([row.to(dtype) for row in rows], layout=torch.jagged)

    @property
    def mine(self) -> slice:
        """The rows of this rank, or of a mini-batch."""
        if self.part is not None:
            return self.part
        size = len(self.masks) // WORLD
        return slice(RANK * size, (RANK + 1) * size)

    def data(self, mean: str, importance: bool) -> TensorDict:
        whole = [p + r for p, r in zip(self.prompts, self.responses, strict=True)]
        places = [list(range(len(x))) for x in whole]
        numbers = {"prompts": self.prompts, "responses": self.responses, "input_ids": whole}
        numbers |= {"position_ids": places, "response_mask": self.masks, "loss_mask": self.masks}
        values = {"old_log_probs": self.old_BL, "ref_log_prob": self.reference_BL}
        values |= {"advantages": self.advantages_BL, "values": self.values_BL}
        fields = {name: self.nested(one, torch.int64) for name, one in numbers.items()}
        fields |= {name: self.nested(one) for name, one in values.items()}
        fields["returns"] = self.nested(self.returns_BL)
        if importance:
            fields["rollout_is_weights"] = self.nested(self.importance_BL)
        if mean != "verl":
            fields[FIELD] = self.nested(loss_weights(self.rollouts, mean, constant=10.0))
        rows = WORLD * fields["prompts"].shape[0]
        data = TensorDict(fields, batch_size=rows // WORLD)
        tu.assign_non_tensor(
            data, temperature=1.0, global_batch_size=rows, mini_batch_size=rows, epochs=1, seed=1,
            dataloader_kwargs={"shuffle": False}, calculate_entropy=True,
        )  # fmt: skip
        return data


def token_scores(model: Any, batch: Batch, row: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of a row's response tokens, from a plain model."""
    prompt, response = batch.prompts[row], batch.responses[row]
    logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    logp = torch.log_softmax(logits.float(), -1)
    return logp[range(len(response)), response], -(logp.exp() * logp).sum(-1)


def written_out(model: Any, batch: Batch, mode: str, mean: str, importance: bool) -> torch.Tensor:
    """The loss: mean over rollouts of the mean over their sampled tokens, or what ``mean`` says."""
    total_tokens = sum(sum(map(sum, rows)) for _, _, rows in ROLLOUTS)
    loss = torch.zeros(())
    for number, (task, _, rows) in enumerate(ROLLOUTS):
        tokens = sum(map(sum, rows))
        of_rollout = torch.zeros(())
        for index in range(len(rows)):
            row = batch.keys.index(f"{task}_{number}_{index}")
            places = torch.tensor(batch.masks[row]).nonzero()[:, 0]
            logp, entropy = (x[places] for x in token_scores(model, batch, row))
            old, ref = batch.old_BL[row, places], batch.reference_BL[row, places]
            advantage = batch.advantages_BL[row, places]
            given = batch.importance_BL[row, places] if importance else torch.ones(len(places))
            policy = given * per_token(mode, logp, old, advantage)
            gap = ref - logp
            of_tokens = policy - ENTROPY * entropy + KL * (gap.exp() - gap - 1)
            of_rollout = of_rollout + of_tokens.sum()
        divisor = {
            "rollout": len(ROLLOUTS) * tokens,
            "token": total_tokens,
            "constant": len(ROLLOUTS) * 10.0,
        }[mean]
        loss = loss + of_rollout / divisor
    return loss


def per_token(mode: str, logp: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor):
    ratio = (logp - old).exp()
    if mode == "vanilla":
        clipped = ratio.clamp(1 - LOW, 1 + HIGH)
        plain = torch.minimum(ratio * advantage, clipped * advantage)
        # verl's dual clip: with a negative advantage the ratio counts up to 3
        return -torch.where(advantage < 0, torch.maximum(plain, 3.0 * advantage), plain)
    if mode == "gspo":
        of_row = (logp - old).mean().detach().exp() * (logp - logp.detach()).exp()
        held = of_row.clamp(1 - LOW, 1 + HIGH)
        return -torch.minimum(of_row * advantage, held * advantage)
    if mode == "geo_mean":
        sign = advantage.sign()
        gap = sign * torch.minimum(sign * (logp - old), sign * (logp - old).clamp(-LOW, HIGH))
        return -advantage.mean() * gap.mean().exp().expand(len(logp))
    if mode == "sapo":
        tau = torch.where(advantage > 0, 1.0, 1.05)
        return -torch.sigmoid(tau * (ratio - 1)) * 4 / tau * advantage
    if mode == "cispo":
        return -ratio.clamp(1 - LOW, 1 + HIGH).detach() * advantage * logp
    if mode in ("dppo_tv", "dppo_kl"):
        p, q = logp.exp().detach(), old.exp()
        if mode == "dppo_tv":
            moved = (p - q).abs()
        else:
            moved = q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log()
        up = advantage > 0
        away = torch.where(up, p > q, p < q)
        kept = ~(away & (moved > torch.where(up, HIGH, LOW)))
        return -advantage * ratio.clamp(max=3.0).detach() * logp * kept
    if mode == "dro":
        return -(logp * advantage - 0.5 * 0.5 * (logp - old) ** 2)
    if mode == "gpg":
        return -logp * advantage
    raise ValueError(mode)


def worker(folder: str, kind: str) -> TrainingWorker:
    mixed = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    plain = {"use_remove_padding": False, "enable_gradient_checkpointing": False}
    engine = {"strategy": "fsdp2", "use_torch_compile": False, "mixed_precision": mixed}
    engine |= {"micro_batch_size_per_gpu": 4, "infer_micro_batch_size_per_gpu": 4}
    engine |= {"max_token_len_per_gpu": 40, "infer_max_token_len_per_gpu": 40}
    optimizer = {"lr": 1.0, "optimizer": "SGD", "weight_decay": 0.0, "clip_grad": 1e9}
    optimizer |= {"total_training_steps": 100, "lr_warmup_steps": 0}
    attention = {"attn_implementation": "sdpa"}
    config = TrainingWorkerConfig(
        model_type=kind,
        model_config=HFModelConfig(path=folder, override_config=attention, **plain),
        engine_config=FSDPEngineConfig(use_dynamic_bsz=False, model_dtype="fp32", **engine),
        optimizer_config=FSDPOptimizerConfig(**optimizer),
        checkpoint_config=None,
    )
    made = TrainingWorker(config)
    made.reset()
    return made


def state(made: TrainingWorker) -> dict[str, torch.Tensor]:
    found, _ = made.engine.get_per_tensor_param()
    return {name: tensor.detach().clone() for name, tensor in found}


class Steps:
    """SGD steps of verl's worker, each started at the weights that the model has on disk."""

    def __init__(self, made: TrainingWorker, config: Any) -> None:
        self.made, self.config, self.start = made, config, state(made)

    def gradient(self, data: TensorDict, loss: Any, micro: int | None) -> dict[str, torch.Tensor]:
        self.made.engine_config.micro_batch_size_per_gpu = micro or 1
        self.made.engine_config.use_dynamic_bsz = micro is None
        self.made.set_loss_fn(partial(loss, config=self.config))
        before = state(self.made)
        self.made.train_mini_batch(data)
        after = state(self.made)
        gradient = {name: before[name] - after[name] for name in before}
        # Back to the start, so that the next case begins where this one did.
        with torch.no_grad():
            for name, parameter in self.made.engine.module.named_parameters():
                local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                whole = self.start[name]
                rows = -(-whole.shape[0] // WORLD)
                local.copy_(whole[RANK * rows : RANK * rows + local.shape[0]])
        return gradient


def plain_gradient(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }


def compared(got: dict[str, Any], expected: dict[str, Any]) -> dict[str, float]:
    assert set(got) == set(expected), set(got) ^ set(expected)
    return {
        "difference": max(float((got[n] - expected[n]).abs().max()) for n in expected),
        "largest": max(float(expected[n].abs().max()) for n in expected),
    }


def actor_cases(folder: str) -> dict[str, dict[str, float]]:
    batch = Batch()
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    with torch.no_grad():
        for row in range(len(batch.masks)):
            logp, _ = token_scores(model, batch, row)
            span = slice(0, len(logp))
            batch.old_BL[row, span] = logp + batch.shift_BL[row, span]
            batch.reference_BL[row, span] = logp + batch.reference_shift_BL[row, span]
    config = ActorConfig(
        strategy="fsdp2", ppo_mini_batch_size=12, ppo_micro_batch_size_per_gpu=4, rollout_n=1,
        clip_ratio_low=LOW, clip_ratio_high=HIGH, entropy_coeff=ENTROPY, use_kl_loss=True,
        kl_loss_coef=KL, policy_loss=PolicyLossConfig(dro_beta=0.5),
    )  # fmt: skip
    steps = Steps(worker(folder, "language_model"), config)
    results: dict[str, dict[str, float]] = {}

    def case(name: str, mode: str, mean: str, importance: bool, micro: int | None, loss: Any):
        object.__setattr__(config.policy_loss, "loss_mode", mode)
        kind = "rollout" if mean == "verl" else mean
        expected = plain_gradient(model, written_out(model, batch, mode, kind, importance))
        got = steps.gradient(batch.data(mean, importance), loss, micro)
        results[name] = compared(got, expected)

    sizes = (1, 4, 12, None) if WORLD == 1 else (2, 6)
    for micro in sizes:
        case(f"vanilla rollout {micro}", "vanilla", "rollout", False, micro, actor_loss)
    # The control: by verl's own aggregation the gradient is another one.
    case("verl", "vanilla", "verl", False, sizes[-2], ppo_loss)
    if WORLD == 1:
        expected = plain_gradient(model, written_out(model, batch, "vanilla", "rollout", False))
        halves: list[dict[str, torch.Tensor]] = []
        for batch.part in (slice(0, 6), slice(6, 12)):
            halves.append(steps.gradient(batch.data("rollout", False), actor_loss, 3))
        batch.part = None
        mean = {name: (halves[0][name] + halves[1][name]) / 2 for name in expected}
        results["mean over two mini-batches"] = compared(mean, expected)
        case("vanilla importance 4", "vanilla", "rollout", True, 4, actor_loss)
        for kind in ("token", "constant"):
            case(f"vanilla {kind} 4", "vanilla", kind, False, 4, actor_loss)
    for mode in ("gspo", "geo_mean", "sapo", "cispo", "dppo_tv", "dppo_kl", "dro", "gpg"):
        for micro in (3, 6):
            case(f"{mode} rollout {micro}", mode, "rollout", False, micro, actor_loss)
    return results


def critic_cases(folder: str) -> dict[str, dict[str, float]]:
    batch = Batch()
    made = worker(folder, "value_model")
    model = AutoModelForTokenClassification.from_pretrained(
        folder, num_labels=1, dtype=torch.float32
    ).eval()
    # The head is made at random: both must have the same one.
    model.load_state_dict(state(made))

    def values(row: int) -> torch.Tensor:
        prompt, response = batch.prompts[row], batch.responses[row]
        return model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1, 0]

    with torch.no_grad():
        for row, mask in enumerate(batch.masks):
            span = slice(0, len(mask))
            batch.values_BL[row, span] = values(row) + batch.values_shift_BL[row, span]
    loss = torch.zeros(())
    for number, (task, _, rows) in enumerate(ROLLOUTS):
        tokens = sum(map(sum, rows))
        for index in range(len(rows)):
            row = batch.keys.index(f"{task}_{number}_{index}")
            places = torch.tensor(batch.masks[row]).nonzero()[:, 0]
            now, before = values(row)[places], batch.values_BL[row, places]
            returns = batch.returns_BL[row, places]
            held = torch.clamp(now, before - CRITIC_CLIP, before + CRITIC_CLIP)
            error = torch.maximum((now - returns) ** 2, (held - returns) ** 2)
            loss = loss + 0.5 * error.sum() / (tokens * len(ROLLOUTS))
    sizes = {"strategy": "fsdp2", "ppo_micro_batch_size_per_gpu": 4}
    steps = Steps(made, CriticConfig(**sizes, cliprange_value=CRITIC_CLIP))
    expected, found = plain_gradient(model, loss), {}
    for size in (1, 4, 12):
        got = steps.gradient(batch.data("rollout", False), critic_loss, size)
        found[f"critic {size}"] = compared(got, expected)
    return found


if __name__ == "__main__":
    results = actor_cases(sys.argv[1])
    if WORLD == 1:
        results |= critic_cases(sys.argv[1])
    if RANK == 0:
        Path(sys.argv[2]).write_text(json.dumps(results, indent=1))
    torch.distributed.destroy_process_group()
