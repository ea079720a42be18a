"""Answers are drawn from the distribution that an algorithm takes their log-probabilities for."""

import logging

import pytest
from tests.models import answer_of, entry

import agl
from agl.semconv import ModelCallAttributes as Key
from agl_models.versions import WHOLE_SOFTMAX
from agl_testing.echo_llm import EchoLLM

pytest.importorskip("agl_gateway")

WISHES = {
    **{"top_p": 0.6, "top_k": 3, "min_p": 0.1, "frequency_penalty": 0.5, "presence_penalty": 0.5},
    **{"repetition_penalty": 1.2, "logit_bias": {"4": 100}, "min_tokens": 2},
}
NOTHING = {
    **{"top_p": 1, "top_k": -1, "min_p": 0, "frequency_penalty": 0.0, "presence_penalty": None},
    **{"repetition_penalty": 1.0, "logit_bias": {}, "ignore_eos": False},
}


@pytest.fixture
async def call():
    """Ask a model with forced parameters; what its server gets, and the span."""
    store = agl.InMemoryLightningStore()
    with EchoLLM() as llm:
        forced = {"train": 1.0, "val": 0.0}
        forced = {mode: {**WHOLE_SOFTMAX, "temperature": heat} for mode, heat in forced.items()}
        policy = entry("policy", llm.url, forced_parameters=forced)
        proxy = agl.LLMProxy(model_list=[policy], store=store)
        await proxy.start()

        async def ask(mode="train", **fields):
            rollout = await store.start_rollout(input="task", mode=mode)
            served = proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id)
            await answer_of(served, "hello", **fields)
            await proxy.flush()
            (span,) = await store.query_spans(rollout.rollout_id)
            return llm.requests[-1], span

        ask.proxy = proxy
        yield ask
        await proxy.stop()
    await store.close()


@pytest.mark.parametrize(("mode", "temperature"), [("train", 1.0), ("val", 0.0)])
async def test_the_server_is_asked_for_the_whole_softmax_and_the_span_names_the_wishes(
    call, mode, temperature, caplog
):
    with caplog.at_level(logging.WARNING, "agl.gateway"):
        got, span = await call(mode, **WISHES)
        await call(mode, **WISHES)
    assert (got["temperature"], got["top_p"]) == (temperature, 1.0)
    assert set(got) & set(WISHES) == {"top_p"}
    assert sorted(span.attributes[Key.OVERRIDDEN]) == sorted(WISHES)
    assert span.attributes["gen_ai.request.top_p"] == 1.0
    told = [r.getMessage() for r in caplog.records if "forced_parameters" in r.getMessage()]
    assert len(told) == len(WISHES)
    assert any("top_p=0.6 and get 1.0" in message for message in told)
    assert any("top_k=3 and get the server's default" in message for message in told)
    assert call.proxy.overridden == {("policy", name): 2 for name in WISHES}


async def test_who_asks_for_nothing_else_is_told_nothing(call, caplog):
    with caplog.at_level(logging.WARNING, "agl.gateway"):
        got, span = await call(**NOTHING, temperature=1)
    assert set(got) & set(NOTHING) == {"top_p"}
    assert Key.OVERRIDDEN not in span.attributes
    assert (call.proxy.overridden, caplog.messages) == ({}, [])


def test_who_takes_log_probabilities_for_the_models_forces_it():
    from agl_tinker import Tinker
    from agl_unsloth import SFT

    assert agl.GRPO("m").forced_sampling() == WHOLE_SOFTMAX
    assert Tinker("m").forced_sampling() == WHOLE_SOFTMAX
    assert Tinker("m", loss="ppo").forced_sampling() == WHOLE_SOFTMAX
    assert Tinker("m", loss="cross_entropy").forced_sampling() == {}
    assert SFT("m").forced_sampling() == {}
