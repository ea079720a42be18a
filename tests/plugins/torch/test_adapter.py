"""Adapters: what is trained, what a checkpoint has, and what can be made of it."""

import errno
import json
import random
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import agl
import agl_torch
from agl.errors import ConfigError
from agl_learning.run.checkpoint import find_checkpoint
from agl_torch import options as torch_options
from agl_torch.adapter import add_adapter, copy_trained, load_merged, merge, refresh, share_weights
from agl_torch.generate import Sampler
from agl_torch.learner import Learner
from agl_torch.models import load_model, load_shape
from agl_torch.options import LearnerOptions

from .conftest import build_model
from .test_grpo import metrics, says_red
from .test_learner import RULE, samples

peft = pytest.importorskip("peft")

IDS = torch.tensor([[1, 4, 3, 2]])
OPTIONS = LearnerOptions(lora={"rank": 2, "alpha": 6.0}, learning_rate=0.05)


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


def test_small_steps_reach_a_copy_of_16_bits_and_it_is_the_same_each_time():
    model = build_model()
    weight = model.get_input_embeddings().weight
    copied = copy_trained(model, "bfloat16")
    weight.data += 0.02 * weight.data.abs() * torch.finfo(torch.bfloat16).eps
    made = []
    for _ in range(2):
        refresh(copied, model, seed=0)
        made.append(copied.get_input_embeddings().weight.data.float().clone())
    assert made[0].equal(made[1])
    assert not made[0].equal(weight.data.bfloat16().float())
    assert (made[0] - weight.data).mean().abs() < (made[0] - weight.data).abs().mean() / 5


def adapted(options=OPTIONS):
    model = build_model()
    add_adapter(model, options.lora, "base")
    return model


def test_an_adapter_begins_as_the_model_and_adds_what_its_formula_says():
    model, start = adapted(), build_model()
    assert torch.equal(logits(model), logits(start))
    layer = model.model.layers[0].mlp.up_proj
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    assert (a.shape, b.shape) == ((2, 32), (64, 2))
    with torch.no_grad():
        b.normal_()
    weight = start.model.layers[0].mlp.up_proj.weight
    x = torch.randn(3, 32)
    # alpha / rank is 6 / 2.
    assert torch.allclose(layer(x), x @ (weight + 3 * b @ a).T, atol=1e-5)


def test_all_linear_layers_get_one_but_the_output_layer_or_those_that_are_named():
    named = adapted(LearnerOptions(lora={"rank": 2, "modules": ["q_proj", "v_proj"]}))
    of = [name for name, one in named.named_parameters() if one.requires_grad]
    assert len(of) == 2 * 2 * 2
    assert all(".q_proj." in name or ".v_proj." in name for name in of)
    everywhere = [name for name, one in adapted().named_parameters() if one.requires_grad]
    assert len(everywhere) == 2 * 7 * 2
    assert not any("lm_head" in name for name in everywhere)
    with pytest.raises(ConfigError, match=r"lora.modules: .*attention"):
        adapted(LearnerOptions(lora={"rank": 2, "modules": ["attention"]}))


def test_only_the_adapter_is_trained_and_has_a_state():
    model = adapted()
    before = {name: one.clone() for name, one in model.named_parameters()}
    learner = Learner(model, OPTIONS, RULE)
    learner.update(samples())
    learner.update(samples())
    for name, one in model.named_parameters():
        assert torch.equal(one, before[name]) == ("lora" not in name), name
    assert len(learner.optimizer.state) == 2 * 7 * 2


def test_the_model_without_its_adapter_shares_all_of_its_weights():
    model = build_model()
    start = share_weights(model)
    add_adapter(model, OPTIONS.lora, "base")
    Learner(model, OPTIONS, RULE, reference=start).update(samples())
    assert torch.equal(logits(start), logits(build_model()))
    assert not torch.equal(logits(start), logits(model))
    weights = {one.data_ptr() for one in model.parameters()}
    assert all(one.data_ptr() in weights for one in start.parameters())
    copied = copy_trained(model)
    own = [name for name, one in copied.named_parameters() if one.data_ptr() not in weights]
    assert len(own) == 2 * 7 * 2
    assert all("lora" in name for name in own)


