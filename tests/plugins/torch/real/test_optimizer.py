"""The optimiser of 8 bits on a pretrained model."""

import random

import pytest
import torch

from agl.errors import ConfigError
from agl_records.training_data import TrainingRow
from agl_records.types import Credit
from agl_torch.checkpoint import restore, save
from agl_torch.learner import Learner, LearnerOptions, Objective, Sample
from agl_torch.loss import clipped

RULE = Objective(lambda tokens: clipped(tokens.log_ratio_N, tokens.advantages_N, 0.2, 0.3))


@pytest.mark.timeout(900)  # 290 s beside other suites
def test_states_of_8_bits_learn_as_much_and_go_on_to_the_bit(folder, tokenizer, tmp_path):
    from transformers import AutoModelForCausalLM

    def load(place, optimizer):
        options = LearnerOptions(
            learning_rate=1e-5, optimizer=optimizer, sampling_correction="none"
        )
        # Two of its layers: without a compiler a step takes seconds for each.
        model = AutoModelForCausalLM.from_pretrained(place, num_hidden_layers=2, dtype="float32")
        return Learner(model.eval(), options, RULE)

    def steps(learner, number):
        """How likely it finds what it is taught, afterwards."""
        for _ in range(number):
            learner.update([blue, green])
        ids = torch.tensor([blue.row.token_ids])
        with torch.no_grad():
            return learner.model(ids).logits[0, -2].log_softmax(-1)[ids[0, -1]].item()

    def sample(word, advantage):
        ids = tokenizer(f"The sky is {word}")["input_ids"]
        end, said = len(ids), [*[0.0] * (len(ids) - 1), -15.0]
        row = TrainingRow(
            rollout_id=word, attempt_id="at", token_ids=ids, logprobs=said, call_ids=[word],
            call_ranges=[(end - 1, end)], credits=[Credit(reward=0.0)], model_versions=["0"],
        )  # fmt: skip
        return Sample(row, [advantage])

    blue, green = sample("blue", 1.0), sample("green", -1.0)
    learners = {name: load(folder, name) for name in ("adamw", "adamw_8bit")}
    with torch.compiler.set_stance("force_eager"):  # to compile takes a minute
        learned = {}
        for name, learner in learners.items():
            before = steps(learner, 0)
            learned[name] = steps(learner, 3) - before
        assert learned["adamw"] > 0.1
        assert learned["adamw_8bit"] == pytest.approx(learned["adamw"], rel=0.1)
        save(tmp_path, straight := learners["adamw_8bit"], tokenizer, random.Random(0))
        weights = sum(one.numel() for one in straight.model.parameters())
        assert (tmp_path / "learner.pt").stat().st_size < 2.1 * weights
        resumed = load(tmp_path, "adamw_8bit")
        restore(tmp_path, resumed, random.Random(0))
        assert steps(resumed, 1) == steps(straight, 1)
    for one, other in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(
        ConfigError, match="made with optimizer='adamw_8bit'; give that, not 'adamw'"
    ):
        restore(tmp_path, load(folder, "adamw"), random.Random(0))
