"""What memory a step takes: layers computed again, 16 bits, and an estimate before the start."""

import contextlib
import dataclasses
import gc
import os
from pathlib import Path

import pytest
import torch

import agl
import agl_torch
from agl.errors import ConfigError
from agl_learning.garbage import have_others_frozen, without_collections
from agl_torch import memory
from agl_torch.critic import Critic
from agl_torch.learner import Learner
from agl_torch.memory import check_memory, return_free_memory
from agl_torch.models import checkpoint_layers
from agl_torch.options import Memory, Optimizer

from .conftest import build_model
from .test_learner import OPTIONS, RULE, samples


def estimate(options, model, *others):
    return memory.estimate(options, *map(memory.Size.of, (model, *others)))


LONG = torch.tensor([[1, *[4, 7, 5] * 10, 3, 2]])


def kept_bytes(model, sparing=contextlib.nullcontext()):  # noqa: B008
    """What a pass keeps for its gradients besides the weights, by the tensors themselves."""
    weights = {one.untyped_storage().data_ptr() for one in model.parameters()}
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), sparing:
        total = model(LONG, use_cache=False).logits.sum()
    return total, sum(kept.values())


def test_layers_that_are_computed_again_keep_less_and_have_the_same_gradients():
    model = build_model()
    total, much = kept_bytes(model)
    total.backward()
    expected = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    total, little = kept_bytes(model, checkpoint_layers(model))
    assert little < much / 3
    total.backward()
    for one, other in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(one.grad, other, rtol=1e-4, atol=1e-6)
    assert not any("forward" in vars(one) for one in model.modules())


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("with_critic", [False, True])
def test_an_update_that_computes_again_is_the_same_update(rank, with_critic):
    made = []
    for sparing in (False, True):
        model = build_model()
        given = {"memory": {"gradient_checkpointing": sparing}, "lora": rank}
        options = dataclasses.replace(OPTIONS, entropy_bonus=0.1, **given)
        if rank:
            pytest.importorskip("peft")
            from agl_torch.adapter import add_adapter

            torch.manual_seed(0)
            add_adapter(model, options.lora, "base")
        before = [one.clone() for one in model.parameters()]
        critic = Critic(build_model(seed=1), is_apart=True) if with_critic else None
        objective = dataclasses.replace(RULE, critic_learning_rate=1e-2)
        given = samples()
        for one in given:
            one.returns, one.values = [1.0], [0.0]
        learner = Learner(model, options, objective, critic=critic)
        learner.update(given)
        learner.update(given)
        for one, old in zip(model.parameters(), before, strict=True):
            assert torch.equal(one, old) != one.requires_grad
        made.append([*model.parameters(), *(critic.parameters() if critic else [])])
    for plain, sparing in zip(*made, strict=True):
        assert torch.allclose(plain, sparing, atol=1e-6)


def test_a_model_whose_layers_cannot_be_computed_again_is_refused():
    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

    options = dataclasses.replace(OPTIONS, memory={"gradient_checkpointing": True})
    with pytest.raises(ConfigError, match="gradient_checkpointing: Plain has no layers"):
        Learner(Plain(), options, RULE)


def test_in_16_bits_a_model_computes_in_them_and_its_weights_and_states_are_in_32():
    model = build_model()
    seen, layer = set(), model.model.layers[0].mlp.up_proj
    hook = layer.register_forward_hook(lambda layer, given, out: seen.add(out.dtype))
    before = layer.weight.clone()
    # A step of 1e-5 on weights of about 0.3 is none in 16 bits, whose next number is 1e-3 away.
    options = dataclasses.replace(OPTIONS, dtype="bfloat16", learning_rate=1e-5)
    learner = Learner(model, options, RULE)
    learner.update(samples())
    hook.remove()
    assert seen == {torch.bfloat16}
    assert layer.weight.dtype == torch.float32
    moved = (layer.weight - before).abs()
    assert 0 < moved.max() < 1e-4
    states = {one.dtype for state in learner.optimizer.state.values() for one in state.values()}
    assert states == {torch.float32}


