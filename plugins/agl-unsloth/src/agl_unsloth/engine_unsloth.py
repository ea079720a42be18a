"""Training with Unsloth: fewer bytes and more speed on a GPU; it trains on a CPU, too."""

from typing import Any

from agl_unsloth.options import Order


def train(order: Order, examples: list[dict[str, Any]]) -> dict[str, Any]:
    """Train, merge, save; the metrics."""
    # First of all: it changes transformers and TRL, and wants to do so before they are used.
    from unsloth import FastLanguageModel  # isort: skip  # pyright: ignore[reportMissingImports]

    import torch

    from agl_unsloth.engine_trl import set_up_torch, train_loaded

    options = order.options
    set_up_torch(options)
    has_gpu, is_full = torch.cuda.is_available(), options.lora_rank == 0
    # On a GPU it would train weights of 16 bits, in which small steps get lost.
    precision = {"float32_mixed_precision": True} if has_gpu and is_full else {}
    model: Any
    model, _ = FastLanguageModel.from_pretrained(
        model_name=(is_full and order.state) or order.model,
        max_seq_length=max(_length(example) for example in examples),
        load_in_4bit=options.load_in_4bit,
        full_finetuning=is_full,
        dtype=None if has_gpu else torch.float32,
        **precision,
    )
    if not is_full:
        model = FastLanguageModel.get_peft_model(
            model,
            r=options.lora_rank,
            lora_alpha=options.lora_alpha,
            target_modules=options.lora_targets or _all_linear(model),
            lora_dropout=0,
            bias="none",
            use_gradient_checkpointing="unsloth" if has_gpu else False,
            random_state=options.seed,
        )
    return train_loaded(order, model, examples)


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
