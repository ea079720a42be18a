"""The building blocks alone: spans by hand, a gateway before a model, a vLLM server."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from example_bench import EXAMPLES, environment, run_script, scripts
from tests.stores import served

import agl
from agl_testing.echo_llm import EchoLLM

FOLDER = EXAMPLES / "minimal"


@pytest.fixture
def vllm_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder in which there is a ``vllm``."""
    script = tmp_path / "vllm"
    fake = Path(__file__).with_name("fake_vllm.py")
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {fake} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        ("otel", ["inner", "outer"]),
        (
            "operation",
            ["agentlightning.operation", "agentlightning.message", "agentlightning.annotation"],
        ),
    ],
)
def test_spans_are_written_by_hand(mode: str, names: list[str]) -> None:
    lines = run_script(FOLDER / "write_traces.py", mode).stdout.splitlines()
    assert [line.split("  ")[1] for line in lines] == names


async def test_spans_are_written_into_a_served_store() -> None:
    store = agl.InMemoryLightningStore()
    async with served(store) as (server, _):
        arguments = (FOLDER / "write_traces.py", "operation", "--use-client", server.endpoint)
        done = await asyncio.to_thread(run_script, *arguments)
        (rollout,) = await store.query_rollouts()
        spans = await store.query_spans(rollout.rollout_id)
    assert rollout.status == "succeeded"
    assert len(spans) == len(done.stdout.splitlines()) == 3
    assert agl.find_final_reward(spans) == 0.5


def test_agentops_sees_the_model_call() -> None:
    pytest.importorskip("agentops")
    with EchoLLM() as llm:
        openai = {"OPENAI_BASE_URL": llm.url, "OPENAI_API_KEY": "none"}
        done = run_script(FOLDER / "write_traces.py", "agentops", **openai)
    assert len(llm.requests) == 1
    assert "openai.chat.completion" in done.stdout


def test_metrics_are_served_while_they_are_written() -> None:
    pytest.importorskip("prometheus_client")
    pytest.importorskip("agl_metrics")
    command = [sys.executable, FOLDER / "write_metrics.py", "--port", "0", "--seconds", "1"]
    said = {"stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment(), **said) as process:
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert b"python_info" in answer.read()
        count, *lines = process.stdout.read().splitlines()
    assert process.returncode == 0
    assert sum(float(line.split()[-1]) for line in lines) == int(count.split()[0]) > 5


def serve_and_call(mode: str, model: str, **variables: str) -> list[str]:
    """What ``test`` prints in a second process."""
    command = [sys.executable, FOLDER / "llm_proxy.py", mode, model]
    said = {"stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment(**variables), **said) as server:
        try:
            line = server.stdout.readline()
            found = re.fullmatch(rf"python llm_proxy.py test {model} --store (\S+)\n", line)
            assert found, line
            arguments = ("test", model, "--store", found[1])
            done = run_script(FOLDER / "llm_proxy.py", *arguments)
        finally:
            server.send_signal(signal.SIGINT)
    assert server.returncode == 0
    return done.stdout.splitlines()


def test_calls_through_the_gateway_are_in_the_store() -> None:
    with EchoLLM(lambda request: "Paris or Oslo") as llm:
        variables = {"OPENAI_API_BASE": llm.url, "OPENAI_API_KEY": "key-of-acme"}
        lines = serve_and_call("openai", "any", **variables)
    assert lines[0] == "What is the capital of France?  Paris or Oslo"
    assert [line.split("  ")[0] for line in lines[2:]] == ["1", "2"]
    assert {headers["authorization"] for headers in llm.request_headers} == {"Bearer key-of-acme"}


def test_gateway_before_vllm_gives_token_ids(vllm_on_path: Path) -> None:
    lines = serve_and_call("vllm", "tiny")
    assert lines[:2] == ["What is the capital of France?  France?", "And of Norway?  Norway?"]
    assert [line.split("  ")[2] for line in lines[2:]] == ["token ids: 2"] * 2


def test_server_runs_for_as_long_as_the_block(vllm_on_path: Path) -> None:
    with scripts.vllm_server.vllm_server("tiny") as url:
        health = url.replace("/v1", "/health")
        assert urllib.request.urlopen(health, timeout=10).status == 200
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(health, timeout=10)


@pytest.mark.parametrize(("does", "error"), [("die", RuntimeError), ("hang", TimeoutError)])
def test_server_that_does_not_get_ready_is_said_and_ended(does, error, vllm_on_path, monkeypatch):
    import vllm_server

    started: list[Any] = []
    original: Callable[..., Any] = subprocess.Popen

    def remember(*args: Any, **options: Any) -> Any:
        started.append(original(*args, **options))
        return started[-1]

    monkeypatch.setattr(vllm_server.subprocess, "Popen", remember)
    monkeypatch.setenv("VLLM_FAKE", does)
    with (
        pytest.raises(error, match=r"vllm serve"),
        vllm_server.vllm_server("tiny", start_seconds=3),
    ):
        raise AssertionError("the block began")
    assert started[0].poll() is not None


def test_missing_vllm_is_said_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("vllm") is None
    with (
        pytest.raises(FileNotFoundError, match="pip install vllm"),
        scripts.vllm_server.vllm_server("tiny"),
    ):
        raise AssertionError("the block began")