def test_an_estimate_by_hand():
    model = build_model()
    # 2 layers of hidden 32, inner 64, 2 heads of 8 for keys and values; 15 words, 64 tokens.
    weights = 15 * 32 * 2 + 32 + 2 * (2 * 32 + 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64)
    assert sum(one.numel() for one in model.parameters()) == weights
    common = {"model": "none", "groups_per_step": 2, "group_size": 4}
    plain = estimate(agl.GRPO(**common), model)
    assert plain == {
        "weights": 4 * weights,
        "gradients and optimiser": 12 * weights,
        "copies": 0,
        "activations": 512 * 2 * (12 * 32 + 4 * 64) * 4,  # 8 rows of 64 tokens
        "logits": 12 * 512 * 15,
        "sampling": 1 * 64 * 2 * 2 * 2 * 8 * 4,
    }
    narrow = agl.GRPO(**common)
    narrow.optimizer = Optimizer(type="adamw_8bit")  # its constructor asks for torchao
    assert estimate(narrow, model) == {**plain, "gradients and optimiser": 6 * weights}
    options = {"kl": 0.1, "memory": {"microbatch_tokens": 100, "gradient_checkpointing": True}}
    options |= {"server": {"max_batch_size": 3, "max_model_tokens": 32}, "dtype": "bfloat16"}
    less = estimate(agl_torch.PPO(**common, **options), model)
    assert less == {
        "weights": 4 * weights,
        "gradients and optimiser": 24 * weights,
        "copies": 10 * weights,  # the start, the critic, and what samples in 16 bits
        "activations": 2 * (100 * 640 * 2 + 100 * 32 * 2 * 2 + 2 * weights),
        "logits": 12 * 100 * 15,
        "sampling": 3 * 32 * 2 * 2 * 2 * 8 * 2,
    }
    slim = estimate(agl.GRPO(**common, **options, lora=2), model)
    assert slim["weights"] == 2 * weights
    assert slim["copies"] == 0
    adapter = 2 * 2 * (11 * 32 + 3 * 64)
    assert slim["gradients and optimiser"] == 12 * adapter
    # A critic that is a copy is one of the adapter; another model is trained as a whole.
    slim = estimate(agl_torch.PPO(**common, **options, lora=2), model)
    assert slim["gradients and optimiser"] == 12 * 2 * adapter
    assert slim["copies"] == 4 * adapter
    other = agl_torch.PPO(**common, **options, lora=2, critic="other")
    slim = estimate(other, model, build_model())
    assert slim["gradients and optimiser"] == 12 * (adapter + weights)
    assert slim["copies"] == 4 * weights
    # Over an adapter the start is no copy, and what is sampled from is one of the adapter.
    options["max_staleness"] = 1
    slim = estimate(agl.GRPO(**common, **options, lora=2), model)
    assert slim["copies"] == 4 * adapter
    decided = estimate(agl.GRPO(**common, entropy_bonus=0.1), model)
    assert decided == {**plain, "logits": 20 * 512 * 15}
    taught = agl_torch.Distillation(**common, teacher="other", dtype="bfloat16")
    size = memory.Size.of
    made = memory.estimate(taught, size(model), teacher=size(build_model()))
    assert made["copies"] == 4 * weights


@pytest.mark.parametrize("sparing", [False, True])
def test_activations_are_estimated_about_as_large_as_they_are(sparing):
    model = build_model()
    tokens = LONG.shape[1]
    _, kept = kept_bytes(model, *([checkpoint_layers(model)] if sparing else []))
    memory = {"microbatch_tokens": tokens, "gradient_checkpointing": sparing}
    options = agl.GRPO(model="none", memory=memory)
    parts = estimate(options, model)
    said = parts["activations"]
    if sparing:  # one layer is computed again when the pass has ended
        said -= tokens * (12 * 32 + 4 * 64) * 4
    assert 0.6 < (said + parts["logits"]) / kept < 1.7


