"""``DPO``: train on pairs of a better and a worse answer to one prompt, again and again."""

from typing import TYPE_CHECKING, Any

from agl.errors import ConfigError
from agl_unsloth.local import LocalFineTuning
from agl_unsloth.options import TrainingOptions
from agl_unsloth.pairs import Pairing, no_pairs, select_pairs

if TYPE_CHECKING:
    from agl.collect import Collected


class DPO(LocalFineTuning):
    """Direct preference optimisation (arXiv:2305.18290) on rollouts of the agent itself.

    Each iteration serves the newest version of the model, runs every task several times, and pairs
    answers of the same prompt, token for token, that led to different rewards. It trains on them as
    they were recorded, against the version that began the iteration.

    Args:
        model: A folder, or a name on the Hugging Face Hub.
        iterations: How often; a run that has had fewer can be continued with more.
        beta: How much a drift from the version before costs; smaller allows more.
        pairing: Per prompt: ``matched`` pairs the best with the worst answer, the second best with
            the second worst and so on; ``best`` makes one pair; ``all`` makes every pair.
        min_gap: The rewards of a pair differ by more than this.
        tasks_per_iteration: None takes all.
        rollouts_per_task: How often each of them runs in an iteration.
        engine: ``unsloth``, ``trl``, or ``auto``: Unsloth where it can be imported, else TRL.
        python: The interpreter of another environment that has agl-unsloth and the engine, for
            training; None takes this one.
        server: ``vllm``, ``torch`` (``agl serve``), an address that ends in ``/v1``, or ``auto``:
            vLLM where it and a GPU are, else ``torch``.
        server_arguments: Further arguments of its command, as
            ``[--enable-auto-tool-choice, --tool-call-parser, hermes]``.
        server_timeout_seconds: Until it must be ready.
        port: Of the server; 0 takes a free one.
        reload_command: With an address: what makes its server load a version; ``{model}`` and
            ``{version}`` in it are replaced.
        lora_rank: Of the adapter that is trained and then merged; 0 trains all weights.
        lora_alpha: The adapter counts ``lora_alpha / lora_rank`` times; None takes the rank.
        lora_targets: Names of the modules that get an adapter; None takes all linear layers but
            the head.
        load_in_4bit: Train the adapter on weights of 4 bits, in a quarter of the memory.
        learning_rate: Of AdamW, falling linearly to 0.
        epochs: Passes over the pairs.
        batch_size: Pairs per pass of the model.
        gradient_accumulation: Passes per step of the optimiser.
        max_length: Answers that make more tokens with their prompt are left out, not cut; None for
            no limit.
        weights: Type in which versions are saved: bfloat16 or float16.
        torch_threads: Of the training, for one torch operation; None leaves it to torch.
        check_memory: Refuse a training that, by an estimate, does not fit.
        temperature: At which rollouts are sampled.
        max_tokens: Of one answer; None leaves it to the agent.
        eval_every: Evaluate every so manieth version; in any case the first and the last.
        eval_temperature: Of evaluations; 0 takes the most probable token.
        eval_copies: How often each validation task runs.
        seed: Of tasks' order, sampling, pairing and training.
        run_dir: Folder of the run; where it holds an earlier part of the run, that is continued.
            None makes one under ``agl-runs`` named after the time.
        resource_name: Name of the resource that the agent gets.
        rollout_timeout_seconds: Limit of one attempt; None has no limit.
        credit: The credit rule, which says which call gets how much of which reward: its name, or
            a dict of ``type`` and options. None leaves it to the adapter, whose default is
            ``final``.
        show_progress: A bar on standard error, or log lines where that is no terminal.
    """

    name = "dpo"
    method = "dpo"

    def __init__(
        self,
        model: str,
        *,
        iterations: int = 1,
        beta: float = 0.1,
        pairing: Pairing = "matched",
        min_gap: float = 0.0,
        tasks_per_iteration: int | None = None,
        rollouts_per_task: int = 8,
        engine: str = "auto",
        python: str | None = None,
        server: str = "auto",
        server_arguments: list[str] | None = None,
        server_timeout_seconds: float = 600.0,
        port: int = 0,
        reload_command: list[str] | None = None,
        lora_rank: int = 32,
        lora_alpha: int | None = None,
        lora_targets: list[str] | None = None,
        load_in_4bit: bool = False,
        learning_rate: float = 5e-6,
        epochs: float = 1.0,
        batch_size: int = 4,
        gradient_accumulation: int = 2,
        max_length: int | None = 4096,
        weights: str = "bfloat16",
        torch_threads: int | None = None,
        check_memory: bool = True,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        eval_every: int = 1,
        eval_temperature: float = 0.0,
        eval_copies: int = 1,
        seed: int = 0,
        run_dir: str | None = None,
        resource_name: str = "main_llm",
        rollout_timeout_seconds: float | None = 300.0,
        credit: str | dict[str, Any] | None = None,
        show_progress: bool = True,
    ) -> None:
        if pairing not in ("matched", "best", "all"):
            raise ConfigError(f"dpo: pairing {pairing!r}: expected matched, best or all")
        if rollouts_per_task < 2:
            raise ConfigError(
                f"dpo: rollouts_per_task must be at least 2; got {rollouts_per_task!r}: one "
                "rollout has no sibling to be compared with"
            )
        if beta <= 0:
            raise ConfigError(f"dpo: beta must be above 0; got {beta!r}")
        super().__init__(
            model,
            engine=engine,
            python=python,
            server=server,
            server_arguments=server_arguments,
            server_timeout_seconds=server_timeout_seconds,
            port=port,
            reload_command=reload_command,
            check_memory=check_memory,
            training=TrainingOptions(
                learning_rate=learning_rate,
                epochs=epochs,
                batch_size=batch_size,
                gradient_accumulation=gradient_accumulation,
                lora_rank=lora_rank,
                lora_alpha=lora_alpha or lora_rank or 1,
                lora_targets=lora_targets,
                load_in_4bit=load_in_4bit,
                max_length=max_length,
                weights=weights,
                seed=seed,
                threads=torch_threads,
                beta=beta,
            ),
            iterations=iterations,
            tasks_per_iteration=tasks_per_iteration,
            rollouts_per_task=rollouts_per_task,
            temperature=temperature,
            max_tokens=max_tokens,
            eval_every=eval_every,
            eval_temperature=eval_temperature,
            eval_copies=eval_copies,
            seed=seed,
            run_dir=run_dir,
            resource_name=resource_name,
            rollout_timeout_seconds=rollout_timeout_seconds,
            credit=credit,
            show_progress=show_progress,
        )
        self.check_least(min_gap=(min_gap, 0))
        self.pairing: Pairing = pairing
        self.min_gap = min_gap

    def select(self, collected: "Collected", iteration: int) -> list[dict[str, Any]]:
        pairs = select_pairs(
            collected,
            pairing=self.pairing,
            min_gap=self.min_gap,
            max_length=self.training.max_length,
            seed=f"{self.seed}/{iteration}",
        )
        if not pairs:
            raise no_pairs(collected, iteration)
        return pairs
