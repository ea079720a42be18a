"""Gradients of one batch, agl's beside TRL's: a part of ``against_trl.py``.

The batch: 4 sums of two numbers with 4 answers each, sampled by SmolLM2 whose weights have some
noise (the old policy), with rewards drawn at random. The trained policy is SmolLM2 with other
noise, so that ratios of probabilities differ from 1 and bounds hold some tokens; SmolLM2 itself is
the reference. All is float32.

TRL's side runs ``train`` of ``GRPOTrainer`` or ``RLOOTrainer`` for one step: the model's
``generate`` gives the old policy's answers, a reward function the rewards, and ``compute_loss``
gets the old policy's log-probabilities among its inputs. Ours are ``weigh`` and ``Learner.update``
with the ``rule`` of the algorithm. Both keep their gradient, which is not shortened, before an
optimiser step with a learning rate of 0.

DPO and SFT of agl-unsloth are TRL's own trainers on recorded tokens. Here TRL gets the texts of the
same prompts and answers, and makes tokens, masks and batches of them itself.
"""

import copy
import functools
import itertools
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from real_model import question_of, tasks
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    RLOOConfig,
    RLOOTrainer,
    SFTConfig,
    SFTTrainer,
)

import agl_torch
from agl.types import Rollout
from agl_learning.advantages.estimator_option import Foreseen
from agl_learning.advantages.weighing import weigh
from agl_learning.collect.results import Collected, Ended
from agl_learning.selection import select_best
from agl_records.ledger.ledger import Ledger
from agl_records.training_data import TrainingRow
from agl_records.types import Credit
from agl_runs.options import pick_options
from agl_testing.models import smollm2
from agl_torch.batch import logprob_differences, token_logprobs
from agl_torch.learner import Learner, LearnerOptions, Sample
from agl_unsloth.engine_trl import make_trainer
from agl_unsloth.options import Order, TrainingOptions
from agl_unsloth.pairs import select_pairs

GROUPS, SIZE, MAX_TOKENS = 4, 4, 24
NOISE = 0.02
"""Of a weight matrix, in standard deviations of its numbers."""
OLD, TRAINED = 1, 2
"""Seeds of the noise; SmolLM2 without any is the reference."""
BOUND = 1e-5
"""At most this far apart, in norms of TRL's gradient."""

Gradient = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Option:
    """What is compared."""

    name: str
    algorithm: str
    ours: dict[str, Any]
    theirs: dict[str, Any]
    differs: str = ""
    """Why the two cannot be equal, where they cannot."""
    is_on_policy: bool = False
    """Whether the old policy is the trained one."""
    rewards: tuple[float, ...] = ()
    """Of one group after the other, again and again; without them they are drawn."""


