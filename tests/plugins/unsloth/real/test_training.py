"""One step of a training against the same step written by hand: which tokens, which loss."""

import copy
import json
import math
import shutil
from dataclasses import asdict

import pytest
import torch
from peft import PeftModel
from tests.interpreter import python

from agl_models.stochastic_rounding import round_by_chance
from agl_unsloth.options import Order, TrainingOptions

pytestmark = pytest.mark.timeout(900)

LEARNING_RATE = 1e-3
SFT = [
    # Two calls in one row, one call, one call of several tokens; lengths differ.
    {"input_ids": [0, 3, 4, 2, 1, 14, 2, 0, 9, 2, 1, 15], "sampled": [5, 11]},
    {"input_ids": [0, 3, 4, 5, 2, 1, 20], "sampled": [6]},
    {"input_ids": [0, 3, 2, 1, 16, 17, 18, 19], "sampled": [4, 5, 6, 7]},
]
DPO = [
    {"prompt_ids": [0, 3, 4, 2, 1], "chosen_ids": [14], "rejected_ids": [15, 16]},
    {"prompt_ids": [0, 5, 1], "chosen_ids": [17, 18, 19], "rejected_ids": [20]},
]
BETA = 0.3


def examples(method):
    if method == "dpo":
        return DPO
    return [
        {
            "input_ids": row["input_ids"],
            "labels": [t if n in row["sampled"] else -100 for n, t in enumerate(row["input_ids"])],
        }
        for row in SFT
    ]


@pytest.fixture
def train(engine, quiet, tmp_path, model_folder):
    """Runs one training as the loop does; its metrics, and the folder of the version."""

    def run(method, name="version", model=model_folder, state=None, schedule=(1, 0), **options):
        given = {  # a batch of all of them: one step
            **{"learning_rate": LEARNING_RATE, "epochs": 1, "batch_size": 8, "beta": BETA},
            **{"gradient_accumulation": 1, "lora_rank": 0, "lora_alpha": 8, "lora_targets": None},
            **{"load_in_4bit": False, "max_length": None, "weights": "bfloat16", "seed": 1},
            **{"torch_threads": 1, "deterministic": False},
        }
        file, out = tmp_path / "examples.jsonl", tmp_path / name
        file.write_text("".join(json.dumps(e) + "\n" for e in examples(method)))
        made = TrainingOptions(**{**given, **options})
        of_run = {"method": method, "engine": engine, "state": state and str(state)}
        places = {"model": str(model), "examples": str(file), "out": str(out)}
        order = Order(**of_run, **places, options=made, schedule=schedule)
        (tmp_path / "order.json").write_text(json.dumps(asdict(order)))
        of_process = {"cwd": tmp_path, "env": quiet}
        done = python("-m", "agl_unsloth.training", tmp_path / "order.json", **of_process)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads((out / "training.json").read_text()), out

    return run


def load(folder):
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)


def logprobs(model, tokens, positions):
    """Log-probability of the tokens at these positions, each after the ones before it."""
    scores = model(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)
    return torch.stack([scores[n - 1, tokens[n]] for n in positions])


def sft_loss(model):
    """Mean over all sampled tokens of minus their log-probability."""
    return -torch.cat([logprobs(model, row["input_ids"], row["sampled"]) for row in SFT]).mean()


def dpo_loss(model, reference):
    """Equation 7 of arXiv:2305.18290."""

    def ratio(prompt, answer):
        tokens = prompt + answer
        positions = range(len(prompt), len(tokens))
        with torch.no_grad():
            before = logprobs(reference, tokens, positions).sum()
        return logprobs(model, tokens, positions).sum() - before

    kinds = ("chosen_ids", "rejected_ids")
    pairs = [[ratio(pair["prompt_ids"], pair[kind]) for kind in kinds] for pair in DPO]
    margins = [chosen - rejected for chosen, rejected in pairs]
    return -torch.nn.functional.logsigmoid(BETA * torch.stack(margins)).mean()


