"""What exists while GRPO runs: model, optimiser, server, gateway, resources, folder."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agl.accounts import Totals
from agl.collect import Collector
from agl.errors import ConfigError
from agl.tasks import TaskOrder
from agl_torch.checkpoint import Progress, find_checkpoint, restore, save_checkpoint, save_model
from agl_torch.learner import Learner, LearnerOptions, Sample
from agl_torch.models import load_model, load_tokenizer
from agl_torch.server import InferenceServer

if TYPE_CHECKING:
    from agl.gateway import Gateway, ModelConfig
    from agl_torch.grpo import GRPO

logger = logging.getLogger("agl.torch")

MODEL_NAME = "policy"
"""What the gateway calls the model that is trained."""


@dataclass
class Session:
    """One run, from its start or from a checkpoint."""

    learner: Learner
    server: InferenceServer
    collector: Collector
    tokenizer: Any
    tasks: TaskOrder
    train_resources_id: str
    val_resources_id: str
    folder: Path
    steps_done: int
    """Before this run began."""
    last_step: int
    """The one that was done last."""
    totals: Totals
    rewards: list[float | None] = field(default_factory=list[float | None])
    """Mean per step of this run."""
    val_rewards: list[tuple[int, float | None]] = field(
        default_factory=list[tuple[int, float | None]]
    )
    """(step, mean) per evaluation."""
    idle_steps: int = 0
    """Steps without a gradient, in a row."""
    gap_warned: bool = False

    def update(self, samples: list[Sample]) -> dict[str, float]:
        """Take gradient steps while nothing is sampled; the weights get a new version."""
        with self.server.updating():
            return self.learner.update(samples)

    def save(self, step: int) -> Path:
        """Write a checkpoint."""
        return save_checkpoint(
            self.folder / "checkpoints" / f"step-{step:06d}",
            self.learner,
            self.tokenizer,
            Progress(step, self.server.version, dict(self.totals.counts), self.tasks.state()),
            self.server.sampler.random,
        )


@contextlib.asynccontextmanager
async def open_session(options: "GRPO", num_tasks: int) -> AsyncGenerator[Session]:
    """Load or resume, serve the model, open the gateway, publish resources; in the end stop all.

    Raises:
        ConfigError: There is no gateway, or model, tokenizer, checkpoint or folder are not usable.
    """
    gateway = options.get_llm_proxy()
    if gateway is None:
        raise ConfigError(
            "GRPO needs a gateway that records model calls. Run: pip install agl-gateway, or pass "
            "Trainer(llm_proxy=...)"
        )
    if options.torch_threads is not None:
        torch.set_num_threads(options.torch_threads)
    torch.manual_seed(options.seed)
    checkpoint = find_checkpoint(options.resume_from) if options.resume_from else None
    folder = _folder(options, checkpoint)
    model = load_model(checkpoint or options.model, options.device, options.dtype)
    tokenizer = load_tokenizer(checkpoint or options.tokenizer, checkpoint or options.model)
    reference = None
    if options.kl_coefficient and checkpoint is not None:
        reference = load_model(folder / "reference", options.device, options.dtype)
    learner = Learner(
        model, _learner_options(options), tokenizer.pad_token_id or 0, options.seed, reference
    )
    server = InferenceServer(
        model,
        tokenizer,
        model_name=MODEL_NAME,
        max_model_tokens=options.max_model_tokens,
        max_batch_size=options.max_batch_size,
        seed=options.seed,
    )
    tasks = TaskOrder(num_tasks, options.seed)
    progress = Progress(step=0, version=0, totals={}, tasks=tasks.state())
    if checkpoint is not None:
        progress = restore(checkpoint, learner, server.sampler.random)
        tasks.restore(progress.tasks)
        server.weights.version = progress.version
        if progress.step >= options.steps:
            raise ConfigError(
                f"GRPO: the checkpoint {str(checkpoint)!r} is at step {progress.step}, and steps "
                f"is {options.steps}; nothing is left to do. Give more steps"
            )
    elif learner.reference is not None:
        save_model(learner.reference, folder / "reference")
    server.start()
    try:
        await _open_gateway(options, gateway, server)
        yield Session(
            learner=learner,
            server=server,
            collector=Collector(
                options.get_store(),
                gateway,
                options.get_adapter(),
                options.rollout_config,
            ),
            tokenizer=tokenizer,
            tasks=tasks,
            val_resources_id=await _publish(options, gateway, options.eval_temperature),
            train_resources_id=await _publish(options, gateway, options.temperature),
            folder=folder,
            steps_done=progress.step,
            last_step=progress.step,
            totals=Totals(progress.totals),
        )
    finally:
        if gateway.is_running():
            await gateway.stop()
        await asyncio.to_thread(server.stop)


async def _open_gateway(options: "GRPO", gateway: "Gateway", server: InferenceServer) -> None:
    gateway.set_store(options.get_store())
    entry: ModelConfig = {
        "model_name": MODEL_NAME,
        "litellm_params": {"model": f"hosted_vllm/{MODEL_NAME}", "api_base": server.url},
        # The loss takes the policy at this temperature, whatever the agent asks for.
        "forced_parameters": {
            "train": {"temperature": options.temperature},
            "val": {"temperature": options.eval_temperature},
        },
    }
    gateway.update_model_list([entry])
    if not gateway.is_running():
        await gateway.start()


async def _publish(options: "GRPO", gateway: "Gateway", temperature: float) -> str:
    sampling: dict[str, Any] = {"temperature": temperature}
    if options.max_tokens is not None:
        sampling["max_tokens"] = options.max_tokens
    llm = gateway.as_resource(model=MODEL_NAME, sampling_parameters=sampling)
    resources = {**(options.get_initial_resources() or {}), options.resource_name: llm}
    return (await options.get_store().add_resources(resources)).resources_id


def _folder(options: "GRPO", checkpoint: Path | None) -> Path:
    if options.run_dir is not None:
        folder = Path(options.run_dir)
    elif checkpoint is not None and checkpoint.parent.name == "checkpoints":
        folder = checkpoint.parent.parent
    else:
        folder = Path("agl-runs") / time.strftime("grpo-%Y%m%d-%H%M%S")
    if checkpoint is None and (folder / "metrics.jsonl").exists():
        raise ConfigError(
            f"GRPO: {str(folder)!r} holds another run already. Give another run_dir, or continue "
            f"that run with resume_from={str(folder)!r}"
        )
    return folder


def _learner_options(options: "GRPO") -> LearnerOptions:
    return LearnerOptions(
        learning_rate=options.learning_rate,
        epochs=options.epochs,
        minibatch_rows=options.minibatch_rows,
        microbatch_tokens=options.microbatch_tokens,
        clip_low=options.clip_low,
        clip_high=options.clip_high,
        entropy_bonus=options.entropy_bonus,
        kl_coefficient=options.kl_coefficient,
        max_grad_norm=options.max_grad_norm,
        weight_decay=options.weight_decay,
        temperature=options.temperature,
    )