CLIP = {"clip": {"low": 0.2, "high": 0.2, "ratio_cap": None}}
"""Of ours. TRL's ``epsilon`` is 0.2, and it has no cap."""
PLAIN = {**CLIP, "estimator": {"normalise_std": False}}
NONE = {"scale_rewards": "none"}
OPTIONS = [
    Option("mean of tokens", "grpo", {**PLAIN, "loss": "dapo"}, {**NONE, "loss_type": "dapo"}),
    Option("mean of rollouts", "grpo", {**PLAIN, "loss": "grpo"}, {**NONE, "loss_type": "grpo"}),
    Option(
        "sum over a constant",
        "grpo",
        {**PLAIN, "loss": {"type": "dr_grpo", "constant": MAX_TOKENS}},
        {**NONE, "loss_type": "dr_grpo", "max_completion_length": MAX_TOKENS},
    ),
    Option(
        "clip high",
        "grpo",
        {**PLAIN, "clip": {"low": 0.2, "high": 0.28, "ratio_cap": None}},
        {**NONE, "epsilon_high": 0.28},
    ),
    Option(
        "microbatches", "grpo", {**PLAIN, "memory": {"microbatch_tokens": 200}}, {**NONE, "in": 4}
    ),
    Option(
        "entropy bonus", "grpo", {**PLAIN, "entropy_bonus": 0.05}, {**NONE, "entropy_coef": 0.05}
    ),
    Option("KL, corrected", "grpo", {**PLAIN, "kl": {"coefficient": 0.1}}, {**NONE, "beta": 0.1}),
    Option(
        "KL, rollouts at the mean",
        "grpo",
        {**PLAIN, "kl": {"coefficient": 0.1}},
        {**NONE, "beta": 0.1},
        rewards=(0.0, 0.5, 0.5, 1.0),
    ),
    Option(
        "KL, a task with equal rewards",
        "grpo",
        {**PLAIN, "kl": {"coefficient": 0.1}},
        {**NONE, "beta": 0.1},
        "agl leaves such a task out of the step and its means, and TRL counts its rollouts",
        rewards=(0.0, 0.5, 0.5, 1.0) * (GROUPS - 1) + (1.0,) * SIZE,
    ),
    Option(
        "KL, plain",
        "grpo",
        {**PLAIN, "kl": {"coefficient": 0.1}},
        {**NONE, "beta": 0.1, "use_bias_correction_kl": False},
        "agl has the corrected one alone, which is also TRL's default",
    ),
    Option(
        "advantages in deviations",
        "grpo",
        CLIP,
        {"scale_rewards": "group"},
        "TRL adds 1e-4 to the deviation and agl 1e-6; the formula of GRPO adds nothing",
    ),
    Option(
        "ratio cap, delta",
        "grpo",
        {**PLAIN, "clip": {"low": 0.2, "high": 0.2, "ratio_cap": 1.2}},
        {**NONE, "delta": 1.2},
        "beyond the cap agl keeps the gradient of the log-probability, and TRL has none",
    ),
    Option(
        "GSPO",
        "gspo",
        {
            "clip": {"low": 0.03, "high": 0.04, "ratio_cap": None},
            "estimator": {"normalise_std": False},
        },
        {
            **NONE,
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "epsilon": 0.03,
            "epsilon_high": 0.04,
        },
    ),
    Option(
        "GSPO, KL",
        "gspo",
        {
            "clip": {"low": 0.03, "high": 0.04, "ratio_cap": None},
            "estimator": {"normalise_std": False},
            "kl": {"coefficient": 0.1},
        },
        {
            **NONE,
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "epsilon": 0.03,
            "epsilon_high": 0.04,
            "beta": 0.1,
        },
        "TRL weighs a token's divergence by the mean ratio of its sequence, and agl by its own, as "
        "DeepSeek-V3.2 does",
    ),
    Option(
        "CISPO",
        "cispo",
        {"ratio_cap": 1.1, "estimator": {"normalise_std": False}},
        {**NONE, "loss_type": "cispo", "epsilon_high": 1.1},
    ),
    Option("RLOO", "rloo", CLIP, {"beta": 0.0}),
    Option(
        "RLOO, KL in rewards",
        "rloo",
        {**CLIP, "kl": {"coefficient": 0.1}},
        {"beta": 0.1},
        "rewards have log-probabilities in them, each with the rounding of a pass of its own",
        is_on_policy=True,
    ),
    Option("DPO", "dpo", {}, {"beta": 0.1}),
    Option("SFT", "sft", {}, {}),
]


def load(noise: int | None = None) -> Any:
    """SmolLM2 in float32, as it is or with the noise of a seed."""
    return copy.deepcopy(_loaded(noise))


@functools.cache
def _loaded(noise: int | None) -> Any:
    model = AutoModelForCausalLM.from_pretrained(smollm2(), dtype=torch.float32)
    if noise is not None:
        chance = torch.Generator().manual_seed(noise)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() > 1:
                    weight += NOISE * weight.std() * torch.randn(weight.shape, generator=chance)
    return model.eval()


