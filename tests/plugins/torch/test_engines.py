"""Training with vLLM or SGLang as the server; here ours behind their commands and requests."""

import os
import re
from pathlib import Path

import pytest
from tests import fork_server

from agl.errors import AlgorithmError, ConfigError
from agl_models.processes.engines import EngineServer
from agl_torch.checkpoint import save_model
from agl_torch.memory import check_memory

from .conftest import build_model
from .test_grpo import metrics, says_red

FAKE = Path(__file__).with_name("other_engine.py")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Puts a program or a module of this name where it is looked for."""

    def install(name: str) -> None:
        place = tmp_path / "installed"
        if name == "vllm":
            place.mkdir()
            fork_server.program(place / "vllm", FAKE)
            monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
        else:
            (place / "sglang").mkdir(parents=True)
            (place / "sglang/__init__.py").touch()
            launch = fork_server.program(place / "launch", FAKE)
            code = f"import os, sys\nos.execv({str(launch)!r}, sys.argv)\n"
            (place / "sglang/launch_server.py").write_text(code)
            monkeypatch.setenv("PYTHONPATH", f"{place}:{os.environ.get('PYTHONPATH', '')}")
            monkeypatch.syspath_prepend(place)

    return install


TOLD = {
    "vllm": """\
pause {"mode": "wait"}
sleep {"level": "2"}
wake_up {"tags": "weights"}
collective_rpc {"method": "reload_weights"}
wake_up {"tags": "kv_cache"}
resume {}""".splitlines(),
    "sglang": """\
