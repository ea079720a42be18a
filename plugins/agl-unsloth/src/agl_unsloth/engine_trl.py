"""Training with TRL: any causal model of ``transformers``, on CPU or GPU."""

import copy
import os
import shutil
from pathlib import Path
from typing import Any

from agl_unsloth.batches import dpo_batch, sft_batch
from agl_unsloth.options import TRAINER_FOLDER, Order, TrainingOptions


def train(order: Order, examples: list[dict[str, Any]]) -> dict[str, Any]:
    """Train, merge, save; the metrics."""
    from transformers import AutoTokenizer

    options = order.options
    set_up_torch(options)
    tokenizer = AutoTokenizer.from_pretrained(order.model)
    model = _load(order.model, options)
    # What a trainer changes for itself (padding, the end of a text) is not the model's.
    config, generation = copy.deepcopy(model.config), copy.deepcopy(model.generation_config)
    peft_config = lora_config(options) if options.lora_rank else None
    trainer = make_trainer(order, model, tokenizer, examples, peft_config)
    trainer.train()
    model = trainer.model
    if options.lora_rank:
        model = _merge(model, order, options)
    model.config, model.generation_config = config, generation
    save(model, AutoTokenizer.from_pretrained(order.model), order)
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


def _load(name: str, options: TrainingOptions) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    has_gpu = torch.cuda.is_available()
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
    # Weights that are trained themselves need 32 bits: small steps get lost in 16.
    frozen = has_gpu and options.lora_rank > 0
    dtype = torch.bfloat16 if frozen else torch.float32
    return AutoModelForCausalLM.from_pretrained(name, dtype=dtype)


def lora_config(options: TrainingOptions) -> Any:
    """The adapter that is trained."""
    from peft import LoraConfig

    return LoraConfig(
        r=options.lora_rank,
        lora_alpha=options.lora_alpha,
        target_modules=options.lora_targets or "all-linear",
        task_type="CAUSAL_LM",
    )


def make_trainer(
    order: Order,
    model: Any,
    tokenizer: Any,
    examples: list[dict[str, Any]],
    peft_config: Any = None,
) -> Any:
    """The trainer of TRL for the order's method, on token ids as they were recorded."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer  # pyright: ignore[reportPrivateImportUsage]

    pad = _pad_token_id(tokenizer)
    settings = trainer_settings(order)
    if order.method == "sft":
        columns = ("input_ids", "labels")
        return SFTTrainer(
            model=model,
            args=SFTConfig(
                **settings, packing=False, dataset_kwargs={"skip_prepare_dataset": True}
            ),
            train_dataset=Dataset.from_list([{k: e[k] for k in columns} for e in examples]),
            data_collator=sft_batch(pad),
            processing_class=tokenizer,
            peft_config=peft_config,
        )

    class Recorded(DPOTrainer):
        """TRL's DPO on tokens that are there already: it would make them of texts itself."""

        def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
            return dataset

    columns = ("prompt_ids", "chosen_ids", "rejected_ids")
    return Recorded(
        model=model,
        args=DPOConfig(**settings, beta=order.options.beta),
        train_dataset=Dataset.from_list([{k: e[k] for k in columns} for e in examples]),
        data_collator=dpo_batch(pad),
        processing_class=tokenizer,
        peft_config=peft_config,
    )


def trainer_settings(order: Order) -> dict[str, Any]:
    """What SFT and DPO are both told."""
    import torch

    options, has_gpu = order.options, torch.cuda.is_available()
    return {
        "output_dir": str(Path(order.out) / TRAINER_FOLDER),
        "per_device_train_batch_size": options.batch_size,
        "gradient_accumulation_steps": options.gradient_accumulation,
        "num_train_epochs": options.epochs,
        "learning_rate": options.learning_rate,
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


def _merge(model: Any, order: Order, options: TrainingOptions) -> Any:
    """The adapter's change in the weights themselves."""
    if not options.load_in_4bit:
        return model.merge_and_unload()
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    # Into the weights as they were, not into what four bits left of them.
    adapter = Path(order.out) / TRAINER_FOLDER / "adapter"
    model.save_pretrained(adapter)
    base = AutoModelForCausalLM.from_pretrained(order.model, dtype=torch.float32)
    return PeftModel.from_pretrained(base, str(adapter)).merge_and_unload()


def save(model: Any, tokenizer: Any, order: Order) -> None:
    """Weights in 16 bits, and the tokenizer as it was; nothing else stays in the folder.

    Raises:
        FloatingPointError: Some of the weights are no numbers.
    """
    import torch

    broken = [name for name, weight in model.named_parameters() if not weight.isfinite().all()]
    if broken:
        raise FloatingPointError(
            f"the training diverged: {len(broken)} of the model's weights, {broken[0]} first, are "
            "not finite; lower learning_rate, or train in float32"
        )
    out = Path(order.out)
    model.to(getattr(torch, order.options.weights)).save_pretrained(out)
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
            label != -100 for example in examples for label in example["labels"][1:]
        )
    else:
        metrics["tokens"] = sum(
            len(example[side]) for example in examples for side in ("chosen_ids", "rejected_ids")
        )
        accuracies = [entry.get("rewards/accuracies") for entry in steps]
        metrics["accuracy/last"] = accuracies[-1]
    return metrics
