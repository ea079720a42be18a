"""What each tracer does beyond the contract: token ids, errors, backends, a closed network."""

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import agl
from agl.errors import BrokenComponentError, ConfigError, install_line
from agl.plugins.registry import load
from agl.store.memory import InMemoryLightningStore
from agl_records.calls.reader import model_calls
from agl_testing.echo_llm import EchoLLM, RawReply

# Imports take long on a busy machine.
pytestmark = pytest.mark.timeout(300)

TOKENS = {"return_token_ids": True}
QUESTION: list[Any] = [{"role": "user", "content": "one two three"}]


async def spans_of(store: InMemoryLightningStore, tracer: agl.Tracer, agent: Any) -> list[agl.Span]:
    rollout = await store.start_rollout(input="task")
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    async with tracer.trace_context(store=store, **ids):
        await agent()
    return list(await store.query_spans(rollout.rollout_id))


@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids_that_the_server_sends_without_a_gateway(
    stream, tracer, tracer_name, memory_store, echo_llm
):
    import openai

    async def agent() -> None:
        async with openai.AsyncOpenAI(base_url=echo_llm.url, api_key="none") as client:
            answer: Any = await client.chat.completions.create(
                model="echo", messages=QUESTION, extra_body=TOKENS, logprobs=True, stream=stream
            )
            if stream:
                async for _ in answer:
                    pass

    calls = model_calls(await spans_of(memory_store, tracer, agent))
    if tracer_name == "otel":
        assert calls == []
        return
    (call,) = calls
    kept = (
        bool(call.prompt_token_ids),
        bool(call.response_token_ids),
        bool(call.response_logprobs),
    )
    expected = {
        ("agentops", False): (True, True, True),
        ("agentops", True): (True, True, True),
        ("openinference", False): (True, True, True),
        ("openinference", True): (True, True, True),
        ("otel-genai", False): (False, False, False),
        ("otel-genai", True): (False, False, False),
        ("weave", False): (True, True, True),
        ("weave", True): (True, True, True),
    }
    assert kept == expected[tracer_name, stream]
    if kept[1]:
        assert echo_llm.vocabulary.decode(call.response_token_ids or [])[:1] == ["one"]


async def test_the_agent_sees_its_own_error_and_the_span_its_status(
    tracer, tracer_name, memory_store
):
    import openai

    def refuse(request: dict[str, Any]) -> RawReply:
        return RawReply(400, json.dumps({"error": {"message": "too long"}}).encode())

    async def agent() -> None:
        async with openai.AsyncOpenAI(base_url=llm.url, api_key="none") as client:
            with pytest.raises(openai.BadRequestError, match="too long"):
                await client.chat.completions.create(model="echo", messages=QUESTION)

    with EchoLLM(refuse) as llm:
        spans = await spans_of(memory_store, tracer, agent)
    assert [span.status.status_code for span in spans] == (
        [] if tracer_name == "otel" else ["ERROR"]
    )


def test_missing_backend_says_what_to_install(tracer_name, monkeypatch):
    if tracer_name == "otel":
        pytest.skip("it has none")
    tracer = load("agl.tracers", tracer_name)

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    line = re.escape(install_line(f"agl-tracers[{tracer_name}]"))
    with pytest.raises(BrokenComponentError, match=line):
        tracer()


def test_unsupported_backend_says_what_was_found_and_wanted(tracer_name, monkeypatch):
    if tracer_name == "otel":
        pytest.skip("it has none")
    monkeypatch.setattr(metadata, "version", lambda name: "99.0")
    with pytest.raises(BrokenComponentError, match=r"needs \S+>=\S+,<\S+; found \S+ 99\.0"):
        load("agl.tracers", tracer_name)()


WITH_TRACER = """
import logging, sys
logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(levelname)s %(message)s")
from agl.plugins.registry import load
with load("agl.tracers", sys.argv[1])().lifespan():
    __import__(sys.argv[2])
print("the agent's import went well")
"""


def test_a_library_that_an_instrumentor_refuses_is_named(tracer_name, tmp_path):
    if tracer_name == "otel":
        pytest.skip("it instruments nothing")
    library = "openai"
    if tracer_name == "weave":  # which looks at modules, not at versions
        library = "cohere"
        (tmp_path / "cohere").mkdir()
        (tmp_path / "cohere" / "__init__.py").touch()
    found = tmp_path / f"{library}-0.1.dist-info"
    found.mkdir()
    (found / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {library}\nVersion: 0.1\n")
    done = subprocess.run(
        [sys.executable, "-c", WITH_TRACER, tracer_name, library],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    warned = [line for line in done.stdout.splitlines() if line.startswith("WARNING")]
    (line,) = [line for line in warned if f"{library} is imported and is not traced" in line]
    assert "cohere" in line if tracer_name == "weave" else "openai 0.1" in line
    assert "the agent's import went well" in done.stdout


def under(tracer: str, **environment: str) -> dict[str, Any]:
    """What ``closed_network.py`` says."""
    script = Path(__file__).with_name("closed_network.py")
    environment = {"OPENAI_AGENTS_DISABLE_TRACING": "0", **environment}
    done = subprocess.run(
        [sys.executable, str(script), tracer],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_no_tracer_sends_anything_whatever_keys_there_are(tracer_name):
    # The core's tracer instruments no framework, and so does not stop one's own upload either.
    told = under(tracer_name, OPENAI_AGENTS_DISABLE_TRACING=str(int(tracer_name == "otel")))
    there = [each for each in ("openai", "agents", "langchain_openai") if find_spec(each)]
    assert told == {"answers": dict.fromkeys(there, "It is sunny in Paris."), "left": []}


def test_what_is_sent_would_be_seen(tracer_name):
    if tracer_name != "otel":
        pytest.skip("that tracer stops the Agents SDK's upload")
    pytest.importorskip("agents")
    assert any("api.openai.com" in each for each in under("otel")["left"])


def test_unknown_library_is_refused(tracer_name):
    if tracer_name == "otel":
        pytest.skip("it takes none")
    with pytest.raises(ConfigError, match="has no instrumentation of opnai; installed are"):
        load("agl.tracers", tracer_name)(libraries=["opnai"])


def test_agl_names_the_tracers_of_the_guides(tracer_name):
    named = {"agentops": "AgentOpsTracer", "weave": "WeaveTracer"}
    if tracer_name not in named:
        pytest.skip("another tracer's session")
    assert getattr(agl, named[tracer_name]) is load("agl.tracers", tracer_name)
