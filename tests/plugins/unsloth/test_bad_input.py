"""What cannot work is refused before anything is started, with what to do about it."""

import importlib.util
import json
import shutil
import struct
import sys

import pytest

import agl
import agl_unsloth
from agl.errors import AlgorithmError, ConfigError, install_line
from agl_http.server import bind
from agl_models.versions import Version
from agl_unsloth.engines import LIBRARIES, choose_engine
from agl_unsloth.local import adapter_of, begin_from
from agl_unsloth.models import (
    GIB,
    Machine,
    Size,
    check_folder,
    check_memory,
    estimate,
    find_machine,
    size_of,
)
from agl_unsloth.options import TrainingOptions
from agl_unsloth.servers import Server, choose_server, serve


@pytest.fixture
def model(tmp_path):
    """A folder that looks like a model, with weights of 6 numbers."""
    folder = tmp_path / "model"
    folder.mkdir()
    config = {"num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 10}
    (folder / "config.json").write_text(json.dumps(config))
    header = json.dumps({"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(24))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    return folder


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "no config.json"),
        ("model.safetensors", "no weights"),
        ("tokenizer.json", r"no tokenizer .*tokenizer.save_pretrained\(folder\)"),
        ("tokenizer_config.json", "no chat template"),
    ],
)
def test_a_folder_that_is_no_whole_model_is_refused(model, missing, message):
    check_folder(model)
    (model / missing).unlink()
    with pytest.raises(ConfigError, match=message):
        check_folder(model)


GIVEN = {
    **{"learning_rate": 1e-4, "epochs": 1, "batch_size": 2, "gradient_accumulation": 1},
    **{"lora_rank": 0, "lora_alpha": 1, "lora_targets": None, "load_in_4bit": False},
    **{"max_length": 1024, "weights": "bfloat16", "seed": 0, "torch_threads": None},
}


def options(**given):
    return TrainingOptions(**{**GIVEN, "deterministic": False, **given})


def test_the_size_is_read_from_the_header_of_the_weights(model):
    assert size_of(model) == Size(parameters=6, layers=2, hidden=8, vocabulary=10)


def test_memory_is_estimated_and_too_little_is_refused_with_the_parts():
    billion = Size(parameters=4_000_000_000, layers=36, hidden=2560, vocabulary=150_000)
    card = Machine("the GPU", 24 * GIB, True)
    with pytest.raises(ConfigError, match=r"needs about 6\d\.\d\d GiB .*the GPU has 24.00 GiB"):
        check_memory(billion, options(), card, pairs=False)
    check_memory(billion, options(lora_rank=32, load_in_4bit=True), card, pairs=False)
    full, pairs = (estimate(billion, options(), is_gpu=True, pairs=p) for p in (False, True))
    assert pairs["weights"] == 2 * full["weights"]
    assert pairs["logits"] == 2 * full["logits"]
    assert find_machine().bytes > 0


def ready(algorithm):
    algorithm.set_store(agl.InMemoryLightningStore())
    algorithm.set_llm_proxy(agl.LLMProxy())
    algorithm.set_adapter(agl.TraceToRows())
    return algorithm


def sft(model, tmp_path, **given):
    given = {"engine": "trl", "server": "torch", "run_dir": str(tmp_path / "run"), **given}
    return ready(agl_unsloth.SFT(str(model), **given))


@pytest.mark.parametrize(
    ("kind", "given", "rate"),
    [
        (agl_unsloth.SFT, {}, 2e-4),
        (agl_unsloth.SFT, {"lora": None}, 2e-5),
        (agl_unsloth.DPO, {}, 5e-5),
        (agl_unsloth.DPO, {"lora": None}, 5e-6),
        (agl_unsloth.DPO, {"lora": None, "learning_rate": 1e-3}, 1e-3),
    ],
)
def test_an_adapter_learns_ten_times_as_fast_as_all_weights(model, kind, given, rate):
    assert kind(str(model), **given).training_options(1).learning_rate == pytest.approx(rate)


def test_alpha_is_twice_the_rank_unless_given(model):
    given = [agl_unsloth.SFT(str(model), lora=one) for one in (8, {"rank": 8, "alpha": 8})]
    assert [one.training_options(1).lora_alpha for one in given] == [16, 8]