def test_an_adapter_is_float32_over_weights_in_16_bits():
    model = build_model().to(torch.bfloat16)
    add_adapter(model, OPTIONS.lora, "base")
    options = LearnerOptions(lora=2, dtype="bfloat16", learning_rate=0.05)
    measured = Learner(model, options, RULE).update(samples())
    assert measured["grad_norm"] > 0
    types = {one.dtype for one in model.parameters() if one.requires_grad}
    assert types == {torch.float32}
    assert model.model.layers[0].mlp.up_proj.weight.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("package", "extra", "option"),
    [("peft", "lora", {"lora": 8}), ("torchao", "8bit", {"optimizer": "adamw_8bit"})],
)
def test_without_a_package_it_says_what_to_install(monkeypatch, package, extra, option):
    monkeypatch.setattr(torch_options, "find_spec", lambda name: None)
    words = rf"needs '{package}', which is not installed.*\[{extra}\]"
    with pytest.raises(ConfigError, match=words):
        agl.GRPO(model="none", **option)


async def trained(line, grpo, **options):
    defaults = {"lora": 4, "checkpoints": 1, "epochs": 2, "learning_rate": 0.05}
    return await line(says_red, grpo(**{**defaults, **options}), ["one", "two", "three"])


@pytest.mark.parametrize("made", [agl.GRPO, agl_torch.PPO])
async def test_a_run_with_an_adapter_learns_keeps_it_small_and_goes_on(line, grpo, tmp_path, made):
    penalty = {"kl": 0.001, "made": made}
    await trained(line, grpo, steps=2, **penalty)
    first = find_checkpoint(tmp_path / "run")
    assert not (first / "model.safetensors").exists()
    saved = json.loads((first / "adapter_config.json").read_text())
    assert saved["base_model_name_or_path"] == str(tmp_path / "run/reference")
    again = await trained(line, grpo, steps=8, resume_from=str(tmp_path / "run"), **penalty)
    rewards = again.summary["rewards"]
    assert len(rewards) == 8
    assert made is agl_torch.PPO or sum(rewards[-2:]) / 2 > sum(rewards[:2]) / 2 + 0.2
    steps = metrics(tmp_path, "logprob_gap")
    assert max(step["logprob_gap"] for step in steps) < 1e-4
    assert steps[-1]["kl"] > 1e-5 if made is agl.GRPO else "loss/value" in steps[-1]


@pytest.mark.parametrize("lora_rank", [2, 8, 16])
def test_answers_over_an_adapter_do_not_depend_on_others(tokenizer, lora_rank):
    torch.use_deterministic_algorithms(True)
    try:
        model = adapted(LearnerOptions(lora=lora_rank))
        for name, one in model.named_parameters():
            if "lora_B" in name:
                one.data.normal_(std=0.1)
        Sampler(share_weights(model), tokenizer, 0, "float32", 16).check_batches(16)
    finally:
        torch.use_deterministic_algorithms(False)


def check_damage_is_refused(checkpoint, folder):
    file, about = "adapter_model.safetensors", "adapter_config.json"
    shutil.copytree(checkpoint, folder)
    tensors, described = load_file(folder / file), json.loads((folder / about).read_text())
    for changed in (
        dict(list(tensors.items())[2:]),
        {f"other.{name}": value for name, value in tensors.items()},
        {name: value[:1] for name, value in tensors.items()},
    ):
        save_file({name: value.contiguous() for name, value in changed.items()}, folder / file)
        with pytest.raises(ConfigError, match="is damaged, or for another model"):
            load_model(folder, "cpu", "float32")
    (folder / file).write_bytes((checkpoint / file).read_bytes()[:100])
    with pytest.raises(ConfigError, match="cannot be read"):
        load_model(folder, "cpu", "float32")
    for base in ({}, {"base_model_name_or_path": None}):
        kept = {k: v for k, v in described.items() if k != "base_model_name_or_path"}
        (folder / about).write_text(json.dumps({**kept, **base}))
        with pytest.raises(ConfigError, match="does not say which model"):
            load_model(folder, "cpu", "float32")


