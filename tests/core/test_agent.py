import asyncio
import functools
from typing import Any, Optional

import pytest

import agl
from agl.agent.function import FunctionalLitAgent, MissingResourceError
from agl.errors import ConfigError

ATTEMPT = agl.Attempt(rollout_id="ro-1", attempt_id="at-1", sequence_id=1, start_time=0.0)
ROLLOUT = agl.AttemptedRollout(
    rollout_id="ro-1", input="task", start_time=0.0, mode="train", attempt=ATTEMPT
)
MAIN = agl.LLM(endpoint="http://main/v1", model="main")
SMALL = agl.LLM(endpoint="http://small/v1", model="small")
PROXY = agl.ProxyLLM(endpoint="http://gateway/v1", model="m", sampling_parameters={"n": 1})
PROMPT = agl.PromptTemplate(template="{task}")


def run(agent: FunctionalLitAgent[Any], **resources: agl.ResourceUnion) -> Any:
    return agent.rollout("the task", resources, ROLLOUT)


# --- injection


def test_parameters_are_filled_by_name():
    @agl.rollout
    def agent(task, llm, prompt_template, rollout, resources):
        return [task, llm, prompt_template, rollout, resources]

    resources = {"a": PROMPT, "b": MAIN, "c": SMALL}
    assert run(agent, **resources) == ["the task", MAIN, PROMPT, ROLLOUT, resources]


def test_parameters_are_filled_by_annotation():
    @agl.rollout
    def agent(
        question: str,
        model: agl.LLM,
        template: agl.PromptTemplate,
        this: agl.Rollout,
        everything: agl.NamedResources,
    ):
        return [question, model, template, this, everything]

    resources = {"a": PROMPT, "b": MAIN}
    assert run(agent, **resources) == ["the task", MAIN, PROMPT, ROLLOUT, resources]


def test_string_and_optional_annotations_count():
    @agl.rollout
    def agent(
        task: "dict[str, str]",
        model: "agl.LLM | None",
        template: Optional[agl.PromptTemplate],  # noqa: UP045
        this: "agl.AttemptedRollout",
    ):
        return [model, template, this]

    assert run(agent, a=PROMPT, b=MAIN) == [MAIN, PROMPT, ROLLOUT]


def test_annotation_that_only_type_checkers_can_resolve_counts():
    @agl.rollout
    def agent(task: "NotImported", model: "types.ProxyLLM"):  # noqa: F821
        return model

    assert run(agent, b=MAIN) == MAIN


def test_task_may_be_named_and_stand_anywhere():
    @agl.rollout
    def agent(llm, task):
        return task

    assert run(agent, llm=MAIN) == "the task"


def test_resource_of_the_same_name_goes_before_the_first_of_the_kind():
    @agl.rollout
    def agent(task, planner: agl.LLM, critic: agl.LLM):
        return planner, critic

    assert run(agent, critic=SMALL, planner=MAIN) == (MAIN, SMALL)


def test_unknown_parameter_with_a_default_keeps_it_unless_a_resource_has_its_name():
    @agl.rollout
    def agent(task, style="plain", *args, temperature: float = 0.5, **kwargs):
        return style, args, temperature, kwargs

    assert run(agent, llm=MAIN) == ("plain", (), 0.5, {})
    assert run(agent, style=PROMPT) == (PROMPT, (), 0.5, {})


def test_missing_resource_keeps_the_default():
    @agl.rollout
    def agent(task, llm: agl.LLM | None = None):
        return llm

    assert run(agent) is None


def test_positional_only_and_keyword_only_parameters_work():
    @agl.rollout
    def agent(task, rollout, /, *, llm):
        return task, rollout, llm

    assert run(agent, x=MAIN) == ("the task", ROLLOUT, MAIN)


def test_callable_objects_and_partials_become_agents():
    class Agent:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        def __call__(self, task: str, model: agl.LLM) -> Any:
            return task * self.factor, model

    def function(factor: int, task: str, model: agl.LLM) -> Any:
        return task * factor, model

    assert run(agl.rollout(Agent(2)), x=MAIN) == ("the taskthe task", MAIN)
    assert run(agl.rollout(functools.partial(function, 2)), x=MAIN) == ("the taskthe task", MAIN)


# --- what is refused at decoration


def test_parameter_that_nothing_can_fill_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"agent 'agent': nothing to pass for parameter 'model'"):

        @agl.rollout
        def agent(task, model):
            return 0.0


def test_agent_without_a_task_is_refused():
    with pytest.raises(ConfigError, match=r"first parameter is the task; got 'llm'"):

        @agl.rollout
        def agent(llm):
            return 0.0

    with pytest.raises(ConfigError, match=r"first parameter is the task; got no parameter"):

        @agl.rollout
        def nothing():
            return 0.0


