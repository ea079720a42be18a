"""What each tracer does beyond the contract: token ids, errors, backends, a closed network."""

import json
from importlib import metadata
from typing import Any

import pytest

import agl
from agl.errors import BrokenComponentError, ConfigError
from agl.plugins import load
from agl.store.memory import InMemoryLightningStore
from agl.testing.echo_llm import EchoLLM, RawReply
from agl_adapters.calls import model_calls

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
    stream: bool,
    tracer: agl.Tracer,
    tracer_name: str,
    memory_store: InMemoryLightningStore,
    echo_llm: EchoLLM,
) -> None:
    import openai

    async def agent() -> None:
        async with openai.AsyncOpenAI(base_url=echo_llm.url, api_key="none") as client:
            answer = await client.chat.completions.create(
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
    tracer: agl.Tracer, tracer_name: str, memory_store: InMemoryLightningStore
) -> None:
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


def test_missing_backend_says_what_to_install(
    tracer_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tracer_name == "otel":
        pytest.skip("it has none")
    tracer = load("agl.tracers", tracer_name)

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(BrokenComponentError, match=rf"pip install 'agl-tracers\[{tracer_name}\]'"):
        tracer()


def test_unsupported_backend_says_what_was_found_and_wanted(
    tracer_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tracer_name == "otel":
        pytest.skip("it has none")
    monkeypatch.setattr(metadata, "version", lambda name: "99.0")
    with pytest.raises(BrokenComponentError, match=r"needs \S+>=\S+,<\S+; found \S+ 99\.0"):
        load("agl.tracers", tracer_name)()


def test_unknown_library_is_refused(tracer_name: str) -> None:
    if tracer_name == "otel":
        pytest.skip("it takes none")
    with pytest.raises(ConfigError, match="has no instrumentation of opnai; installed are"):
        load("agl.tracers", tracer_name)(libraries=["opnai"])


def test_agl_names_the_tracers_of_the_guides(tracer_name: str) -> None:
    named = {"agentops": "AgentOpsTracer", "weave": "WeaveTracer"}
    if tracer_name not in named:
        pytest.skip("another tracer's session")
    assert getattr(agl, named[tracer_name]) is load("agl.tracers", tracer_name)
