"""Training with TRL: any causal model of ``transformers``, on CPU or GPU."""

import copy
import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agl_unsloth.options import STATE, TRAINER_FOLDER, Order, TrainingOptions

OPTIMIZER = "optimizer.pt"
"""In ``STATE``: the moments of AdamW."""
IGNORED = -100
"""Label of a token that is not trained."""

Batch = dict[str, Any]
"""Tensors of shape [rows, tokens]."""


def train(order: Order, examples: list[dict[str, Any]]) -> dict[str, Any]:
    """Train, merge, save; the metrics."""
    options = order.options
    set_up_torch(options)
    model = _load(order)
    if options.lora_rank:
        from peft import LoraConfig, get_peft_model

        adapter = LoraConfig(
            r=options.lora_rank,
            lora_alpha=options.lora_alpha,
            target_modules=options.lora_targets or "all-linear",
            task_type="CAUSAL_LM",
        )
        model = get_peft_model(model, adapter)
    return train_loaded(order, model, examples)


def train_loaded(order: Order, model: Any, examples: list[dict[str, Any]]) -> dict[str, Any]:
    """What engines have in common: go on from the state, train, save state and version."""
    import torch
    from transformers import AutoTokenizer

    is_adapter, state = order.options.lora_rank > 0, Path(order.out) / STATE
    own = AutoTokenizer.from_pretrained(order.model)
    if is_adapter and order.state:
        model.load_adapter(order.state, "default", is_trainable=True)
    trained = [(one, one.data.float()) for one in model.parameters() if one.requires_grad]
    # What a trainer changes for itself (padding, the end of a text) is not the model's.
    config, generation = copy.deepcopy(model.config), copy.deepcopy(model.generation_config)
    trainer = make_trainer(order, model, AutoTokenizer.from_pretrained(order.model), examples)
    for weight, exact in trained:
        # TRL makes the adapter of 4-bit weights bfloat16, in which small steps get lost.
        weight.data = exact
    if order.state:
        optimizer = trainer.create_optimizer()
        file = Path(order.state) / OPTIMIZER
        moments = torch.load(file, map_location="cpu", weights_only=True)
        optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
    trainer.train()
    check_finite(trainer.model)
    if is_adapter:
        # Beside it there may be the one that DPO compares with.
        others: dict[str, Any] = {"selected_adapters": ["default"], "save_embedding_layers": False}
        trainer.model.save_pretrained(state, **others)
    else:
        trainer.model.config, trainer.model.generation_config = config, generation
        trainer.model.save_pretrained(state)
        own.save_pretrained(state)  # Unsloth loads both
    torch.save(trainer.optimizer.state_dict()["state"], state / OPTIMIZER)
    whole = _merge(trainer.model, order) if is_adapter else trainer.model
    whole.config, whole.generation_config = config, generation
    save(whole, own, order)
    return metrics_of(trainer, examples)


def set_up_torch(options: TrainingOptions) -> None:
    """Threads, random numbers, and how it computes, from now on in this process."""
    import torch

    if options.deterministic:
        # cuBLAS looks at it when a GPU is used for the first time.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if options.torch_threads is not None or options.deterministic:
        # Sums are cut into as many parts.
        torch.set_num_threads(options.torch_threads or 1)
    torch.manual_seed(options.seed)


def _load(order: Order) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    name, options, has_gpu = order.model, order.options, torch.cuda.is_available()
    if options.load_in_4bit:
        from transformers import BitsAndBytesConfig

        quantized = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=torch.bfloat16,
            bnb_4bit_use_double_quant=True,
        )
        return AutoModelForCausalLM.from_pretrained(
            name, quantization_config=quantized, dtype=torch.bfloat16
        )
    if options.lora_rank:
        dtype = torch.bfloat16 if has_gpu else torch.float32
        return AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
    return AutoModelForCausalLM.from_pretrained(order.state or name, dtype=torch.float32)


def make_trainer(order: Order, model: Any, tokenizer: Any, examples: list[dict[str, Any]]) -> Any:
    """The trainer of TRL for the order's method, on token ids as they were recorded."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer  # pyright: ignore[reportPrivateImportUsage]

    class Recorded(DPOTrainer):
        """TRL's DPO on tokens that are there already: it would make them of texts itself."""

        def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
            return dataset

    kind: Any
    settings, args = trainer_settings(order), None
    if order.method == "sft":
        given = {"packing": False, "dataset_kwargs": {"skip_prepare_dataset": True}}
        kind, args = SFTTrainer, SFTConfig(**settings, **given)
        columns, collate = ("input_ids", "labels"), sft_batch
    else:
        kind, args = Recorded, DPOConfig(**settings, beta=order.options.beta)
        columns, collate = ("prompt_ids", "chosen_ids", "rejected_ids"), dpo_batch
    return kind(
        model=model,
        args=args,
        train_dataset=Dataset.from_list([{k: e[k] for k in columns} for e in examples]),
        data_collator=partial(collate, _pad_token_id(tokenizer)),
        processing_class=tokenizer,
    )


