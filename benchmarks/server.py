"""Tokens per second of agl-torch's server, here and in other checkouts, when many ask at once.

    python benchmarks/server.py [--tree before=../other] [--rounds 3] [--agents 16] [--threads 1]

Each server runs in a process of its own, on a model with random weights that never ends an answer
by itself: `tiny` is the quickstart's, `small` has 32 million parameters. Each agent asks again as
soon as it has an answer. Three kinds of work:

- mixed: prompts of 20 to 600 tokens, answers of 5 to 200
- turns: conversations of 6 turns after one system prompt of 150 tokens; users say 20 to 60 tokens,
  answers have 5 to 60
- short: prompts of 10 to 40 tokens, answers of 2, as in the quickstart

The checkouts take turns. Printed are the best round's tokens of answers per second, and per second
of the server's CPU time, which other work on the machine does not change as much; and how many of
the answers are the same tokens as in the first checkout's first round, as all have seeds.
"""

import argparse
import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from checkouts import checkout, run_from

SIZES = {
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 40,
    },
    "small": {
        "hidden_size": 512,
        "intermediate_size": 1408,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 8192,
    },
}
TEMPLATE = (
    "{% for m in messages %}w0 {{ m['content'] }} w1 {% endfor %}"
    "{% if add_generation_prompt %}w2 {% endif %}"
)
Messages = list[dict[str, str]]


def serve(size: str, threads: int, device: str) -> None:
    """Be a server until the end of the input."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from agl_torch.server import InferenceServer

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = LlamaConfig(
        **SIZES[size],
        max_position_embeddings=1024,
        initializer_range=0.1,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(config.vocab_size)}, "w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, chat_template=TEMPLATE)
    with InferenceServer(LlamaForCausalLM(config).to(device), tokenizer) as server:
        print(server.url, flush=True)
        sys.stdin.read()


class Asked(NamedTuple):
    """What one agent asks; each answer but the last becomes part of the next question."""

    seed: int
    turns: list[tuple[Messages, int]]
    """What is new in the messages, and how many tokens the answer shall have."""


def script(work: str, agents: int, vocabulary: int, is_slow: bool) -> list[Asked]:
    """What all agents ask; the same every time."""
    chance = random.Random(work)

    def message(low: int, high: int, role: str = "user") -> dict[str, str]:
        words = (f"w{chance.randrange(vocabulary)}" for _ in range(chance.randint(low, high) - 3))
        return {"role": role, "content": " ".join(words)}

    system = message(150, 150, "system")
    asked: list[Asked] = []
    for seed in range(agents * {"mixed": 4, "turns": 2, "short": 40}[work] // (1 + 3 * is_slow)):
        if work == "turns":
            turns = [([message(20, 60)], chance.randint(5, 60)) for _ in range(6)]
            turns[0][0].insert(0, system)
        elif work == "mixed":
            turns = [([message(20, 600)], chance.randint(5, 200))]
        else:
            turns = [([message(10, 40)], 2)]
        asked.append(Asked(seed, turns))
    return asked


async def ask(url: str, waiting: Iterator[Asked], answers: dict[Any, list[int]]) -> None:
    """One agent: asks what is left to ask, one after the other."""
    import aiohttp

    async with aiohttp.ClientSession(raise_for_status=True) as session:
        for asked in waiting:
            messages: Messages = []
            for number, (new, length) in enumerate(asked.turns):
                messages += new
                body = {
                    "model": "model",
                    "messages": messages,
                    "max_tokens": length,
                    "seed": asked.seed,
                    "return_token_ids": True,
                }
                async with session.post(f"{url}/chat/completions", json=body) as response:
                    choice = (await response.json())["choices"][0]
                messages.append(choice["message"])
                answers[asked.seed, number] = choice["token_ids"]


def cpu_seconds(pid: int) -> float:
    """Of a process, so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(
    url: str, pid: int, asked: list[Asked], agents: int
) -> tuple[float, float, dict[Any, list[int]]]:
    """Tokens per second, tokens per second of CPU, and the answers."""
    answers: dict[Any, list[int]] = {}
    waiting = iter(asked)
    begin, cpu = time.perf_counter(), cpu_seconds(pid)
    await asyncio.gather(*(ask(url, waiting, answers) for _ in range(agents)))
    took, cpu = time.perf_counter() - begin, cpu_seconds(pid) - cpu
    tokens = sum(map(len, answers.values()))
    return tokens / took, tokens / max(cpu, 0.01), answers


def main() -> None:
    """Measure, and print a line per model, kind of work and checkout."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tree", type=checkout, action="append", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--agents", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1, help="of torch, in a server")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", choices=SIZES, action="append")
    parser.add_argument("--work", choices=("mixed", "turns", "short"), action="append")
    parser.add_argument("--serve", choices=SIZES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.threads, options.device)
        return
    trees = dict([*options.tree, checkout(f"here={Path(__file__).parents[1]}")])
    for size in options.size or SIZES:
        own = [sys.executable, __file__, "--serve", size, "--threads", str(options.threads)]
        own += ["--device", options.device]
        servers = {
            name: subprocess.Popen(
                run_from(folder, own), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for name, folder in trees.items()
        }
        urls = {name: server.stdout.readline().strip() for name, server in servers.items()}
        for work in options.work or ("mixed", "turns", "short"):
            asked = script(work, options.agents, SIZES[size]["vocab_size"], size == "small")
            best = dict.fromkeys(trees, (0.0, 0.0))
            same = dict.fromkeys(trees, 0)
            first: dict[Any, list[int]] = {}
            for _ in range(options.rounds):
                for name, server in servers.items():
                    wall, cpu, answers = asyncio.run(
                        measure(urls[name], server.pid, asked, options.agents)
                    )
                    first = first or answers
                    best[name] = (max(best[name][0], wall), max(best[name][1], cpu))
                    same[name] += sum(first[key] == answer for key, answer in answers.items())
            base = best[next(iter(trees))]
            for name, (wall, cpu) in best.items():
                print(
                    f"{size} {work} {name}: {wall:.0f} tokens/s ({wall / base[0]:.2f}), "
                    f"{cpu:.0f} per CPU second ({cpu / base[1]:.2f}), "
                    f"same {same[name]} of {len(first) * options.rounds}",
                    flush=True,
                )
        for server in servers.values():
            server.stdin.close()
            server.wait()


if __name__ == "__main__":
    main()