pause_generation {"mode": "abort"}
release_memory_occupation {}
resume_memory_occupation {"tags": ["weights"]}
update_weights_from_disk {"model_path": "SERVING"}
resume_memory_occupation {"tags": ["kv_cache"]}
continue_generation {}""".splitlines(),
}
COMMANDS = {
    "vllm": ["--max-model-len 48", "--max-num-seqs 7", "--logprobs-mode processed_logprobs"],
    "sglang": ["--context-length 48", "--max-running-requests 7"],
}
WHOLE_SOFTMAX = {"vllm": "--generation-config vllm", "sglang": "--sampling-defaults openai"}
"""Else what a request leaves open is as the maker of the model wrote beside the weights."""
MEMORY = {"vllm": "--enable-sleep-mode", "sglang": "--enable-memory-saver"}


@pytest.fixture
def engine(tmp_path, tokenizer):
    """Makes a server that gets a model of ours."""

    def build(name, **options):
        def write(folder):
            save_model(build_model(), folder)
            tokenizer.save_pretrained(folder)

        places = (tmp_path / "serving", tmp_path / "log")
        return EngineServer(name, *places, write, (), 60, {}, **{"shares_gpu": True, **options})

    return build


@pytest.mark.parametrize("server", ["vllm", "sglang"])
async def test_a_server_answers_with_each_updates_weights(line, grpo, tmp_path, installed, server):
    installed(server)
    of_server = {"type": server, "max_batch_size": 7, "arguments": ["--more", "1"]}
    options = {"server": {**of_server, "max_model_tokens": 48}}
    dtype, gap = ("float32", 1e-4) if server == "sglang" else ("bfloat16", 0.05)
    if dtype == "float32":
        options["dtype"] = dtype  # servers have 16 bits unless told
    algorithm = grpo(steps=4, epochs=2, **options)
    await line(says_red, algorithm, ["one", "two", "three"])
    steps = metrics(tmp_path, "loss/policy")
    assert len(steps) > 1
    # Its log-probabilities are those of the weights before each update: it has read them all.
    assert max(step["logprob_gap"] for step in steps) < gap
    assert steps[0]["grad_norm"] > 0
    folder = tmp_path / "run"
    told = [one for one in TOLD[server] if not re.match("sleep|wake|.*memory", one)]
    told = [one.replace("SERVING", str(folder / "serving")) for one in told]
    assert (folder / "told").read_text().splitlines() == told * len(steps)
    command = (folder / "command").read_text()
    assert all(part in command for part in [*COMMANDS[server], f"--dtype {dtype}", "--more 1"])
    assert WHOLE_SOFTMAX[server] in command
    assert MEMORY[server] not in command  # without a GPU, vLLM does not start with it


@pytest.mark.parametrize("server", ["vllm", "sglang"])
async def test_on_one_gpu_it_gives_its_memory_back(engine, installed, tmp_path, server):
    installed(server)
    made = engine(server)
    async with made.serving():
        with made.updating():
            pass
    told = [one.replace("SERVING", str(tmp_path / "serving")) for one in TOLD[server]]
    assert (tmp_path / "told").read_text().splitlines() == told
    assert MEMORY[server] in (tmp_path / "command").read_text()


async def test_vllm_gets_the_adapter_alone(line, grpo, tmp_path, installed):
    installed("vllm")
    algorithm = grpo(steps=3, server="vllm", lora=2, dtype="float32", learning_rate=0.05)
    await line(says_red, algorithm, ["one", "two", "three"])
    assert max(step["logprob_gap"] for step in metrics(tmp_path, "loss/policy")) < 1e-4
    files = (tmp_path / "run" / "serving").glob("*.safetensors")
    assert [one.name for one in files] == ["adapter_model.safetensors"]
    assert "v1/load_lora_adapter" in (tmp_path / "run" / "told").read_text()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("broken", r"'vllm' failed at POST /collective_rpc.*cannot read"),
        # At the last call of the second step.
        ("dies at 32", r"'vllm' ended with exit code 9\b[^$]* run again"),
    ],
)
async def test_a_server_that_fails_ends_the_run(line, grpo, installed, monkeypatch, fault, message):
    installed("vllm")
    monkeypatch.setenv("ENGINE_FAKE", fault)
    with pytest.raises(AlgorithmError, match=message):
        await line(says_red, grpo(server="vllm", steps=3), ["one", "two", "three"])


async def test_an_error_of_training_is_seen_first(engine, installed, tmp_path, monkeypatch):
    installed("vllm")
    monkeypatch.setenv("ENGINE_FAKE", "broken")
    server = engine("vllm")
    async with server.serving():
        first = (tmp_path / "serving/model.safetensors").stat().st_mtime_ns
        with pytest.raises(FloatingPointError, match="in training"), server.updating():
            raise FloatingPointError("in training")
    # It is not given weights that are half trained.
    assert (tmp_path / "serving/model.safetensors").stat().st_mtime_ns == first
    assert not any("wake_up" in line for line in (tmp_path / "told").read_text().splitlines())


def test_what_a_server_takes_of_the_same_card_counts(grpo, installed, monkeypatch):
    installed("vllm")
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda where: (8e8, 1e9))
    options = {"server": {"type": "vllm", "arguments": ["--gpu-memory-utilization", "0.4"]}}
    check_memory(grpo(**options), build_model(), "cuda")
    options["server"]["arguments"] = ["--gpu-memory-utilization=0.85"]
    with pytest.raises(ConfigError, match=r"sampling 0\.79\b.*server.arguments"):
        check_memory(grpo(**options), build_model(), "cuda")
    options["server"]["arguments"] = ["--gpu-memory-utilization=high"]
    with pytest.raises(ConfigError, match="utilization is 'high'; expected the part of a card's"):
        check_memory(grpo(**options), build_model(), "cuda")
    with pytest.raises(ConfigError, match=r"sampling 0\.84\b"):  # its default is 0.9
        check_memory(grpo(server="vllm"), build_model(), "cuda:0")
    check_memory(grpo(server="vllm"), build_model(), "cuda:1")


def test_a_server_that_is_not_there_or_ignores_an_option_is_refused(grpo, installed, monkeypatch):
    with pytest.raises(ConfigError, match=r"'sglang' is not installed here\. Run: pip install"):
        grpo(server="sglang")
    installed("vllm")
    with pytest.raises(ConfigError, match="deterministic=True needs server 'torch'"):
        grpo(server="vllm", deterministic=True)
