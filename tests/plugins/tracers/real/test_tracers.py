"""What each tracer does beyond the contract: token ids, errors, backends, a closed network."""

import json
import os
import re
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.interpreter import python

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
async def test_token_ids_of_a_server_are_kept(stream, tracer, tracer_name, memory_store, echo_llm):
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
    given = (call.prompt_token_ids, call.response_token_ids, call.response_logprobs)
    kept = [bool(one) for one in given]
    assert kept == [tracer_name in ("agentops", "openinference", "weave")] * 3
    if kept[1]:
        assert echo_llm.vocabulary.decode(call.response_token_ids or [])[:1] == ["one"]


async def test_agent_sees_its_error_and_the_span_its_status(tracer, tracer_name, memory_store):
    import openai

    refused = RawReply(400, json.dumps({"error": {"message": "too long"}}).encode())

    async def agent() -> None:
        async with openai.AsyncOpenAI(base_url=llm.url, api_key="none") as client:
            with pytest.raises(openai.BadRequestError, match="too long"):
                await client.chat.completions.create(model="echo", messages=QUESTION)

    with EchoLLM(lambda request: refused) as llm:
        spans = await spans_of(memory_store, tracer, agent)
    statuses = [span.status.status_code for span in spans]
    assert statuses == ([] if tracer_name == "otel" else ["ERROR"])


@pytest.fixture
def backed(tracer_name):
    """The name of a tracer that has a backend, instruments it, and takes its name."""
    if tracer_name == "otel":
        pytest.skip("it has none")
    return tracer_name


def test_missing_backend_says_what_to_install(backed, monkeypatch):
    tracer = load("agl.tracers", backed)
    missing = mock.Mock(side_effect=metadata.PackageNotFoundError("backend"))
    monkeypatch.setattr(metadata, "version", missing)
    line = re.escape(install_line(f"agl-tracers[{backed}]"))
    with pytest.raises(BrokenComponentError, match=line):
        tracer()


def test_unsupported_backend_says_what_was_found_and_wanted(backed, monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "99.0")
    with pytest.raises(BrokenComponentError, match=r"needs \S+>=\S+,<\S+; found \S+ 99\.0"):
        load("agl.tracers", backed)()


def ran(*command: str, **environment: str) -> list[str]:
    """The lines that a Python of its own writes."""
    return python(*command, env={**os.environ, **environment}, check=True).stdout.splitlines()


WITH_TRACER = """
import logging, sys
logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(levelname)s %(message)s")
from agl.plugins.registry import load
with load("agl.tracers", sys.argv[1])().lifespan():
    __import__(sys.argv[2])
print("the agent's import went well")
"""


def test_a_library_that_an_instrumentor_refuses_is_named(backed, tmp_path):
    library = "openai"
    if backed == "weave":  # which looks at modules, not at versions
        library = "cohere"
        (tmp_path / "cohere").mkdir()
        (tmp_path / "cohere" / "__init__.py").touch()
    found = tmp_path / f"{library}-0.1.dist-info"
    found.mkdir()
    (found / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {library}\nVersion: 0.1\n")
    said = ran("-c", WITH_TRACER, backed, library, PYTHONPATH=str(tmp_path))
    warned = [line for line in said if line.startswith("WARNING")]
    (line,) = [line for line in warned if f"{library} is imported and is not traced" in line]
    assert "cohere" in line if backed == "weave" else "openai 0.1" in line
    assert said[-1] == "the agent's import went well"


def under(tracer: str, **environment: str) -> dict[str, Any]:
    """What ``closed_network.py`` says."""
    script = Path(__file__).with_name("closed_network.py")
    environment = {"OPENAI_AGENTS_DISABLE_TRACING": "0", **environment}
    return json.loads(ran(str(script), tracer, **environment)[-1])


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


def test_unknown_library_is_refused(backed):
    with pytest.raises(ConfigError, match="has no instrumentation of opnai; installed are"):
        load("agl.tracers", backed)(libraries=["opnai"])


def test_agl_names_the_tracers_of_the_guides(tracer_name):
    named = {"agentops": "AgentOpsTracer", "weave": "WeaveTracer"}
    if tracer_name not in named:
        pytest.skip("another tracer's session")
    assert getattr(agl, named[tracer_name]) is load("agl.tracers", tracer_name)
