"""``agl doctor`` on configurations that go wrong, each for real: agent, gateway, model server."""

import json
import logging
import re
import sys
import threading
from collections.abc import Iterable
from typing import Any, get_args

import pytest

from agl.types import Failure
from agl_inspect.doctor import trial as doctor_trial
from agl_inspect.doctor.findings import FAILURE_FIXES, FIXES
from agl_records.types import ExclusionReason
from agl_testing.echo_llm import EchoLLM

pytest.importorskip("agl_gateway")
pytest.importorskip("openai")

AGENT = """
import itertools
import agl
from openai import AsyncOpenAI

NUMBERS = itertools.count()

def nearly(reward):
    return reward - (next(NUMBERS) % 3 == 1) / 1000

async def ask(llm, text="hello", **headers):
    async with AsyncOpenAI(api_key="x", base_url=llm.endpoint, max_retries=0) as client:
        messages = [{"role": "user", "content": text}]
        answer = await client.chat.completions.create(
            model=llm.model, messages=messages, extra_headers=headers)
    return answer.choices[0].message.content

@agl.rollout
async def good(task, llm: agl.LLM) -> float:
    await ask(llm, task["q"], **{"x-agl-agent": "solver"})
    return nearly(0.5)

@agl.rollout
async def has_a_global_address(task, llm: agl.LLM) -> float:
    import asyncio, os
    os.environ["DOCTOR_BASE_URL"] = llm.endpoint
    await asyncio.sleep(0.3)
    await ask(agl.LLM(endpoint=os.environ["DOCTOR_BASE_URL"], model=llm.model), task["q"])
    return nearly(1.0)

@agl.rollout
async def slow(task, llm: agl.LLM) -> float:
    import asyncio
    await asyncio.sleep(0.3)
    await ask(llm, task["q"])
    return nearly(1.0)

@agl.rollout
async def blocking(task, llm: agl.LLM) -> float:
    import time
    time.sleep(1.6)
    await ask(llm, task["q"])
    return nearly(1.0)

@agl.rollout
async def asks_another_model(task, llm: agl.LLM) -> float:
    await ask(llm.model_copy(update={"model": "helper"}))
    return nearly(1.0)

@agl.rollout
async def asks_both(task, llm: agl.LLM) -> float:
    await ask(llm.model_copy(update={"model": "helper"}))
    await ask(llm)
    return nearly(1.0)

@agl.rollout
async def no_reward(task, llm: agl.LLM) -> None:
    await ask(llm)

@agl.rollout
async def raises(task, llm: agl.LLM) -> float:
    await ask(llm)
    raise ValueError("no such room")

@agl.rollout
async def never_asks(task, llm: agl.LLM) -> float:
    return nearly(1.0)

@agl.rollout
def takes_no_model(task) -> float:
    return nearly(1.0)

@agl.rollout
def ignores_its_prompt(task, prompt_template: agl.PromptTemplate) -> float:
    return float(task["q"] in prompt_template.format(q=task["q"]))

@agl.rollout
def gives_two_rewards(task) -> float:
    agl.emit_reward(0.5)
    return 1.0

@agl.rollout
async def keeps_the_bare_address(task, llm: agl.LLM) -> float:
    bare = llm.endpoint.split("/rollout/")[0] + "/v1"
    await ask(agl.LLM(endpoint=bare, model=llm.model), task["q"])
    return nearly(1.0)

@agl.rollout
async def wants_a_prompt(task, prompt_template: agl.PromptTemplate) -> float:
    return nearly(1.0)

@agl.rollout
async def early_reward(task, llm: agl.LLM) -> float:
    agl.emit_reward(0.25)
    await ask(llm)
    return nearly(1.0)

@agl.rollout
async def past_the_gateway(task, llm: agl.LLM) -> float:
    agl.emit_annotation({
        "gen_ai.operation.name": "chat", "gen_ai.request.model": "echo",
        "gen_ai.input.messages": '[{"role": "user", "content": "hi"}]',
        "gen_ai.output.messages": '[{"role": "assistant", "content": "yes"}]',
    })
    return nearly(1.0)

@agl.rollout
async def uses_a_tool(task, llm: agl.LLM) -> None:
    await ask(llm)
    agl.emit_annotation({"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look"})

@agl.rollout
async def swallows_an_error(task, llm: agl.LLM) -> float:
    try:
        await ask(llm, "fail")
    except Exception:
        pass
    return nearly(1.0)

class Serves(agl.Algorithm):
    default_adapter = "rows"
    needs_gateway = True

    def __init__(self, url: str, run_dir: str = "serves"):
        self.url, self.run_dir = url, run_dir

    async def run(self, train_dataset=None, val_dataset=None):
        from pathlib import Path
        Path(self.run_dir).mkdir()
        gateway, store = self.get_llm_proxy(), self.get_store()
        backend = {"model": "hosted_vllm/echo", "api_base": self.url}
        gateway.update_model_list([{"model_name": "echo", "litellm_params": backend}])
        await gateway.start()
        await store.add_resources({"main_llm": gateway.as_resource(model="echo")})
        while True:
            for task in train_dataset:
                rollout = await store.enqueue_rollout(task, mode="train")
                await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])

class ServesTwo(Serves):
    def get_llm_proxy(self):
        gateway = super().get_llm_proxy()
        update = gateway.update_model_list
        helper = {"model_name": "helper"}
        gateway.update_model_list = lambda found: update([*found, {**found[0], **helper}])
        return gateway

class QueuesAll(Serves):
    async def run(self, train_dataset=None, val_dataset=None):
        import asyncio
        serving = asyncio.create_task(super().run(train_dataset, val_dataset))
        while await self.get_store().get_latest_resources() is None:
            await asyncio.sleep(0.01)
        for task in train_dataset[1:]:
            await self.get_store().enqueue_rollout(task, mode="train")
        await serving

class Prompts(Serves):
    default_adapter = "messages"

class Triplets(Serves):
    default_adapter = "triplet"

class Validates(agl.Algorithm):
    async def run(self, train_dataset=None, val_dataset=None):
        if val_dataset is None:
            raise agl.errors.ConfigError("no validation tasks")
        store = self.get_store()
        rollout = await store.enqueue_rollout(val_dataset[0], mode="val")
        await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])

class Idle(agl.Algorithm):
    async def run(self, train_dataset=None, val_dataset=None):
        pass

class Breaks(agl.Algorithm):
    async def run(self, train_dataset=None, val_dataset=None):
        raise RuntimeError("the model is not there")

@agl.rollout
async def flat(task, llm: agl.LLM) -> float:
    await ask(llm, task["q"])
    return 0.5

TOLD = []

class Watches(agl.Hook):
    def on_run_start(self, algorithm):
        TOLD.append("run start")

    def on_run_end(self, error):
        TOLD.append("run end")

    async def on_rollout_end(self, *, agent, runner, rollout, spans):
        TOLD.append("rollout end")

class Marked:
    @agl.hookimpl(specname="on_attempt_end")
    def after(self, attempt):
        TOLD.append("attempt end")

    @agl.hookimpl(specname="on_run_end")
    def at_the_end(self, error):
        TOLD.append("run end")

class OnlyRuns:
    @agl.hookimpl
    def on_run_start(self, algorithm):
        TOLD.append("run start")
"""


