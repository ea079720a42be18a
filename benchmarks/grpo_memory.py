"""Peak memory of a GRPO update: logits of all tokens against logits of the sampled ones.

Rows are as an agent's: a long prompt and a short answer. ``all`` is what was done before: logits
of every token, the sampled ones picked out, and an entropy with gradient. Each way runs in a
process of its own, one after the other; counted is by how much the process's peak grew, beside
what the logits alone would take.

    python benchmarks/grpo_memory.py
"""

import argparse
import json
import random
import resource
import subprocess
import sys
from typing import Any

from agl.types import Credit
from agl_learning.records import TrainingRow


def all_logits(model: Any, rows: Any, temperature: float, pad: int, **options: Any) -> Any:
    """Scores as they were made before."""
    import torch

    from agl_torch.batch import TokenScores, sampled_positions

    width = max(len(row.token_ids) for row in rows)
    input_D_T = torch.tensor([r.token_ids + [pad] * (width - len(r.token_ids)) for r in rows])
    mask_D_T = torch.tensor(
        [[1] * len(r.token_ids) + [0] * (width - len(r.token_ids)) for r in rows]
    )
    where = [(d, t) for d, row in enumerate(rows) for t in sampled_positions(row)]
    row_N = torch.tensor([d for d, _ in where])
    position_N = torch.tensor([t for _, t in where])
    logits_D_T_V = model(input_ids=input_D_T, attention_mask=mask_D_T, use_cache=False).logits
    logits_N_V = logits_D_T_V[row_N, position_N - 1].float() / temperature
    logprobs_N_V = torch.log_softmax(logits_N_V, dim=-1)
    target_N = input_D_T[row_N, position_N]
    logprobs_N = logprobs_N_V.gather(1, target_N[:, None])[:, 0]
    return TokenScores(logprobs_N, -(logprobs_N_V.exp() * logprobs_N_V).sum(-1), logprobs_N)


def measure(way: str, prompt: int, answer: int, rows: int, vocabulary: int) -> dict[str, float]:
    """MiB by which the peak grew in one update, its loss and its gradient's norm."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from agl_torch import learner
    from agl_torch.learner import Learner, LearnerOptions, Rule, Sample
    from agl_torch.loss import clipped

    torch.set_num_threads(1)
    torch.manual_seed(0)
    if way == "all":
        learner.score_rows = all_logits
    sizes = {"vocab_size": vocabulary, "hidden_size": 8, "intermediate_size": 16}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **layers))
    rule = Rule(lambda tokens: clipped(tokens.log_ratio_N, tokens.advantages_N))
    samples = [
        Sample(
            TrainingRow(
                rollout_id=f"r{number}",
                attempt_id="a",
                token_ids=random.Random(number).choices(range(vocabulary), k=prompt + answer),
                logprobs=[0.0] * prompt + [-9.9] * answer,
                call_ids=["c"],
                call_ranges=[(prompt, prompt + answer)],
                credits=[Credit(reward=1.0)],
                model_versions=["0"],
            ),
            [1.0 if number % 2 else -1.0] * answer,
        )
        for number in range(rows)
    ]
    one = Learner(model, LearnerOptions(), rule)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    measured = one.update(samples)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"MiB": grown, "loss": measured["loss/total"], "grad_norm": measured["grad_norm"]}


def main() -> None:
    """Measure both ways and print them side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = {"prompt": 400, "answer": 100, "rows": 8, "vocabulary": 20_000}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--way", choices=("all", "sampled"))
    given = vars(parser.parse_args())
    way = given.pop("way")
    if way is not None:
        print(json.dumps(measure(way, **given)))
        return
    options = [f"--{name}={value}" for name, value in given.items()]
    found = {
        way: json.loads(
            subprocess.run(
                [sys.executable, __file__, f"--way={way}", *options],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for way in ("all", "sampled")
    }
    tokens = {"all": given["rows"] * (given["prompt"] + given["answer"])}
    tokens["sampled"] = given["rows"] * given["answer"]
    for way, one in found.items():
        logits = tokens[way] * given["vocabulary"] * 4 / 2**20
        print(
            f"{way:8} peak grew {one['MiB']:7.0f} MiB (one copy of its logits: {logits:5.0f} MiB); "
            f"loss {one['loss']:.6f}, gradient norm {one['grad_norm']:.6f}"
        )
    print(f"ratio    {found['all']['MiB'] / found['sampled']['MiB']:.1f}")


if __name__ == "__main__":
    main()