def test_a_training_begins_from_the_state_only_where_its_adapter_is_the_same(tmp_path, caplog):
    assert begin_from(Version(0, str(tmp_path)), options()) == (str(tmp_path), None)
    (tmp_path / "state").mkdir()
    made = {"model": "start", **adapter_of(options(lora_rank=8))}
    (tmp_path / "state" / "made.json").write_text(json.dumps(made))
    version = Version(1, str(tmp_path))
    assert begin_from(version, options(lora_rank=8)) == ("start", str(tmp_path / "state"))
    # Another run takes a version as the model to begin with.
    assert begin_from(Version(0, str(tmp_path)), options(lora_rank=8)) == (str(tmp_path), None)
    assert "other options" not in caplog.text
    assert begin_from(version, options(lora_rank=16)) == (str(tmp_path), None)
    assert "version 1 was trained with other options of the adapter" in caplog.text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"iterations": 0}, "iterations must be at least 1"),
        ({"engine": "jax"}, "expected auto, unsloth or trl"),
        ({"weights": "float32"}, "expected bfloat16 or float16"),
        ({"server": 3}, "server.type must be a string; got 3"),
        ({"load_in_4bit": True, "lora": None}, "load_in_4bit needs an adapter"),
    ],
)
def test_options_that_cannot_work_are_refused_at_once(model, tmp_path, given, message):
    with pytest.raises(ConfigError, match=message):
        sft(model, tmp_path, **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [({"pairing": "none"}, "matched, best or all"), ({"rollouts_per_task": 1}, "no sibling")],
)
def test_pairs_that_cannot_be_are_refused_at_once(given, message):
    with pytest.raises(ConfigError, match=message):
        agl_unsloth.DPO("model", **given)


ADDRESS = {"server": "http://127.0.0.1:1/v1"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({**ADDRESS, "iterations": 1, "deterministic": True}, "=True needs server 'torch'"),
        (ADDRESS, "will not know of new versions. Give a server.reload_command"),
        ({"server": "tgi"}, "expected auto, vllm, torch, or an address"),
        ({"server": {"reload_command": ["x"]}}, "is started anew for every version"),
        ({"python": "/no/such/python"}, "cannot be run"),
        ({"python": sys.base_prefix + "/bin/python3"}, "agl-unsloth itself is not installed in"),
    ],
)
async def test_what_the_machine_cannot_do_is_refused_at_the_start(model, tmp_path, given, message):
    pytest.importorskip("agl_torch")
    algorithm = sft(model, tmp_path, **given)
    with pytest.raises(ConfigError, match=message):
        await algorithm.run(["task"])
    assert not (await algorithm.get_store().query_rollouts()).items


async def test_no_tokenizer_too_little_memory_or_a_port_in_use(model, tmp_path, monkeypatch):
    pytest.importorskip("agl_torch")
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use"):
            await sft(model, tmp_path, server={"type": "torch", "port": port}).run(["task"])
    small = Machine("this machine", 1000, False)
    monkeypatch.setattr("agl_unsloth.local.find_machine", lambda: small)
    with pytest.raises(ConfigError, match=r"this machine has 0\.00 GiB"):
        await sft(model, tmp_path).run(["task"])
    (model / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match="there is no tokenizer"):
        await sft(model, tmp_path).run(["task"])


async def test_an_engine_that_is_not_there_is_told_with_the_reason():
    if importlib.util.find_spec("unsloth") is None:
        with pytest.raises(ConfigError, match="engine 'unsloth' cannot be used: it is not inst"):
            await choose_engine("unsloth", None, lora=False, four_bit=False)
    pytest.importorskip("trl")
    chosen = await choose_engine("trl", None, lora=False, four_bit=False)
    assert chosen == "trl"


@pytest.mark.parametrize(
    ("missing", "lines"),
    [
        (("trl", "peft"), [install_line("agl-unsloth[trl]")]),
        (("bitsandbytes",), ["pip install bitsandbytes"]),
        (("torch", "bitsandbytes"), [install_line("agl-unsloth[trl]"), "pip install bitsandbytes"]),
    ],
)
async def test_what_an_engine_lacks_is_told_with_the_line_that_brings_it(tmp_path, missing, lines):
    python = tmp_path / "python"
    has = json.dumps({name: name not in missing for name in LIBRARIES})
    python.write_text(f"#!/bin/sh\necho '{has}'\n")
    python.chmod(0o755)
    with pytest.raises(ConfigError) as caught:
        await choose_engine("trl", str(python), lora=True, four_bit=True)
    assert all(f"'{name}'" in str(caught.value) for name in missing)
    assert str(caught.value).endswith(f"Run: {' && '.join(lines)}")


def test_vllm_is_refused_where_it_is_not_installed():
    if shutil.which("vllm"):
        pytest.skip("vllm is here")
    with pytest.raises(ConfigError, match="vllm is not installed here"):
        choose_server("vllm")


async def test_a_server_that_dies_is_told_with_the_end_of_its_log(model, tmp_path):
    pytest.importorskip("agl_torch")
    given = Server(type="torch", arguments=["--no-such-option"])
    with pytest.raises(AlgorithmError, match=r"(?s)ended with exit code 2.*no-such-option"):
        async with serve(Version(0, str(model)), given, tmp_path / "logs" / "server.log"):
            pass
