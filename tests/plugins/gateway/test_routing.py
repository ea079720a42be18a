"""Replicas, retries, hot replacement, pauses, forced parameters."""

import asyncio
import time
from collections import Counter

import pytest
from tests.waiting import free_port, until

from agl.errors import ConfigError
from agl.semconv import ModelCallAttributes as Key
from agl_gateway import LLMProxy
from agl_gateway.backends import Backends
from agl_gateway.upstream import Failover
from agl_models.provider_errors import retry_after
from agl_testing.echo_llm import EchoLLM, RawReply

from .conftest import stream_of

ENTRY = {"model_name": "m", "litellm_params": {"model": "m", "api_base": "http://a/v1"}}
DOWN = f"http://127.0.0.1:{free_port()}/v1"


# --- which replica


def test_an_attempt_stays_at_its_replica_unless_that_rests_or_is_far_busier():
    urls = [f"http://{name}/v1" for name in "abcd"]
    params = {**ENTRY["litellm_params"], "api_base": urls}
    backends = Backends([{**ENTRY, "litellm_params": params}])
    assert [one.url for one in backends.of("m")] == [f"{url}/chat/completions" for url in urls]

    def chosen(attempt="at-1", chooser=backends):
        (one,) = {chooser.choose("m", attempt) for _ in range(9)}
        return one

    spread = Counter(chosen(f"at-{n}").url for n in range(4000))
    assert min(spread.values()) > 900
    own = chosen()
    assert chosen(chooser=Backends([{**ENTRY, "litellm_params": params}])).url == own.url
    for others, most in ((0, 4), (40, 54)):
        for backend in backends.of("m"):
            backend.in_flight = others
        own.in_flight = most
        assert chosen() is own
        assert backends.choose("m", None) is not own
        own.in_flight = most + 1
        second = chosen()
        assert second is not own
    # While it rests, each attempt of it has one other, and those of the others stay.
    own.in_flight = others
    before = {n: chosen(f"at-{n}") for n in range(200)}
    own.rests_until = time.monotonic() + 60
    after = {n: chosen(f"at-{n}") for n in range(200)}
    moved = [after[n] for n in before if before[n] is own]
    assert len(set(moved)) == 3
    assert all(after[n] is before[n] for n in before if before[n] is not own)
    assert chosen() is second
    # So it is where they have one address, as models of a provider do.
    same = {**params, "api_base": "http://a/v1"}
    keyed = [{**ENTRY, "litellm_params": {**same, "api_key": key}} for key in "abcd"]
    backends = Backends(keyed)
    backends.of("m")[0].rests_until = time.monotonic() + 60
    assert {backends.of("m").index(chosen(f"at-{n}", backends)) for n in range(200)} == {1, 2, 3}


async def test_concurrent_calls_spread_over_the_replicas(bench):
    with EchoLLM(latency_seconds=0.2) as other:
        bench.llm.latency_seconds = 0.2
        bench.serve(bench.llm.url, other.url)
        url = bench.proxy.as_resource().endpoint
        await asyncio.gather(*(bench.post(bench.ask(str(n)), url) for n in range(20)))
        assert abs(len(bench.llm.requests) - len(other.requests)) <= 4
    assert [backend.in_flight for backend in bench.proxy._backends.all()] == [0, 0]


async def test_a_replica_that_is_down_is_left_for_another_without_a_retry(bench):
    for urls in ((DOWN, bench.llm.url), (bench.llm.url, DOWN)):
        bench.serve(*urls)
        statuses = [(await bench.post(bench.ask()))[0] for _ in range(5)]
        assert statuses == [200] * 5
    assert len(await bench.spans()) == 10


