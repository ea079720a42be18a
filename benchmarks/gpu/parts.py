"""The parts of `run.py`, which starts each in a process of its own.

Shares of the card's peak are model FLOPs utilisation (PaLM, arXiv:2204.02311, appendix B): a token
of a row of T tokens takes 6 N + 12 L d T floating-point operations forwards and backwards, with N
weights and L layers of width d; with an adapter, whose model's weights get no gradient, two thirds
of it. What is computed again is not counted, nor are prompts: only sampled tokens are, so that it
is a bound from below. The peaks are those of NVIDIA's data sheets for dense bfloat16.
"""

import json
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))
PEAK_TFLOPS = {"H100": 989.4, "H200": 989.4, "B200": 2250.0, "A100": 312.0, "L40S": 362.0}
"""Part of a card's name -> its peak; the H100 is the one of SXM."""
Tell = Callable[[dict[str, Any]], None]
"""Writes what was found so far."""
STEPS = {"learn": 20, "random": 4}


def about() -> dict[str, str]:
    """On what the numbers were taken."""
    from importlib.metadata import version

    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    versions = [f"{name} {version(name)}" for name in ("torch", "transformers", "peft")]
    return {"machine": f"{card}, Python {sys.version.split()[0]}, {', '.join(versions)}"}


def machine(place: Path, small: bool, tell: Tell) -> dict[str, Any]:
    """What the card does with a large product of matrices, and with a copy."""
    where = "cuda" if torch.cuda.is_available() else "cpu"
    size = 256 if small else 8192
    left, right = (torch.randn(size, size, device=where, dtype=torch.bfloat16) for _ in range(2))
    large = torch.empty((1 if small else 2048) * 2**20, device=where, dtype=torch.uint8)
    product = _seconds(lambda: left @ right)
    copy = _seconds(large.clone)
    return {
        "matmul TFLOP/s": 2 * size**3 / product / 1e12,
        "copy TB/s": 2 * large.numel() / copy / 1e12,
    }


def _seconds(work: Any, times: int = 10) -> float:
    for _ in range(3):
        work()
    _wait()
    begin = time.perf_counter()
    for _ in range(times):
        work()
    _wait()
    return (time.perf_counter() - begin) / times


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def convert(place: Path, small: bool, tell: Tell) -> dict[str, Any]:
    """Make SmolLM2 of what was sent; later parts find it."""
    from agl_testing.models import smollm2

    begin = time.perf_counter()
    smollm2(place.parent / "models")
    return {"seconds": time.perf_counter() - begin}


def smollm2(place: Path, small: bool, tell: Tell, **options: Any) -> dict[str, Any]:
    """Sums of two numbers, as `benchmarks/real_model.py` has them."""
    from real_model import agent, tasks

    from agl_testing.models import smollm2 as fetch
    from agl_torch.memory import Size
    from agl_torch.models import load_shape

    given = {
        "max_tokens": 16,
        "learning_rate": 5e-6,
        "steps": STEPS["learn"],
        "evaluation": {"every": 5},
    }
    given |= {"groups_per_step": 8, "group_size": 8, **options}
    if small:
        given |= {"steps": 3, "evaluation": {"every": 1}, "groups_per_step": 4, "group_size": 4}
    data = {"train": tasks(256, 1), "val": tasks(4 if small else 48, 2)}
    folder = str(fetch(place.parent / "models"))
    return train(place, tell, folder, Size.of(load_shape(folder)), agent, data, given)


def random_weights(
    place: Path, small: bool, tell: Tell, shape: str, **options: Any
) -> dict[str, Any]:
    """A model of the shape of Qwen2.5 whose answers are all as long as they may be."""
    from memory import SHAPES, config_of, size
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = place.parent / "tokenizer"
    if not tokenizer.exists():
        from agl_testing.models import smollm2 as fetch

        tokenizer = fetch(place.parent / "models")
    sizes = (49_152, 64, 128, 2, 4, 2, True) if small else SHAPES[shape]
    given = {"max_tokens": 512, "steps": STEPS["random"], "groups_per_step": 8, "group_size": 8}
    given |= {"learning_rate": 1e-6, "server": {"max_model_tokens": 1024}, **options}
    if small:
        given |= {"max_tokens": 8, "steps": 2, "groups_per_step": 2, "group_size": 2}

    def build() -> Any:
        torch.manual_seed(0)
        where = "cuda" if torch.cuda.is_available() else "cpu"
        # As it is loaded: narrow under an adapter on a GPU.
        narrow = where == "cuda" and "lora" in options
        with torch.device(where):
            model = AutoModelForCausalLM.from_config(config_of(*sizes))
        return model.to(torch.bfloat16 if narrow else torch.float32)

    given["tokenizer"] = AutoTokenizer.from_pretrained(tokenizer)
    data = {"train": [{"number": n} for n in range(64)], "val": None}
    return train(place, tell, build, size(*sizes), _odd_agent(), data, given)


