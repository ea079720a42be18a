"""What an agent's script sets: rewards of tools, tracing, retries."""

import asyncio
import os
import sys
from importlib.util import find_spec

import pytest

import agl
from agl.errors import AglError
from agl_service import InvalidConfigError, TrainingError, runtime
from agl_service.workers import Task, Workers, to_lit_agent

from .test_jobs import ann as ann, queue as queue


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(runtime.air, "rules", {})
    monkeypatch.setattr(runtime, "_set", {})
    monkeypatch.setitem(runtime.traced, "tracer", "otel")
    for what in ("INPUTS", "OUTPUTS"):
        monkeypatch.setenv(f"OPENINFERENCE_HIDE_{what}", "")


@agl.operation(name="search")
def search(word: str) -> str:
    if word == "nothing":
        raise LookupError(word)
    return f"about {word}"


@agl.operation(name="run_python")
def run_python(code: str) -> dict[str, object]:
    return {"stdout": "", "exit_code": int("exit(1)" in code)}


def with_tools(resource, task) -> float:
    """The tools of an agent that asks its model elsewhere."""
    search(task.question)
    try:
        search("nothing")
    except LookupError:
        run_python("exit(1)")
    return 1.0


async def with_tools_async(resource, task) -> float:
    return with_tools(resource, task)


def rewards_of(function, store) -> list[tuple[float, str, str]]:
    """Value, rule, and name of the tool that the reward links to."""

    async def run():
        llm = agl.LLM(endpoint="http://127.0.0.1:9/v1", model="m")
        await store.add_resources({"main_llm": llm})
        runner = agl.LitAgentRunner(agl.OtelTracer())
        with runner.run_context(agent=to_lit_agent(function), store=store):
            rollout = await runner.step({"question": "tides", "metadata": {"use_cot": True}})
        assert rollout.status == "succeeded", rollout.attempt.error
        spans = (await store.query_spans(rollout.rollout_id)).items
        assert agl.find_final_reward(spans) == 1.0
        return spans

    spans = asyncio.run(run())
    names = {span.span_id: span.attributes.get("agentlightning.operation.name") for span in spans}
    found = [span for span in spans if "agentlightning.air.rule" in span.attributes]
    return [
        (
            agl.get_rewards_from_span(span)[0].value,
            span.attributes["agentlightning.air.rule"],
            names[span.attributes["agentlightning.link.0.value_match"]],
        )
        for span in found
    ]


class WithTools:
    async def __call__(self, resource, task) -> float:
        assert resource.metadata["use_cot"]
        return with_tools(resource, task)


@pytest.mark.parametrize("function", [with_tools, with_tools_async, WithTools()])
def test_rules_as_the_description_has_them_reward_tools(function, memory_store):
    @runtime.air.on_tool_success
    def reward_tool_success(tool_name, output):
        """Assign +0.3 reward when tool succeeds."""
        return 0.3 if output == "about tides" else None

    @runtime.air.on_tool_failure
    def penalize_tool_failure(tool_name, error):
        """Assign -0.2 penalty when tool fails."""
        return -0.2 if "nothing" in error else None

    @runtime.air.on_code_execution
    def reward_code_exec(code, result, exit_code):
        """Custom reward based on code execution."""
        return 0.5 if exit_code == 0 else -0.1

    assert rewards_of(function, memory_store) == [
        (0.3, "on_tool_success", "search"),
        (-0.2, "on_tool_failure", "search"),
        (-0.1, "on_code_execution", "run_python"),
    ]


@pytest.mark.parametrize("off", [{}, {"LIGHTNING_ENABLE_AIR": "false"}, {"air_enabled": False}])
def test_without_rules_or_switched_off_no_tool_is_rewarded(off, memory_store, monkeypatch):
    if off:
        runtime.air.on_tool_success(lambda tool_name, output: 0.3)
    for name, value in off.items():
        monkeypatch.setenv(name, value) if name.isupper() else runtime.set_config(off)
    assert rewards_of(with_tools, memory_store) == []