def test_special_decorators_need_their_resource():
    with pytest.raises(ConfigError, match=r"@llm_rollout 'agent': no parameter takes the llm"):

        @agl.llm_rollout
        def agent(task, prompt_template):
            return 0.0

    with pytest.raises(ConfigError, match=r"@prompt_rollout 'other'"):

        @agl.prompt_rollout
        def other(task, llm):
            return 0.0


# --- what is refused at run time


def test_missing_resource_names_the_parameter_and_what_there_is():
    @agl.rollout
    def agent(task, llm):
        return 0.0

    with pytest.raises(MissingResourceError) as caught:
        run(agent, prompt=PROMPT)
    message = str(caught.value)
    assert "agent 'agent': no resource for parameter 'llm', which wants a LLM" in message
    assert "'prompt' (PromptTemplate)" in message
    assert "initial_resources={'llm': ...}" in message
    with pytest.raises(MissingResourceError, match="the rollout's resources: none"):
        run(agent)


def test_two_models_are_told_apart_by_name_only():
    @agl.rollout
    def agent(task, planner: agl.LLM, critic: agl.LLM):
        return 0.0

    with pytest.raises(MissingResourceError, match=r"'critic'.*each goes by its name"):
        run(agent, planner=MAIN, other=SMALL)


# --- proxies


def test_proxy_becomes_a_plain_llm_of_the_attempt():
    @agl.rollout
    def agent(task, llm, resources):
        return llm, resources

    llm, resources = run(agent, main=PROXY)
    assert type(llm) is agl.LLM
    assert llm.endpoint == "http://gateway/rollout/ro-1/attempt/at-1/v1"
    assert llm.sampling_parameters == {"n": 1}
    assert resources == {"main": llm}


def test_proxy_is_kept_when_asked_for():
    @agl.llm_rollout(strip_proxy=False)
    def agent(task, llm):
        return llm

    assert run(agent, main=PROXY) is PROXY


# --- the decorated object


def test_decorated_function_is_still_callable():
    @agl.rollout
    def agent(task: str, llm: agl.LLM) -> float:
        """Doc."""
        return len(task) / 10

    assert agent("four", MAIN) == 0.4
    assert agent(task="four", llm=MAIN) == 0.4
    assert (agent.__name__, agent.__doc__) == ("agent", "Doc.")
    assert isinstance(agent, agl.LitAgent)


async def test_decorated_coroutine_function_is_still_one():
    @agl.rollout
    async def agent(task: str, llm: agl.LLM) -> float:
        return len(task) / 10

    assert agent.is_async()
    assert await agent("four", MAIN) == 0.4
    assert await agent.rollout_async("four", {"x": MAIN}, ROLLOUT) == 0.4
    assert await agent.rollout_method("val")("four", {"x": MAIN}, ROLLOUT) == 0.4  # type: ignore


async def test_callable_object_with_async_call_is_async():
    class Agent:
        async def __call__(self, task: str) -> float:
            return 1.0

    agent = agl.rollout(Agent())
    assert agent.is_async()
    assert await agent.rollout_async("x", {}, ROLLOUT) == 1.0


# --- classes


def method_name(agent: agl.LitAgent[Any], mode: Any) -> str:
    return agent.rollout_method(mode).__name__


def test_mode_chooses_the_most_specific_method():
    class Agent(agl.LitAgent[str]):
        def rollout(self, task, resources, rollout):
            return 0.0

        def training_rollout(self, task, resources, rollout):
            return 1.0

    agent = Agent()
    assert method_name(agent, "train") == "training_rollout"
    assert [method_name(agent, mode) for mode in ("val", "test", None)] == ["rollout"] * 3
    assert not agent.is_async()


def test_coroutine_method_goes_before_the_plain_one():
    class Agent(agl.LitAgent[str]):
        def rollout(self, task, resources, rollout):
            return 0.0

        async def rollout_async(self, task, resources, rollout):
            return 0.0

        async def validation_rollout_async(self, task, resources, rollout):
            return 0.0

    assert method_name(Agent(), "train") == "rollout_async"
    for mode in ("val", "test"):
        assert method_name(Agent(), mode) == "validation_rollout_async"
    assert Agent().is_async()


def test_agent_that_is_async_in_one_mode_only_is_not_async():
    class Agent(agl.LitAgent[str]):
        async def training_rollout_async(self, task, resources, rollout):
            return 0.0

        def validation_rollout(self, task, resources, rollout):
            return 0.0

    assert not Agent().is_async()


def test_agent_without_a_method_for_the_mode_is_refused():
    class Agent(agl.LitAgent[str]):
        def training_rollout(self, task, resources, rollout):
            return 0.0

    with pytest.raises(ConfigError, match=r"'Agent' has no rollout for mode 'val'.*rollout_async"):
        Agent().rollout_method("val")