@pytest.mark.parametrize("status", [429, 503])
async def test_an_overloaded_replica_is_left_for_another_and_used_again(bench, status):
    with EchoLLM(lambda request: RawReply(status, b"{}")) as other:
        bench.serve(other.url, bench.llm.url)
        calls = 0
        while not other.requests:
            assert (await bench.post(bench.ask(), bench.proxy.as_resource().endpoint))[0] == 200
            calls += 1
        assert len(bench.llm.requests) == calls
        backend = bench.proxy._backends.all()[0]
        assert backend.rest_seconds == 0.1
        other.reply = lambda request: "well again"
        before = len(other.requests)
        while len(other.requests) == before:
            await bench.post(bench.ask(), bench.proxy.as_resource().endpoint)
        assert backend.rest_seconds == 0


# --- retries


@pytest.fixture
async def retrying(bench):
    bench.proxy.num_retries = 3
    await bench.proxy.restart()
    return bench


class SlowDown(EchoLLM):
    """Answers 429 with ``Retry-After`` so many times."""

    def __init__(self, times: int, after: str) -> None:
        super().__init__()
        self.times, self.after, self.arrivals = times, after, []

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "http":
            self.arrivals.append(time.monotonic())
            if len(self.arrivals) <= self.times:
                headers = [(b"retry-after", self.after.encode()), (b"content-length", b"2")]
                await send({"type": "http.response.start", "status": 429, "headers": headers})
                await send({"type": "http.response.body", "body": b"{}"})
                return
        await super().__call__(scope, receive, send)


async def test_retry_after_is_honoured(retrying):
    with SlowDown(1, "0.4") as llm:
        retrying.serve(llm.url)
        assert (await retrying.post(retrying.ask()))[0] == 200
        first, second = llm.arrivals
        assert second - first >= 0.4


@pytest.mark.parametrize("after", ["61", "1000000000", "Wed, 21 Oct 2099 07:28:00 GMT"])
async def test_a_rest_of_more_than_a_minute_is_left_to_the_agent(retrying, after):
    with SlowDown(9, after) as llm:
        retrying.serve(llm.url)
        url = f"{retrying.url}/chat/completions"
        status, headers, _ = await stream_of(url, retrying.ask())
        assert (status, headers["retry-after"]) == (429, after)
        assert len(llm.arrivals) == 1


async def test_a_wait_beyond_the_clients_deadline_is_not_begun(retrying):
    with SlowDown(9, "30") as llm:
        retrying.serve(llm.url)
        status, _ = await retrying.post(retrying.ask(), **{"x-stainless-read-timeout": "5"})
        assert (status, len(llm.arrivals)) == (429, 1)
        openai = pytest.importorskip("openai")
        given = {"base_url": retrying.url, "api_key": "x", "timeout": 5, "max_retries": 0}
        async with openai.AsyncOpenAI(**given) as client:
            with pytest.raises(openai.RateLimitError):
                await client.chat.completions.create(**retrying.ask())


async def test_a_client_that_hangs_up_ends_the_retries(retrying):
    with SlowDown(9, "30") as llm:
        retrying.serve(llm.url)
        call = asyncio.create_task(retrying.post(retrying.ask()))
        await until(lambda: llm.arrivals)
        call.cancel()
        # The end of the call is that of its retries.
        assert "client closed the connection" in (await retrying.attributes())[Key.ERROR]
        assert len(llm.arrivals) == 1
        assert retrying.proxy._backends.all()[0].in_flight == 0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *[("2", 2.0), ("0.5", 0.5), ("-1", 0.0), ("soon", None), ("nan", None), ("inf", None)],
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        (f"Wed, {10**20} Oct 2015 07:28:00 GMT", None),
    ],
)
def test_retry_after_is_read_in_both_forms(value, expected):
    assert retry_after({"retry-after": value}) == expected
    assert retry_after({}) is None


def test_a_replica_that_stays_down_rests_longer_each_time(monkeypatch):
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    backends = Backends([ENTRY] * 2)
    down, up = backends.of("m")
    rests = []
    for _ in range(4):
        for _ in range(3):  # calls that were under way together
            failover = Failover(lambda tried: up if down in tried else down, num_retries=0)
            assert failover.take() is down
            assert failover.failed() == 0.0
            assert failover.take() is up
        rests.append(down.rests_until - now)
        now = down.rests_until
    assert rests == pytest.approx([0.1, 0.2, 0.4, 0.8])