def step(model, loss, optimizer=None):
    """One step of AdamW on gradients of length 1 at most; the gradients."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=0.0)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return {name: weight.grad for name, weight in model.named_parameters()}


def assert_same_step(folder, expected, gradients):
    """The state has the weights of the step, and what is saved is one of their neighbours.

    The first step of AdamW moves each weight by the learning rate in the direction of its
    gradient, so a token too many in the loss shows in the weights. Where a gradient is next to
    nothing its direction is rounding.
    """
    weights, state = load(folder).state_dict(), load(folder / "state").state_dict()
    types = {name: weight.dtype for name, weight in saved(folder).items()}
    assert types == dict.fromkeys(weights, torch.bfloat16)
    moved = 0
    for name, wanted in expected.named_parameters():
        clear = gradients[name].abs() > 1e-5
        moved += int(clear.sum())
        difference = (weights[name] - wanted).abs()[clear]
        # The last of 8 bits.
        assert (difference <= wanted.abs()[clear] * 2**-7 + 1e-6).all(), name
        assert (state[name] - wanted)[clear].abs().sum() < 1e-5 * (1 + clear.sum()), name
    assert moved > 1000


def saved(folder, name="model"):
    from safetensors.torch import load_file

    return load_file(folder / f"{name}.safetensors")


def test_sft_trains_exactly_the_sampled_tokens(train, model_folder):
    metrics, folder = train("sft")
    model = load(model_folder)
    loss = sft_loss(model)
    assert metrics["loss/first"] == pytest.approx(loss.item(), abs=1e-5)
    assert metrics["tokens"] == sum(len(row["sampled"]) for row in SFT)
    # With the given tokens in it, it would be another number: the comparison can fail.
    all_ids = [row["input_ids"] for row in SFT]
    whole = -torch.cat([logprobs(model, ids, range(1, len(ids))) for ids in all_ids]).mean()
    assert abs(whole - loss) > 0.01
    assert_same_step(folder, model, step(model, loss))


def test_dpo_trains_exactly_the_answers(train, model_folder):
    metrics, folder = train("dpo")
    model, reference = load(model_folder), load(model_folder)
    loss = dpo_loss(model, reference)
    assert metrics["loss/first"] == pytest.approx(loss.item(), abs=1e-5)
    assert metrics["tokens"] == 7
    assert_same_step(folder, model, step(model, loss))


def test_gradients_of_several_passes_make_the_step_of_one(train, model_folder):
    _, folder = train("sft", batch_size=1, gradient_accumulation=3)
    model = load(model_folder)
    assert_same_step(folder, model, step(model, sft_loss(model)))


def test_a_training_goes_on_with_weights_and_moments_of_the_one_before(train, model_folder):
    model = load(model_folder)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=0.0)
    step(model, sft_loss(model), optimizer)
    _, first = train("sft", schedule=(1.0, 0.5))
    optimizer.param_groups[0]["lr"] = LEARNING_RATE / 2
    gradients = step(model, sft_loss(model), optimizer)
    _, folder = train("sft", "next", state=first / "state", schedule=(0.5, 0.0))
    assert_same_step(folder, model, gradients)


def test_an_adapter_goes_on_and_is_compared_with_the_version_before(train):
    options = {"lora_rank": 4, "learning_rate": 0.05}
    before, first = train("dpo", schedule=(1.0, 0.5), **options)
    after, second = train("dpo", "next", state=first / "state", schedule=(0.5, 0.0), **options)
    # Against itself a model has a loss of log 2, and against what it was before another one.
    assert before["loss/first"] == pytest.approx(math.log(2), abs=1e-5)
    assert after["loss/first"] == pytest.approx(math.log(2), abs=1e-5)
    one, two = (saved(folder / "state", "adapter_model") for folder in (first, second))
    # Steps of AdamW have the size of the learning rate, and the second one is half of the first.
    moved = torch.cat([(two[name] - one[name]).abs().flatten() for name in one])
    assert 0 < moved.max() < 0.026
    moments = torch.load(second / "state/optimizer.pt", weights_only=True)
    assert {int(one["step"]) for one in moments.values()} == {2}


@pytest.mark.parametrize("steps", [8, 64])
def test_what_small_steps_learn_is_left_in_16_bits(train, model_folder, tmp_path, steps):
    start = shutil.copytree(model_folder, tmp_path / "start")
    load(start).to(torch.bfloat16).save_pretrained(start)
    _, folder = train("sft", model=start, lora_rank=8, epochs=steps, learning_rate=5e-6)
    trained = PeftModel.from_pretrained(load(start), folder / "state").merge_and_unload()
    nearest = copy.deepcopy(trained).to(torch.bfloat16)

    def left(model):
        """Part of the change, as its projection on the whole one."""
        base, whole, kept = (
            torch.cat([weight.flatten().float() for weight in one.state_dict().values()])
            for one in (load(start), trained, model)
        )
        return ((kept - base) @ (whole - base) / (whole - base).square().sum()).item()

    assert left(load(folder)) == pytest.approx(1, abs=0.3)
    assert left(nearest) < 0.5


def test_rounding_by_chance_changes_no_mean_and_nothing_that_needs_none():
    chance = torch.Generator().manual_seed(0)
    for dtype in (torch.bfloat16, torch.float16):
        step = torch.finfo(dtype).eps
        for value in (0.02, -0.37, 0.007, 1.0):
            weight = torch.tensor(value).to(dtype).float() * (1 + 0.1 * step)
            made = round_by_chance(weight.repeat(100_000), dtype, chance).float()
            assert len(made.unique()) == 2
            assert (made.mean() - weight).abs() < 0.01 * step * weight.abs()
        grid = torch.randn(100_000, generator=chance).to(dtype)
        assert round_by_chance(grid.float(), dtype, chance).equal(grid)


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_an_adapter_is_merged_into_whole_weights(train, model_folder, method):
    metrics, folder = train(method, lora_rank=4, epochs=4, learning_rate=0.05)
    before, after = load(model_folder), load(folder)
    expected = sft_loss(before) if method == "sft" else dpo_loss(before, before)
    assert metrics["loss/first"] == pytest.approx(expected.item(), abs=1e-5)
    assert metrics["loss/last"] < metrics["loss/first"]
    # What is saved is what was trained: the merged weights have learned it, too.
    learned = sft_loss(after) if method == "sft" else dpo_loss(after, before)
    assert learned < metrics["loss/first"] - 0.01
    changed = {n for n, w in after.state_dict().items() if not w.equal(before.state_dict()[n])}
    assert any("q_proj" in name for name in changed)
    names = {path.name for path in folder.iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"} <= names
    assert not any("adapter" in name or name == "trainer" for name in names)


def test_the_tokenizer_and_the_configuration_stay_what_they_were(train, model_folder):
    _, folder = train("sft")
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (folder / name).read_text() == (model_folder / name).read_text()
    both = [json.loads((f / "config.json").read_text()) for f in (model_folder, folder)]
    for one in both:
        for ignored in ("dtype", "transformers_version", "use_cache", "_name_or_path"):
            one.pop(ignored, None)
    assert both[0] == both[1]


def test_weights_that_are_no_numbers_are_not_saved(train, tmp_path):
    with pytest.raises(AssertionError, match=r"the training diverged: .*lower learning_rate"):
        train("sft", learning_rate=1e38, epochs=3)
    assert not list((tmp_path / "version").glob("*.safetensors"))
