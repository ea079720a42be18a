"""What every gateway must do, as a pytest class over a real model server.

The gateway has no store and no model, and was not started. The suite gives it both, and starts it
in front of ``echo_llm``, which gives token ids and log-probabilities to those who ask.
"""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import aiohttp
import pytest
import pytest_asyncio

from agl.algorithm.gateway import Gateway, ModelConfig, is_gateway_span
from agl.errors import ConfigError
from agl.semconv import ModelCallAttributes as Key
from agl.store.base import LightningStore
from agl.types import LLM, AttemptedRollout, ProxyLLM, Span
from agl_testing.contract import Contract
from agl_testing.echo_llm import END, EchoLLM, RawReply, logprob

PROMPT = "one two three"
RECORDED = {
    *(Key.OPERATION, Key.REQUEST_MODEL, Key.RESPONSE_ID, Key.STATUS_CODE, Key.FINISH_REASONS),
    *(Key.INPUT_MESSAGES, Key.OUTPUT_MESSAGES),
    *(Key.PROMPT_TOKEN_IDS, Key.RESPONSE_TOKEN_IDS, Key.RESPONSE_LOGPROBS),
}
"""What the span of a call that succeeded says at least."""


class Answer(NamedTuple):
    """What an agent gets; names of headers in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Served:
    """A gateway that serves, the model server behind it, and an attempt that may call it."""

    gateway: Gateway
    llm: EchoLLM
    store: LightningStore
    rollout: AttemptedRollout

    @property
    def ids(self) -> tuple[str, str]:
        """Of the attempt."""
        return self.rollout.rollout_id, self.rollout.attempt.attempt_id

    def entry(self, name: str = "echo", url: str = "", **more: Any) -> ModelConfig:
        """A model whose backend is the model server."""
        params = {"model": f"hosted_vllm/{name}", "api_base": url or self.llm.url, "api_key": "k"}
        return ModelConfig(model_name=name, litellm_params=params, **more)

    async def call(self, content: str = PROMPT, llm: LLM | None = None, **fields: Any) -> Answer:
        """Make one call as an agent would; ``model`` among ``fields`` names another than echo."""
        llm = llm or self.gateway.as_resource(*self.ids, model="echo")
        url = llm.get_base_url() if isinstance(llm, ProxyLLM) else llm.endpoint
        messages = [{"role": "user", "content": content}]
        body = {"model": llm.model, "messages": messages, **fields}
        return await _post(llm, f"{url}/chat/completions", body)

    async def ask(self, what: str, body: Any = None) -> dict[str, Any]:
        """Ask ``flush`` or ``end`` as a runner does; empty if the gateway does not offer it."""
        llm = self.gateway.as_resource(*self.ids, model="echo")
        url = f"{llm.get_base_url(*self.ids).removesuffix('/v1')}/{what}"
        status, _, said = await _post(llm, url, body)
        assert status in (200, 404, 405), f"/{what}: {status} {said!r}"
        return json.loads(said) if status == 200 else {}

    async def num_stored(self) -> int:
        """Calls of the attempt that the store has."""
        return (await self.store.query_spans(self.rollout.rollout_id)).total

    async def expect(self, llm: LLM | None = None, **is_served: bool) -> None:
        """Model -> whether a call to it is answered."""
        asked = {name: await self.call(llm=llm, model=name) for name in is_served}
        assert {name: one.status == 200 for name, one in asked.items()} == is_served

    async def span(self) -> Span:
        """The only one of the attempt."""
        await self.gateway.flush()
        spans = list(await self.store.query_spans(self.rollout.rollout_id))
        assert len(spans) == 1, f"one call leaves one span; there are {len(spans)}"
        return spans[0]


async def _post(llm: LLM, url: str, body: Any) -> Answer:
    key = {"Authorization": f"Bearer {llm.api_key}"}
    async with aiohttp.ClientSession(headers=key) as session, session.post(url, json=body) as got:
        headers = {name.lower(): value for name, value in got.headers.items()}
        return Answer(got.status, headers, await got.read())


@asynccontextmanager
async def serving(gateway: Gateway, store: LightningStore, llm: EchoLLM) -> AsyncGenerator[Served]:
    """Within the block the gateway serves the model ``echo``."""
    served = Served(gateway, llm, store, await store.start_rollout("task", mode="train"))
    gateway.set_store(store)
    gateway.update_model_list([served.entry()])
    await gateway.start()
    try:
        yield served
    finally:
        if gateway.is_running():
            await gateway.stop()


@pytest.mark.asyncio
class GatewayContract(Contract):
    """Claims of ``Gateway``'s docstrings."""

    kind = "gateway"
    expected_type = Gateway

    @pytest.fixture
    def gateway(self) -> Gateway:
        """The gateway to test."""
        return self.build()

    @pytest_asyncio.fixture
    async def served(
        self, gateway: Gateway, memory_store: LightningStore, echo_llm: EchoLLM
    ) -> AsyncGenerator[Served]:
        """It serves the model ``echo``."""
        async with serving(gateway, memory_store, echo_llm) as served:
            yield served

    # --- what an algorithm learns from

    async def test_call_is_answered_and_recorded_with_its_tokens(self, served: Served) -> None:
        """One span per call, with all that a row of training data needs.

        The backend gives token ids and log-probabilities only where it is asked for them
        (``return_token_ids``, ``logprobs``), whatever the agent asks for.
        """
        answer = await served.call()
        assert answer.status == 200, answer.body
        given = json.loads(answer.body)
        assert given["choices"][0]["message"]["content"] == PROMPT
        span = await served.span()
        check_recorded(span, served.llm)
        assert span.attributes[Key.RESPONSE_ID] == given["id"]
        assert span.attributes[Key.STATUS_CODE] == 200

    async def test_stream_is_passed_on_and_recorded_as_the_same_call(self, served: Served) -> None:
        """An agent that asks for a stream gets one; its span is that of any other call."""
        answer = await served.call(stream=True)
        assert answer.status == 200, answer.body
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix(b"data: ") for line in answer.body.split(b"\n\n") if line]
        assert lines.pop() == b"[DONE]"
        choices = [choice for line in lines for choice in json.loads(line)["choices"]]
        assert "".join(c["delta"].get("content") or "" for c in choices) == PROMPT
        span = await served.span()
        check_recorded(span, served.llm)

    async def test_nothing_is_sent_that_nobody_asked_for(self, served: Served) -> None:
        """A field that an agent leaves out is left out; many servers refuse ``null``."""
        await served.call()
        assert None not in served.llm.requests[-1].values()

    async def test_forced_parameters_hold_whatever_the_agent_says(self, served: Served) -> None:
        """By mode of the rollout, over those under ``all``; None takes a field out."""
        forced = {"all": {"temperature": 0.5, "top_k": None}, "val": {"temperature": 0.0}}
        served.gateway.update_model_list([served.entry(forced_parameters=forced)])
        validating = replace(served, rollout=await served.store.start_rollout("v", mode="val"))
        for each, expected in ((served, 0.5), (validating, 0.0)):
            answer = await each.call(temperature=0.9, top_k=3)
            assert answer.status == 200, answer.body
            sent = served.llm.requests[-1]
            assert sent["temperature"] == expected
            assert "top_k" not in sent

    @pytest.mark.parametrize("gone", [False, True])
    async def test_failed_call_is_recorded_with_a_reason(self, served: Served, gone: bool) -> None:
        """The agent sees the failure of the backend, and soon; the trace says why it failed."""
        with EchoLLM(lambda _: RawReply(400, b'{"error": {"message": "too long"}}')) as other:
            served.gateway.update_model_list([served.entry(url=other.url)])
            answer = None if gone else await served.call()
        async with asyncio.timeout(60):
            answer = answer or await served.call()
        assert answer.status >= 500 if gone else answer.status == 400
        span = await served.span()
        assert is_gateway_span(span)
        assert span.attributes[Key.STATUS_CODE] == answer.status
        assert span.attributes[Key.ERROR]

    async def test_calls_at_once_belong_to_attempts_that_made_them(self, served: Served) -> None:
        """The address says whose call it is; ``flush`` returns when each is stored."""
        many = [replace(served, rollout=await served.store.start_rollout(n)) for n in range(8)]
        answers = await asyncio.gather(
            *(each.call(f"of {number}") for number, each in [*enumerate(many)] * 2)
        )
        assert {answer.status for answer in answers} == {200}
        await served.gateway.flush()
        for number, each in enumerate(many):
            spans = await served.store.query_spans(*each.ids)
            said = [str(span.attributes[Key.OUTPUT_MESSAGES]) for span in spans]
            assert [f"of {number}" in one for one in said] == [True, True]

    async def test_call_of_no_attempt_is_recorded_nowhere(self, served: Served) -> None:
        """The bare address forwards, or refuses."""
        await served.call(llm=served.gateway.as_resource(model="echo"))
        await served.gateway.flush()
        assert (await served.store.statistics()).get("total_spans") == 0

    # --- addresses

    async def test_resource_is_a_proxy_with_addresses_of_attempts(self, served: Served) -> None:
        """Without ids for the runner, which fills them in; with both, for that attempt."""
        resource = served.gateway.as_resource(sampling_parameters={"temperature": 0.5})
        assert isinstance(resource, ProxyLLM)
        assert (resource.model, resource.sampling_parameters) == ("echo", {"temperature": 0.5})
        of_attempt = served.gateway.as_resource(*served.ids)
        assert not isinstance(of_attempt, ProxyLLM)
        for url in (resource.get_base_url(*served.ids), of_attempt.endpoint):
            assert "/rollout/{}/attempt/{}".format(*served.ids) in url
            assert url.endswith("/v1")  # what OpenAI's client puts its paths behind

    # --- the list of models

    async def test_new_list_holds_at_the_next_call_and_added_stay(self, served: Served) -> None:
        """The list is the user's, and what was added is an algorithm's."""
        served.gateway.add_model(served.entry("added"))
        served.gateway.update_model_list([served.entry("new")])
        llm = served.gateway.as_resource(*served.ids, model="new")
        await served.expect(llm, new=True, added=True, echo=False)

    async def test_name_that_is_served_is_refused_and_nothing_changes(self, served: Served) -> None:
        """Whoever comes second."""
        served.gateway.add_model(served.entry("added"))
        served.gateway.check_free("another")
        for name in ("echo", "added"):
            with pytest.raises(ConfigError, match=name):
                served.gateway.check_free(name)
            with pytest.raises(ConfigError, match=name):
                served.gateway.add_model(served.entry(name))
        with pytest.raises(ConfigError, match="added"):
            served.gateway.update_model_list([served.entry("added"), served.entry("new")])
        await served.expect(echo=True, added=True, new=False)

    async def test_removed_model_is_served_no_more(self, served: Served) -> None:
        """Once more does nothing, and the user's model is not taken."""
        served.gateway.add_model(served.entry("added"))
        for name in ("added", "added", "echo"):
            served.gateway.remove_model(name)
        await served.expect(echo=True, added=False)

    # --- pauses

    async def test_paused_model_waits_and_others_do_not(self, served: Served) -> None:
        """Until ``resume``; then the call that waited is answered."""
        served.gateway.add_model(served.entry("other"))
        await served.gateway.pause("echo")
        waiting = asyncio.create_task(served.call())
        assert (await served.call(model="other")).status == 200
        await asyncio.sleep(0.2)
        assert not waiting.done()
        assert [request["model"] for request in served.llm.requests] == ["other"]
        await served.gateway.resume("echo")
        assert (await waiting).status == 200

    async def test_pause_that_refuses_says_when_to_come_back(self, served: Served) -> None:
        """For agents that have something else to do."""
        await served.gateway.pause(refuse=True)
        refused = await served.call()
        assert (refused.status, "retry-after" in refused.headers) == (503, True)
        await served.gateway.resume()
        assert (await served.call()).status == 200

    async def test_drained_gateway_has_no_call_in_flight(self, served: Served) -> None:
        """Those that a pause found under way are answered first."""
        asked, answer = threading.Event(), threading.Event()

        def hold(request: dict[str, Any]) -> str:
            asked.set()
            answer.wait(30)
            return PROMPT

        served.llm.reply = hold
        call = asyncio.create_task(served.call())
        try:
            assert await asyncio.to_thread(asked.wait, 30)
            await served.gateway.pause()
            drained = asyncio.create_task(served.gateway.drain())
            await asyncio.sleep(0.2)
            assert not drained.done()
        finally:
            answer.set()
        async with asyncio.timeout(30):
            await drained
        assert (await call).status == 200
        await served.gateway.drain("echo")

    # --- what a runner asks

    async def test_flush_says_which_spans_come_before_the_next_call(self, served: Served) -> None:
        """Calls that ended before the first span are stored then, and later ones are not yet."""
        await served.call()
        asked: dict[str, Any] = {"ended": [], "slack": 0.0}
        if not (said := await served.ask("flush", asked)):
            assert await served.num_stored() == 1, "without /flush, calls are stored at once"
            return
        await served.call()
        between = said["clock"]
        said = await served.ask("flush", {**asked, "ended": [between, between + 3600.0]})
        assert said["clock"] >= between
        assert (said["before"], said["in_order"]) == (1, True), said
        assert await served.num_stored() == 1

    async def test_end_stores_every_call_and_says_what_was_lost(self, served: Served) -> None:
        """``serving_seconds`` tells a runner whether another gateway was there before."""
        await served.call()
        if said := await served.ask("end"):
            assert said["serving_seconds"] > 0
            assert said["lost_calls"] == 0
        assert await served.num_stored() == 1

    # --- start, stop

    async def test_stop_stores_what_was_answered(self, served: Served) -> None:
        """Nobody has to flush first."""
        assert served.gateway.get_store() is served.store
        assert served.gateway.is_running()
        assert served.gateway.spent_budget() is None
        await served.call()
        await served.gateway.stop()
        assert not served.gateway.is_running()
        assert await served.num_stored() == 1

    async def test_restart_serves_at_the_same_address(self, served: Served) -> None:
        """Agents keep the address that they were given."""
        llm = served.gateway.as_resource(*served.ids)
        await served.gateway.restart()
        assert served.gateway.is_running()
        assert (await served.call(llm=llm)).status == 200


def check_recorded(span: Span, llm: EchoLLM) -> None:
    """It is what the gateway writes of the server's answer to ``PROMPT``."""
    assert is_gateway_span(span)
    said: dict[str, Any] = dict(span.attributes)
    assert RECORDED - said.keys() == set(), f"the span says only {sorted(said)}"
    assert said[Key.REQUEST_MODEL] == "echo"
    assert list(said[Key.FINISH_REASONS]) == ["stop"]
    for key in (Key.INPUT_MESSAGES, Key.OUTPUT_MESSAGES):
        assert PROMPT in str(json.loads(said[key]))
    assert list(said[Key.PROMPT_TOKEN_IDS]) == llm.render([{"role": "user", "content": PROMPT}])
    sampled = llm.vocabulary.encode([*PROMPT.split(), END])
    assert list(said[Key.RESPONSE_TOKEN_IDS]) == sampled
    assert list(said[Key.RESPONSE_LOGPROBS]) == [logprob(token_id) for token_id in sampled]
    assert Key.ERROR not in said
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.start_time <= span.end_time
