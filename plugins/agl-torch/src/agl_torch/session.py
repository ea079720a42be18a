"""What exists while GRPO runs: model, optimiser, server, gateway, resources, folder."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agl.algorithm.gateway import WHOLE_SOFTMAX, model_served
from agl.types import TrainedModel
from agl_learning.accounts import Totals
from agl_learning.collect import Collector
from agl_learning.generations import Generation, begin_generation, hold_run, keep_branch
from agl_learning.tasks import TaskOrder
from agl_torch.checkpoint import Progress, restore, save_checkpoint, save_model
from agl_torch.learner import Learner, LearnerOptions, Sample
from agl_torch.models import load_model, load_tokenizer
from agl_torch.origin import MODEL_NAME, Origin, find_origin
from agl_torch.server import InferenceServer

if TYPE_CHECKING:
    from agl.algorithm.gateway import Gateway, ModelConfig
    from agl_torch.grpo import GRPO

logger = logging.getLogger("agl.torch")


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
    generation: Generation
    branch: list[tuple[int, int]]
    """Of the checkpoint that this start goes on from; see ``agl_learning.generations``."""
    rewards: list[float | None] = field(default_factory=list[float | None])
    """Mean per step, those before a checkpoint too."""
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

    def is_evaluated(self, step: int) -> bool:
        """Whether the model was evaluated after this step."""
        return any(done == step for done, _ in self.val_rewards)

    def metadata(self, step: int) -> dict[str, Any]:
        """Of a rollout of this step."""
        return {
            "algorithm": "grpo",
            **self.generation.metadata,
            "step": step,
            "version": self.server.version,
        }

    def save(self, step: int) -> Path:
        """Write a checkpoint."""
        return save_checkpoint(
            self.folder / "checkpoints" / f"step-{step:06d}",
            self.learner,
            self.tokenizer,
            Progress(
                step=step,
                version=self.server.version,
                totals=dict(self.totals.counts),
                tasks=self.tasks.state(),
                rewards=self.rewards,
                val_rewards=self.val_rewards,
                branch=[*self.branch, (self.generation.number, step)],
            ),
            self.server.sampler.random,
        )


@contextlib.asynccontextmanager
async def open_session(options: "GRPO", num_tasks: int) -> AsyncGenerator[Session]:
    """Load or resume, serve the model, open the gateway, publish resources; in the end stop all.

    Raises:
        ConfigError: There is no gateway, or model, tokenizer, checkpoint or folder are not usable,
            or another process uses the folder.
    """
    origin = find_origin(options)
    with hold_run(origin.folder):
        async with _load(options, origin, num_tasks) as session:
            yield session


@contextlib.asynccontextmanager
async def _load(options: "GRPO", origin: Origin, num_tasks: int) -> AsyncGenerator[Session]:
    folder, checkpoint, gateway = origin.folder, origin.checkpoint, options.get_llm_proxy()
    assert gateway is not None  # find_origin has seen it
    if options.torch_threads is not None:
        torch.set_num_threads(options.torch_threads)
    torch.manual_seed(options.seed)
    model = load_model(checkpoint or options.model, options.device, "float32")
    tokenizer = load_tokenizer(checkpoint or options.tokenizer, checkpoint or options.model)
    reference = None
    if options.kl_coefficient and checkpoint is not None:
        reference = load_model(origin.reference(), options.device, "float32")
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
        dtype=options.dtype,
    )
    tasks = TaskOrder(num_tasks, options.seed)
    progress = Progress(step=0, version=0, totals={}, tasks=tasks.state())
    if checkpoint is not None:
        progress = restore(checkpoint, learner, server.sampler.random)
        tasks.restore(progress.tasks)
        server.weights.version = progress.version
    if learner.reference is not None and (
        checkpoint is None or not (folder / "reference").exists()
    ):
        save_model(learner.reference, folder / "reference")
    generation, branch = await _begin(options, origin, progress)
    server.start()
    try:
        async with model_served(gateway, _entry(options, server), options.get_store()):
            yield Session(
                learner=learner,
                server=server,
                collector=Collector(
                    options.get_store(),
                    gateway,
                    options.get_adapter(),
                    options.rollout_config,
                    infrastructure_failures=options.infrastructure_failures,
                    model=TrainedModel(
                        name=MODEL_NAME,
                        vocabulary_size=model.get_input_embeddings().weight.shape[0],
                    ),
                ),
                tokenizer=tokenizer,
                tasks=tasks,
                val_resources_id=await _publish(options, gateway, options.eval_temperature),
                train_resources_id=await _publish(options, gateway, options.temperature),
                folder=folder,
                steps_done=progress.step,
                last_step=progress.step,
                totals=Totals(progress.totals),
                generation=generation,
                branch=branch,
                rewards=list(progress.rewards),
                val_rewards=list(progress.val_rewards),
            )
    finally:
        await asyncio.to_thread(server.stop)


async def _begin(
    options: "GRPO", origin: Origin, progress: Progress
) -> tuple[Generation, list[tuple[int, int]]]:
    """Count this start; what earlier ones in the folder did after the checkpoint is lost."""
    branch = list(progress.branch) if origin.is_same_run else []
    generation = begin_generation(origin.folder, branch=branch, origin=origin.other_run)
    await keep_branch(options.get_store(), generation.run, branch)
    return generation, branch


def _entry(options: "GRPO", server: InferenceServer) -> "ModelConfig":
    return {
        "model_name": MODEL_NAME,
        "litellm_params": {"model": f"hosted_vllm/{MODEL_NAME}", "api_base": server.url},
        # The loss takes the whole softmax at this temperature, whatever the agent asks for.
        "forced_parameters": {
            "train": {**WHOLE_SOFTMAX, "temperature": options.temperature},
            "val": {**WHOLE_SOFTMAX, "temperature": options.eval_temperature},
        },
    }


async def _publish(options: "GRPO", gateway: "Gateway", temperature: float) -> str:
    sampling: dict[str, Any] = {"temperature": temperature}
    if options.max_tokens is not None:
        sampling["max_tokens"] = options.max_tokens
    llm = gateway.as_resource(model=MODEL_NAME, sampling_parameters=sampling)
    resources = {**(options.get_initial_resources() or {}), options.resource_name: llm}
    return (await options.publish_resources(resources)).resources_id


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
        ratio_cap=options.ratio_cap,
        dtype=options.dtype,
    )