@dataclass
class Batch:
    """Rows with the old policy's log-probabilities; ``questions`` has one per group."""

    questions: list[str]
    rows: list[TrainingRow]
    tokenizer: Any
    size: int = SIZE
    found: dict[tuple[int, ...], TrainingRow] = field(init=False)

    def __post_init__(self) -> None:
        self.found = {tuple(row.token_ids): row for row in self.rows}

    def rewarded(self, rewards: tuple[float, ...]) -> "Batch":
        """With other rewards."""
        rows = [
            row.model_copy(update={"credits": [Credit(reward=reward)]})
            for row, reward in zip(self.rows, itertools.cycle(rewards), strict=False)
        ]
        return Batch(self.questions, rows, self.tokenizer)

    def rows_of(self, question: str) -> list[TrainingRow]:
        start = self.questions.index(question) * self.size
        return self.rows[start : start + self.size]


def parts(row: TrainingRow) -> tuple[list[int], list[int]]:
    """Tokens of the prompt and of the answer."""
    start = row.call_ranges[0][0]
    return row.token_ids[:start], row.token_ids[start:]


def scored(rows: list[TrainingRow], model: Any) -> list[TrainingRow]:
    """Rows as if this model had sampled them."""
    with torch.no_grad():
        of_rows = token_logprobs(model, rows).logprobs_N.split([row.num_sampled for row in rows])
    return [
        row.model_copy(update={"logprobs": [0.0] * len(parts(row)[0]) + logprobs.tolist()})
        for row, logprobs in zip(rows, of_rows, strict=True)
    ]