@pytest.fixture(scope="module")
def llm():
    from agl_testing.echo_llm import RawReply

    def reply(request: dict[str, Any]) -> str | RawReply:
        text = request["messages"][-1]["content"]
        return RawReply(500, b'{"error": {"message": "out of memory"}}') if text == "fail" else text

    with EchoLLM(reply) as server:
        yield server


def in_module(arguments: Iterable[str]) -> list[str]:
    """Agents and algorithms are named without their module here."""
    ours = r"^(agent|algorithm|algorithm\.type)=(?!baseline|null)"
    return [re.sub(ours, r"\1=doctor_agents:", one) for one in arguments]


@pytest.fixture
def doctor(own_modules, monkeypatch, agl, llm):
    """Runs ``agl doctor agl.yaml OVERRIDES --json``: exit code and what it wrote."""
    (own_modules / "doctor_agents.py").write_text(AGENT)
    (own_modules / "tasks.jsonl").write_text('{"q": "one"}\n{"q": "two"}\n')
    (own_modules / "agl.yaml").write_text(
        "agent: doctor_agents:good\ntrain: tasks.jsonl\n"
        f"algorithm: {{type: 'doctor_agents:Serves', url: '{llm.url}'}}\n"
    )
    # On a busy machine every agent keeps the loop for a second.
    monkeypatch.setattr(doctor_trial, "HELD_SECONDS", 60.0)

    def run(*arguments: str) -> tuple[object, dict[str, Any]]:
        given = in_module(arguments)
        if any(one.startswith("algorithm.type=") for one in arguments):
            given.append(f"algorithm.url={llm.url}")  # another type drops the options
        code, out, err = agl("doctor", "agl.yaml", *given, "--json")
        assert out or "--debug" not in err, err
        return code, json.loads(out) if out else err

    return run