def _odd_agent() -> Any:
    import agl

    @agl.rollout
    async def agent(task: dict[str, int], llm: agl.LLM) -> float:
        """A reward that differs between answers, and says nothing of them."""
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
            answer = await client.chat.completions.create(
                model=llm.model,
                messages=[{"role": "user", "content": f"Go on: {task['number']}"}],
                **llm.sampling_parameters,
            )
        return len(answer.choices[0].message.content or "") % 8 / 8

    return agent


def train(
    place: Path, tell: Tell, model: Any, size: Any, agent: Any, data: Any, options: Any
) -> dict[str, Any]:
    """One run of `grpo`, and what it took; every few seconds, what it took until then."""
    import agl

    algorithm = agl.GRPO(
        model=model, run_dir=str(place), checkpoints={"every": options["steps"]}, **options
    )
    trainer = agl.Trainer(algorithm=algorithm, n_runners=1, concurrency=64, strategy="shm")
    begin, ended = time.perf_counter(), threading.Event()

    def note() -> None:
        while not ended.wait(5):
            tell({**_measured(place, algorithm, size, options, begin), "error": "did not end"})

    noting = threading.Thread(target=note, daemon=True)
    noting.start()
    failed: dict[str, str] = {}
    try:
        trainer.fit(agent, train_dataset=data["train"], val_dataset=data["val"])
    except BaseException as error:  # what came of it until then is still of use
        failed = {"error": f"{type(error).__name__}: {error}"}
    ended.set()
    noting.join()
    return {**_measured(place, algorithm, size, options, begin), **failed}


def _measured(place: Path, algorithm: Any, size: Any, options: Any, begin: float) -> dict[str, Any]:
    from memory import gibibytes

    from agl_torch.models import resolve_dtype

    found: dict[str, Any] = {"seconds": time.perf_counter() - begin, "weights": size.weights}
    found["options"] = {name: one for name, one in options.items() if name != "tokenizer"}
    if torch.cuda.is_available():
        found["GiB allocated"] = torch.cuda.max_memory_allocated() / 2**30
        found["GiB reserved"] = torch.cuda.max_memory_reserved() / 2**30
    found["GiB resident"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    found["dtype"] = resolve_dtype("auto", None)
    found["GiB estimated"] = gibibytes(algorithm, size, found["dtype"])
    with suppress(FileNotFoundError):
        lines = (place / "metrics.jsonl").read_text("utf-8").splitlines()
        metrics = found["metrics"] = [json.loads(line) for line in lines]
        held = "val/reward/mean"
        found["held out"] = [(one["step"], one[held]) for one in metrics if held in one]
        found["rewards"] = [one["reward/mean"] for one in metrics if "reward/mean" in one]
        found |= _speed(metrics, size, options)
    return found


def _speed(metrics: list[dict[str, Any]], size: Any, options: Any) -> dict[str, Any]:
    """Medians over the steps that trained, but the first, which has what is done once."""
    steps = [one for one in metrics if "logprob_gap" in one]
    steps = steps[1:] or steps
    if not steps:
        return {}
    middle = {
        name: statistics.median(one[name] for one in steps)
        for name in ("time/rollouts", "time/update", "tokens/sampled", "tokens/given")
    }
    part = statistics.median(one["calls/trained"] / one["calls/total"] for one in steps)
    sampled = middle["tokens/sampled"]
    rollouts = options["groups_per_step"] * options["group_size"]
    row = (sampled + middle["tokens/given"]) / rollouts
    operations = 6 * size.weights + 12 * size.layers * size.hidden * row
    if "lora" in options:
        operations *= 2 / 3
    speed = sampled * part / middle["time/update"]  # what taught nothing was not trained
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    peak = next((one for part, one in PEAK_TFLOPS.items() if part in name), None)
    return {
        "training tokens/s": speed,
        "sampling tokens/s": sampled / middle["time/rollouts"],
        "TFLOP/s": speed * operations / 1e12,
        "share of peak": speed * operations / 1e12 / peak if peak else None,
        "logprob_gap": max(one["logprob_gap"] for one in steps),
    }