def sft_batch(pad_token_id: int, examples: Sequence[dict[str, Any]]) -> Batch:
    """A batch of examples with ``input_ids`` and ``labels``."""
    return _batch(
        [example["input_ids"] for example in examples],
        {"labels": ([example["labels"] for example in examples], IGNORED)},
        pad_token_id,
    )


def dpo_batch(pad_token_id: int, examples: Sequence[dict[str, Any]]) -> Batch:
    """A batch of pairs: first all chosen, then all rejected, as TRL's DPO wants them."""
    sides = [
        (example["prompt_ids"], example[side])
        for side in ("chosen_ids", "rejected_ids")
        for example in examples
    ]
    masks = [[0] * len(prompt) + [1] * len(answer) for prompt, answer in sides]
    rows = [prompt + answer for prompt, answer in sides]
    return _batch(rows, {"completion_mask": (masks, 0)}, pad_token_id)


def _batch(
    rows: list[list[int]], others: dict[str, tuple[list[list[int]], int]], pad_token_id: int
) -> Batch:
    import torch

    length = max(map(len, rows))

    def padded(values: list[list[int]], filler: int) -> Any:
        return torch.tensor([one + [filler] * (length - len(one)) for one in values])

    return {
        "input_ids": padded(rows, pad_token_id),
        "attention_mask": padded([[1] * len(row) for row in rows], 0),
        **{name: padded(values, filler) for name, (values, filler) in others.items()},
    }


def trainer_settings(order: Order) -> dict[str, Any]:
    """What SFT and DPO are both told."""
    import torch

    options, has_gpu = order.options, torch.cuda.is_available()
    first, last = (options.learning_rate * part for part in order.schedule)
    falling = {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"lr_end": last}}
    return {
        "output_dir": str(Path(order.out) / TRAINER_FOLDER),
        "per_device_train_batch_size": options.batch_size,
        "gradient_accumulation_steps": options.gradient_accumulation,
        "num_train_epochs": options.epochs,
        "learning_rate": first,
        **(falling if first > last else {}),
        "seed": options.seed,
        # Rows that are too long were left out, with their reason; none is cut here.
        "max_length": None,
        "bf16": has_gpu and torch.cuda.is_bf16_supported(),
        "use_cpu": not has_gpu,
        "gradient_checkpointing": has_gpu,
        "logging_steps": 1,
        # By default a loss that is no number is shown as the one before.
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": has_gpu,
    }


def _pad_token_id(tokenizer: Any) -> int:
    # What stands in the padding is seen by nothing; TRL wants the tokenizer to have one.
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    return tokenizer.pad_token_id


def _merge(model: Any, order: Order) -> Any:
    """The adapter's change in the weights themselves, in 32 bits, in the memory of the CPU."""
    import torch

    if not order.options.load_in_4bit:
        return model.to("cpu", torch.float32).merge_and_unload()
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    # Into the weights as they were, not into what four bits left of them.
    base = AutoModelForCausalLM.from_pretrained(order.model, dtype=torch.float32)
    return PeftModel.from_pretrained(base, str(Path(order.out) / STATE)).merge_and_unload()


def check_finite(model: Any) -> None:
    """Refuse to save what is of no use."""
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    broken = [name for name, weight in trained if not weight.isfinite().all()]
    if broken:
        raise FloatingPointError(
            f"the training diverged: {len(broken)} of the trained weights, {broken[0]} first, are "
            "not finite; lower learning_rate"
        )


def save(model: Any, tokenizer: Any, order: Order) -> None:
    """Weights in 16 bits, and the tokenizer as it was; beside the state nothing else stays."""
    import torch

    from agl_models.stochastic_rounding import round_by_chance

    dtype, chance = getattr(torch, order.options.weights), torch.Generator()
    chance.manual_seed(order.options.seed)
    for weight in model.parameters():
        weight.data = round_by_chance(weight.data.cpu(), dtype, chance)
    out = Path(order.out)
    model.to(dtype).save_pretrained(out)
    tokenizer.save_pretrained(out)
    shutil.rmtree(out / TRAINER_FOLDER, ignore_errors=True)


def metrics_of(trainer: Any, examples: list[dict[str, Any]]) -> dict[str, Any]:
    """Losses of the first and the last step, in nats per trained token for SFT; sizes."""
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    metrics: dict[str, Any] = {
        "loss/first": steps[0]["loss"],
        "loss/last": steps[-1]["loss"],
        "loss/mean": sum(entry["loss"] for entry in steps) / len(steps),
        "steps": trainer.state.global_step,
        "examples": len(examples),
    }
    if "labels" in examples[0]:
        metrics["tokens"] = sum(
            label != IGNORED for example in examples for label in example["labels"][1:]
        )
    else:
        metrics["tokens"] = sum(
            len(example[side]) for example in examples for side in ("chosen_ids", "rejected_ids")
        )
        accuracies = [entry.get("rewards/accuracies") for entry in steps]
        metrics["accuracy/last"] = accuracies[-1]
    return metrics
