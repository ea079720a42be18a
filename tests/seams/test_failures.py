"""What failed a rollout decides what becomes of it, and servers are no bad answer of the model."""

import asyncio
import contextlib
import importlib
import socket

import aiohttp
import pytest
from tests.models import call, entry
from tests.run_agents import running

import agl
from agl.emitter import reward_attributes
from agl.errors import AlgorithmError, ConfigError, StoreUnavailableError
from agl.semconv import AGL_ANNOTATION, CLIENT_GONE, MODEL_CALL_SPAN, ModelCallAttributes as Key
from agl.types import RolloutConfig
from agl_learning.advantages.weighing import WeighingOptions, weigh
from agl_learning.collect.collector import Collector
from agl_learning.collect.step_metrics import collected_metrics, usable_rows
from agl_runs.failures import Failures
from agl_testing.echo_llm import EchoLLM, RawReply

pytest.importorskip("agl_adapters")
pytest.importorskip("agl_gateway")


def refuses(status):
    return lambda request: RawReply(status, b'{"error": {"message": "out of order"}}')


def breaks_off(request):
    piece = b'data: {"choices": [{"index": 0, "delta": {"content": "hal"}}]}\n\n'
    return RawReply(200, piece, "text/event-stream")


async def post(llm, content, **fields):
    return (await call(llm, content, **fields))[0]


class Line:
    """A store, a gateway before a model, and a runner; what came of three rollouts of one task."""

    def __init__(self, **gateway):
        self.llm = EchoLLM()
        self.store = agl.InMemoryLightningStore()
        self.gateway = gateway

    async def collect(self, agent):
        """A runner plays ``agent``."""
        with self.llm, socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))  # and does not listen
            down = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1"
            models = [entry("policy", self.llm.url), entry("down", down)]
            proxy = agl.LLMProxy(model_list=models, store=self.store, **self.gateway)
            await proxy.start()
            added = await self.store.add_resources({"llm": proxy.as_resource(model="policy")})
            collector = Collector(self.store, proxy, agl.TraceToRows(), RolloutConfig())
            async with running(agent, self.store) as task:
                collected = await collector.collect(["task"], 3, "train", added.resources_id, {})
                task.cancel()
                await asyncio.wait([task])
            await proxy.stop()
        await self.store.close()
        return collected


def agent_with(trouble, line):
    """Ends with 1, 0 and, after the third rollout had ``trouble`` besides its call, 0."""
    begun = []

    @agl.rollout
    async def agent(task: str, llm: agl.LLM) -> float:
        copy = len(begun)
        begun.append(copy)
        assert await post(llm, f"first {copy}") == 200
        if copy < 2:
            return 1.0 - copy
        await trouble(llm, line.llm)
        return 0.0

    return agent


async def swallowed(status, llm, server):
    server.reply = refuses(status)
    assert await post(llm, "second") == status
    server.reply = lambda request: "ok"


async def unreachable(llm, server):
    assert await post(llm.model_copy(update={"model": "down"}), "second") == 502


async def given_up(llm, server):
    server.latency_seconds = 30.0
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(post(llm, "second"), 0.3)
    server.latency_seconds = 0.0


async def broken_off(llm, server):
    server.reply = breaks_off
    with contextlib.suppress(aiohttp.ClientError):
        await post(llm, "second", stream=True)
    server.reply = lambda request: "ok"


TROUBLES = {
    "500": lambda llm, server: swallowed(500, llm, server),
    "503": lambda llm, server: swallowed(503, llm, server),
    "429": lambda llm, server: swallowed(429, llm, server),
    "nobody listens": unreachable,
    "no answer in time": given_up,
    "the stream breaks off": broken_off,
}


@pytest.mark.parametrize("name", TROUBLES)
async def test_a_rollout_with_a_failed_call_is_excluded_and_siblings_weighed_without_it(name):
    line = Line()
    collected = await line.collect(agent_with(TROUBLES[name], line))
    third = next(one for one in collected.ended if one.failed is not None)
    assert (third.rollout.status, third.reward) == ("succeeded", None)
    assert (collected.num_infrastructure, collected.mean_reward) == (1, 0.5)
    # Rewards 1 and 0: mean 1/2, sample deviation sqrt(1/2).
    found = weigh(collected, WeighingOptions())
    weighed = {one.row.rollout_id: one.advantages[0].value for one in found}
    assert sorted(weighed.values()) == pytest.approx([-(0.5**0.5), 0.5**0.5], abs=1e-4)
    assert third.rollout.rollout_id not in weighed
    collected.ledger.check()
    assert collected.ledger.reasons() == {"infrastructure": 2}
    assert collected.ledger.reasons("rollout") == {"infrastructure": 1}
    assert collected_metrics(collected)["rollouts/infrastructure"] == 1


