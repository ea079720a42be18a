"""A model call that servers or the network failed is no bad answer of the model."""

import asyncio
import contextlib
import importlib
import socket

import aiohttp
import pytest

import agl
from agl.errors import AlgorithmError, ConfigError, StoreUnavailableError
from agl.semconv import ModelCallAttributes as Key
from agl.types import RolloutConfig
from agl_learning.advantages.weighing import WeighingOptions, weigh
from agl_learning.collect.collector import Collector
from agl_learning.collect.step_metrics import collected_metrics, usable_rows
from agl_testing.echo_llm import EchoLLM, RawReply

pytest.importorskip("agl_adapters")
pytest.importorskip("agl_gateway")


def refuses(status):
    return lambda request: RawReply(status, b'{"error": {"message": "out of order"}}')


def breaks_off(request):
    return RawReply(
        200,
        b'data: {"choices": [{"index": 0, "delta": {"content": "hal"}}]}\n\n',
        "text/event-stream",
    )


async def post(llm, content, timeout=None, **fields):
    body = {"model": llm.model, "messages": [{"role": "user", "content": content}], **fields}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout)) as session,
        session.post(f"{llm.endpoint}/chat/completions", json=body) as response,
    ):
        await response.read()
        return response.status


class Line:
    """A store, a gateway before a model, and a runner; what came of three rollouts of one task."""

    def __init__(self, policy="exclude", **gateway):
        self.llm = EchoLLM()
        self.store = agl.InMemoryLightningStore()
        self.policy = policy
        self.gateway = gateway

    @contextlib.asynccontextmanager
    async def serving(self, agent):
        """A runner plays ``agent``; gives the gateway, and the id of the resources."""
        with self.llm, socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))  # and does not listen
            addresses = {
                "policy": self.llm.url,
                "down": f"http://127.0.0.1:{nobody.getsockname()[1]}/v1",
            }
            proxy = agl.LLMProxy(
                model_list=[
                    {
                        "model_name": name,
                        "litellm_params": {"model": f"hosted_vllm/{name}", "api_base": url},
                    }
                    for name, url in addresses.items()
                ],
                store=self.store,
                **self.gateway,
            )
            await proxy.start()
            resources = await self.store.add_resources({"llm": proxy.as_resource(model="policy")})
            runner = agl.LitAgentRunner(agl.OtelTracer())
            with runner.run_context(agent=agent, store=self.store):
                running = asyncio.create_task(runner.iter())
                yield proxy, resources.resources_id
                running.cancel()
                await asyncio.wait([running])
            await proxy.stop()
        await self.store.close()

    async def collect(self, agent, tasks=("task",), copies=3):
        async with self.serving(agent) as (proxy, resources_id):
            collector = Collector(
                self.store,
                proxy,
                agl.TraceToRows(),
                RolloutConfig(),
                infrastructure_failures=self.policy,
            )
            return await collector.collect(list(tasks), copies, "train", resources_id, {})


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
        await post(llm, "second", timeout=0.3)
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
async def test_a_rollout_with_a_failed_call_is_excluded_and_its_siblings_are_weighed_without_it(
    name,
):
    line = Line()
    collected = await line.collect(agent_with(TROUBLES[name], line))
    third = next(one for one in collected.ended if one.infrastructure is not None)
    assert (third.rollout.status, third.reward, collected.num_infrastructure) == (
        "succeeded",
        None,
        1,
    )
    assert collected.mean_reward == 0.5
    # Rewards 1 and 0: mean 1/2, sample deviation sqrt(1/2).
    weighed = {
        one.row.rollout_id: one.advantages[0].value for one in weigh(collected, WeighingOptions())
    }
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


async def test_drop_group_trains_nothing_of_that_task_and_everything_of_others():
    line = Line("drop_group")
    trouble = agent_with(TROUBLES["503"], line)

    @agl.rollout
    async def agent(task: str, llm: agl.LLM, rollout: agl.Rollout) -> float:
        if task == "fine":
            assert await post(llm, "fine") == 200
            return float(rollout.rollout_id[-1] in "02468ace")
        return await trouble.training_rollout(task, {"llm": llm}, rollout)

    collected = await line.collect(agent, ["troubled", "fine"])
    assert {one.group for one, _ in usable_rows(collected)} == {1}
    for one in collected.ended:
        for row in one.rows if one.group else ():
            collected.ledger.exclude_row(row, "zero_advantage")
    collected.ledger.check()
    reasons = collected.ledger.reasons()
    assert reasons == {"infrastructure": 2, "unused_group": 2, "zero_advantage": 3}


async def test_keep_counts_it_as_any_other():
    line = Line("keep")
    collected = await line.collect(agent_with(TROUBLES["503"], line))
    assert sorted(collected.rewards) == [0.0, 0.0, 1.0]
    assert len(usable_rows(collected)) == 3
    assert collected.ledger.reasons() == {"infrastructure": 1}  # the failed call itself


async def test_what_the_request_is_to_blame_for_is_the_models_own_failure():
    line = Line()
    collected = await line.collect(agent_with(lambda *of: swallowed(400, *of), line))
    assert collected.num_infrastructure == 0
    assert sorted(collected.rewards) == [0.0, 0.0, 1.0]
    assert collected.ledger.reasons() == {"model_error": 1}