async def test_a_checkpoint_is_served_and_begun_from_as_a_whole_model(line, grpo, tmp_path):
    run = await trained(line, grpo)
    last = find_checkpoint(tmp_path / "run")
    expected = logits(run._learner.model)
    assert not torch.allclose(expected, logits(build_model()), atol=1e-2)
    merged = load_model(last, "cpu", "float32")
    assert torch.allclose(logits(merged), expected, atol=1e-4)
    assert all(one.requires_grad for one in merged.parameters())
    assert len([*merged.parameters()]) == len([*build_model().parameters()])
    run._write_served(tmp_path / "served")  # for servers that read whole models, in 16 bits
    served = type(build_model()).from_pretrained(tmp_path / "served")
    assert {one.dtype for one in served.parameters()} == {torch.bfloat16}
    run.dtype = "float32"
    run._write_served(tmp_path / "served")
    served = type(build_model()).from_pretrained(tmp_path / "served")
    assert torch.allclose(logits(served), expected, atol=1e-4)
    assert torch.equal(logits(run._learner.model), expected)
    check_damage_is_refused(last, tmp_path / "damaged")
    moved = tmp_path / "elsewhere"
    (tmp_path / "run").rename(moved)
    found = load_merged(moved / "checkpoints" / last.name, torch.float32)
    assert torch.allclose(logits(found), expected, atol=1e-4)


async def test_a_command_writes_the_whole_model(line, grpo, tmp_path, monkeypatch):
    from click.testing import CliRunner

    from agl_torch.merging import command

    run = await trained(line, grpo, steps=1)
    last = find_checkpoint(tmp_path / "run")
    done = CliRunner().invoke(command, [str(last), str(tmp_path / "whole")])
    assert done.exit_code == 0, done.output
    assert not (tmp_path / "whole/adapter_config.json").exists()
    whole = type(build_model()).from_pretrained(tmp_path / "whole")
    assert torch.allclose(logits(whole), logits(run._learner.model), atol=1e-4)
    whole, third = tmp_path / "whole", tmp_path / "third"
    done = CliRunner().invoke(command, [str(whole), str(third)])
    assert (done.exit_code, third.exists()) == (0, False)
    assert "is whole already; serve it as it is" in " ".join(done.stderr.split())
    done = CliRunner().invoke(command, [str(whole), str(third), "--dtype", "bfloat16"])
    assert load_model(third, "cpu", "auto").dtype == torch.bfloat16, done.output
    (tmp_path / "only/a").mkdir(parents=True)
    shutil.copy(whole / "config.json", tmp_path / "only")  # as a full disk left it
    (tmp_path / "only/link").symlink_to("nowhere")
    (tmp_path / "a file").touch()
    for source, target, message in (
        (tmp_path / "only", "new", "it has neither config.json with weights"),
        *((last, name, "is there already") for name in ("whole", "a file")),
        (last, "a file/new", "cannot write to .*a file"),
    ):
        refused = CliRunner().invoke(command, [str(source), str(tmp_path / target)])
        assert re.search(message, str(refused.exception)), message
    monkeypatch.setattr("agl_torch.checkpoint.save_model", fill_disk)
    refused = CliRunner().invoke(command, [str(last), str(tmp_path / "new")])
    assert "No space left" in str(refused.exception)
    assert not (tmp_path / "new").exists()


def fill_disk(model, folder, dtype):
    model.config.save_pretrained(folder)
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora": 2}, "an adapter of another form"),
        ({"lora": {"rank": 4, "alpha": 1.0}}, "an adapter of another form"),
        ({"lora": {"rank": 4, "modules": ["q_proj"]}}, "an adapter of another form"),
        ({"model": lambda: build_model(seed=5)}, None),  # it has what it began with
    ],
)
async def test_a_run_goes_on_with_the_adapter_that_it_had(line, grpo, tmp_path, options, message):
    await trained(line, grpo, steps=1)
    origin = {"steps": 2, "resume_from": str(tmp_path / "run"), "run_dir": str(tmp_path / "other")}
    if message is None:
        assert (await trained(line, grpo, **origin, **options)).summary["steps"] == 2
        return
    with pytest.raises(ConfigError, match=message):
        await trained(line, grpo, **origin, **options)


async def test_an_adapter_on_a_named_model_is_never_put_on_another(line, grpo, tokenizer, tmp_path):
    folder = tmp_path / "base"
    build_model().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    await trained(line, grpo, steps=1, model=str(folder))
    assert not (tmp_path / "run/reference").exists()  # it is where it was
    last = find_checkpoint(tmp_path / "run")
    saved = json.loads((last / "adapter_config.json").read_text())
    assert saved["base_model_name_or_path"] == str(folder)
    origin = {"steps": 2, "resume_from": str(last), "model": str(folder)}
    await trained(line, grpo, **origin)
    build_model(seed=7).save_pretrained(folder)
    with pytest.raises(ConfigError, match="an adapter for other weights"):
        await trained(line, grpo, **{**origin, "steps": 3})
    with pytest.raises(ConfigError, match="an adapter for other weights"):
        load_model(last, "cpu", "float32")
    build_model().to(torch.bfloat16).save_pretrained(folder)
    for dtype in ("float32", "float16"):  # rounded, they are the same
        assert load_model(last, "cpu", dtype).dtype == getattr(torch, dtype)
    shutil.rmtree(folder)
    with pytest.raises(ConfigError, match=r"base', which is not there.*Put it back"):
        load_model(last, "cpu", "float32")


