"""Our loss and gradients against TRL's, on the same batch. Runs where TRL is installed.

TRL takes one sequence per rollout, so each rollout has one row here; its entropy bonus is a mean
over all tokens and ours over rollouts, so the bonus is compared on rows of equal length.
"""

import pytest

pytest.importorskip("trl")

import torch
from tests.training_rows import training_row

import agl_torch
from agl_learning.advantages.weighing import weigh
from agl_records.types import Credit
from agl_runs.options import pick_options
from agl_torch.learner import Learner, LearnerOptions, Sample

from .conftest import build_model
from .test_algorithms import collected_of

PROMPT = [1, 4, 12, 5, 3, 2]
REWARDS = [1.0, 0.0, 0.5, 0.0, 1.0, 0.5]  # two are the mean, and have the penalties alone


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
        given = {"rollout_id": f"r{index}", "credits": [Credit(reward=REWARDS[index])]}
        tokens, logprobs = PROMPT + answer, [0.0] * len(PROMPT) + old.tolist()
        ranges = [(len(PROMPT), len(tokens))]
        rows.append(training_row(tokens, ranges, logprobs=logprobs, **given))
    return rows


# What each algorithm is in TRL, beside ``GRPOConfig``'s epsilons.
THEIRS = {
    "grpo": {"loss_type": "grpo"},
    "grpo of tokens": {"loss_type": "dapo"},
    "grpo of a constant": {"loss_type": "dr_grpo", "max_completion_length": 7},
    "gspo": {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "epsilon": 0.05,
        "epsilon_high": 0.06,
    },
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.2},
}
OURS = {
    "grpo": (agl_torch.GRPO, {"loss": "grpo"}),
    "grpo of tokens": (agl_torch.GRPO, {"loss": "dapo"}),
    "grpo of a constant": (agl_torch.GRPO, {"loss": {"type": "dr_grpo", "constant": 7}}),
    "gspo": (agl_torch.GSPO, {"clip": {"low": 0.05, "high": 0.06}}),
    "cispo": (agl_torch.CISPO, {"ratio_cap": 1.2}),
}


def ours(kind, rows, entropy_bonus, kl_coefficient, microbatch_tokens):
    made, options = OURS.get(kind, (agl_torch.RLOO, {}))
    given = {"memory": microbatch_tokens, "entropy_bonus": entropy_bonus, "kl": kl_coefficient}
    plain = {"learning_rate": 0.0, "optimizer": {"max_grad_norm": 1e9}}
    algorithm = made(model="none", sampling_correction="none", **plain, **given, **options)
    model, reference = build_model(), build_model(seed=1)
    chosen = pick_options(LearnerOptions, algorithm)
    learner = Learner(model, chosen, algorithm.objective(), reference=reference)
    is_whole = algorithm.trains_whole_rows
    weighed = weigh(collected_of(rows, tasks=1), algorithm.weighing, is_whole=is_whole)
    samples = [Sample(one.row, one.of_tokens, left_out=one.left_out) for one in weighed]
    loss = learner.update(samples)["loss/total"]
    found = {one.row.rollout_id: one.advantages[0].value for one in weighed}
    return [found.get(row.rollout_id, 0.0) for row in rows], loss, gradient_of(model)


