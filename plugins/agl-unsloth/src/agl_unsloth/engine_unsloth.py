"""Training with Unsloth: fewer bytes and more speed on a GPU; it trains on a CPU, too."""

import copy
import shutil
from pathlib import Path
from typing import Any

from agl_unsloth.options import TRAINER_FOLDER, Order


def train(order: Order, examples: list[dict[str, Any]]) -> dict[str, Any]:
    """Train, merge, save; the metrics."""
    # First of all: it changes transformers and TRL, and wants to do so before they are used.
    from unsloth import FastLanguageModel  # isort: skip  # pyright: ignore[reportMissingImports]

    import torch
    from transformers import AutoTokenizer

    from agl_unsloth.engine_trl import make_trainer, metrics_of, save, set_up_torch

    options = order.options
    set_up_torch(options)
    model: Any
    model, tokenizer = FastLanguageModel.from_pretrained(
        model_name=order.model,
        max_seq_length=max(_length(example) for example in examples),
        load_in_4bit=options.load_in_4bit,
        full_finetuning=options.lora_rank == 0,
        dtype=None if torch.cuda.is_available() else torch.float32,
    )
    config, generation = copy.deepcopy(model.config), copy.deepcopy(model.generation_config)
    if options.lora_rank:
        model = FastLanguageModel.get_peft_model(
            model,
            r=options.lora_rank,
            lora_alpha=options.lora_alpha,
            target_modules=options.lora_targets or _all_linear(model),
            lora_dropout=0,
            bias="none",
            use_gradient_checkpointing="unsloth" if torch.cuda.is_available() else False,
            random_state=options.seed,
        )
    trainer = make_trainer(order, model, tokenizer, examples)
    trainer.train()
    own = AutoTokenizer.from_pretrained(order.model)
    if options.load_in_4bit:
        model.save_pretrained_merged(order.out, own, save_method="merged_16bit")
        shutil.rmtree(Path(order.out) / TRAINER_FOLDER, ignore_errors=True)
    else:
        merged = trainer.model.merge_and_unload() if options.lora_rank else trainer.model
        merged.config, merged.generation_config = config, generation
        save(merged, own, order)
    return metrics_of(trainer, examples)


def _all_linear(model: Any) -> list[str]:
    import torch

    names = {
        name.rsplit(".", 1)[-1]
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    return sorted(names - {"lm_head"})


def _length(example: dict[str, Any]) -> int:
    if "input_ids" in example:
        return len(example["input_ids"])
    return len(example["prompt_ids"]) + max(
        len(example["chosen_ids"]), len(example["rejected_ids"])
    )
