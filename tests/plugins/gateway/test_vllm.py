"""``agl vllm``: what vLLM is started with, and what its middleware does to requests."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import aiohttp
import pytest

from agl.serving.server import ServerThread
from agl_gateway.vllm import ReturnTokenIds
from agl_testing.echo_llm import EchoLLM

AGL = [sys.executable, "-c", "from agl.cli import main; main()", "vllm"]


@pytest.fixture
def vllm(tmp_path: Path) -> dict[str, str]:
    """An environment with a vLLM that only says what it was asked."""
    module = tmp_path / "vllm/entrypoints/cli/main.py"
    module.parent.mkdir(parents=True)
    module.write_text("import json, sys\ndef main():\n    print(json.dumps(sys.argv))\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        (
            ["serve", "Qwen/Qwen3-0.6B", "--port", "8080", "-h"],
            [
                *("serve", "--middleware=agl_gateway.vllm.ReturnTokenIds"),
                *("Qwen/Qwen3-0.6B", "--port", "8080", "-h"),
            ],
        ),
        (["bench", "serve", "--help"], ["bench", "serve", "--help"]),
        (["--help"], ["--help"]),
    ],
)
def test_vllm_gets_what_was_given_and_its_server_the_middleware(given, passed, vllm) -> None:
    done = subprocess.run([*AGL, *given], capture_output=True, text=True, env=vllm)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["vllm", *passed]


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is here")
def test_without_vllm_it_says_what_to_install() -> None:
    done = subprocess.run([*AGL, "serve", "m"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "'vllm' needs vLLM, which is not installed. Run: pip install vllm" in done.stderr


async def test_answers_have_token_ids_without_being_asked() -> None:
    llm = EchoLLM()
    server = ServerThread(ReturnTokenIds(llm), "127.0.0.1")
    server.start()
    message = {"role": "user", "content": "hello big world"}
    request = {"model": "echo", "messages": [message]}
    try:
        async with aiohttp.ClientSession() as http:

            async def ask(**fields: object) -> bytes:
                url = f"{server.url}/v1/chat/completions"
                async with http.post(url, json={**request, **fields}) as response:
                    assert response.status == 200
                    return await response.read()

            whole = json.loads(await ask())
            refused = json.loads(await ask(return_token_ids=False))
            lines = (await ask(stream=True)).decode().splitlines()
            async with http.get(f"{server.url}/v1/models") as response:
                assert response.status == 200
    finally:
        server.stop()
    assert whole["prompt_token_ids"]
    assert whole["choices"][0]["token_ids"]
    assert "prompt_token_ids" not in refused
    assert [request.get("return_token_ids") for request in llm.requests] == [True, False, True]
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    streamed = [
        token for c in chunks for each in c["choices"] for token in each.get("token_ids") or ()
    ]
    assert streamed == whole["choices"][0]["token_ids"]