@pytest.mark.parametrize("content", [bytes, random.Random(0).randbytes])
async def test_what_is_damaged_at_its_right_size_is_named(line, grpo, tmp_path, content):
    for options, names in (
        ({}, ("learner.pt", "adapter_model.safetensors", "adapter_config.json")),
        ({"lora": None}, ("learner.pt", "model.safetensors", "tokenizer.json")),
    ):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        await trained(line, grpo, steps=1, **options)
        last = find_checkpoint(tmp_path / "run")
        for name in names:
            whole = (last / name).read_bytes()
            (last / name).write_bytes(content(len(whole)))
            about = f"(cannot load .*|{name} of .*|the adapter in .*)step-000001"
            named = f"{about}|step-000001/{name}' cannot be read"
            with pytest.raises(ConfigError, match=named):
                await trained(line, grpo, steps=2, resume_from=str(last), **options)
            (last / name).write_bytes(whole)


def test_an_adapter_may_be_built_on_another(tokenizer, tmp_path, recwarn):
    build_model().save_pretrained(tmp_path / "base")
    model, options = build_model(), LearnerOptions(lora=2)
    for name, below in (("first", "base"), ("second", "first")):
        torch.manual_seed(len(name))
        add_adapter(model, options.lora, tmp_path / below)
        for part, one in model.named_parameters():
            if "lora_B" in part:
                one.data.normal_(std=0.1)
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        merge(model)
    first, second = (load_model(tmp_path / name, "cpu", "float32") for name in ("first", "second"))
    assert torch.allclose(logits(second), logits(model), atol=1e-5)
    assert not torch.allclose(logits(second), logits(first), atol=1e-2)
    assert not torch.allclose(logits(first), logits(build_model()), atol=1e-2)
    counts = [sum(one.numel() for one in made.parameters()) for made in (model, build_model())]
    assert sum(one.numel() for one in load_shape(tmp_path / "second").parameters()) == counts[0]
    assert counts[0] == counts[1]
    assert not [one for one in recwarn if "adapters" in str(one.message)]
    described = json.loads((tmp_path / "first/adapter_config.json").read_text())
    described["base_model_name_or_path"] = str(tmp_path / "second")
    (tmp_path / "first/adapter_config.json").write_text(json.dumps(described))
    with pytest.raises(ConfigError, match="second' holds an adapter that is said to be built on i"):
        load_shape(tmp_path / "second")


async def test_a_run_goes_on_whose_model_is_an_adapter(line, grpo, tmp_path):
    first = await trained(line, grpo, steps=1)
    start = str(find_checkpoint(tmp_path / "run"))
    options = {"model": start, "tokenizer": None, "run_dir": str(tmp_path / "other")}
    second = await trained(line, grpo, steps=1, **options)
    saved = find_checkpoint(tmp_path / "other")
    about = json.loads((saved / "adapter_config.json").read_text())
    assert about["base_model_name_or_path"] == start
    expected = logits(second._learner.model)
    assert not torch.allclose(expected, logits(first._learner.model), atol=1e-3)
    assert torch.allclose(logits(load_model(saved, "cpu", "float32")), expected, atol=1e-4)
    on = {"steps": 2, "resume_from": str(tmp_path / "other")}
    assert (await trained(line, grpo, **{**options, **on})).summary["steps"] == 2


async def test_a_whole_checkpoint_and_an_adapter_do_not_go_on_as_each_other(line, grpo, tmp_path):
    await trained(line, grpo, steps=1, lora=None, kl=0.1)
    options = {"steps": 2, "resume_from": str(tmp_path / "run"), "run_dir": str(tmp_path / "other")}
    with pytest.raises(ConfigError, match="has a whole model and no adapter"):
        await trained(line, grpo, **options)
    shutil.rmtree(tmp_path / "run")
    await trained(line, grpo, steps=1)
    with pytest.raises(ConfigError, match="has an adapter; give lora"):
        await trained(line, grpo, lora=None, **options)
