"""The gateway's list is its user's: algorithms add their model to it, and take it out again."""

import asyncio
import contextlib
from types import SimpleNamespace

import pytest
from tests.models import call, entry
from tests.run_agents import running

import agl
from agl.errors import ConfigError
from agl_testing.echo_llm import EchoLLM

pytest.importorskip("agl_adapters")
pytest.importorskip("agl_gateway")

from tests.plugins.unsloth.looping import Counting

from agl_models.versions import WHOLE_SOFTMAX, model_served

SMALL = {"iterations": 1, "rollouts_per_task": 2}


async def ask(llm, model):
    """Status of a call."""
    return (await call(llm, "well?", llm.get_base_url(), llm.api_key, model=model))[0]


@pytest.fixture
def judge():
    with EchoLLM() as server:
        yield server


def given(algorithm, store, proxy):
    """What a trainer gives it."""
    algorithm.set_store(store)
    algorithm.set_adapter(agl.TraceToRows())
    algorithm.set_llm_proxy(proxy)
    return algorithm


def judged_agent(statuses):
    @agl.rollout
    async def agent(task: str, llm: agl.LLM) -> float:
        assert await ask(llm, llm.model) == 200
        statuses.append(await ask(llm, "judge"))
        return 1.0

    return agent


@pytest.mark.parametrize("fails", [False, True])
async def test_the_judge_of_a_running_gateway_answers_before_during_and_after(
    judge, store, tmp_path, fails
):
    proxy = agl.LLMProxy(model_list=[entry("judge", judge.url)], store=store)
    await proxy.start()
    bare = proxy.as_resource(model="judge")
    statuses = [await ask(bare, "judge")]
    algorithm = given(Counting(judge.url, run_dir=str(tmp_path / "run"), **SMALL), store, proxy)
    algorithm.fails = fails
    async with running(judged_agent(statuses), store) as task:
        with pytest.raises(OSError, match="disk") if fails else contextlib.nullcontext():
            await algorithm.run(["one", "two"])
        task.cancel()
        await asyncio.wait([task])
    assert proxy.is_running()
    statuses.append(await ask(bare, "judge"))
    assert statuses == [200] * 6
    assert proxy.model_names == ["judge"]
    assert await ask(bare, "policy") == 404
    await proxy.stop()


def test_a_trainer_stops_only_the_gateway_that_it_started(judge, tmp_path):
    store, statuses = agl.InMemoryLightningStore(), []
    users = agl.LLMProxy(model_list=[entry("judge", judge.url)], store=store)
    asyncio.run(users.start())
    own = agl.LLMProxy(model_list=[entry("judge", judge.url)])
    for number, proxy in enumerate((users, own)):
        algorithm = Counting(judge.url, run_dir=str(tmp_path / f"run-{number}"), **SMALL)
        agl.Trainer(
            algorithm=algorithm, store=store, strategy="shm", n_runners=1, llm_proxy=proxy
        ).fit(judged_agent(statuses), ["one"])
    assert statuses == [200] * 4
    assert (users.is_running(), own.is_running()) == (True, False)
    asyncio.run(users.stop())


@pytest.mark.parametrize("kind", ["loop", "grpo", "verl"])
async def test_a_name_that_the_user_serves_is_refused_before_anything_is_prepared(
    judge, store, tmp_path, kind
):
    """Before GRPO loads a model, and before VERL looks whether there is a verl."""
    proxy = agl.LLMProxy(model_list=[entry("policy", judge.url)], store=store)
    run_dir, loaded = {"run_dir": str(tmp_path / "run")}, []
    make = {
        "loop": lambda: Counting(judge.url, **run_dir),
        "grpo": lambda: agl.GRPO(lambda: loaded.append("a model"), **run_dir),
        "verl": lambda: agl.VERL({}),
    }[kind]
    algorithm = given(make(), store, proxy)
    with pytest.raises(ConfigError, match=r"'policy' stands in model_list.*another model_name"):
        await algorithm.run(["one"])
    assert not loaded
    assert not getattr(algorithm, "is_prepared", False)
    assert proxy.model_names == ["policy"]


async def test_verl_adds_its_model_and_takes_it_out_again(judge, store, tmp_path):
    from agl_verl import VERL
    from agl_verl.messages import Backend
    from agl_verl.run import Run

    proxy = agl.LLMProxy(model_list=[entry("judge", judge.url)])
    algorithm = given(VERL({}), store, proxy)

    class Options(dict):
        """As OmegaConf's, by name or by key."""

        __getattr__ = dict.__getitem__

    sampling = Options(temperature=1.0, top_p=0.9, top_k=20)
    config = SimpleNamespace(
        actor_rollout_ref=SimpleNamespace(rollout=Options(**sampling, seed=0, val_kwargs=sampling)),
        data=SimpleNamespace(max_prompt_length=8, max_response_length=8),
        algorithm=Options(adv_estimator="grpo"),
        trainer=SimpleNamespace(
            default_local_dir=tmp_path, resume_mode="auto", v1=SimpleNamespace(trainer_mode="sync")
        ),
    )
    run = Run(algorithm, algorithm, proxy, config, tmp_path, ["one"], None)
    for _ in range(2):  # verl may say it again, after it has begun once more
        await run.answer(Backend(judge.url, "policy"))
    bare = proxy.as_resource(model="policy")
    forced = proxy._backends.of("policy")[0].settings.forced_parameters["train"]
    assert forced == {**WHOLE_SOFTMAX, "temperature": 1.0, "top_p": 0.9, "top_k": 20}
    assert [await ask(bare, name) for name in ("policy", "judge")] == [200, 200]
    await run.end()
    assert proxy.model_names == ["judge"]
    assert not proxy.is_running()


async def test_a_gateway_is_left_as_it_was_found(judge, store):
    users, own = agl.LLMProxy(store=store), agl.LLMProxy()
    await users.start()
    try:
        for proxy in (users, own):
            async with model_served(proxy, entry("policy", judge.url), store):
                assert (proxy.is_running(), proxy.model_names) == (True, ["policy"])
        assert (users.is_running(), own.is_running()) == (True, False)
        assert users.model_names == own.model_names == []
        users.add_model(entry("policy", judge.url))  # another algorithm's
        with pytest.raises(ConfigError, match="another algorithm serves its model 'policy'"):
            async with model_served(users, entry("policy", judge.url), store):
                pytest.fail("it is served")
        assert users.model_names == ["policy"]
    finally:
        await users.stop()