def codes(diagnosis: dict[str, Any]) -> dict[str, str]:
    return {finding["code"]: finding["level"] for finding in diagnosis["findings"]}


def test_a_sound_configuration_has_grade_a_and_leaves_nothing_behind(doctor, tmp_path):
    before = set(threading.enumerate())
    code, diagnosis = doctor("--task", "1")
    assert (code, diagnosis["trainable"], diagnosis["findings"]) == (0, True, [])
    assert diagnosis["rollout"]["input"] == {"q": "two"}
    (call,) = diagnosis["calls"]
    assert (call["grade"], call["row"], call["reward"], call["rule"]) == ("A", 0, 0.5, "final")
    # "<|user|> two <|end|> <|assistant|>" was given, "two <|end|>" was sampled.
    assert (call["prompt_tokens"], call["response_tokens"]) == (4, 2)
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert left == {"agl.yaml", "doctor_agents.py", "tasks.jsonl"}
    assert set(threading.enumerate()) <= before


def test_equal_rewards_of_a_task_are_a_warning_where_calls_are_trained(doctor, agl):
    code, diagnosis = doctor("agent=flat")
    assert (code, codes(diagnosis)) == (0, {"equal_rewards": "warning"})
    said = "all 5 rollouts of this task have the reward 0.5; an algorithm that compares"
    assert said in diagnosis["findings"][0]["message"]
    prompts = "algorithm.type=Prompts"
    assert codes(doctor("agent=flat", prompts)[1]) == {}
    verdict = agl("doctor", "agl.yaml", *in_module(["agent=flat"])).out.splitlines()[-1]
    assert "something can be learned by 'Serves', if rewards come to differ; calls" in verdict


NO_IDS = "gateway={type: proxy, callbacks: []}"


def test_without_token_ids_weights_cannot_be_trained_and_prompts_can(doctor):
    code, diagnosis = doctor(NO_IDS)
    assert (code, codes(diagnosis)) == (1, {"no_token_ids": "error"})
    (call,) = diagnosis["calls"]
    assert (call["grade"], call["excluded"]) == ("C", "no_token_ids")
    assert "no token ids of the prompt and the answer; no chat template" in call["because"]

    code, diagnosis = doctor(NO_IDS, "algorithm.type=Prompts")
    assert (code, diagnosis["needs"], codes(diagnosis)) == (0, "C", {})
    assert diagnosis["calls"][0]["excluded"] is None


@pytest.mark.slow  # it imports transformers
def test_with_a_chat_template_text_has_grade_b(doctor, tmp_path):
    pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")),
        chat_template="{% for m in messages %}{{ m['content'] }} {% endfor %}",
    )
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    no_logprobs = "gateway={type: proxy, callbacks: [return_token_ids]}"
    code, diagnosis = doctor(no_logprobs, "--tokenizer", "tokenizer")
    assert (code, codes(diagnosis)) == (1, {"no_logprobs": "error"})
    (call,) = diagnosis["calls"]
    assert (call["grade"], call["because"]) == ("B", "0 log-probabilities for 2 tokens")


HELPER = "resources={judge: {type: llm, endpoint: 'http://127.0.0.1:9/v1', model: helper}}"
ASKS_HELPER = ["agent=asks_another_model", "algorithm.type=ServesTwo", HELPER]
OPEN = "gateway={type: proxy, open: true}"
BARE = "5 came to the gateway at an address that is no rollout's"
OF_JUDGE, NOT_OURS = "adapter={agent_match: judge}", "agent_not_selected"
FAILED, NO_PROMPT = "attempt_failed", "no resource for parameter 'prompt_template'"


