"""Training with vLLM or SGLang as the server; here ours behind their commands and requests."""

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import aiohttp
import psutil
import pytest
from tests import fork_server
from tests.waiting import until

import agl
from agl.errors import AlgorithmError, ConfigError
from agl.semconv import ModelCallAttributes as Key
from agl_models.processes import engines, replicas
from agl_models.processes.engines import EngineServer
from agl_torch.checkpoint import save_model
from agl_torch.memory import check_memory

from .conftest import build_model
from .test_grpo import ask, metrics, says_red

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


# --- replicas


@pytest.fixture
def vllm_program(tmp_path, monkeypatch):
    """A vLLM that is stopped and killed itself, and no process that stands for one of its own."""
    (place := tmp_path / "installed").mkdir()
    (place / "vllm").write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    (place / "vllm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    monkeypatch.setattr(replicas, "FIRST_WAIT_SECONDS", 0.1)


def server_processes() -> list[psutil.Process]:
    """In the order of their start."""
    children = psutil.Process().children()
    guards = [one for one in children if one.status() != psutil.STATUS_ZOMBIE]
    found = [child for one in guards if "guard" in str(one.cmdline()) for child in one.children()]
    return sorted(found, key=lambda one: one.create_time())


async def kill(url: str) -> None:
    """Kill the server at this address, and return when it answers no more."""
    port = url.removesuffix("/v1").rpartition(":")[2]
    (process,) = [one for one in server_processes() if port in one.cmdline()]
    process.kill()
    while await said_by(url) is not None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def said_by(url: str) -> float | None:
    """The log-probability of a server's first token; None while it does not answer."""
    body = {"messages": [{"role": "user", "content": "one"}], "model": "policy"}
    body |= {"temperature": 0.0, "max_tokens": 1, "logprobs": True}
    try:
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{url}/chat/completions", json=body) as answer,
        ):
            (choice,) = (await answer.json())["choices"]
    except aiohttp.ClientError:
        return None
    return choice["logprobs"]["content"][0]["logprob"]


async def back_at(url: str) -> float:
    """The same of a server that is about to come back."""
    while (said := await said_by(url)) is None:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return said


def is_alone_with_calls(backends, calls) -> bool:
    """Whether one backend has all calls that are not done, and another has answered."""
    done, busy = sum(call.done() for call in calls), [one.in_flight for one in backends]
    return done > 0 and min(busy) == 0 and max(busy) == len(calls) - done > 0


@pytest.mark.slow  # three processes import torch
async def test_a_replica_that_is_killed_costs_no_call_and_comes_back(
    line, grpo, tmp_path, vllm_program
):
    gateway, killed, said = agl.LLMProxy(), [], []

    @agl.rollout
    async def kills(task: str, llm: agl.LLM, rollout: agl.Rollout) -> float:
        step, each = rollout.metadata["step"], gateway._backends.of("policy")
        if step == 2 and not killed:
            killed.append(server_processes()[0])
            killed[0].send_signal(signal.SIGSTOP)
            calls = [asyncio.create_task(ask(llm, task)) for _ in range(12)]
            await until(lambda: is_alone_with_calls(each, calls))
            killed[0].kill()
            await asyncio.gather(*calls)
        if step == 3 and not said:
            urls = [one.url.removesuffix("/chat/completions") for one in each]
            said.extend([await back_at(url) for url in urls])
        return float(await ask(llm, task) == "red")

    of_server = {"type": "vllm", "replicas": 2}
    algorithm = grpo(steps=3, epochs=2, dtype="float32", server=of_server)
    await line(kills, algorithm, ["one", "two", "three"], gateway=gateway)
    steps = metrics(tmp_path, "loss/policy")
    # Both have read the weights of each update, the new process as well.
    assert max(step["logprob_gap"] for step in steps) < 1e-4
    assert said[0] == said[1]
    spans = [
        span
        for one in await line.store.query_rollouts()
        for span in await line.store.query_spans(one.rollout_id)
        if Key.PROMPT_TOKEN_IDS in span.attributes
    ]
    assert len(spans) == sum(step["calls/total"] for step in steps) == 3 * 16 + 12
    assert all(span.status.status_code == "OK" for span in spans)
    (await agl.load_ledger(line.store)).check()
    starts = [log.read_text().count("\n--- ") for log in tmp_path.glob("run/logs/vllm-*.log")]
    assert len(starts) == 2
    assert not server_processes()


@pytest.mark.nightly  # it starts eight servers, each by itself
async def test_a_replica_that_cannot_read_its_weights_is_started_anew_with_them(
    tmp_path, tokenizer, vllm_program, monkeypatch, caplog
):
    monkeypatch.setattr(engines, "MAX_RESTARTS", 1)
    seeds = iter(range(9))

    def write(folder):
        save_model(build_model(next(seeds)), folder)
        tokenizer.save_pretrained(folder)

    places = (tmp_path / "serving", tmp_path / "vllm.log")
    server = EngineServer("vllm", *places, write, (), 60, {"seed": 7}, shares_gpu=False, replicas=2)

    def update(fault: str = "none"):
        with server.updating():
            (tmp_path / fault).touch()

    async with server.serving() as served:
        urls = served.litellm_params["api_base"]
        first = [await said_by(url) for url in urls]
        await asyncio.to_thread(update, "broken once")
        answers = [await said_by(url) for url in urls]
        assert answers.count(None) == 1  # it has ended before the update has
        second = [await back_at(url) for url in urls]
        assert first[0] == first[1] != second[0] == second[1]
        assert second[0] in answers
        # They have read what they were told: each may be started anew once more.
        await asyncio.to_thread(update)
        assert await served.why_silent() is None
        logs = [tmp_path / f"vllm-{number}.log" for number in range(2)]
        await kill(urls[0])
        await back_at(urls[0])
        logs[1].unlink()
        logs[1].mkdir()
        ends = (rf"The end of {logs[0]}:(\n +.*)+", rf"Is a directory: '{logs[1]}'")
        for url, end in zip(urls, ends, strict=True):
            await kill(url)
            left_out = rf"{end}\nIt is not started again"
            await until(lambda left_out=left_out: re.search(left_out, caplog.text))
        assert "'vllm' ended with exit code" in await served.why_silent()
        with pytest.raises(AlgorithmError, match="'vllm' does not run"):
            await asyncio.to_thread(update)
    assert not server_processes()


def test_a_server_is_started_with_what_was_given_and_nothing_else(monkeypatch, tmp_path):
    started = []
    start = lambda name, command, log, **about: started.append((command(7), log))  # noqa: E731
    monkeypatch.setattr(engines, "serve_child", start)
    given = (tmp_path / "serving", tmp_path / "vllm.log", print, ("--more",), 60)
    options = {"seed": None, "dtype": "bfloat16"}
    lora = {"base": "maker/model", "lora_rank": 9}
    EngineServer("vllm", *given, options, shares_gpu=False, **lora)._start(0, 7)
    ((command, log),) = started
    assert (command[command.index("serve") + 1], log) == ("maker/model", tmp_path / "vllm.log")
    assert {"--seed", "--enable-sleep-mode"}.isdisjoint(command)
    assert "--dtype bfloat16" in " ".join(command)
    assert "--max-lora-rank 16 --lora-modules policy=" in " ".join(command)
    assert command[-1] == "--more"