@pytest.mark.parametrize("is_asked_again", [False, True])
async def test_a_call_whose_attempt_the_gateway_cannot_look_up_is_such_a_failure(is_asked_again):
    class Away(agl.InMemoryLightningStore):
        for_rollout = None

        async def query_attempts(self, rollout_id):
            if rollout_id == self.for_rollout:
                raise StoreUnavailableError("connection refused")
            return await super().query_attempts(rollout_id)

    line, begun = Line(), []
    line.store = Away()

    @agl.rollout
    async def agent(task: str, llm: agl.LLM, rollout: agl.Rollout) -> float:
        begun.append(rollout.rollout_id)
        if len(begun) == 3:
            line.store.for_rollout = rollout.rollout_id
            assert await post(llm, "question") == 503
            line.store.for_rollout = None
            if not is_asked_again:
                return 0.0
        assert await post(llm, "question") == 200
        return 2.0 - len(begun)

    collected = await line.collect(agent)
    assert collected.num_infrastructure == int(not is_asked_again)
    assert sorted(collected.rewards) == ([-1.0, 0.0, 1.0] if is_asked_again else [0.0, 1.0])
    assert collected.ledger.reasons() == {"infrastructure": 1}  # the failed call itself


@pytest.mark.parametrize("same", [True, False])
async def test_a_call_that_is_cancelled_once_its_twin_is_answered_is_no_failure(same):
    line = Line()

    async def trouble(llm, server):
        arrived, loop = asyncio.Event(), asyncio.get_running_loop()

        def reply(request):  # the first one of both waits, for longer than the test
            server.latency_seconds = 0.0 if arrived.is_set() else 600.0
            loop.call_soon_threadsafe(arrived.set)
            return "ok"

        server.reply = reply
        slow = asyncio.create_task(post(llm, "second"))
        await arrived.wait()
        assert await post(llm, "second" if same else "something else") == 200
        slow.cancel()
        await asyncio.wait([slow])
        # Once the rollout has ended, the gateway would break the call off itself.
        while not [span for span in await spans_of_all(line.store) if Key.ERROR in span.attributes]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    collected = await line.collect(agent_with(trouble, line))
    assert collected.num_infrastructure == int(not same)
    assert sorted(collected.rewards) == ([0.0, 0.0, 1.0] if same else [0.0, 1.0])


async def spans_of_all(store):
    rollouts = await store.query_rollouts()
    return [span for each in rollouts for span in await store.query_spans(each.rollout_id)]


def fails(server, times):
    """So often, and then no more."""
    last = len(server.requests) + times
    server.reply = lambda request: "ok" if len(server.requests) > last else refuses(503)(request)


async def repeated_by_its_client(llm, server):
    openai = pytest.importorskip("openai")
    fails(server, 2)
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key="x", max_retries=3) as client:
        messages = [{"role": "user", "content": "second"}]
        await client.chat.completions.create(model=llm.model, messages=messages)


async def completions_repeated_by_their_client(llm, server):
    openai = pytest.importorskip("openai")
    fails(server, 1)
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key="x", max_retries=3) as client:
        await client.completions.create(model=llm.model, prompt=[7, 8, 9])


async def repeated_by_the_gateway(llm, server):
    fails(server, 1)
    assert await post(llm, "second") == 200


async def followed_by_another(llm, server):
    await swallowed(503, llm, server)
    assert await post(llm, "something else") == 200


async def refused(llm, server):
    assert await post(llm, "second") == 429