def test_subclass_need_not_call_the_base_constructor():
    class Agent(agl.LitAgent[str]):
        def __init__(self, turns: int) -> None:
            self.turns = turns

        def rollout(self, task, resources, rollout):
            return 0.0

    agent = Agent(3)
    assert agent.trained_agents is None
    with pytest.raises(ConfigError, match=r"'Agent' has no runner"):
        _ = agent.runner
    with pytest.raises(ConfigError, match=r"'Agent' has no trainer"):
        _ = agent.trainer
    assert agl.LitAgent(trained_agents="write|rewrite").trained_agents == "write|rewrite"


def test_tracer_is_the_runners_outside_of_a_rollout():
    @agl.rollout
    def agent(task):
        return 0.0

    tracer = agl.DummyTracer()
    runner = agl.LitAgentRunner(tracer)
    with runner.run_context(agent=agent, store=agl.InMemoryLightningStore()):
        assert agent.runner is runner
        assert agent.tracer is tracer


def test_parameters_of_other_names_are_filled_by_their_order():
    class Agent(agl.LitAgent[str]):
        def rollout(self, t, res, ro):  # type: ignore
            return [t, res, ro]

    assert Agent().rollout_method("val")("t", {}, ROLLOUT) == ["t", {}, ROLLOUT]
    assert Agent().rollout_method("val").__name__ == "rollout"


def test_bare_address_of_the_gateway_is_warned_about_once(caplog):
    from agl.types import resources

    resources._warn_of_bare_address.cache_clear()
    assert PROXY.get_base_url() == "http://gateway/v1"
    assert PROXY.get_base_url("ro-1", "at-1").endswith("/rollout/ro-1/attempt/at-1/v1")
    assert PROXY.with_attempted_rollout(ROLLOUT).endpoint.endswith("/at-1/v1")
    assert agl.ProxyLLM.model_validate(PROXY.model_dump()) == PROXY
    assert MAIN.endpoint == "http://main/v1"
    assert caplog.messages == []
    assert (PROXY.endpoint, PROXY.endpoint) == ("http://gateway/v1",) * 2
    (message,) = caplog.messages
    assert "recorded for no rollout" in message


def test_run_that_lacks_a_resource_is_refused_before_it_starts():
    @agl.rollout
    def needs_llm(task: str, llm: agl.LLM) -> float:
        raise AssertionError("it must not run")

    trainer = agl.Trainer(strategy="shm", n_runners=1)
    with pytest.raises(MissingResourceError, match="no resource for parameter 'llm'"):
        trainer.dev(needs_llm, ["x"])

    class Publishes(agl.Baseline):
        publishes = (agl.LLM,)

    @agl.rollout
    def needs_prompt(task: str, llm: agl.LLM, prompt: agl.PromptTemplate) -> float:
        raise AssertionError("it must not run")

    trainer = agl.Trainer(algorithm=Publishes(), strategy="shm", n_runners=1)
    with pytest.raises(MissingResourceError, match="no resource for parameter 'prompt'"):
        trainer.fit(needs_prompt, ["x"])


def test_a_baseline_of_ones_own_may_publish_a_resource_when_it_runs():
    class Publishes(agl.Baseline):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            prompt = agl.PromptTemplate(template="hi")
            await self.get_store().add_resources({"prompt": prompt})
            await super().run(train_dataset, val_dataset)

    @agl.rollout
    def answers(task: str, prompt: agl.PromptTemplate) -> float:
        agl.emit_reward(0.5)
        if task == "fails":
            raise KeyError
        return float(prompt.format() == "hi")

    algorithm = Publishes()
    agl.Trainer(algorithm=algorithm, strategy="shm", n_runners=1).dev(answers, ["works", "fails"])
    assert list(algorithm.rewards.values()) == [1.0, None]  # 0.5 was on the way


async def test_resource_that_the_store_has_already_is_enough():

    @agl.rollout
    def needs_prompt(task: str, prompt: agl.PromptTemplate) -> float:
        return float(prompt.format() == "hi")

    store = agl.InMemoryLightningStore()
    await store.add_resources({"prompt": agl.PromptTemplate(template="hi")})
    trainer = agl.Trainer(strategy="shm", n_runners=1, store=store)
    result = await asyncio.to_thread(trainer.dev, needs_prompt, ["x"])
    assert result.mean_reward == 1.0


def test_placeholder_without_a_value_is_named():
    with pytest.raises(KeyError, match=r"asks for 'nme'; format\(\) was given name, x"):
        agl.PromptTemplate(template="Say {nme}").format(name="a", x=1)
