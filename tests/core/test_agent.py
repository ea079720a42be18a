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


RESOURCES = {"a": PROMPT, "b": MAIN}
ALL = ["the task", MAIN, PROMPT, ROLLOUT]


def by_names(task, llm, prompt_template, rollout, resources):
    return [task, llm, prompt_template, rollout, resources]


def annotated(
    question: str,
    model: agl.LLM,
    template: agl.PromptTemplate,
    this: agl.Rollout,
    everything: agl.NamedResources,
):
    return [question, model, template, this, everything]


def in_strings(
    task: "dict[str, str]",
    model: "agl.LLM | None",
    template: Optional[agl.PromptTemplate],  # noqa: UP045
    this: "agl.AttemptedRollout",
):
    return [model, template, this]


def for_checkers_only(task: "NotImported", model: "types.ProxyLLM"):  # noqa: F821
    return model


def two_models(task, planner: agl.LLM, critic: agl.LLM):
    return planner, critic


def with_default(task, llm: agl.LLM | None = None):
    return llm


def style(task, style="plain", *args, temperature: float = 0.5, **kwargs):
    return style, args, temperature, kwargs


class Repeats:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, task: str, model: agl.LLM) -> Any:
        return task * self.factor, model


def repeated(factor: int, task: str, model: agl.LLM) -> Any:
    return task * factor, model


@pytest.mark.parametrize(
    ("agent", "resources", "expected"),
    [
        (by_names, {**RESOURCES, "c": SMALL}, [*ALL, {**RESOURCES, "c": SMALL}]),
        (annotated, RESOURCES, [*ALL, RESOURCES]),
        (in_strings, RESOURCES, [MAIN, PROMPT, ROLLOUT]),
        (for_checkers_only, {"b": MAIN}, MAIN),
        (lambda llm, task: task, {"llm": MAIN}, "the task"),
        # A resource of its name goes before the first of its kind.
        (two_models, {"critic": SMALL, "planner": MAIN}, (MAIN, SMALL)),
        # What nothing else fills keeps its default, unless a resource has its name.
        (style, {"llm": MAIN}, ("plain", (), 0.5, {})),
        (style, {"style": PROMPT}, (PROMPT, (), 0.5, {})),
        (with_default, {}, None),
        (lambda task, rollout, /, *, llm: (task, rollout, llm), {"x": MAIN}, (*ALL[::3], MAIN)),
        (Repeats(2), {"x": MAIN}, ("the taskthe task", MAIN)),
        (functools.partial(repeated, 2), {"x": MAIN}, ("the taskthe task", MAIN)),
    ],
    ids=[
        *("names", "annotations", "strings", "checkers", "order", "name first", "default"),
        *("named default", "missing", "kinds", "object", "partial"),
    ],
)
def test_parameters_are_filled(agent, resources, expected):
    assert run(agl.rollout(agent), **resources) == expected


def no_model(task, model): ...


@pytest.mark.parametrize(
    ("decorate", "agent", "said"),
    [
        (agl.rollout, no_model, "agent 'no_model': nothing to pass for parameter 'model'"),
        (agl.rollout, lambda llm: 0.0, "first parameter is the task; got 'llm'"),
        (agl.rollout, lambda: 0.0, "first parameter is the task; got no parameter"),
        (agl.llm_rollout, lambda task, prompt_template: 0.0, "@llm_rollout .*no parameter takes"),
        (agl.prompt_rollout, lambda task, llm: 0.0, "@prompt_rollout '<lambda>'"),
    ],
)
def test_function_that_cannot_be_an_agent_is_refused(decorate, agent, said):
    with pytest.raises(ConfigError, match=said):
        decorate(agent)


def test_missing_resource_names_the_parameter_and_what_there_is():
    @agl.rollout
    def agent(task, llm):
        return 0.0

    with pytest.raises(MissingResourceError) as caught:
        run(agent, prompt=PROMPT)
    for said in (
        "agent 'agent': no resource for parameter 'llm', which wants a LLM",
        "'prompt' (PromptTemplate)",
        "initial_resources={'llm': ...}",
    ):
        assert said in str(caught.value)
    with pytest.raises(MissingResourceError, match="the rollout's resources: none"):
        run(agent)


def test_two_models_are_told_apart_by_name_only():
    with pytest.raises(MissingResourceError, match=r"'critic'.*each goes by its name"):
        run(agl.rollout(two_models), planner=MAIN, other=SMALL)


