"""``Tinker``: training on an agent's own rollouts, by Thinking Machines' Tinker.

The loop is agl-learning's; here is what an iteration asks of Tinker:

1. serve: sample from the newest weights, through an OpenAI-compatible address of this process
2. choose: rows of recorded token ids with their advantages, or (``cross_entropy``) the best rows
3. state the number of trained tokens, take gradient steps, save the weights under a name, delete
   those of old versions

In ``notes.jsonl`` of the run stand ``saving``, ``saved`` and ``deleted``. Gradient steps are no
jobs that could be taken up: a run that was killed within them loads the version before, and pays
for them again. One that was killed when the weights were saved, for training and for sampling,
takes those.

Metrics under ``train/``: ``loss`` (per trained token), ``gradient_steps``, ``logprob_gap`` (mean
distance in nats between the recorded log-probabilities and those of the weights before the first
step), ``trained_tokens``, ``cost``.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from agl.errors import AlgorithmError, ConfigError
from agl_learning.advantages.estimator_option import DEFAULT
from agl_learning.advantages.weighing import WeighingOptions, check_weighing, weigh
from agl_learning.collect.prompt_checks import unknown_token_id
from agl_learning.collect.step_metrics import why_nothing
from agl_learning.reports.report import warn_of_gap
from agl_learning.selection import select_best
from agl_learning.trainer.billing import Bill, PaidTraining
from agl_learning.trainer.options import Evaluation, Lora
from agl_models.provider_errors import not_installed
from agl_models.versions import MODEL_NAME, WHOLE_SOFTMAX, Served, Version
from agl_records.training_data import TrainedModel
from agl_runs.options import Count, Name, NotNegative, Share
from agl_tinker.data import Loss, batches, example_of_row

if TYPE_CHECKING:
    from agl_learning.collect.results import Collected
    from agl_learning.run.notes import Note
    from agl_tinker.service import Saved, TinkerService

logger = logging.getLogger("agl.tinker")


@dataclass(kw_only=True, eq=False, repr=False)
class Tinker(PaidTraining, WeighingOptions):
    """Reinforcement learning or fine-tuning of a LoRA adapter by Tinker, from recorded tokens.

    Sampling, training and stored weights cost money. ``dry_run`` samples the first rollouts, says
    how many tokens training on them would take, and trains nothing.

    The key is taken from ``TINKER_API_KEY`` (or ``tinker auth login``) unless ``api_key`` is given.

    Args:
        base_model: Its name at Tinker, for example ``Qwen/Qwen3-8B``.
        loss: ``importance_sampling`` and ``ppo`` train every token by the advantage of its call
            among the rollouts of its task; ``cross_entropy`` trains the best rows.
        lora: The adapter; Tinker takes its rank alone.
        learning_rate: Learning rate of Adam.
        epochs: Passes over the rows of an iteration.
        batch_size: Rows per gradient step; None takes all of them at once.
        grad_clip_norm: Longer gradients are shortened; 0 shortens none.
        keep_fraction: With ``cross_entropy``: this part of the rows is trained, the best; of
            rows whose calls have different rewards, the calls of one reward count as a row.
        min_reward: With ``cross_entropy``: calls below are not trained; None for no threshold.
        keep_versions: How many versions keep their weights at Tinker; older ones are deleted.
        tokenizer: With a chat template: a folder, a name on the hub, or an object; None takes the
            model's from the hub.
        max_model_tokens: Prompt and answer together; None takes what Tinker says.
        api_key: None takes ``TINKER_API_KEY``.
        base_url: None takes ``TINKER_BASE_URL``, else Tinker's own.
        temperature: Temperature of rollouts; the losses that use recorded log-probabilities
            need 1.
        seed: Seed for the order of tasks, the adapter's first weights and batches.
    """

    safe_options = frozenset({"keep_versions"})

    name = "tinker"

    base_model: Name = field(kw_only=False)
    loss: Loss = "importance_sampling"
    lora: Lora = Lora()
    learning_rate: NotNegative = 1e-4
    epochs: Count = 1
    batch_size: Count | None = None
    grad_clip_norm: NotNegative = 0.0
    keep_fraction: Share = 0.5
    min_reward: float | None = None
    keep_versions: Count = 2
    tokenizer: Any = None
    max_model_tokens: Annotated[int, Ge(2)] | None = None
    api_key: str | None = None
    base_url: str | None = None
    iterations: Count = 10
    rollouts_per_task: Count = 8
    evaluation: Evaluation = Evaluation(every=5)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss != "cross_entropy":
            self._check_reinforcement()
        elif self.estimator.type != DEFAULT:
            raise ConfigError(
                f"{self.title}: estimator {self.estimator.type!r} is for the other losses; "
                "cross_entropy trains the best rows, whatever advantage they have. Leave it out"
            )
        check_weighing(self.title, self)
        if self.lora.alpha or self.lora.modules:
            raise ConfigError(f"{self.title}: Tinker takes lora.rank alone; got {self.lora!r}")
        self._tinker: TinkerService
        self._loaded_tokenizer: Any = None
        self._limit: int | None = None

    def _check_reinforcement(self) -> None:
        if self.temperature != 1:
            raise ConfigError(
                f"{self.title}: loss {self.loss!r} compares recorded log-probabilities with the "
                f"model's at temperature 1, and temperature is {self.temperature!r}. Use 1, or "
                "cross_entropy"
            )
        self.check_copies(self.title, rollouts_per_task=self.rollouts_per_task)
        if self.min_reward is not None:
            raise ConfigError(
                f"{self.title}: min_reward is for cross_entropy; loss {self.loss!r} learns from "
                "bad answers, too. Leave it out"
            )

    # --- the loop's questions

    async def prepare(self) -> Version:
        """Open a session, and look whether key and model are right."""
        try:
            from agl_tinker.service import TinkerService
        except ImportError as error:
            raise not_installed(self.name, "agl-tinker", error) from None
        self._tinker = TinkerService(self.base_url, self.api_key, f"agl-{self.session.run_id}")
        self.opened.push_async_callback(self._close)
        self._limit = await self._tinker.open(self.base_model)
        if self.max_model_tokens is not None:
            self._limit = min(self.max_model_tokens, self._limit or self.max_model_tokens)
        return Version(0, self.base_model)

    def trained_model(self) -> TrainedModel:
        """The model behind the bridge, with its vocabulary once the tokenizer is there."""
        if (tokenizer := self._loaded_tokenizer) is None:
            return TrainedModel(name=MODEL_NAME)
        known = {"vocabulary_size": len(tokenizer), "unknown_token_id": unknown_token_id(tokenizer)}
        return TrainedModel(name=MODEL_NAME, **known)

    def forced_sampling(self) -> Mapping[str, Any]:
        """The whole softmax, where the loss takes recorded log-probabilities for the model's."""
        return {} if self.loss == "cross_entropy" else WHOLE_SOFTMAX

    @contextlib.asynccontextmanager
    async def serve(self, version: Version) -> AsyncGenerator[Served]:
        """The bridge in front of a version."""
        from agl_http.server import ServerThread
        from agl_tinker.bridge import Bridge

        sampler = await self._tinker.sampler(self.base_model, version.metrics.get("sampler"))
        if self._loaded_tokenizer is None:
            self._loaded_tokenizer = await asyncio.to_thread(_load_tokenizer, self, sampler)
            self.session.collector.reader.model = self.trained_model()
        server = ServerThread(Bridge(sampler, self._loaded_tokenizer, version.number, self._limit))
        server.start()
        try:
            yield Served({"model": f"hosted_vllm/{MODEL_NAME}", "api_base": f"{server.url}/v1"})
        finally:
            await asyncio.to_thread(server.stop)

    def select(self, collected: "Collected", iteration: int) -> list[dict[str, Any]]:
        """Rows with what each of their tokens counts."""
        if self.loss == "cross_entropy":
            return select_best(
                collected,
                iteration,
                keep_fraction=self.keep_fraction,
                min_reward=self.min_reward,
                max_length=self._limit,
                seed=self.seed,
                make=lambda row: example_of_row(row, repeat(1.0)),
            )
        examples = [example_of_row(one.row, one.of_tokens) for one in weigh(collected, self)]
        if not examples and self.idle_reason(collected) != "solved":
            raise AlgorithmError(
                f"{self.title}: iteration {iteration}: nothing can be trained: "
                f"{why_nothing(collected)}"
            )
        return examples

    async def train(self, examples: Path, version: Version, number: int) -> Version:
        """Take the gradient steps of version ``number``, and save its weights."""
        saved = self._noted("saved", number) or await self._find_saved(number)
        if saved is not None:
            await self._delete_old(number)
            return Version(number, saved["state"], saved["metrics"])
        lines = (await asyncio.to_thread(examples.read_text)).splitlines()
        rows = [json.loads(line) for line in lines]
        if not rows and not self.dry_run:
            logger.warning(
                "iteration %d: no rollout has an advantage over what it is compared with; there is "
                "nothing to learn from, and version %d is version %d",
                number, number, version.number,
            )  # fmt: skip
            kept = {name: at for name, at in version.metrics.items() if name == "sampler"}
            return Version(number, version.ref, {"trained_tokens": 0, "gradient_steps": 0, **kept})
        tokens = sum(len(row["token_ids"]) for row in rows)
        bill = Bill(
            len(rows), tokens, self.epochs, self.price_per_million_tokens, is_estimate=False
        )
        self.state(bill, number, begun=False)
        if version.ref == self.base_model:
            await self._tinker.begin(self.base_model, self.lora.rank, self.seed)
        else:
            await self._tinker.resume(version.ref)
        learned = await self._steps(rows, number)
        made = await self._save(number, {**self.cost_metrics(bill), **learned})
        await self._delete_old(number)
        return made

    async def _close(self) -> None:
        await self._tinker.close("success" if self.is_over() else "interrupted")

    async def _steps(self, rows: list[dict[str, Any]], number: int) -> dict[str, Any]:
        adam = {"learning_rate": self.learning_rate, "grad_clip_norm": self.grad_clip_norm}
        steps = list(batches(rows, self.epochs, self.batch_size, f"{self.seed}/{number}"))
        learned: dict[str, Any] = {"gradient_steps": len(steps)}
        losses: list[float] = []
        for step, batch in enumerate(steps):
            metrics = await self._tinker.step(batch, self.loss, adam)
            tokens = sum(sum(map(bool, row["weights"])) for row in batch)
            total, gap = metrics.get("loss:sum"), metrics["logprob_gap"]
            if total is not None:
                losses.append(total / max(1, tokens))
            if step > 0 or gap is None:
                continue
            learned["logprob_gap"] = gap
            if self.loss != "cross_entropy":
                warn_of_gap(f"iteration {number}", gap, self.temperature)
        if losses:
            learned["loss"] = sum(losses) / len(losses)
        return learned

    # --- weights

    async def _save(self, number: int, metrics: dict[str, Any]) -> Version:
        again = f"-{round_}" if (round_ := self.session.records.round("train", number - 1)) else ""
        name = f"agl-{self.session.run_id}-v{number:03d}{again}"
        paths = self._tinker.paths(name)
        # Before: what a kill leaves behind is found here, and taken if it is whole, else deleted.
        self._note("saving", number, paths, metrics)
        saved = self._note("saved", number, await self._tinker.save(name), metrics)
        return Version(number, saved["state"], saved["metrics"])

    def _note(self, event: str, number: int, at: "Saved", metrics: dict[str, Any]) -> "Note":
        return self.notes.append(
            event,
            version=number,
            round=self.session.records.round("train", number - 1),
            state=at.state,
            sampler=at.sampler,
            metrics={**metrics, "sampler": at.sampler},
        )

    def _noted(self, event: str, number: int) -> "Note | None":
        """Not of rollouts that were given up since."""
        round_ = self.session.records.round("train", number - 1)
        return self.notes.last(event, version=number, round=round_)

    async def _find_saved(self, number: int) -> "Note | None":
        """The weights of a version that were saved before a kill could say so."""
        from agl_tinker.service import Saved

        entry = self._noted("saving", number)
        if entry is None:
            return None
        at = Saved(entry["state"], entry["sampler"])
        if not await self._tinker.has(at):
            return None
        logger.info("version %d was saved before a kill, at %s", number, at.state)
        return self._note("saved", number, at, entry["metrics"])

    async def _delete_old(self, number: int) -> None:
        """Delete the weights of old versions, and those that no version came of."""
        notes = self.notes
        kept = {
            (entry["state"], entry["sampler"])
            for entry in notes.all("saved")[-self.keep_versions :]
        }
        for entry in notes.all("saving"):
            pair = (entry["state"], entry["sampler"])
            if pair in kept or notes.last("deleted", state=pair[0]) is not None:
                continue
            for path in pair:
                await self._tinker.delete(path)
            notes.append("deleted", version=entry["version"], state=pair[0])


def _load_tokenizer(options: Tinker, sampler: Any) -> Any:
    """The tokenizer; one that cannot render a conversation is refused before any rollout."""
    tokenizer = options.tokenizer
    if tokenizer is None:
        tokenizer = sampler.get_tokenizer()
    elif isinstance(tokenizer, str):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(tokenizer)
    try:
        tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=True)
    except Exception as error:
        raise ConfigError(
            f"{options.title}: the tokenizer of {options.base_model!r} cannot render a "
            f"conversation: {str(error).rstrip('.')}. Give one with a chat template as "
            "'tokenizer' (a folder, a name, an object)"
        ) from None
    return tokenizer