@pytest.mark.parametrize(
    ("overrides", "code", "said", "fix"),
    [
        (["agent=no_reward"], "no_reward", "the agent gave no reward", "emit_reward"),
        (["agent=raises"], FAILED, "no such room (doctor_agents.py:", "instead of raising"),
        (["agent=never_asks"], "no_calls", "no model call was recorded", "base_url=llm.endpoint"),
        (["agent=keeps_the_bare_address", OPEN], "no_calls", BARE, "base_url=llm.endpoint"),
        (["agent=wants_a_prompt"], FAILED, NO_PROMPT, "'resources:' in the configuration"),
        ([OF_JUDGE], NOT_OURS, "1 of 1 calls are excluded", "(solver)"),
        (["agent=early_reward", OF_JUDGE], NOT_OURS, "1 of 1 calls are excluded", "x-agl-agent"),
        (ASKS_HELPER, "other_model", "1 of 1 calls are excluded as other_model", "model=llm.model"),
        (["adapter={max_length: 5}"], "over_length", "6 tokens, max_length is 5", "max_length"),
        (["agent=swallows_an_error"], "infrastructure", "the backend answered 500", "agl spans"),
        (["agent=past_the_gateway"], "no_token_ids", "1 of 1 calls", "went past the gateway"),
        (["algorithm=Idle"], "no_rollout", "ended without queuing a rollout", "train: FILE"),
        (["algorithm=Breaks"], "algorithm_failed", "RuntimeError: the model is not", "--debug"),
    ],
)
def test_each_fault_is_found_with_its_fix_and_exit_code_1(doctor, overrides, code, said, fix):
    exit_code, diagnosis = doctor(*overrides)
    assert (exit_code, diagnosis["trainable"]) == (1, False)
    assert codes(diagnosis)[code] == "error"
    (finding,) = [finding for finding in diagnosis["findings"] if finding["code"] == code]
    assert said in finding["message"]
    assert fix in finding["fix"]


LLM_ELSEWHERE = "resources={llm: {type: llm, endpoint: 'http://127.0.0.1:9/v1', model: m}}"
OF_TOOLS = "adapter={credit: per_call, air: {on_tool_success: 0.5}}"
VALIDATES = ["algorithm=Validates", "val=tasks.jsonl", "agent=never_asks", LLM_ELSEWHERE]
TWICE = {"no_calls": "note", "superseded_reward": "warning"}
BASELINE = "algorithm=baseline"
ALONE = ["algorithm=null", "agent=past_the_gateway", LLM_ELSEWHERE, "adapter={credit: per_call}"]


@pytest.mark.parametrize(
    ("given", "code", "found", "said"),
    [
        ([NO_IDS, "algorithm.type=Triplets"], 0, {"no_token_ids": "warning"}, ""),
        (["agent=asks_both", "algorithm.type=ServesTwo"], 0, {"other_model": "note"}, ""),
        (VALIDATES, 1, {"no_calls": "error"}, ""),
        (["agent=uses_a_tool", OF_TOOLS], 0, {}, ""),
        (ALONE, 0, {"no_token_ids": "error"}, ""),
        (["agent=early_reward"], 0, {"reward_before_call": "warning"}, "the reward 0.25 (span"),
        (["agent=gives_two_rewards", BASELINE], 0, TWICE, "several rewards (0.5, 1)"),
        (["agent=takes_no_model"], 1, {"no_calls": "error"}, ""),
    ],
)
def test_what_is_odd_is_found_and_weighed(doctor, given, code, found, said):
    exit_code, diagnosis = doctor(*given)
    assert (exit_code, codes(diagnosis)) == (code, found)
    assert not said or said in diagnosis["findings"][-1]["message"]
    calls = [(call["excluded"], call["reward"]) for call in diagnosis["calls"]]
    if "agent=asks_both" in given:
        assert [excluded for excluded, _ in calls] == ["other_model", None]
    elif "val=tasks.jsonl" in given:
        assert diagnosis["rollout"]["mode"] == "val"
    elif given is ALONE:
        assert [call["rule"] for call in diagnosis["calls"]] == ["per_call"]
    elif "agent=uses_a_tool" in given:  # automatic rewards count as rewards
        assert (diagnosis["rewards"], calls[0][1]) == ([], 0.5)
    elif "agent=takes_no_model" in given:  # it is told what can be done with it
        assert "'baseline' measures it" in diagnosis["findings"][0]["fix"]
        assert "base_url" not in diagnosis["findings"][0]["fix"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "2"], "agl: agl.yaml: train: has 2 tasks; there is no task 2\n"),
        (["agent=god"], "Did you mean 'good'?"),
        (["algorithm.urll=x"], "agl.yaml: algorithm.urll: unknown key. Did you mean 'url'?"),
    ],
)
def test_a_wrong_configuration_is_refused_before_anything_runs(doctor, arguments, message, llm):
    asked = len(llm.requests)
    code, error = doctor(*arguments)
    assert code == 2
    assert message in str(error)
    assert len(llm.requests) == asked