@pytest.mark.parametrize(
    ("trouble", "gateway", "failed", "reasons"),
    [
        (lambda *of: swallowed(400, *of), {}, 0, {"model_error": 1}),  # the request is to blame
        (repeated_by_its_client, {}, 0, {"infrastructure": 2}),  # the two failed calls themselves
        (completions_repeated_by_their_client, {}, 0, {"infrastructure": 1}),
        (repeated_by_the_gateway, {"num_retries": 2}, 0, {}),
        (followed_by_another, {}, 1, {"infrastructure": 3}),
        (refused, {"run_budget": {"calls": 3}}, 1, {"infrastructure": 2}),
        (refused, {"attempt_budget": {"calls": 1}}, 0, {"model_error": 1}),
    ],
)
async def test_what_is_a_failure_of_infrastructure(trouble, gateway, failed, reasons):
    line = Line(**gateway)
    collected = await line.collect(agent_with(trouble, line))
    assert collected.num_infrastructure == failed
    assert sorted(collected.rewards) == ([0.0, 1.0] if failed else [0.0, 0.0, 1.0])
    usable_rows(collected)
    assert collected.ledger.reasons() == reasons


CALL = {
    Key.PROMPT_TOKEN_IDS: [1, 2],
    Key.RESPONSE_TOKEN_IDS: [3],
    Key.RESPONSE_LOGPROBS: [-0.5],
    Key.OPERATION: "chat",
}
REFUSED = {Key.ERROR: "503", Key.ERROR_KIND: "infrastructure", Key.OPERATION: "chat"}
LEFT = {**REFUSED, Key.STATUS_CODE: CLIENT_GONE}
PENALTY = {"penalty": -1.0}


@pytest.mark.parametrize(
    ("failures", "boundary", "calls", "rewards", "reasons"),
    [
        ({}, "agent", [CALL], [1.0], {"failed_attempt": 1}),
        ({"agent": "keep"}, "agent", [CALL], [0.5, 1.0], {}),
        ({"agent": "penalise", **PENALTY}, "agent", [CALL], [-1.0, 1.0], {}),
        ({"agent": "drop_group"}, "agent", [CALL], [], {"failed_attempt": 1, "unused_group": 1}),
        ({"agent": "retry"}, "agent", [CALL], [1.0, 1.0], {"failed_attempt": 1}),
        ({"agent": "keep"}, "store", [CALL], [0.5, 1.0], {}),
        # Servers and runners earn nothing, and what they broke off is no end of the agent's.
        ({"agent": "penalise", **PENALTY}, "lost", [CALL], [1.0], {"failed_attempt": 1}),
        ({"agent": "keep"}, "agent", [CALL, REFUSED], [1.0], {"failed_attempt": 2}),
        ({"infrastructure": "keep"}, "tracer", [CALL], [0.5, 1.0], {}),
        ({"infrastructure": "keep"}, None, [CALL, REFUSED], [0.5, 1.0], {"infrastructure": 1}),
        (
            {"infrastructure": "penalise", **PENALTY},
            *(None, [CALL, REFUSED], [-1.0, 1.0], {"infrastructure": 1}),
        ),
        ({}, "model", [CALL], [1.0, 1.0], {"failed_attempt": 1}),
        ({}, "evaluator", [CALL], [1.0, 1.0], {"failed_attempt": 1}),
        ({"timeout": "keep"}, "timeout", [CALL, LEFT], [0.5, 1.0], {"infrastructure": 1}),
        ({"timeout": "keep"}, "timeout", [CALL, REFUSED], [1.0], {"failed_attempt": 2}),
        ({"agent": "keep"}, "cancelled", [CALL], [1.0], {"failed_attempt": 1}),
    ],
)
async def test_a_rollout_ends_as_the_policy_of_what_failed_it_says(
    failures, boundary, calls, rewards, reasons
):
    store = agl.InMemoryLightningStore()
    policies = Failures(**failures)
    collector = Collector(store, None, agl.TraceToRows(), RolloutConfig(), failures=policies)
    resources = (await store.add_resources({})).resources_id
    asked = collector.collect(["task"], 2, "train", resources, {}, key="step")
    collecting = asyncio.create_task(asked)
    runs = 2 + ("retry" in failures.values() or boundary in ("model", "evaluator"))
    for run in range(runs):
        ids = await claim(store)
        given = [*(calls if run == 0 else [CALL]), reward_attributes(0.5 if run == 0 else 1.0)]
        names = [MODEL_CALL_SPAN] * (len(given) - 1) + [AGL_ANNOTATION]
        spans = [
            agl.Span.from_attributes(name=name, attributes=one, sequence_id=number, **ids)
            for number, (name, one) in enumerate(zip(names, given, strict=True), 1)
        ]
        await store.add_many_spans(spans)
        end = {"status": "succeeded"}
        if run == 0 and boundary is not None:
            failure = agl.Failure(boundary=boundary, type="E", message="no")
            end = {"status": "timeout" if boundary == "timeout" else "failed", "error": failure}
        await store.update_attempt(*ids.values(), **end)
    collected = await collecting
    usable = [row.credits[0].reward for _, rows in usable_rows(collected) for _, row in rows]
    assert sorted(usable) == rewards
    whys = [one.failed.why for one in (*collected.ended, *collected.lost) if one.failed]
    assert not any("agl show ROLLOUT" in why for why in whys)
    penalties = [one.penalty for one in collected.ended if one.penalty is not None]
    assert penalties == [reward for reward in rewards if reward == -1.0]
    for one in (one for one in collected.ended if one.unusable is None):
        for row in one.rows:
            collected.ledger.train(row)
    collected.ledger.check()
    assert collected.ledger.reasons() == reasons


