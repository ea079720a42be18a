"""``agl vllm``: what vLLM is started with, and what its middleware does to requests."""

import json
import os
from importlib.util import find_spec

import aiohttp
import pytest
from tests.interpreter import AGL, python

from agl_gateway.vllm import ReturnTokenIds
from agl_http.server import ServerThread
from agl_testing.echo_llm import EchoLLM


@pytest.fixture
def vllm(tmp_path):
    """An environment with a vLLM that only says what it was asked."""
    module = tmp_path / "vllm/entrypoints/cli/main.py"
    module.parent.mkdir(parents=True)
    module.write_text("import json, sys\ndef main():\n    print(json.dumps(sys.argv))\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


MODEL = ["Qwen/Qwen3-0.6B", "--port", "8080", "-h"]


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        (["serve", *MODEL], ["serve", "--middleware=agl_gateway.vllm.ReturnTokenIds", *MODEL]),
        (["bench", "serve", "--help"], ["bench", "serve", "--help"]),
        (["--help"], ["--help"]),
    ],
)
def test_vllm_gets_what_was_given_and_its_server_the_middleware(given, passed, vllm):
    done = python(*AGL, "vllm", *given, env=vllm)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["vllm", *passed]


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is here")
def test_without_vllm_it_says_what_to_install():
    done = python(*AGL, "vllm", "serve", "m")
    assert done.returncode == 2
    assert "'vllm' needs vLLM, which is not installed. Run: pip install vllm" in done.stderr


async def test_answers_have_token_ids_without_being_asked():
    """Streams too; nox -s vllm has the middleware in vLLM's own server."""
    llm = EchoLLM()
    server = ServerThread(ReturnTokenIds(llm), "127.0.0.1")
    server.start()
    request = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}
    try:
        async with aiohttp.ClientSession(raise_for_status=True) as http:
            url = f"{server.url}/v1/chat/completions"
            for fields in ({}, {"return_token_ids": False}, {"stream": True}):
                async with http.post(url, json={**request, **fields}) as response:
                    answer = await response.read()
                assert (b'"token_ids":[' in answer) == ("return_token_ids" not in fields)
            async with http.get(f"{server.url}/v1/models") as response:
                assert await response.read()
    finally:
        server.stop()
    assert [request.get("return_token_ids") for request in llm.requests] == [True, False, True]