def test_what_is_set_stands_in_the_job(queue, ann, monkeypatch):
    ann.upload_data(str(queue.lines))
    result = {"train_rewards": [0.0], "test_rewards": [], "checkpoints": {}, "step": 1, "run": ""}
    monkeypatch.setattr(ann, "_follow", lambda job, _: {"id": job, "seconds": 0.0, **result})

    def options(job: str = "") -> dict[str, object]:
        job = job or ann.train(with_tools).job
        text = (queue.folder / "ann/jobs" / job / "job.yaml").read_text()
        return runtime_options(text)

    assert options() == {}
    monkeypatch.setenv("LIGHTNING_MAX_RETRIES", "5")
    assert options() == {"failures": {"agent": "retry", "timeout": "retry", "retries": 5}}
    runtime.set_config({"max_retries": 0})
    assert options() == {"failures": {"agent": "exclude", "timeout": "exclude"}}
    runtime.set_config({"air_enabled": True, "max_retries": 3, "timeout": 60})
    runtime.air.on_tool_success(lambda tool_name, output: 0.3)
    assert options() == {
        "credit": "discounted",
        "failures": {"agent": "retry", "timeout": "retry", "retries": 3},
        "rollouts": {"timeout_seconds": 60.0},
    }
    evaluation = options(ann._begin("evaluate", None))
    assert evaluation == {key: value for key, value in options().items() if key != "credit"}
    runtime.set_config({"air_enabled": False})
    assert "credit" not in options()


def runtime_options(text: str) -> dict[str, object]:
    import yaml

    algorithm = yaml.safe_load(text)["algorithm"]
    return {key: algorithm[key] for key in ("credit", "failures", "rollouts") if key in algorithm}


def test_a_credit_rule_that_leaves_tools_out_is_refused(queue):
    queue.restart(credit="final")
    runtime.air.on_tool_success(lambda tool_name, output: 0.3)
    ann = queue.client("ann")
    ann.upload_data(str(queue.lines))
    with pytest.raises(InvalidConfigError, match="credit rule 'final' uses final rewards only"):
        ann.train(with_tools)


def test_what_cannot_be_set_is_refused(monkeypatch):
    with pytest.raises(
        InvalidConfigError, match=r"set_config\.air_enable: .*Did you mean 'air_enabled'"
    ):
        runtime.set_config({"air_enable": True})
    with pytest.raises(InvalidConfigError, match="timeout"):
        runtime.set_config({"timeout": 0})
    with pytest.raises(InvalidConfigError, match="the server learns from calls"):
        runtime.auto_instrument(trace_llm_calls=False)
    monkeypatch.setenv("LIGHTNING_MAX_RETRIES", "many")
    with pytest.raises(InvalidConfigError, match="LIGHTNING_MAX_RETRIES"):
        runtime.runtime_config()


def test_instrumentation_is_that_of_openinference():
    runtime.auto_instrument(trace_llm_calls=True, trace_tool_calls=True, trace_context=True)
    assert os.environ["OPENINFERENCE_HIDE_INPUTS"] == "false"
    if find_spec("openinference") is None:
        with pytest.raises(AglError, match=r"auto_instrument: .*openinference"):
            Workers(with_tools, 1, "")
    else:
        assert type(Workers(with_tools, 1, "")._tracer).__name__ == "OpenInferenceTracer"
    runtime.auto_instrument(trace_tool_calls=False, trace_context=False)
    assert os.environ["OPENINFERENCE_HIDE_OUTPUTS"] == "true"
    assert type(Workers(with_tools, 1, "")._tracer).__name__ == "OtelTracer"


def test_fields_of_a_task_come_before_methods_of_a_dict():
    task = Task({"question": "?", "items": ["bread"]})
    assert (task.items, task["items"], task.ground_truth) == (["bread"], ["bread"], None)
    with pytest.raises(AttributeError, match="it has question, items"):
        _ = task.answer


def test_workers_that_end_at_once_are_not_begun_for_ever(monkeypatch):
    monkeypatch.setattr(Workers, "_work", lambda *given: sys.exit(7))
    workers = Workers(print, 1, "127.0.0.1")
    for _ in range(3):
        workers.keep("", "")
        workers._process.join()
    with pytest.raises(TrainingError, match="3 times within 10 s, with exit code 7"):
        workers.keep("", "")