def sample(seed: int = 0) -> Batch:
    """Different answers to each question, whose texts have the tokens that were sampled."""
    tokenizer, model = AutoTokenizer.from_pretrained(smollm2()), load(OLD)
    torch.manual_seed(seed)
    chance = random.Random(seed)
    questions: list[str] = []
    rows: list[TrainingRow] = []
    for task in tasks(GROUPS, 1):
        questions.append(question_of(task))
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": questions[-1]}],
            add_generation_prompt=True,
            return_dict=False,
        )
        given = torch.tensor([prompt] * 4 * SIZE)
        answers: set[tuple[int, ...]] = set()
        while len(answers) < SIZE:
            made = model.generate(
                given,
                attention_mask=torch.ones_like(given),
                do_sample=True,
                top_k=0,
                max_new_tokens=MAX_TOKENS,
                pad_token_id=tokenizer.pad_token_id,
            )
            for line in made[:, len(prompt) :].tolist():
                has_end = tokenizer.eos_token_id in line
                end = line.index(tokenizer.eos_token_id) + 1 if has_end else 0
                if end > 1 and tokenizer(tokenizer.decode(line[:end]))["input_ids"] == line[:end]:
                    answers.add(tuple(line[:end]))
        by_length = sorted(answers, key=lambda one: (len(one), one))
        for answer in by_length[:: len(by_length) // SIZE or 1][:SIZE]:
            rows.append(
                TrainingRow(
                    rollout_id=f"r{len(rows)}",
                    attempt_id="a",
                    token_ids=[*prompt, *answer],
                    logprobs=[0.0] * (len(prompt) + len(answer)),
                    call_ids=[f"c{len(rows)}"],
                    call_ranges=[(len(prompt), len(prompt) + len(answer))],
                    credits=[Credit(reward=round(chance.random(), 3))],
                )
            )
    return Batch(questions, scored(rows, model), tokenizer)


def collect(rows: list[TrainingRow], size: int) -> Collected:
    """As rollouts, so many of a task."""
    ended = [
        Ended(
            Rollout(rollout_id=row.rollout_id, input=None, start_time=0.0, status="succeeded"),
            number // size,
            row.reward,
            [row],
        )
        for number, row in enumerate(rows)
    ]
    return Collected(ended, Ledger(), 0.0)


def ours(option: Option, batch: Batch) -> tuple[Gradient, float]:
    """Of agl-torch: rewards, advantages, ratios, loss, gradient; and the share of held tokens."""
    algorithm: Any = ALGORITHMS[option.algorithm](
        model="none",
        learning_rate=0.0,
        optimizer={"max_grad_norm": 1e9},
        sampling_correction="none",  # TRL has one beside vLLM alone
        dtype="float32",
        **option.ours,
    )
    model = load(TRAINED)
    rows = scored(batch.rows, model) if option.is_on_policy else batch.rows
    options = pick_options(LearnerOptions, algorithm)
    reference = load() if algorithm.kl.coefficient else None
    learner = Learner(model, options, algorithm.objective(), reference=reference)

    def foresee(some: list[TrainingRow]) -> Foreseen | None:
        if algorithm.penalises_loss or not algorithm.kl.coefficient:
            return None
        costs = logprob_differences(reference, some, options)
        return Foreseen([[-algorithm.kl.coefficient * one for one in row] for row in costs])

    weighed = weigh(
        collect(rows, batch.size), algorithm.weighing, foresee, is_whole=algorithm.trains_whole_rows
    )
    measured = learner.update(
        [Sample(one.row, one.of_tokens, left_out=one.left_out) for one in weighed]
    )
    return gradient_of(model), measured["clip_fraction"]


ALGORITHMS = {
    "grpo": agl_torch.GRPO,
    "gspo": agl_torch.GSPO,
    "cispo": agl_torch.CISPO,
    "rloo": agl_torch.RLOO,
}


def gradient_of(model: Any) -> Gradient:
    """Of each weight, by its name."""
    return {
        name: weight.grad.clone()
        for name, weight in model.named_parameters()
        if weight.grad is not None
    }


class Keep(TrainerCallback):
    """Keeps the gradient that an optimiser step is about to use."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.gradient = gradient_of(given["model"])


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    """One step in float32, with a gradient that is not shortened."""
    return {
        "output_dir": str(folder),
        "max_steps": 1,
        "learning_rate": 0.0,
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        **more,
    }


def with_old(kind: Any, batch: Batch) -> Any:
    """A trainer whose loss has ratios to what the rows say."""

    class Recorded(kind):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            ids, masks = (
                torch.cat([inputs[f"prompt_{name}"], inputs[f"completion_{name}"]], 1)
                for name in ("ids", "mask")
            )
            width = inputs["completion_ids"].shape[1]
            old = []
            for line, mask in zip(ids, masks, strict=True):
                row = batch.found[tuple(line[mask.bool()].tolist())]
                answer = row.logprobs[len(parts(row)[0]) :]
                old.append(answer + [0.0] * (width - len(answer)))
            inputs["old_per_token_logps"] = torch.tensor(old)
            inputs["old_logps"] = inputs["old_per_token_logps"].sum(1)
            return super().compute_loss(model, inputs, *args, **kwargs)

    return Recorded


def answer(
    batch: Batch, input_ids: torch.Tensor, attention_mask: torch.Tensor, **others: Any
) -> torch.Tensor:
    """What ``generate`` of the old policy gave."""
    answers: list[torch.Tensor] = []
    given: set[tuple[int, ...]] = set()
    for line, mask in zip(input_ids, attention_mask, strict=True):
        prompt = line[mask.bool()].tolist()
        row = next(
            row
            for row in batch.rows
            if parts(row)[0] == prompt and tuple(row.token_ids) not in given
        )
        given.add(tuple(row.token_ids))
        answers.append(torch.tensor(parts(row)[1]))
    fill = batch.tokenizer.pad_token_id
    padded = pad_sequence(answers, batch_first=True, padding_value=fill)
    return torch.cat([input_ids, padded], 1)


def theirs(option: Option, batch: Batch, folder: Path) -> Gradient:
    """Of TRL, likewise."""
    given = dict(option.theirs)
    pieces = given.pop("in", 1)
    kind, config = (
        (RLOOTrainer, RLOOConfig) if option.algorithm == "rloo" else (GRPOTrainer, GRPOConfig)
    )
    model = load(TRAINED)
    model.generate = functools.partial(answer, batch)

    def reward(prompts: list[Any], completion_ids: list[list[int]], **others: Any) -> list[float]:
        of_each = zip(prompts, completion_ids, strict=True)
        return [
            next(
                row.reward or 0.0
                for row in batch.rows_of(prompt[-1]["content"])
                if parts(row)[1] == list(ids)
            )
            for prompt, ids in of_each
        ]

    prompts = [[{"role": "user", "content": question}] for question in batch.questions]
    trainer = (kind if option.is_on_policy else with_old(kind, batch))(
        model=model,
        reward_funcs=reward,
        processing_class=batch.tokenizer,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        args=config(
            **settings(
                folder,
                per_device_train_batch_size=len(batch.rows) // pieces,
                gradient_accumulation_steps=pieces,
                num_generations=batch.size,
                **given,
            )
        ),
    )
    return train(trainer)


def ours_tuned(option: Option, batch: Batch, folder: Path) -> Gradient:
    """Of agl-unsloth: what is selected, examples, batches, and TRL's trainer on recorded tokens."""
    options = TrainingOptions(
        learning_rate=0.0,
        epochs=1.0,
        batch_size=999,
        gradient_accumulation=1,
        lora_rank=0,
        lora_alpha=1,
        lora_targets=None,
        load_in_4bit=False,
        max_length=None,
        weights="bfloat16",
        seed=0,
        torch_threads=None,
        deterministic=False,
    )
    collected = collect(batch.rows, batch.size)
    if option.algorithm == "sft":
        examples = select_best(
            collected, 1, keep_fraction=1.0, min_reward=None, max_length=None, seed="0"
        )
    else:
        examples = select_pairs(collected, pairing="all", min_gap=0.0, max_length=None, seed="0")
    order = Order(option.algorithm, "trl", str(smollm2()), "", str(folder), options)
    trainer = make_trainer(order, load(TRAINED), batch.tokenizer, examples)
    return train(trainer)


def theirs_tuned(option: Option, batch: Batch, folder: Path) -> Gradient:
    """Of TRL: the same prompts and answers as texts."""

    def texts(row: TrainingRow) -> tuple[str, str]:
        prompt, answer = parts(row)
        return batch.tokenizer.decode(prompt), batch.tokenizer.decode(answer[:-1])  # it ends them

    if option.algorithm == "sft":
        pairs = [dict(zip(("prompt", "completion"), texts(row), strict=True)) for row in batch.rows]
        kind, config = SFTTrainer, SFTConfig
    else:
        kind, config = DPOTrainer, DPOConfig
        pairs = []
        for question in batch.questions:
            for better, worse in itertools.permutations(batch.rows_of(question), 2):
                if (better.reward or 0.0) > (worse.reward or 0.0):
                    prompt, chosen = texts(better)
                    pairs.append({"prompt": prompt, "chosen": chosen, "rejected": texts(worse)[1]})
    trainer = kind(
        model=load(TRAINED),
        processing_class=batch.tokenizer,
        train_dataset=Dataset.from_list(pairs),
        args=config(
            **settings(
                folder, per_device_train_batch_size=len(pairs), max_length=None, **option.theirs
            )
        ),
    )
    return train(trainer)


def train(trainer: Any) -> Gradient:
    """Take one step."""
    trainer.args.max_grad_norm = 0.0
    trainer.add_callback(kept := Keep())
    trainer.train()
    return kept.gradient


def compared(ours: Gradient, theirs: Gradient) -> dict[str, float]:
    """How far ours is from theirs, both as one vector."""
    assert ours.keys() == theirs.keys()
    a, b = (torch.cat([one[name].double().flatten() for name in theirs]) for one in (ours, theirs))
    return {
        "difference": float((a - b).norm() / b.norm()),
        "norm": float(b.norm()),
        "cosine": float(a @ b / a.norm() / b.norm()),
    }


def measure(names: list[str]) -> Iterator[dict[str, Any]]:
    """Compare the options whose names begin so; all without any."""
    drawn = sample()
    for option in OPTIONS:
        if names and not option.name.startswith(tuple(names)):
            continue
        batch = drawn if not option.rewards else drawn.rewarded(option.rewards)
        with tempfile.TemporaryDirectory(prefix="agl-trl-") as folder:
            if option.algorithm in ALGORITHMS:
                mine, held = ours(option, batch)
                other = theirs(option, batch, Path(folder))
            else:
                mine, held = ours_tuned(option, batch, Path(folder)), 0.0
                other = theirs_tuned(option, batch, Path(folder))
        found = compared(mine, other)
        yield {"option": option.name, **found, "held": held, "why": option.differs}