def test_proxy_becomes_a_plain_llm_of_the_attempt():
    agent = agl.rollout(lambda task, llm, resources: (llm, resources))
    llm, resources = run(agent, main=PROXY)
    assert type(llm) is agl.LLM
    assert llm.endpoint == "http://gateway/rollout/ro-1/attempt/at-1/v1"
    assert llm.sampling_parameters == {"n": 1}
    assert resources == {"main": llm}


def test_proxy_is_kept_when_asked_for():
    agent = agl.llm_rollout(strip_proxy=False)(lambda task, llm: llm)
    assert run(agent, main=PROXY) is PROXY


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
    assert await agent.rollout_method("val")("four", {"x": MAIN}, ROLLOUT) == 0.4


async def test_callable_object_with_async_call_is_async():
    class Agent:
        async def __call__(self, task: str) -> float:
            return 1.0

    agent = agl.rollout(Agent())
    assert agent.is_async()
    assert await agent.rollout_async("x", {}, ROLLOUT) == 1.0


def agent_with(*methods: str) -> agl.LitAgent[str]:
    """An agent of a class with these methods; those whose names end so are coroutines."""

    def made(name):
        async def coroutine(self, task, resources, rollout): ...
        def plain(self, task, resources, rollout): ...

        function = coroutine if name.endswith("_async") else plain
        function.__name__ = name
        return function

    return type("Agent", (agl.LitAgent,), {name: made(name) for name in methods})()


VALIDATES, ANY = "validation_rollout_async", "rollout_async"


@pytest.mark.parametrize(
    ("methods", "chosen", "is_async"),
    [
        (
            ["rollout", "training_rollout"],
            {"train": "training_rollout", **dict.fromkeys(("val", "test", None), "rollout")},
            False,
        ),
        (["rollout", ANY, VALIDATES], {"train": ANY, "val": VALIDATES, "test": VALIDATES}, True),
        (["training_rollout_async", "validation_rollout"], {}, False),
    ],
)
def test_mode_chooses_the_most_specific_method_and_a_coroutine_first(methods, chosen, is_async):
    agent = agent_with(*methods)
    assert {mode: agent.rollout_method(mode).__name__ for mode in chosen} == chosen
    assert agent.is_async() == is_async


def test_agent_without_a_method_for_the_mode_is_refused():
    with pytest.raises(ConfigError, match=r"'Agent' has no rollout for mode 'val'.*rollout_async"):
        agent_with("training_rollout").rollout_method("val")


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
    agent, tracer = agl.rollout(lambda task: 0.0), agl.DummyTracer()
    runner = agl.LitAgentRunner(tracer)
    with runner.run_context(agent=agent, store=agl.InMemoryLightningStore()):
        assert (agent.runner, agent.tracer) == (runner, tracer)


def test_parameters_of_other_names_are_filled_by_their_order():
    class Agent(agl.LitAgent[str]):
        def rollout(self, t, res, ro):
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
    def never(*given):
        raise AssertionError("it must not run")

    needs_llm = agl.rollout(lambda task, llm: never())
    trainer = agl.Trainer(strategy="shm", n_runners=1)
    with pytest.raises(MissingResourceError, match="no resource for parameter 'llm'"):
        trainer.dev(needs_llm, ["x"])

    @agl.rollout
    def needs_prompt(task: str, llm: agl.LLM, prompt: agl.PromptTemplate) -> float:
        return never()

    publishes = agl.Baseline()
    publishes.publishes = (agl.LLM,)
    trainer = agl.Trainer(algorithm=publishes, strategy="shm", n_runners=1)
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


async def test_resource_that_the_store_has_already_is_enough(store):
    @agl.rollout
    def needs_prompt(task: str, prompt: agl.PromptTemplate) -> float:
        return float(prompt.format() == "hi")

    await store.add_resources({"prompt": agl.PromptTemplate(template="hi")})
    trainer = agl.Trainer(strategy="shm", n_runners=1, store=store)
    result = await asyncio.to_thread(trainer.dev, needs_prompt, ["x"])
    assert result.mean_reward == 1.0


def test_placeholder_without_a_value_is_named():
    with pytest.raises(KeyError, match=r"asks for 'nme'; format\(\) was given name, x"):
        agl.PromptTemplate(template="Say {nme}").format(name="a", x=1)
