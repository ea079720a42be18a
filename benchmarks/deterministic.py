"""What it costs that an answer depends on its request alone: the sampler on the quickstart's model.

    python benchmarks/deterministic.py [--device cpu] [--requests 80]

The CPU seconds (on a GPU: seconds) to sample one token for each of a number of requests that are
there at once, as the best of several rounds, in three ways:

- batched: all in one batch, as without `deterministic`
- fixed: in batches of a fixed shape, as with it
- single: one at a time, as with it and `max_batch_size=1`

and in how many of 30 other batches the log-probabilities of one request differ in their bits.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from agl_models.sampling.sequences import Completion, SamplingRequest
from agl_torch.generate import Sampler
from agl_torch.models import use_deterministic_algorithms
from agl_torch.server import FIXED_ROWS

sys.path.insert(0, str(Path(__file__).parents[1] / "examples/quickstart"))

from world import House, build_model, build_tokenizer, split_tasks

ROUNDS, OTHERS = 7, 30


def make_requests(number: int, max_tokens: int) -> list[SamplingRequest]:
    """Prompts of the quickstart's agent after none to two looks, in the tokens of its model."""
    chance, tokenizer = random.Random(0), build_tokenizer()
    tasks, _ = split_tasks()
    requests: list[SamplingRequest] = []
    for seed in range(number):
        house = House(**chance.choice(tasks))
        messages = [{"role": "user", "content": house.first_message()}]
        for _ in range(chance.randrange(3)):
            room = chance.choice(["kitchen", "attic", "cellar"])
            messages += [
                {"role": "assistant", "content": room},
                {"role": "user", "content": house.look(room)},
            ]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        requests.append(SamplingRequest(ids, max_tokens=max_tokens, seed=seed))
    return requests


def best_milliseconds(work: Callable[[], object], device: str) -> float:
    """Of several rounds."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    times: list[float] = []
    for _ in range(ROUNDS):
        start = clock()
        work()
        times.append(clock() - start)
    return min(times) * 1000


def num_different(sampler: Sampler, requests: Sequence[SamplingRequest]) -> int:
    """In how many other batches the first request gets other bits than alone."""
    first, *others = requests
    chance = random.Random(1)

    def sampled(batch: list[SamplingRequest]) -> Completion:
        return sampler.generate(batch)[batch.index(first)]

    alone = sampled([first])
    batches = [chance.sample(others, chance.randrange(1, len(others))) for _ in range(OTHERS)]
    for batch in batches:
        batch.insert(chance.randrange(len(batch) + 1), first)
    return sum(sampled(batch) != alone for batch in batches)


def main() -> None:
    """Measure, and print a line per number of requests and per way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--requests", type=int, default=80, help="at once, at most")
    options = parser.parse_args()
    use_deterministic_algorithms(1)
    model, tokenizer = build_model(0).to(options.device).eval(), build_tokenizer()
    device = torch.cuda.get_device_name() if options.device != "cpu" else "CPU, 1 thread"
    print(f"torch {torch.__version__}, {device}, {FIXED_ROWS} rows")
    samplers = {
        name: Sampler(model, tokenizer, batch_rows=rows)
        for name, rows in (("batched", None), ("fixed", FIXED_ROWS), ("single", 1))
    }
    for number in sorted({1, 4, 16, options.requests}):
        requests = make_requests(number, 1)
        took = {
            name: best_milliseconds(partial(sampler.generate, requests), options.device)
            for name, sampler in samplers.items()
        }
        shown = ", ".join(
            f"{name} {value:.1f} ms ({value / took['batched']:.1f})" for name, value in took.items()
        )
        print(f"{number} at once: {shown}")
    requests = make_requests(options.requests, 12)
    for name, sampler in samplers.items():
        print(f"{name}: other bits in {num_different(sampler, requests)} of {OTHERS} batches")


if __name__ == "__main__":
    main()