async def test_a_call_that_the_clients_library_repeats_with_success_is_no_failure():
    openai = pytest.importorskip("openai")
    line = Line()

    async def trouble(llm, server):
        asked = len(server.requests)
        server.reply = lambda request: (
            "ok" if len(server.requests) > asked + 2 else refuses(503)(request)
        )
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key="x", max_retries=3) as client:
            await client.chat.completions.create(
                model=llm.model, messages=[{"role": "user", "content": "second"}]
            )

    collected = await line.collect(agent_with(trouble, line))
    assert collected.num_infrastructure == 0
    assert sorted(collected.rewards) == [0.0, 0.0, 1.0]
    assert collected.ledger.reasons() == {"infrastructure": 2}  # the two failed calls themselves


async def test_a_call_that_the_gateway_repeats_with_success_is_no_failure():
    line = Line(num_retries=2)

    async def trouble(llm, server):
        asked = len(server.requests)
        server.reply = lambda request: (
            "ok" if len(server.requests) > asked + 1 else refuses(503)(request)
        )
        assert await post(llm, "second") == 200

    collected = await line.collect(agent_with(trouble, line))
    assert (collected.num_infrastructure, collected.ledger.reasons()) == (0, {})


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


async def test_another_request_that_is_answered_later_does_not_make_good_for_it():
    line = Line()

    async def trouble(llm, server):
        await swallowed(503, llm, server)
        assert await post(llm, "something else") == 200

    collected = await line.collect(agent_with(trouble, line))
    assert collected.num_infrastructure == 1


async def test_the_runs_spent_budget_is_no_bad_answer_and_the_attempts_is():
    async def trouble(llm, server):
        assert await post(llm, "second") == 429

    line = Line(run_budget={"calls": 3})
    assert (await line.collect(agent_with(trouble, line))).num_infrastructure == 1
    line = Line(attempt_budget={"calls": 1})
    assert (await line.collect(agent_with(trouble, line))).num_infrastructure == 0


def run_baseline(agent, llm, **options):
    """Over three tasks; their rewards."""
    baseline = agl.Baseline(max_queue_length=1, infrastructure_failures=options.pop("policy"))
    backend = {"model": "hosted_vllm/policy", "api_base": llm.url}
    proxy = agl.LLMProxy(model_list=[{"model_name": "policy", "litellm_params": backend}])
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
        rewards = run_baseline(agent_with(TROUBLES["503"], line), line.llm, policy="exclude")
    assert rewards == [1.0, 0.0, None]


@pytest.mark.parametrize("swallows", [True, False])
def test_a_baseline_without_answers_fails_and_runs_its_tasks_again(swallows, tmp_path):
    @agl.rollout
    async def agent(task: str, llm: agl.LLM) -> float:
        status = await post(llm, task)
        assert swallows or status == 200
        return 1.0

    llm, given = EchoLLM(refuses(503)), {"run": "it", "run_dir": tmp_path, "policy": "exclude"}
    with llm:
        with pytest.raises(AlgorithmError, match=r"failed model calls of all 3 rollouts, .* 503"):
            run_baseline(agent, llm, **given)
        llm.reply = lambda request: "ok"
        assert run_baseline(agent, llm, **given, resume=True) == [1.0, 1.0, 1.0]
        llm.reply = refuses(503)
        if swallows:
            assert run_baseline(agent, llm, policy="keep") == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("keep", [False, True])
async def test_an_evaluation_of_a_prompt_is_run_again_and_then_left_out(keep):
    pytest.importorskip("agl_apo")
    from agl_apo.evaluate import Candidate, Evaluator, Failed, Score
    from agl_apo.journal import StoreJournal
    from agl_apo.options import PromptOptions

    line = Line()
    played = []

    @agl.rollout
    async def agent(task: str, llm: agl.LLM) -> float:
        played.append(task)
        if task == "always" or played == ["once"]:
            await TROUBLES["503"](llm, line.llm)
        return 0.0

    async with line.serving(agent) as (_, resources_id):
        evaluator = Evaluator(
            StoreJournal(line.store, "run", "apo"),
            {"search": ["once", "always"], "held_out": []},
            options=PromptOptions(
                evaluation_tries=2, infrastructure_failures="keep" if keep else "exclude"
            ),
            shuffled=False,
            resources_ids={"first": resources_id},
        )
        first = Candidate("first", {})
        await evaluator.extend([first], "search", [0])
        await evaluator.extend([first], "search", [1])
    kinds = [type(evaluator.outcomes["first", "search"][position]) for position in (0, 1)]
    if keep:
        assert (played, kinds) == (["once", "always"], [Score, Score])
        return
    assert (played, kinds) == (["once", "once", "always", "always"], [Score, Failed])
    assert evaluator.failed(first, "search")[0].why.startswith("infrastructure: the backend")


AZURE = {
    "endpoint": "https://x.openai.azure.com",
    **dict.fromkeys(("base_deployment", "base_model", "subscription_id", "resource_group"), "x"),
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
        ("agl:Baseline", {}),
    ],
)
def test_every_algorithm_takes_the_policy_and_refuses_what_is_none(name, required):
    module, _, attribute = name.partition(":")
    make = getattr(importlib.import_module(module), attribute)
    assert make(**required).infrastructure_failures == "exclude"
    assert make(**required, infrastructure_failures="keep").infrastructure_failures == "keep"
    with pytest.raises(ConfigError, match="infrastructure_failures is 'ignore'; expected exclude"):
        make(**required, infrastructure_failures="ignore")