async def claim(store):
    while (claimed := await store.dequeue_rollout()) is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}


def run_baseline(agent, llm, **options):
    """Over three tasks; their rewards."""
    baseline = agl.Baseline(max_queue_length=1)
    proxy = agl.LLMProxy(model_list=[entry("policy", llm.url)])
    resources = {"llm": proxy.as_resource()}
    about = {"strategy": "shm", "n_runners": 1, "initial_resources": resources, **options}
    trainer = agl.Trainer(algorithm=baseline, llm_proxy=proxy, **about)
    try:
        trainer.fit(agent, ["one", "two", "three"])
    finally:
        asyncio.run(trainer.store.close())
    return list(baseline.rewards.values())


def test_baseline_leaves_the_reward_out_of_its_mean():
    line = Line()
    with line.llm:
        rewards = run_baseline(agent_with(TROUBLES["503"], line), line.llm)
    assert rewards == [1.0, 0.0, None]


@pytest.mark.sqlite
@pytest.mark.parametrize("swallows", [True, False])
def test_a_baseline_without_answers_fails_and_runs_its_tasks_again(swallows, tmp_path):
    @agl.rollout
    async def agent(task: str, llm: agl.LLM) -> float:
        status = await post(llm, task)
        assert swallows or status == 200
        return 1.0

    llm, given = EchoLLM(refuses(503)), {"run": "it", "run_dir": tmp_path}
    with llm:
        with pytest.raises(AlgorithmError, match=r"failed model calls of all 3 rollouts, .* 503"):
            run_baseline(agent, llm, **given)
        llm.reply = lambda request: "ok"
        assert run_baseline(agent, llm, **given, resume=True) == [1.0, 1.0, 1.0]


AZURE = {
    "endpoint": "https://x.openai.azure.com",
    **dict.fromkeys(("base_deployment", "base_model", "subscription_id", "resource_group"), "x"),
}


WRONG = {
    ("agent", "ignore"): "failures.agent is 'ignore'; expected exclude",
    ("cancelled", "keep"): "failures.cancelled: unknown key",
    ("timeout", "penalise"): "failures.timeout is 'penalise', which needs failures.penalty",
    ("penalty", -1.0): "failures.penalty is -1.0, and nothing is penalised",
}


@pytest.mark.timeout(60)  # a first import of openai takes its time on a busy machine
@pytest.mark.parametrize(
    ("name", "required"),
    [
        ("agl:GRPO", {"model": "m"}),
        ("agl:VERL", {"config": {}}),
        ("agl_unsloth:SFT", {"model": "m"}),
        ("agl_unsloth:DPO", {"model": "m"}),
        ("agl_tinker:Tinker", {"base_model": "m"}),
        ("agl_azure:AzureSFT", AZURE),
        ("agl:APO", {"base_url": "http://x", "api_key": "x"}),
        ("agl_apo:GEPA", {"base_url": "http://x", "api_key": "x"}),
    ],
)
def test_every_algorithm_takes_the_policy_and_refuses_what_is_none(name, required):
    module, _, attribute = name.partition(":")
    make = getattr(importlib.import_module(module), attribute)
    is_search = name in ("agl:APO", "agl_apo:GEPA")
    assert make(**required).failures.infrastructure == ("retry" if is_search else "exclude")
    assert make(**required, failures={"agent": "keep"}).failures.agent == "keep"
    for wrong, message in WRONG.items():
        with pytest.raises(ConfigError, match=message):
            make(**required, failures=dict([wrong]))