# --- hot replacement


async def test_backends_are_replaced_under_load_without_an_error(bench):
    with EchoLLM(latency_seconds=0.02) as other:
        bench.llm.latency_seconds = 0.02
        done = False

        async def replace() -> None:
            number = 0
            while not done:
                url = (bench.llm.url, other.url)[number % 2]
                bench.serve(url)
                number += 1
                await asyncio.sleep(0.01)

        replacing = asyncio.create_task(replace())
        while not (bench.llm.requests and other.requests):
            answers = await asyncio.gather(
                *(bench.post(bench.ask(str(n), stream=bool(n % 2))) for n in range(150))
            )
            assert {status for status, _ in answers} == {200}
        done = True
        await replacing
    assert all(Key.ERROR not in span.attributes for span in await bench.spans())


# --- pause, resume, drain


async def test_a_refusing_pause_names_the_model(bench):
    await bench.proxy.pause(refuse=True)
    _, error = await bench.refused(bench.ask())
    assert "'echo' takes no calls now" in error["message"]


async def test_a_pause_that_lasts_too_long_ends_in_503(bench):
    bench.proxy._max_pause_seconds = 0.1
    await bench.proxy.restart()
    await bench.proxy.pause()
    status, error = await bench.refused(bench.ask())
    assert status == 503
    assert "paused for more than 0.1 seconds" in error["message"]
    await bench.proxy.resume()
    assert (await bench.post(bench.ask()))[0] == 200


async def test_a_client_that_hangs_up_while_it_waits_costs_the_backend_nothing(bench):
    await bench.proxy.pause()
    pause_control, entered = bench.proxy._call_limits.pause_control, asyncio.Event()
    loop, wait = asyncio.get_running_loop(), pause_control._wait_for_resume

    async def waits(model: str) -> None:
        loop.call_soon_threadsafe(entered.set)
        await wait(model)

    pause_control._wait_for_resume = waits
    call = asyncio.create_task(bench.post(bench.ask()))
    await entered.wait()
    call.cancel()
    assert "client closed the connection" in (await bench.attributes())[Key.ERROR]
    await bench.proxy.drain()
    await bench.proxy.resume()
    assert bench.llm.requests == []


async def test_only_a_served_model_of_a_running_proxy_can_be_paused(bench):
    with pytest.raises(ConfigError, match="model 'x' is not served; served models: echo"):
        await bench.proxy.pause("x")
    with pytest.raises(ConfigError, match="does not run"):
        await LLMProxy().drain()


# --- forced parameters


async def test_what_agents_ask_for_in_vain_is_told_in_short(bench, caplog):
    bench.serve(forced_parameters={"all": {"temperature": 1.0}})
    await bench.post(bench.ask(temperature="hot" * 10_000))
    (told,) = [record.getMessage() for record in caplog.records if "forced" in record.msg]
    assert "temperature='hothot" in told
    assert len(told) < 1000


@pytest.mark.parametrize(
    ("limits", "asked", "sent"),
    [
        ({"forced_parameters": {"all": {"max_tokens": 5}}}, {"max_completion_tokens": 900}, (5, 0)),
        ({"max_tokens": 5}, {}, (5, 0)),
        ({"max_tokens": 5}, {"max_tokens": None}, (5, 0)),
        ({"max_tokens": 5}, {"max_completion_tokens": 900}, (0, 900)),
    ],
)
async def test_answers_have_one_limit(bench, limits, asked, sent):
    """The forced one, or the agent's, or that of the model."""
    bench.serve(**limits)
    await bench.post({**bench.ask(), **asked}, bench.proxy.as_resource().endpoint)
    names = ("max_tokens", "max_completion_tokens")
    assert tuple(bench.llm.requests[0].get(name, 0) for name in names) == sent
