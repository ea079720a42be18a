"""What the tests of the examples share."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.interpreter import AGL, python
from tests.models import entry

import agl
import agl_gateway
from agl_adapters import TraceToRows
from agl_records.calls.reader import model_calls
from agl_testing.echo_llm import EchoLLM

EXAMPLES = Path(__file__).parents[2] / "examples"


class Scripts:
    """Modules of the example in use, imported when a test names them: ``scripts.train.main``."""

    def __getattr__(self, name: str) -> Any:
        return import_module(name)


scripts = Scripts()


@dataclass
class Outcome:
    """What the store has of a rollout, and what its model was asked."""

    rollout: agl.Rollout
    spans: list[agl.Span]
    requests: list[dict[str, Any]]

    @property
    def reward(self) -> float | None:
        return agl.find_final_reward(self.spans)


async def play(agent: agl.LitAgent[Any], task: Any, reply: Any, *others: str) -> Outcome:
    """One rollout in mode ``train``, as a runner does it, through a gateway to a scripted model.

    Further names are of models beside ``policy``, which answer alike.
    """
    store = agl.InMemoryLightningStore()
    with EchoLLM(reply) as llm:
        models = [entry(name, llm.url) for name in ("policy", *others)]
        proxy = agl_gateway.LLMProxy(model_list=models, store=store)
        await proxy.start()
        update = await store.add_resources({"main_llm": proxy.as_resource(model="policy")})
        rollout = await store.enqueue_rollout(task, "train", update.resources_id)
        runner = agl.LitAgentRunner(agl.OtelTracer(), max_rollouts=1)
        try:
            with runner.run_context(agent=agent, store=store):
                await runner.iter()
            await proxy.flush()
        finally:
            await proxy.stop()
    (ended,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
    return Outcome(ended, list(await store.query_spans(rollout.rollout_id)), llm.requests)


@contextlib.contextmanager
def memory_store(variables: dict[str, str]) -> Iterator[str]:
    """The address of ``agl store`` in a process of its own."""
    command = [sys.executable, *AGL, "store", "--port", "0", "--backend", "memory"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, env=variables, text=True, **pipes) as store:
        found = (re.search(r"http://\S+:\d+", line) for line in store.stdout)
        try:
            yield next(match[0] for match in found if match)
        finally:
            store.terminate()


def debug_alone(script: Path, reply: Callable[[dict[str, Any]], Any]) -> list[str]:
    """Run an agent's own script against a scripted model; gives the lines that it prints."""
    with EchoLLM(reply) as llm:
        done = run_script(script, OPENAI_BASE_URL=llm.url, AGENT_MODEL="echo")
    return done.stdout.splitlines()


def check_alone(script: Path, reply: Callable[[dict[str, Any]], Any]) -> None:
    """An agent's own script gets the reward 1 for each of its three tasks."""
    assert [line[:2] for line in debug_alone(script, reply)[::2]] == ["1 "] * 3


def calling(expression: str, name: str = "calculate", call_id: str = "call_1") -> dict[str, Any]:
    """A message of a model that calls a calculator."""
    function = {"name": name, "arguments": json.dumps({"expression": expression})}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def text_of(message: dict[str, Any]) -> str:
    """Of a message whose content is a text, or has one as its first part."""
    content = message["content"]
    return content if isinstance(content, str) else content[0]["text"]


async def check_calculation(agent, name, task, answer, expression, reward) -> None:
    """The calculator of an agent is called, and both calls of its model are learned from.

    The model says ``answer``, in which ``{}`` is what the calculator gave.
    """

    def reply(request: dict[str, Any]) -> Any:
        last = request["messages"][-1]
        return answer.format(text_of(last)) if last["role"] == "tool" else calling(expression)

    outcome = await play(agent, task, reply)
    assert (outcome.rollout.status, outcome.reward) == ("succeeded", reward)
    calls = model_calls(outcome.spans)
    assert [call.agent_name for call in calls] == [name] * 2
    assert [tool["function"]["name"] for tool in calls[0].tools or ()] == ["calculate"]
    assert text_of(calls[1].messages[-1]) == ("84" if reward else "72")
    result = TraceToRows().adapt(outcome.spans)
    assert sum(len(row.call_ids) for row in result.rows) == 2
    assert {row.reward for row in result.rows} == {reward}
    assert result.ledger.reasons() == {}


def write_parquet(path: Path, *rows: dict[str, Any]) -> None:
    pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)


def run_script(script, *arguments, code=0, **variables) -> subprocess.CompletedProcess[str]:
    """Run a script of an example, which has to exit with ``code``."""
    done = python(script, *map(str, arguments), env=environment(**variables))
    assert done.returncode == code, done.stderr[-5000:]
    return done


def learned(folder: Path, gain: float = 0.2) -> list[dict[str, Any]]:
    """The steps of a training, which has to account for its calls and to raise the reward.

    Of so many rollouts as the examples have at each end, 0.2 is three standard deviations or more.
    """
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    steps = [step for step in lines if "reward/mean" in step]
    for step in steps:
        left_out = sum(v for k, v in step.items() if k.startswith("calls/excluded/"))
        assert step["calls/total"] == step["calls/trained"] + left_out
    first, last = (sum(s["reward/mean"] for s in part) / 2 for part in (steps[:2], steps[-2:]))
    assert last > first + gain
    return steps


def environment(**variables: str) -> dict[str, str]:
    """For a script as a process: nothing of this machine's keys and addresses."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AGL_", "AZURE_", "CHARTQA_", "OPENAI_", "USE_LLM_PROXY", "VERL_"))
    }
    return {**kept, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **variables}
