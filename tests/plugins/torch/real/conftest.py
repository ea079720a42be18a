"""SmolLM2-135M-Instruct: nox -s real-models has it fetched into the cache that users have."""

import os
from pathlib import Path

import openai
import pytest
from tests.interpreter import AGL, python

from agl_testing.models import smollm2


@pytest.fixture(scope="session")
def folder() -> Path:
    return smollm2()


@pytest.fixture(scope="session")
def model(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()


@pytest.fixture
def tokenizer(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture
async def ask(model, tokenizer):
    from agl_torch.server import InferenceServer

    with InferenceServer(model, tokenizer) as server:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="-", max_retries=0) as client:

            async def ask(content, **options):
                return await client.chat.completions.create(
                    model="model", messages=[{"role": "user", "content": content}], **options
                )

            yield ask


@pytest.fixture
def agl(tmp_path):
    """Runs the command in a process of its own; what it printed."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}

    def agl(*arguments: str) -> str:
        done = python(*AGL, *arguments, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    return agl