def gradient_of(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def padded(values, fill=0):
    width = max(map(len, values))
    return torch.tensor([v + [fill] * (width - len(v)) for v in values])


def trainer_of(trainer, config, rows, tokenizer, folder, **options):
    from datasets import Dataset

    sizes = {"per_device_train_batch_size": len(rows), "num_generations": len(rows)}
    plain = {"gradient_accumulation_steps": 1, "use_cpu": True, "report_to": [], "bf16": False}
    options = {"epsilon": 0.2, "epsilon_high": 0.28, **options}
    # With a beta it loads its reference from the Hub.
    args = config(output_dir=str(folder), beta=0.0, **sizes, **plain, **options)
    made = trainer(
        model=build_model(),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": "red"}] * len(rows)),
        args=args,
    )
    made.model.eval()
    completions = [row.token_ids[len(PROMPT) :] for row in rows]
    prompt_ids = torch.tensor([PROMPT] * len(rows))
    return made, {
        "prompt_ids": prompt_ids,
        "prompt_mask": torch.ones_like(prompt_ids),
        "completion_ids": padded(completions),
        "completion_mask": padded([[1] * len(c) for c in completions]),
    }


def theirs(kind, rows, advantages, entropy_bonus, kl_coefficient, tokenizer, folder):
    from trl import GRPOConfig, GRPOTrainer

    given = (GRPOTrainer, GRPOConfig, rows, tokenizer, folder)
    trainer, inputs = trainer_of(*given, **THEIRS[kind], entropy_coef=entropy_bonus)
    trainer.beta = kl_coefficient
    # What the trainer sets at the beginning of its loop.
    trainer.current_gradient_accumulation_steps = 1
    completion_ids = inputs["completion_ids"]
    with torch.no_grad():
        reference, ids = build_model(seed=1), torch.cat([inputs["prompt_ids"], completion_ids], 1)
        logits = reference(ids).logits[:, len(PROMPT) - 1 : -1]
    reference_logprobs = logits.log_softmax(-1).gather(2, completion_ids[..., None])[..., 0]
    inputs |= {
        "advantages": torch.tensor(advantages),
        "num_items_in_batch": inputs["completion_mask"].sum(),
        "old_per_token_logps": padded([r.logprobs[len(PROMPT) :] for r in rows], 0.0),
        "ref_per_token_logps": reference_logprobs,
    }
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    return loss.item(), gradient_of(trainer.model)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", THEIRS)
@pytest.mark.parametrize(
    ("lengths", "entropy_bonus", "kl_coefficient", "microbatch_tokens"),
    [([3, 1, 5, 2, 4, 3], 0.0, 0.1, 25), ([4] * 6, 0.05, 0.0, None)],
)
def test_loss_and_gradient_are_those_of_trl(
    kind, lengths, entropy_bonus, kl_coefficient, microbatch_tokens, tokenizer, tmp_path
):
    if kind == "gspo":  # TRL weighs a token's divergence by the ratio of its whole sequence there
        kl_coefficient = 0.0
    rows = rows_and_old(lengths)
    found = ours(kind, rows, entropy_bonus, kl_coefficient, microbatch_tokens)
    advantages, loss, gradient = found
    assert advantages.count(0) == 2
    given = (kind, rows, advantages, entropy_bonus, kl_coefficient, tokenizer, tmp_path)
    their_loss, their_gradient = theirs(*given)
    assert their_gradient.abs().max() > 1e-3
    assert loss == pytest.approx(their_loss, rel=1e-5)
    assert (gradient - their_gradient).norm() < 1e-5 * their_gradient.norm()


@pytest.mark.filterwarnings("default")
def test_rloo_has_the_loss_and_gradient_of_trl(tokenizer, tmp_path):
    from trl import RLOOConfig, RLOOTrainer

    rows = rows_and_old([3, 1, 5, 2, 4, 3])
    advantages, loss, gradient = ours("rloo", rows, 0.0, 0.0, 25)
    trainer, inputs = trainer_of(RLOOTrainer, RLOOConfig, rows, tokenizer, tmp_path)
    inputs["advantages"] = torch.tensor(advantages)
    inputs["old_logps"] = torch.tensor([sum(row.logprobs[len(PROMPT) :]) for row in rows])
    their_loss = trainer.compute_loss(trainer.model, inputs)
    their_loss.backward()
    their_gradient = gradient_of(trainer.model)
    assert their_gradient.abs().max() > 1e-3
    assert loss == pytest.approx(their_loss.item(), rel=1e-5)
    assert (gradient - their_gradient).norm() < 1e-5 * their_gradient.norm()