def test_the_text_shows_calls_findings_and_verdict(doctor, agl):
    lines = agl("doctor", "agl.yaml", *in_module(["agent=early_reward"])).out.splitlines()
    assert lines[0] == "rollout    succeeded, mode train: {'q': 'one'}"
    assert lines[1] == "rewards    0.25 (primary), 1 (primary)"
    assert any("final: the last reward of the attempt is 1" in line for line in lines)
    assert lines[-1].startswith("verdict    something can be learned by 'Serves'; calls: 1 A (")


def test_every_reason_and_boundary_has_a_fix():
    assert set(FIXES) == set(get_args(ExclusionReason))
    assert set(FAILURE_FIXES) == set(get_args(Failure.model_fields["boundary"].annotation))


@pytest.mark.parametrize(
    ("agent", "concurrency", "found", "said"),
    [
        ("has_a_global_address", 1, {"calls_mix": "warning"}, "their calls mix"),
        ("has_a_global_address", 8, {"calls_mix": "error"}, "their calls mix"),
        ("slow", 8, {}, "4 rollouts, and each has its own calls"),
    ],
)
def test_calls_that_mix_at_once_are_told_from_others(doctor, agent, concurrency, found, said):
    given = [f"agent={agent}", f"concurrency={concurrency}", "algorithm.type=QueuesAll"]
    code, diagnosis = doctor(*given)
    assert (code, codes(diagnosis)) == ("error" in found.values(), found)
    assert said in diagnosis["at_once"]
    assert all("base_url=llm.endpoint" in one["fix"] for one in diagnosis["findings"])


@pytest.mark.parametrize(
    ("concurrency", "algorithm", "level"),
    [(1, "QueuesAll", "note"), (8, "QueuesAll", "warning"), (1, "Serves", "note")],
)
def test_agent_that_blocks_the_loop_is_found(doctor, concurrency, algorithm, level, monkeypatch):
    monkeypatch.setattr(doctor_trial, "HELD_SECONDS", 1.0)
    given = ["agent=blocking", f"concurrency={concurrency}"]
    code, diagnosis = doctor(*given, f"algorithm.type={algorithm}")
    assert (code, codes(diagnosis)) == (0, {"blocks_loop": level})
    assert "the agent held the event loop for" in diagnosis["findings"][0]["message"]


def test_a_hold_is_measured_where_the_record_has_a_secret_hidden():
    trial = doctor_trial.Trial("grpo", {})
    said = "Executing <Handle AgentCall._run('***')> took 1.5 seconds"
    with doctor_trial._measuring_holds(trial):
        logging.getLogger("asyncio").filter(logging.makeLogRecord({"msg": said}))
    assert trial.held == 1.5


def test_prompt_without_a_placeholder_is_said_by_doctor_and_dry_run(doctor, agl):
    prompt = "resources={p: {type: prompt_template, template: 'Say hello.'}}"
    given = ["agent=ignores_its_prompt", "algorithm=baseline", prompt]
    code, diagnosis = doctor(*given)
    assert (code, codes(diagnosis)) == (0, {"no_calls": "note", "constant_prompt": "note"})
    said = agl("dev", "agl.yaml", *in_module(given), "strategy=shm").out
    assert "warning      every reward is 0, and the prompt 'p' has no placeholder" in said


def test_doctor_without_a_file_looks_at_the_machine(here, agl):
    code, out, _ = agl("doctor", "--json")
    found = json.loads(out)
    assert (code, found["problems"]) == (0, [])
    assert found["packages"]["agl-core"]
    assert found["python"].endswith(f"({sys.executable})")
    lines = agl("doctor").out.splitlines()
    assert lines[-1] == "verdict    all packages load"


def test_hooks_of_a_file_are_told_of_attempts_and_of_no_run(doctor):
    """A trial is no run for the hooks of a file, and its attempts are theirs."""
    hooks = [f"'doctor_agents:{name}'" for name in ("Watches", "Marked", "OnlyRuns")]
    doctor("agent=takes_no_model", "algorithm=baseline", f"hooks=[{', '.join(hooks)}]")
    assert set(sys.modules["doctor_agents"].TOLD) == {"rollout end", "attempt end"}
