"""Our loss and gradients against TRL's, on the same batch. Runs where TRL is installed.

TRL takes one sequence per rollout, so each rollout has one row here; its entropy bonus is a mean
over all tokens and ours over rollouts, so the bonus is compared on rows of equal length.
"""

import pytest

pytest.importorskip("trl")

import torch

from agl.types import Credit, TrainingRow
from agl_learning.advantages import group_advantages
from agl_torch.learner import Learner, LearnerOptions, Sample

from .conftest import build_model

PROMPT = [1, 4, 12, 5, 3, 2]
REWARDS = [1.0, 0.0, 0.25, 0.0, 1.0, 0.5]


def answers(lengths):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(4, 15, (n,), generator=generator).tolist() for n in lengths]


def rows_and_old(lengths):
    """Rows whose recorded log-probabilities are off by up to 0.6, so that the clip is at work."""
    model, generator = build_model(), torch.Generator().manual_seed(2)
    rows = []
    for index, answer in enumerate(answers(lengths)):
        with torch.no_grad():
            logits = model(torch.tensor([PROMPT + answer])).logits[0, len(PROMPT) - 1 : -1]
        logprobs = logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]
        old = logprobs + 1.2 * (torch.rand(len(answer), generator=generator) - 0.5)
        rows.append(
            TrainingRow(
                rollout_id=f"r{index}",
                attempt_id="a",
                token_ids=PROMPT + answer,
                logprobs=[0.0] * len(PROMPT) + old.tolist(),
                call_ids=["c"],
                call_ranges=[(len(PROMPT), len(PROMPT) + len(answer))],
                credits=[Credit(reward=REWARDS[index])],
            )
        )
    return rows


def ours(rows, entropy_bonus, kl_coefficient, microbatch_tokens):
    model, reference = build_model(), build_model(seed=1)
    options = LearnerOptions(
        learning_rate=0.0,
        epochs=1,
        minibatch_rows=None,
        microbatch_tokens=microbatch_tokens,
        clip_low=0.2,
        clip_high=0.28,
        entropy_bonus=entropy_bonus,
        kl_coefficient=kl_coefficient,
        max_grad_norm=1e9,
        weight_decay=0.0,
        temperature=1.0,
    )
    learner = Learner(model, options, reference=reference)
    advantages = [a for (a,) in group_advantages([[row.reward] for row in rows])]
    measured = learner.update([Sample(r, [a]) for r, a in zip(rows, advantages, strict=True)])
    return measured["loss/total"], torch.cat([p.grad.flatten() for p in model.parameters()])


def theirs(rows, entropy_bonus, kl_coefficient, tokenizer, folder):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    model, reference = build_model(), build_model(seed=1)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": "red"}] * len(rows)),
        args=GRPOConfig(
            output_dir=str(folder),
            loss_type="grpo",
            epsilon=0.2,
            epsilon_high=0.28,
            beta=0.0,  # otherwise it loads its reference from the Hub
            use_bias_correction_kl=False,
            entropy_coef=entropy_bonus,
            per_device_train_batch_size=len(rows),
            num_generations=len(rows),
            gradient_accumulation_steps=1,
            use_cpu=True,
            report_to=[],
            bf16=False,
        ),
    )
    trainer.beta = kl_coefficient
    # What the trainer sets at the beginning of its loop.
    trainer.current_gradient_accumulation_steps = 1
    width = max(len(row.token_ids) for row in rows) - len(PROMPT)

    def padded(values, fill):
        return torch.tensor([v + [fill] * (width - len(v)) for v in values])

    completions = [row.token_ids[len(PROMPT) :] for row in rows]
    completion_ids = padded(completions, 0)
    prompt_ids = torch.tensor([PROMPT] * len(rows))
    with torch.no_grad():
        logits = reference(torch.cat([prompt_ids, completion_ids], 1)).logits[:, len(PROMPT) - 1 :]
        reference_logprobs = (
            logits[:, :-1].log_softmax(-1).gather(2, completion_ids[..., None])[..., 0]
        )
    advantages = [a for (a,) in group_advantages([[row.reward] for row in rows])]
    trainer.model.eval()
    loss = trainer._compute_loss(
        trainer.model,
        {
            "prompt_ids": prompt_ids,
            "prompt_mask": torch.ones_like(prompt_ids),
            "completion_ids": completion_ids,
            "completion_mask": padded([[1] * len(c) for c in completions], 0),
            "advantages": torch.tensor(advantages),
            "old_per_token_logps": padded([r.logprobs[len(PROMPT) :] for r in rows], 0.0),
            "ref_per_token_logps": reference_logprobs,
        },
    )
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in trainer.model.parameters()])


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("lengths", "entropy_bonus", "kl_coefficient"),
    [([3, 1, 5, 2, 4, 3], 0.0, 0.0), ([3, 1, 5, 2, 4, 3], 0.0, 0.1), ([4] * 6, 0.05, 0.1)],
)
@pytest.mark.parametrize("microbatch_tokens", [None, 25])
def test_loss_and_gradient_are_those_of_trl(
    lengths, entropy_bonus, kl_coefficient, microbatch_tokens, tokenizer, tmp_path
):
    rows = rows_and_old(lengths)
    loss, gradient = ours(rows, entropy_bonus, kl_coefficient, microbatch_tokens)
    their_loss, their_gradient = theirs(rows, entropy_bonus, kl_coefficient, tokenizer, tmp_path)
    assert their_gradient.abs().max() > 1e-3
    assert loss == pytest.approx(their_loss, rel=1e-5)
    assert torch.allclose(gradient, their_gradient, rtol=1e-4, atol=1e-6)