def test_what_does_not_fit_is_refused_before_it_is_loaded(tmp_path, monkeypatch):
    build_model().save_pretrained(tmp_path)
    options = agl.GRPO(model=str(tmp_path), kl=0.1)
    check_memory(options, str(tmp_path), "cpu")
    needed = estimate(options, build_model())
    sum_of = sum(needed.values()) - needed["sampling"]
    monkeypatch.setattr("agl_torch.memory.free_memory", lambda: int(sum_of) + 1)
    check_memory(options, str(tmp_path), "cpu")
    monkeypatch.setattr("agl_torch.memory.free_memory", lambda: int(sum_of) - 1)
    words = r"needs about 0\.\d\d GiB of cpu \(weights 0\.\d\d.*Lower memory.*lora"
    with pytest.raises(ConfigError, match=words):
        check_memory(options, str(tmp_path), "cpu")
    check_memory(options, build_model(), "cpu")  # it is there already
    check_memory(options, "nowhere", "mps")
    (tmp_path / "model.safetensors").unlink()  # nothing reads it
    with pytest.raises(ConfigError, match="this run needs about"):
        options.load(None, tmp_path / "run")
    options.memory = Memory(check=False)
    with pytest.raises(ConfigError, match="cannot load the model"):
        options.load(None, tmp_path / "run")
    # Nor is a teacher that does not fit beside it.
    monkeypatch.setattr("agl_torch.memory.free_memory", lambda: 1)
    build_model().save_pretrained(tmp_path)
    taught = agl_torch.Distillation(model=str(tmp_path), teacher=lambda: pytest.fail("loaded"))
    with pytest.raises(ConfigError, match="this run needs about"):
        taught.load(None, tmp_path / "run")


def least(monkeypatch, options, model):
    """Bytes that must be free for a run."""
    low, high = 0, 2**40
    while high - low > 1:
        middle = (low + high) // 2
        monkeypatch.setattr("agl_torch.memory.free_memory", lambda middle=middle: middle)
        try:
            check_memory(options, model, "cpu")
            high = middle
        except ConfigError:
            low = middle
    return high


def test_what_must_be_free_is_what_is_not_there_yet(tmp_path, monkeypatch):
    model = build_model()
    model.save_pretrained(tmp_path)
    weights = sum(one.numel() for one in model.parameters())
    name = str(tmp_path)

    def needed(made, source=name, **options):
        return least(monkeypatch, made(model=source, **options), source)

    parts = estimate(agl.GRPO(model=name), model)
    update = parts["activations"] + parts["logits"]
    plain = needed(agl.GRPO)
    assert plain == 16 * weights + max(update, parts["sampling"])
    # Who samples while it is trained needs room for both, and for a copy.
    assert needed(agl.GRPO, max_staleness=1) == plain + 4 * weights + parts["sampling"]
    # A model that is there takes no more.
    assert needed(agl.GRPO, model) == plain - 4 * weights
    own = needed(agl_torch.PPO, critic=name)
    assert own == plain + 16 * weights + parts["activations"]
    assert needed(agl_torch.PPO, critic=build_model()) == own - 4 * weights
    small = {"lora": 2}
    assert needed(agl_torch.PPO, critic=name, **small) > 16 * weights + needed(agl.GRPO, **small)
    assert needed(agl_torch.Distillation, teacher=name) == plain + 4 * weights
    assert needed(agl_torch.Distillation, teacher=build_model()) == plain


def test_freed_memory_goes_back_though_what_stays_lies_behind_it():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    kept = [torch.ones(16_000) for _ in range(1_000)][::100]  # too small to be mapped by themselves
    before = resident()
    return_free_memory()
    assert resident() < before - 30e6
    assert len(kept) == 10


@pytest.fixture
def none_frozen():
    gc.unfreeze()
    have_others_frozen.cache_clear()
    yield
    have_others_frozen.cache_clear()
    gc.freeze()


def test_what_a_block_without_collections_made_is_old_and_can_still_be_collected(none_frozen):
    with without_collections():
        assert not gc.isenabled()
        made = [[number] for number in range(5_000)]
    assert not any(made is each for each in gc.get_objects(generation=0))
    assert any(made is each for each in gc.get_objects(generation=2))
    assert gc.get_freeze_count() == 0
    assert gc.isenabled()


def test_a_process_that_does_without_collections_goes_on_doing_so():
    gc.disable()
    try:
        with without_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
